"""What does tracing cost: the broker's processor time with it on, as a multiple of that with it off?

Three brokers take the same work in turns: without tracing, with it as it is by default (traces that producers
began are looked for, of which there are none), and with every thousandth message traced here. Processor time
is compared round by round; throughput is told beside it.
"""

from collections.abc import Callable
from contextlib import ExitStack

from . import topics, wire
from .clients import Load
from .metrics_cost import Sample, cpu_ns, middle_half
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter
from .writers import pipelined

SIZE = 100
OFF = "tracing off"
SAMPLED = "1 in 1000 traced"
CONTENDERS = (
    AlpacaMQ(OFF, {"ALPACAMQ_TRACING_ENABLED": "false"}),
    AlpacaMQ(OURS),
    AlpacaMQ(SAMPLED, {"ALPACAMQ_TOPICS_DEFAULTS_TRACE_SAMPLE": "0.001"}),
)
RATIO = "times the CPU without tracing"
COST = "s of server CPU per million messages"
# Of what nobody asked for. What is traced has its price: some 20 microseconds a message.
FLOORS = {OURS: Floor(at_most=1.1)}

# Does the work on a topic of its own at a server: how many messages, in how many seconds.
Work = Callable[[Server, str], tuple[int, float]]


def run(session: Session, report: Report) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(session.server(each)) for each in CONTENDERS]
        for case, work in _cases(session).items():
            _compare(session, report, case, work, servers)


def _cases(session: Session) -> dict[str, Work]:
    seconds = session.scaled(3, 2)
    client = session.clients[-1]
    count = session.scaled(4_000_000, 1_000_000)

    def small(server: Server, topic: str) -> tuple[int, float]:
        request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
        answer_bytes = wire.produce_response_bytes(topic)
        done = pipelined(server.address, request, answer_bytes, connections=4, depth=256, seconds=seconds)
        return done.requests, done.wall_s

    def batches(server: Server, topic: str) -> tuple[int, float]:
        load = Load(topic=topic, partitions=1, size=SIZE, count=count)
        return count, client.produce(server.address, load, "all")

    return {
        f"batches, produced by {client.name}": batches,
        "one message a request, pipelined on 4 connections": small,
    }


def _compare(session: Session, report: Report, case: str, work: Work, servers: list[Server]) -> None:
    samples: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for number in range(session.scaled(12, 4) + 1):
        # Who goes first has the colder caches: they take turns at that, too.
        turn = number % len(servers)
        for server in servers[turn:] + servers[:turn]:
            sample = _sample(session, server, work, f"sample-{number}")
            if number:  # the first round warms up
                samples[server.name].append(sample)
    for name, taken in samples.items():
        usages = [each.usage for each in taken]
        report(case=case, server=name, unit=COST, samples=[each.cost_s for each in taken], usages=usages)
        report(
            case=case,
            server=name,
            unit="messages/s",
            samples=[each.messages / each.seconds for each in taken],
        )
        if name != OFF:
            pairs = zip(taken, samples[OFF], strict=True)
            ratios = [tracing.cost_s / without.cost_s for tracing, without in pairs]
            report(case=case, server=name, unit=RATIO, samples=middle_half(ratios), floor=FLOORS.get(name))


def _sample(session: Session, server: Server, work: Work, topic: str) -> Sample:
    topics.create(server.address, topic, 1)
    session.settle()
    began_ns = cpu_ns(server.pid)
    with Meter(server.pid) as meter:
        messages, seconds = work(server, topic)
    spent_ns = cpu_ns(server.pid) - began_ns
    topics.delete(server.address, topic)
    return Sample(messages, seconds, spent_ns, meter.usage.over(seconds))
