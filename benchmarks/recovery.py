"""How long after a crash does a broker with a 1 GiB log answer again, and how long after a clean stop?

One partition of 1 KiB records. kill -9 comes right after the last acknowledgement; the start that follows is
timed until the partition is served again with every acknowledged record.
"""

import shutil
import time
from collections.abc import Mapping

from . import topics, wire
from .clients import Load
from .report import OURS, Report
from .servers import START_S, Contender
from .session import Session

SIZE = 1024
_LATEST = -1
_ASK_AGAIN_S = 0.01
MODES: Mapping[str, Mapping[str, str]] = {
    "fsync every second": {"flush.ms": "1000"},
    "left to the system": {"flush.ms": str(2**63 - 1)},
}


def run(session: Session, report: Report) -> None:
    for contender in session.contenders:
        for mode, config in MODES.items():
            # The peer's own default is the second mode, and a gigabyte takes it long enough once.
            if contender.name == OURS or mode == "left to the system":
                _measure(session, report, contender, mode, config)


def _measure(
    session: Session, report: Report, contender: Contender, mode: str, config: Mapping[str, str]
) -> None:
    mib = session.scaled(1024, 128)
    load = Load(topic="recovered", partitions=1, size=SIZE, count=mib << 10)
    after_crash_s: list[float] = []
    after_stop_s: list[float] = []
    for _ in range(session.repeats):
        session.settle()
        directory = session.new_directory()
        server = contender.start(directory)
        try:
            topics.create(server.address, load.topic, load.partitions, config)
            session.clients[-1].produce(server.address, load, "all")
            server.kill()
            server = contender.start(directory)
            after_crash_s.append(server.started_in_s + _seconds_until_all_is_there(server.address, load))
            server.stop()
            server = contender.start(directory)
            after_stop_s.append(server.started_in_s + _seconds_until_all_is_there(server.address, load))
        finally:
            server.kill()
            shutil.rmtree(directory)
    case = f"{mib} MiB, {mode}"
    report(case=f"{case}, after kill -9", server=contender.name, unit="s", samples=after_crash_s)
    report(case=f"{case}, after a clean stop", server=contender.name, unit="s", samples=after_stop_s)


def _seconds_until_all_is_there(address: str, load: Load) -> float:
    """A server that answers may still be getting its partitions ready."""
    began_at = time.monotonic()
    request = wire.offset_for_timestamp_request(load.topic, 0, _LATEST)
    with wire.connect(address) as connection:
        while time.monotonic() - began_at < START_S:
            connection.sendall(request)
            try:
                end = wire.offset_for_timestamp(wire.receive(connection), load.topic)
            except wire.Refused:
                time.sleep(_ASK_AGAIN_S)
                continue
            assert end == load.count, f"{end} of {load.count} acknowledged records are there"
            return time.monotonic() - began_at
    raise TimeoutError(f"{load.topic} is not served again")
