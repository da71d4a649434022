"""What does tracing cost: the broker's processor time with it on, as a multiple of that with it off?

Three brokers do the same work in turns: without tracing, with the default (traces that producers began are
looked for; there are none), and with every thousandth message traced. Processor time is compared round by
round; throughput is reported as well.
"""

from contextlib import ExitStack

from .report import OURS, Floor, Report
from .server_cost import COST, Sample, Work, batches, middle_half, sample, small
from .servers import AlpacaMQ, Server
from .session import Session

OFF = "tracing off"
SAMPLED = "1 in 1000 traced"
CONTENDERS = (
    AlpacaMQ(OFF, {"ALPACAMQ_TRACING_ENABLED": "false"}),
    AlpacaMQ(OURS),
    AlpacaMQ(SAMPLED, {"ALPACAMQ_TOPICS_DEFAULTS_TRACE_SAMPLE": "0.001"}),
)
RATIO = "times the CPU without tracing"
# The limit for messages that are not traced. A traced message costs some 20 microseconds.
FLOORS = {OURS: Floor(at_most=1.1)}


def run(session: Session, report: Report) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(session.server(each)) for each in CONTENDERS]
        for case, work in _cases(session).items():
            _compare(session, report, case, work, servers)


def _cases(session: Session) -> dict[str, Work]:
    return {
        f"batches, produced by {session.clients[-1].name}": batches(session),
        "one message a request, pipelined on 4 connections": small(session),
    }


def _compare(session: Session, report: Report, case: str, work: Work, servers: list[Server]) -> None:
    samples: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for number in range(session.scaled(12, 4) + 1):
        # The first one has colder caches: take turns at that, too.
        turn = number % len(servers)
        for server in servers[turn:] + servers[:turn]:
            taken = sample(session, server, work, f"sample-{number}")
            if number:  # the first round warms up
                samples[server.name].append(taken)
    for name, all_taken in samples.items():
        usages = [each.usage for each in all_taken]
        report(case=case, server=name, unit=COST, samples=[each.cost_s for each in all_taken], usages=usages)
        report(
            case=case,
            server=name,
            unit="messages/s",
            samples=[each.messages / each.seconds for each in all_taken],
        )
        if name != OFF:
            pairs = zip(all_taken, samples[OFF], strict=True)
            ratios = [tracing.cost_s / without.cost_s for tracing, without in pairs]
            report(case=case, server=name, unit=RATIO, samples=middle_half(ratios), floor=FLOORS.get(name))
