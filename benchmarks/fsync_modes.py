"""What does each durability mode cost: how many acknowledgements a second, and how long is each waited for?

1, 16 and 64 writers on one partition, each with one request of one 100 B record under way.
"""

import os
import time
from array import array
from collections.abc import Mapping
from itertools import product

from . import topics
from .clients import percentile
from .report import Report, counted
from .servers import Server
from .session import Session
from .usage import Meter, Usage
from .writers import one_in_flight

MODES: Mapping[str, Mapping[str, str]] = {
    "fsync every batch": {"flush.messages": "1"},
    "fsync every second": {"flush.ms": "1000"},
    "left to the system": {"flush.ms": str(2**63 - 1)},
}
WRITERS = (1, 16, 64)
SIZE = 100
BARE_SYNCS = 200


def run(session: Session, report: Report) -> None:
    _bare_disk(session, report)
    for contender in session.contenders:
        with session.server(contender) as server:
            topics.create(server.address, "warm-up", 1)
            one_in_flight(server.address, "warm-up", connections=16, size=SIZE, seconds=session.scaled(5, 1))
            for mode, writers in product(MODES, WRITERS):
                _measure(session, report, server, mode, writers)


def _measure(session: Session, report: Report, server: Server, mode: str, writers: int) -> None:
    rates: list[float] = []
    latencies: list[array[int]] = []
    usages: list[Usage] = []
    for sample in range(session.repeats):
        topic = f"{mode.replace(' ', '-')}-{writers}-{sample}"
        topics.create(server.address, topic, 1, MODES[mode])
        session.settle()
        with Meter(server.pid) as meter:
            done = one_in_flight(
                server.address, topic, connections=writers, size=SIZE, seconds=session.scaled(2, 1)
            )
        topics.delete(server.address, topic)
        rates.append(done.per_second)
        latencies.append(done.latencies_ns)
        usages.append(meter.usage)
    case = f"{mode}, {counted(writers, 'writer')}"
    report(case=case, server=server.name, unit="acks/s", samples=rates, usages=usages)
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        waits_ms = [percentile(each, share) / 1e6 for each in latencies]
        report(case=f"{case}, {name}", server=server.name, unit="ms", samples=waits_ms)


def _bare_disk(session: Session, report: Report) -> None:
    """Measure the disk itself, the lower limit for every server."""
    waits = array("q")
    path = session.directory / "bare"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for index in range(BARE_SYNCS):
            os.pwrite(descriptor, bytes(4096), index * 4096)
            began_ns = time.monotonic_ns()
            os.fdatasync(descriptor)
            waits.append(time.monotonic_ns() - began_ns)
    finally:
        os.close(descriptor)
        path.unlink()
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        waits_ms = [percentile(waits, share) / 1e6]
        report(case=f"fdatasync after writing 4 KiB, {name}", server="the disk", unit="ms", samples=waits_ms)
