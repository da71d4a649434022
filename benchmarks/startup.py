"""How long does the broker take from its start to its first answer, and what does that cost?

With an empty data directory, and with 2,000 partitions after a clean stop.
"""

import os
import shutil

import psutil

from . import topics
from .report import OURS, Floor, Report
from .servers import Contender
from .session import Session
from .usage import MIB

TOPICS = 20
PARTITIONS = 100
EMPTY_FLOOR = Floor(at_most=1.0)
MEMORY_FLOOR = Floor(at_most=300.0)


def run(session: Session, report: Report) -> None:
    for contender in session.contenders:
        _empty(session, report, contender)
    # Ours only: a peer that maps two index files for each partition would be measured for that.
    _many_partitions(session, report, session.contenders[0])


def _empty(session: Session, report: Report, contender: Contender) -> None:
    times_s: list[float] = []
    spent_s: list[float] = []
    resident: list[float] = []
    for _ in range(session.scaled(5, 2)):
        session.settle()
        with session.server(contender) as server:
            times_s.append(server.started_in_s)
            spent_s.append(_cpu_s(server.pid))
            resident.append(_resident_mib(server.pid))
            server.stop()
    floor = EMPTY_FLOOR if contender.name == OURS else None
    case = "empty data directory"
    report(case=case, server=contender.name, unit="s", samples=times_s, floor=floor)
    report(case=case, server=contender.name, unit="s of server CPU", samples=spent_s)
    report(case=case, server=contender.name, unit="MiB resident", samples=resident)


def _many_partitions(session: Session, report: Report, contender: Contender) -> None:
    directory = session.new_directory()
    times_s: list[float] = []
    resident: list[float] = []
    try:
        server = contender.start(directory)
        try:
            for number in range(TOPICS):
                topics.create(server.address, f"topic-{number}", PARTITIONS)
            server.stop()
            for _ in range(session.repeats):
                os.sync()
                session.settle()
                server = contender.start(directory)
                times_s.append(server.started_in_s)
                resident.append(_resident_mib(server.pid))
                server.stop()
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)
    case = f"{TOPICS * PARTITIONS:,} partitions, after a clean stop"
    report(case=case, server=contender.name, unit="s", samples=times_s)
    report(case=case, server=contender.name, unit="MiB resident", samples=resident, floor=MEMORY_FLOOR)


def _cpu_s(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


def _resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
