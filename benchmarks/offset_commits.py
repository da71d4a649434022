"""How many offset commits a second does the broker acknowledge, and what does each cost it?

Prebuilt OffsetCommit requests of one partition from raw sockets, for a group without members: on 1 connection
and on 16 that each wait for their answer, and pipelined on 4. A commit is acknowledged when it is in the
coordinator's log.
"""

from . import commits, topics, wire
from .report import Report
from .servers import START_S, Server
from .session import Session
from .usage import Meter, Usage
from .writers import pipelined

TOPIC, GROUP = "read", "readers"
OFFSET = 12_345
DEPTH = 256
# Connections, and requests under way on each.
CASES = {
    "1 connection, one in flight": (1, 1),
    "16 connections, one in flight on each": (16, 1),
    "pipelined on 4 connections": (4, DEPTH),
}


def run(session: Session, report: Report) -> None:
    report.settings["pipelined"] = {"connections": 4, "requests under way on each": DEPTH}
    for contender in session.contenders:
        with session.server(contender) as server:
            topics.create(server.address, TOPIC, 1)
            for case, (connections, depth) in CASES.items():
                _measure(session, report, server, case, connections, depth)


def _measure(
    session: Session, report: Report, server: Server, case: str, connections: int, depth: int
) -> None:
    rates: list[float] = []
    costs_us: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        group = f"{GROUP}-{connections}-{sample}"
        answer_bytes = commits.commit(server.address, group, TOPIC, {0: 1}, START_S)
        request = commits.commit_request(group, TOPIC, {0: OFFSET})
        session.settle()
        with Meter(server.pid) as meter:
            done = pipelined(
                server.address,
                request,
                answer_bytes,
                connections=connections,
                depth=depth,
                seconds=session.scaled(3, 1),
            )
        with wire.connect(server.address) as connection:
            assert commits.committed(connection, group, TOPIC, [0], START_S) == [OFFSET]
        if sample:  # the first one warms up
            rates.append(done.per_second)
            costs_us.append(meter.usage.server_cpu_s / done.requests * 1e6)
            usages.append(meter.usage)
    report(case=case, server=server.name, unit="commits/s", samples=rates, usages=usages)
    report(case=case, server=server.name, unit="µs of server CPU per commit", samples=costs_us)
