"""How many requests of one record does the broker answer, and what does each cost it?

Prebuilt requests from raw sockets, 100 B, acks=1: pipelined on 4 connections, and on 16 that each wait for
their answer.
"""

from collections.abc import Callable

from . import topics, wire
from .report import Report
from .servers import Server
from .session import Session
from .usage import Meter, Usage
from .writers import Acknowledged, one_in_flight, pipelined

SIZE = 100
DEPTH = 256


def run(session: Session, report: Report) -> None:
    report.settings["pipelined"] = {"connections": 4, "requests under way on each": DEPTH}
    for contender in session.contenders:
        with session.server(contender) as server:
            _measure(session, report, server, "pipelined on 4 connections", _pipelined)
            _measure(session, report, server, "16 connections, one in flight on each", _waiting)


def _pipelined(address: str, topic: str, seconds: float) -> Acknowledged:
    request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
    answer_bytes = wire.produce_response_bytes(topic)
    return pipelined(address, request, answer_bytes, connections=4, depth=DEPTH, seconds=seconds)


def _waiting(address: str, topic: str, seconds: float) -> Acknowledged:
    return one_in_flight(address, topic, connections=16, size=SIZE, seconds=seconds)


def _measure(
    session: Session,
    report: Report,
    server: Server,
    case: str,
    send: Callable[[str, str, float], Acknowledged],
) -> None:
    rates: list[float] = []
    costs_us: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        topic = f"{send.__name__.strip('_')}-{sample}"
        topics.create(server.address, topic, 1)
        session.settle()
        with Meter(server.pid) as meter:
            done = send(server.address, topic, session.scaled(3, 1))
        written = topics.record_count(server.address, topic, 1)
        assert written == done.requests, f"{written} of {done.requests} records are there"
        topics.delete(server.address, topic)
        if sample:  # the first one warms up
            rates.append(done.per_second)
            costs_us.append(meter.usage.server_cpu_s / done.requests * 1e6)
            usages.append(meter.usage)
    report(case=case, server=server.name, unit="requests/s", samples=rates, usages=usages)
    report(case=case, server=server.name, unit="µs of server CPU per request", samples=costs_us)
