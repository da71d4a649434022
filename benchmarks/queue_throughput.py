"""How many messages a second can several consumers receive and acknowledge?

100 B messages, a backlog to begin with. Over SQS against ElasticMQ, which keeps its queues in memory, with
the same requests, ten at a time; over HTTP, ten at a time, and over gRPC, by streams, with Redis streams and
a consumer group beside them for scale: the work is the same, the requests are not.
"""

import time
from collections.abc import Callable, Sequence

from . import grpc_load, http_load, redis_streams
from .elasticmq import elasticmq
from .jars import Unavailable
from .redis_streams import redis_streams as redis
from .report import Report
from .servers import AlpacaMQ, Contender, Server
from .session import Session
from .sqs_load import SqsQueue
from .usage import Meter, Usage

SIZE = 100
CONSUMERS = 8
BODY = "x" * SIZE
_CASE = f"{CONSUMERS} consumers"

# Makes a queue with that many messages and returns what receives and acknowledges them all.
Prepare = Callable[[Server, str, int], Callable[[], None]]


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE, "messages a request": 10, "consumers": CONSUMERS}
    _compare(
        session, report, "SQS", [AlpacaMQ(), *_peers(report, elasticmq)], _sqs, session.scaled(60_000, 2_000)
    )
    _compare(session, report, "HTTP", [AlpacaMQ()], _http, session.scaled(100_000, 2_000))
    _compare(session, report, "gRPC", [AlpacaMQ()], _grpc, session.scaled(200_000, 2_000))
    _compare(session, report, "Redis", _peers(report, redis), _redis, session.scaled(200_000, 2_000))


def _peers(report: Report, find: Callable[[], Contender]) -> Sequence[Contender]:
    try:
        return [find()]
    except Unavailable as error:
        report.skip(find.__name__, str(error))
        return []


def _compare(
    session: Session,
    report: Report,
    api: str,
    contenders: Sequence[Contender],
    prepare: Prepare,
    messages: int,
) -> None:
    for contender in contenders:
        with session.server(contender) as server:
            rates: list[float] = []
            usages: list[Usage] = []
            for sample in range(session.repeats + 1):
                drain = prepare(server, f"bench-{sample}", messages)
                session.settle()
                with Meter(server.pid) as meter:
                    began_at = time.monotonic()
                    drain()
                    seconds = time.monotonic() - began_at
                if sample:  # the first one warms up
                    rates.append(messages / seconds)
                    usages.append(meter.usage)
            report(
                case=f"{api}: receive and acknowledge, {_CASE}",
                server=server.name,
                unit="messages/s",
                samples=rates,
                usages=usages,
            )


def _sqs(server: Server, name: str, messages: int) -> Callable[[], None]:
    queue = SqsQueue(server.addresses.get("sqs", server.address), name)
    queue.create()
    queue.fill(messages, BODY, CONSUMERS)
    return lambda: queue.drain(messages, CONSUMERS)


def _http(server: Server, name: str, messages: int) -> Callable[[], None]:
    address = server.addresses["http"]
    http_load.fill(address, name, messages, BODY)
    return lambda: http_load.drain(address, name, messages, CONSUMERS)


def _grpc(server: Server, name: str, messages: int) -> Callable[[], None]:
    http_load.fill(server.addresses["http"], name, messages, BODY)
    return lambda: grpc_load.drain(server.addresses["grpc"], name, messages, CONSUMERS)


def _redis(server: Server, _name: str, messages: int) -> Callable[[], None]:
    redis_streams.fill(server.address, messages, BODY.encode())
    return lambda: redis_streams.drain(server.address, messages, CONSUMERS)
