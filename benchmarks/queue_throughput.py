"""How many messages a second can several consumers receive and acknowledge, and what does each cost?

100 B messages, a backlog to begin with, 8 consumers. By requests of ten and of a hundred, each of which
acknowledges what the one before has received: HTTP with JSON, against NATS JetStream and Redis streams with
their own protocols; SQS, which has no such request, against ElasticMQ, which keeps its queues in memory. By
streams of messages: gRPC against RabbitMQ, with as many in flight on each as are acknowledged together, and
with more. All clients are raw connections, so that the server is the limit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from . import queue_apis
from .queue_apis import CONSUMERS, SIZE, Find, QueueApi, compare
from .report import OURS, Floor, Measurement, Report
from .servers import Server
from .session import Session
from .usage import Meter, Usage

RATE = "messages/s"
COST = "µs of server CPU per message"
BY_REQUESTS = (queue_apis.http, queue_apis.nats_peer, queue_apis.redis_peer)
BY_STREAMS = (queue_apis.grpc, queue_apis.classic_peer, queue_apis.quorum_peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The same work for several servers."""

    name: str
    apis: Sequence[Find]
    batch: int
    credit: int
    # For about two seconds of ours and of a peer.
    messages: int
    messages_of_peers: int


SQS = Case(
    name="SQS, by 10",
    apis=(queue_apis.sqs, queue_apis.sqs_peer),
    batch=10,
    credit=10,
    messages=30_000,
    messages_of_peers=30_000,
)
REQUESTS = Case(
    name="requests, by 10",
    apis=BY_REQUESTS,
    batch=10,
    credit=10,
    messages=50_000,
    messages_of_peers=150_000,
)
HUNDREDS = Case(
    name="requests, by 100",
    apis=BY_REQUESTS,
    batch=100,
    credit=100,
    messages=100_000,
    messages_of_peers=300_000,
)
STREAMS = Case(
    name="streams, by 10",
    apis=BY_STREAMS,
    batch=10,
    credit=10,
    messages=50_000,
    messages_of_peers=30_000,
)
AHEAD = Case(
    name="streams, by 10, 200 in flight",
    apis=BY_STREAMS,
    batch=10,
    credit=200,
    messages=100_000,
    messages_of_peers=30_000,
)
# What ours should be of a peer, whose work may be another case.
GOALS = (
    (SQS, "ElasticMQ", SQS, Floor(at_least=3)),
    (REQUESTS, "NATS", REQUESTS, Floor(at_least=1)),
    (REQUESTS, "Redis", REQUESTS, Floor(at_least=0.6)),
    (STREAMS, "Redis", REQUESTS, Floor(at_least=1)),
    (AHEAD, "Redis", REQUESTS, Floor(at_least=1)),
)


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE, "consumers": CONSUMERS}
    for case in (SQS, REQUESTS, HUNDREDS, STREAMS, AHEAD):
        compare(session, report, case.apis, partial(_measure, session, report, case))
    for case, peer, of, floor in GOALS:
        _report_goal(report, case, peer, of, floor)


def _measure(session: Session, report: Report, case: Case, api: QueueApi, server: Server) -> None:
    messages = session.scaled(case.messages if server.name == OURS else case.messages_of_peers, 2_000)
    rates: list[float] = []
    costs_us: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        queue = api.create(server, f"bench-{sample}")
        queue.fill(messages)
        session.settle()
        with Meter(server.pid) as meter:
            began_at = time.monotonic()
            queue.drain(messages, case.batch, case.credit)
            seconds = time.monotonic() - began_at
        if sample:  # the first one warms up
            rates.append(messages / seconds)
            costs_us.append(meter.usage.server_cpu_s / messages * 1e6)
            usages.append(meter.usage)
    report(case=case.name, server=server.name, unit=RATE, samples=rates, usages=usages)
    report(case=case.name, server=server.name, unit=COST, samples=costs_us)


def _report_goal(report: Report, case: Case, peer: str, of: Case, floor: Floor) -> None:
    ours = _rate(report, case, OURS)
    theirs = _rate(report, of, peer)
    if ours is not None and theirs is not None:
        unit = f"times the {RATE} of {theirs.server}, {of.name}"
        report(case=case.name, server=OURS, unit=unit, samples=[ours.median / theirs.median], floor=floor)


def _rate(report: Report, case: Case, server: str) -> Measurement | None:
    return next(
        (
            each
            for each in report.measurements
            if (each.case, each.unit) == (case.name, RATE) and each.server.startswith(server)
        ),
        None,
    )
