"""How long does alpacactl take with 5,000 topics and 10,000 groups?

Each sample is one command from start to end. The cost is the CPU time of the broker and of the command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from . import commits, wire
from .machine import REPOSITORY
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage

TOPICS, GROUPS, CREATED = 5_000, 10_000, 1_000
QUICK_TOPICS, QUICK_GROUPS, QUICK_CREATED = 200, 400, 50
# Topics of one command line.
AT_ONCE = 1_000
WITHIN_S = 600
LIST_FLOOR = Floor(at_most=1.0)
CREATE_FLOOR = Floor(at_most=1.0)
SETTINGS = {"ALPACAMQ_TOPICS_MAX_PARTITIONS": "40000"}
LISTS: Mapping[str, Sequence[str]] = {
    "topics list": ("topics", "list", "-o", "json"),
    "groups list": ("groups", "list", "-o", "json"),
    "groups lag": ("groups", "lag", "-o", "json"),
}


def run(session: Session, report: Report) -> None:
    quick = session.is_quick
    topics, groups = (QUICK_TOPICS, QUICK_GROUPS) if quick else (TOPICS, GROUPS)
    created = QUICK_CREATED if quick else CREATED
    server = AlpacaMQ(settings=SETTINGS).start(session.new_directory())
    try:
        fill(server, topics, groups)
        _lists(session, report, server, {"topics list": topics, "groups list": groups, "groups lag": groups})
        _changes(session, report, server, created, None if quick else CREATE_FLOOR)
    finally:
        server.stop()


def fill(server: Server, topics: int, groups: int) -> None:
    """Make topics, and groups with an offset in one topic each."""
    names = [f"topic-{number:05}" for number in range(topics)]
    for start in range(0, topics, AT_ONCE):
        _command(server, "topics", "create", *names[start : start + AT_ONCE], "--partitions", "1")
    pairs = [(f"group-{number:05}", names[number % topics]) for number in range(groups)]
    # The first request also waits for the coordinator.
    commits.commit(server.address, *pairs[0], {0: 0}, WITHIN_S)
    with wire.connect(server.address) as connection:
        for group, topic in pairs:
            connection.sendall(commits.commit_request(group, topic, {0: 0}))
            not_yet = commits.check_commit(wire.receive(connection))
            assert not not_yet, not_yet


def _lists(session: Session, report: Report, server: Server, expected: Mapping[str, int]) -> None:
    for case, words in LISTS.items():
        usages = []
        for _ in range(session.repeats):
            session.settle()
            with Meter(server.pid) as meter:
                printed = _command(server, *words)
            usages.append(meter.usage)
            assert len(json.loads(printed)) == expected[case], case
        floor = None if session.is_quick else LIST_FLOOR
        _report(report, f"{case}, {expected[case]:,}", usages, floor)


def _changes(session: Session, report: Report, server: Server, count: int, floor: Floor | None) -> None:
    making, deleting = [], []
    for sample in range(session.repeats):
        names = [f"made-{sample}-{number:04}" for number in range(count)]
        session.settle()
        with Meter(server.pid) as meter:
            _command(server, "topics", "create", *names, "--partitions", "1")
        making.append(meter.usage)
        session.settle()
        with Meter(server.pid) as meter:
            _command(server, "topics", "delete", *names, "--yes")
        deleting.append(meter.usage)
    _report(report, f"topics create, {count:,}", making, floor)
    _report(report, f"topics delete, {count:,}, beside the groups", deleting, None)


def _report(report: Report, case: str, usages: Sequence[Usage], floor: Floor | None) -> None:
    samples = [usage.wall_s for usage in usages]
    report(case=case, server=OURS, unit="s", samples=samples, usages=usages, floor=floor)
    client = [usage.client_cpu_s for usage in usages]
    report(case=case, server=OURS, unit="s of CPU of the command", samples=client)


def _command(server: Server, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "alpacamq.cli.main", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            "ALPACACTL_BROKER": server.address,
            "ALPACACTL_HTTP": server.addresses["http"],
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=WITHIN_S,
    )
    return done.stdout
