"""How long after its start does a broker with a million offset commits in its log answer for every group?

After a kill -9. The million commits are for ten thousand partitions, each committed repeatedly, or for a
million partitions; with the coordinators' snapshots, and without them, so that the whole log is read.
Measured from the start of the process until every group has answered an OffsetFetch.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import commits, topics, wire
from .report import OURS, Report
from .servers import START_S, Contender
from .session import Session
from .usage import MIB

TOPIC = "read"
PARTITIONS = 1_000
# Our server's snapshots, below its data directory.
SNAPSHOTS = Path("data") / "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """A number of groups that commit all partitions a number of times."""

    groups: int
    times: int

    @property
    def count(self) -> int:
        return self.groups * self.times * PARTITIONS

    def __str__(self) -> str:
        return f"{self.count:,} commits of {self.groups * PARTITIONS:,} partitions"


def run(session: Session, report: Report) -> None:
    thousands = session.scaled(1_000, 50)
    for contender in session.contenders:
        for done in (Commits(groups=10, times=thousands // 10), Commits(groups=thousands, times=1)):
            _measure(session, report, contender, done)


def _measure(session: Session, report: Report, contender: Contender, done: Commits) -> None:
    directory = session.new_directory()
    try:
        server = contender.start(directory)
        try:
            topics.create(server.address, TOPIC, PARTITIONS)
            _commit(server.address, done)
        finally:
            server.kill()
        starts = [_start(session, contender, directory, done) for _ in range(session.repeats)]
        _report(report, contender, str(done), starts)
        # The peer's own files are left alone.
        if contender.name == OURS:
            starts = []
            for _ in range(session.repeats):
                shutil.rmtree(directory / SNAPSHOTS)
                starts.append(_start(session, contender, directory, done))
            _report(report, contender, f"{done}, snapshots removed", starts)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _commit(address: str, done: Commits) -> None:
    """Commit group after group, a thousand partitions per request."""
    for number in range(done.groups):
        # The first request also waits for the coordinator.
        commits.commit(address, _group(number), TOPIC, dict.fromkeys(range(PARTITIONS), 0), START_S)
    with wire.connect(address) as connection:
        for time_ in range(1, done.times):
            for number in range(done.groups):
                offsets = dict.fromkeys(range(PARTITIONS), time_)
                connection.sendall(commits.commit_request(_group(number), TOPIC, offsets))
                not_yet = commits.check_commit(wire.receive(connection))
                assert not not_yet, not_yet


def _start(session: Session, contender: Contender, directory: Path, done: Commits) -> tuple[float, float]:
    """Return seconds until every group has answered, and the memory used; kills the server again."""
    session.settle()
    began_at = time.monotonic()
    server = contender.start(directory)
    try:
        with wire.connect(server.address) as connection:
            for number in range(done.groups):
                found = commits.committed(connection, _group(number), TOPIC, [0, PARTITIONS - 1], START_S)
                assert found == [done.times - 1] * 2, found
        took_s = time.monotonic() - began_at
        return took_s, psutil.Process(server.pid).memory_info().rss / MIB
    finally:
        server.kill()


def _report(report: Report, contender: Contender, case: str, starts: list[tuple[float, float]]) -> None:
    times_s, resident_mib = zip(*starts, strict=True)
    report(case=case, server=contender.name, unit="s", samples=times_s)
    report(case=case, server=contender.name, unit="MiB resident", samples=resident_mib)


def _group(number: int) -> str:
    return f"group-{number}"
