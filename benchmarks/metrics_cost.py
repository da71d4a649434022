"""What does counting cost: the broker's processor time with metrics on, as a multiple of that with them off?

Two brokers that differ in `metrics.enabled` take the same work in turns, so that what else the machine does
meets both. Processor time is compared, pair by pair: it is steadier than throughput, which is told beside it.
Requests of one record show the cost at its largest; batches are what clients send. A few additions a write,
which the broker makes in either case, are not in it.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from . import topics, wire
from .clients import Load
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage
from .writers import one_in_flight, pipelined

SIZE = 100
OFF = "metrics off"
FLOOR = Floor(at_most=1.03)
RATIO = "times the CPU without metrics"
COST = "s of server CPU per million messages"


class Sample(NamedTuple):
    """One stretch of work."""

    messages: int
    seconds: float
    servercpu_ns: int
    usage: Usage

    @property
    def cost_s(self) -> float:
        return self.servercpu_ns / self.messages / 1000


# Does the work on a topic of its own at a server: how many messages, in how many seconds.
Work = Callable[[Server, str], tuple[int, float]]


def run(session: Session, report: Report) -> None:
    with (
        session.server(AlpacaMQ()) as on,
        session.server(AlpacaMQ(OFF, {"ALPACAMQ_METRICS_ENABLED": "false"})) as off,
    ):
        for case, work in _cases(session).items():
            _compare(session, report, case, work, on, off)


def _cases(session: Session) -> dict[str, Work]:
    seconds = session.scaled(3, 2)
    client = session.clients[-1]
    count = session.scaled(4_000_000, 1_000_000)

    def small_pipelined(server: Server, topic: str) -> tuple[int, float]:
        request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
        answer_bytes = wire.produce_response_bytes(topic)
        done = pipelined(server.address, request, answer_bytes, connections=4, depth=256, seconds=seconds)
        return done.requests, done.wall_s

    def small_awaited(server: Server, topic: str) -> tuple[int, float]:
        done = one_in_flight(server.address, topic, connections=16, size=SIZE, seconds=seconds)
        return done.requests, done.wall_s

    def produced(server: Server, topic: str) -> tuple[int, float]:
        load = Load(topic=topic, partitions=1, size=SIZE, count=count)
        return count, client.produce(server.address, load, "all")

    def fetched(server: Server, topic: str) -> tuple[int, float]:
        load = Load(topic=topic, partitions=1, size=SIZE, count=count)
        client.produce(server.address, load, "all")
        return count, client.fetch(server.address, load)

    return {
        "one message a request, pipelined on 4 connections": small_pipelined,
        "one message a request, 16 connections that wait": small_awaited,
        f"batches, produced by {client.name}": produced,
        f"batches, produced and fetched by {client.name}": fetched,
    }


def _compare(session: Session, report: Report, case: str, work: Work, on: Server, off: Server) -> None:
    samples: dict[str, list[Sample]] = {OURS: [], OFF: []}
    pairs = session.scaled(15, 5)
    for number in range(pairs + 1):
        # Who goes first has the colder caches: they take turns at that, too.
        for server in (on, off) if number % 2 else (off, on):
            sample = _sample(session, server, work, f"sample-{number}")
            if number:  # the first pair warms up
                samples[server.name].append(sample)
    pairwise = zip(samples[OURS], samples[OFF], strict=True)
    ratios = [counting.cost_s / without.cost_s for counting, without in pairwise]
    report(case=case, server=OURS, unit=RATIO, samples=middle_half(ratios), floor=FLOOR)
    for name, taken in samples.items():
        usages = [each.usage for each in taken]
        report(case=case, server=name, unit=COST, samples=[each.cost_s for each in taken], usages=usages)
        rates = [each.messages / each.seconds for each in taken]
        report(case=case, server=name, unit="messages/s", samples=rates)


def _sample(session: Session, server: Server, work: Work, topic: str) -> Sample:
    topics.create(server.address, topic, 1)
    session.settle()
    began_ns = cpu_ns(server.pid)
    with Meter(server.pid) as meter:
        messages, seconds = work(server, topic)
    spent_ns = cpu_ns(server.pid) - began_ns
    topics.delete(server.address, topic)
    return Sample(messages, seconds, spent_ns, meter.usage.over(seconds))


def cpu_ns(pid: int) -> int:
    """Processor time of a process whose threads do not end, to the nanosecond: it is about a few per cent."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def middle_half(ratios: list[float]) -> list[float]:
    """Without the quarter at either end: a neighbour's burst meets one side of a pair only."""
    quarter = len(ratios) // 4
    kept = sorted(ratios)[quarter : len(ratios) - quarter]
    assert median(kept) == median(ratios)
    return kept
