"""How many messages a second do producers publish into a queue, and what does each cost?

100 B messages, each acknowledged: one a request on 1, 16 and 64 connections that wait for their answers, and
a thousand together. HTTP with JSON, against RabbitMQ with confirms, NATS JetStream and Redis streams with
their own protocols; SQS against ElasticMQ. All clients are raw connections, so that the server is the limit.
"""

import time
from functools import partial

from . import queue_apis
from .dialogue import Turns
from .queue_apis import SIZE, Queue, QueueApi, compare
from .report import OURS, Floor, Report, counted
from .servers import Server
from .session import Session
from .usage import Meter, Usage

APIS = (
    queue_apis.http,
    queue_apis.nats_peer,
    queue_apis.redis_peer,
    queue_apis.classic_peer,
    queue_apis.quorum_peer,
)
SQS_APIS = (queue_apis.sqs, queue_apis.sqs_peer)
# Connections, and messages a request.
LOADS = ((1, 1), (16, 1), (64, 1), (1, 1_000))
SQS_LOADS = ((16, 1), (16, 10))
GOALS = {(16, 1): Floor(at_most=40.0), (1, 1_000): Floor(at_most=3.0)}


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE}
    compare(session, report, APIS, partial(_run, session, report, LOADS, ""))
    compare(session, report, SQS_APIS, partial(_run, session, report, SQS_LOADS, "SQS, "))


def _run(
    session: Session,
    report: Report,
    loads: tuple[tuple[int, int], ...],
    api_name: str,
    api: QueueApi,
    server: Server,
) -> None:
    for connections, batch in loads:
        case = f"{api_name}{counted(batch, 'message')} a request, {counted(connections, 'connection')}"
        queue = api.create(server, f"publish-{connections}-{batch}")
        floor = GOALS.get((connections, batch)) if server.name == OURS and not api_name else None
        _measure(session, report, server, case, queue, connections, batch, floor)


def _measure(
    session: Session,
    report: Report,
    server: Server,
    case: str,
    queue: Queue,
    connections: int,
    batch: int,
    floor: Floor | None,
) -> None:
    rates: list[float] = []
    costs_us: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        session.settle()
        with Meter(server.pid) as meter:
            began_at = time.monotonic()
            turns = Turns(seconds=session.scaled(2, 1) if sample else 1)
            queue.publish(turns, connections=connections, batch=batch)
            seconds = time.monotonic() - began_at
        messages = turns.taken * batch
        if sample:  # the first one warms up
            rates.append(messages / seconds)
            costs_us.append(meter.usage.server_cpu_s / messages * 1e6)
            usages.append(meter.usage)
    report(case=case, server=server.name, unit="messages/s", samples=rates, usages=usages)
    unit = "µs of server CPU per message"
    report(case=case, server=server.name, unit=unit, samples=costs_us, floor=floor)
