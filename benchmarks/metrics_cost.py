"""What does counting cost: the broker's processor time with metrics on, as a multiple of that with them off?

Two brokers that differ in `metrics.enabled` do the same work in turns, so that other load on the machine
affects both. Processor time is compared pair by pair: it is steadier than throughput, which is reported
as well. Requests of one record show the cost at its largest; clients send batches. A few additions per
write, which the broker makes in either case, are not included.
"""

from .report import OURS, Floor, Report
from .server_cost import (
    COST,
    SIZE,
    Sample,
    Work,
    batch_load,
    batches,
    middle_half,
    sample,
    seconds_of_small,
    small,
)
from .servers import AlpacaMQ, Server
from .session import Session
from .writers import one_in_flight

OFF = "metrics off"
FLOOR = Floor(at_most=1.03)
RATIO = "times the CPU without metrics"


def run(session: Session, report: Report) -> None:
    with (
        session.server(AlpacaMQ()) as on,
        session.server(AlpacaMQ(OFF, {"ALPACAMQ_METRICS_ENABLED": "false"})) as off,
    ):
        for case, work in _cases(session).items():
            _compare(session, report, case, work, on, off)


def _cases(session: Session) -> dict[str, Work]:
    client = session.clients[-1]

    def awaited(server: Server, topic: str) -> tuple[int, float]:
        seconds = seconds_of_small(session)
        done = one_in_flight(server.address, topic, connections=16, size=SIZE, seconds=seconds)
        return done.requests, done.wall_s

    def fetched(server: Server, topic: str) -> tuple[int, float]:
        load = batch_load(session, topic)
        client.produce(server.address, load, "all")
        return load.count, client.fetch(server.address, load)

    return {
        "one message a request, pipelined on 4 connections": small(session),
        "one message a request, 16 connections that wait": awaited,
        f"batches, produced by {client.name}": batches(session),
        f"batches, produced and fetched by {client.name}": fetched,
    }


def _compare(session: Session, report: Report, case: str, work: Work, on: Server, off: Server) -> None:
    samples: dict[str, list[Sample]] = {OURS: [], OFF: []}
    pairs = session.scaled(15, 5)
    for number in range(pairs + 1):
        # The first one has colder caches: take turns at that, too.
        for server in (on, off) if number % 2 else (off, on):
            taken = sample(session, server, work, f"sample-{number}")
            if number:  # the first pair warms up
                samples[server.name].append(taken)
    pairwise = zip(samples[OURS], samples[OFF], strict=True)
    ratios = [counting.cost_s / without.cost_s for counting, without in pairwise]
    report(case=case, server=OURS, unit=RATIO, samples=middle_half(ratios), floor=FLOOR)
    for name, all_taken in samples.items():
        usages = [each.usage for each in all_taken]
        report(case=case, server=name, unit=COST, samples=[each.cost_s for each in all_taken], usages=usages)
        rates = [each.messages / each.seconds for each in all_taken]
        report(case=case, server=name, unit="messages/s", samples=rates)
