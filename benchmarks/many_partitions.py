"""How long does a broker with thousands of partitions take to start after kill -9, to make and to close them?

One record is written to each partition before each kill. The start is timed until the broker reports that
recovery is complete and answers; on an idle disk, and while another process calls fsync all the time.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .report import OURS, Floor, Report
from .servers import AlpacaMQ
from .session import Session
from .usage import MIB

COUNTS = (2_000, 5_000, 10_000)
QUICK_COUNTS = (500,)
PARTITIONS = 100
WAIT_S = 600
START_FLOOR = Floor(at_most=5.0)
_SETTINGS = {"ALPACAMQ_TOPICS_MAX_PARTITIONS": "20000"}
_FSYNC = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(file, os.urandom(4096), 0)
    os.fsync(file)
"""


def run(session: Session, report: Report) -> None:
    contender = AlpacaMQ(settings=_SETTINGS)
    for count in QUICK_COUNTS if session.is_quick else COUNTS:
        _measure(session, report, contender, count)


def _measure(session: Session, report: Report, contender: AlpacaMQ, count: int) -> None:
    topics = [f"topic-{number}" for number in range(count // PARTITIONS)]
    made_s: list[float] = []
    killed_s: list[float] = []
    busy_s: list[float] = []
    stop_s: list[float] = []
    stopped_s: list[float] = []
    resident: list[float] = []
    files: list[float] = []
    for _ in range(session.repeats):
        session.settle()
        directory = session.new_directory()
        server = contender.start(directory)
        try:
            made_s.append(_make(server.address, topics))
            _write_to_each(server.address, topics)
            server.kill()
            session.settle()
            server = contender.start(directory)
            killed_s.append(server.started_in_s)
            process = psutil.Process(server.pid)
            resident.append(process.memory_info().rss / MIB)
            files.append(process.num_fds())
            _write_to_each(server.address, topics)
            server.kill()
            with _fsyncs(directory):
                server = contender.start(directory)
                busy_s.append(server.started_in_s)
            _write_to_each(server.address, topics)
            began_at = time.monotonic()
            server.stop()
            stop_s.append(time.monotonic() - began_at)
            server = contender.start(directory)
            stopped_s.append(server.started_in_s)
        finally:
            # The directory stays until the end: ext4 skips recently deleted inodes one by one, and creating
            # files would take several times as long.
            server.kill()
    case = f"{count:,} partitions"
    floor = None if session.is_quick else START_FLOOR
    report(case=f"{case}, made in one request", server=OURS, unit="s", samples=made_s)
    report(case=f"{case}, start after kill -9", server=OURS, unit="s", samples=killed_s, floor=floor)
    report(case=f"{case}, start after kill -9, busy disk", server=OURS, unit="s", samples=busy_s)
    report(case=f"{case}, clean stop", server=OURS, unit="s", samples=stop_s)
    report(case=f"{case}, start after a clean stop", server=OURS, unit="s", samples=stopped_s)
    report(case=f"{case}, after a start", server=OURS, unit="MiB resident", samples=resident)
    report(case=f"{case}, after a start", server=OURS, unit="open files", samples=files)


def _make(address: str, topics: list[str]) -> float:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    began_at = time.monotonic()
    wanted = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in topics]
    for made in admin.create_topics(wanted, request_timeout=WAIT_S, operation_timeout=WAIT_S).values():
        made.result(WAIT_S)
    return time.monotonic() - began_at


def _write_to_each(address: str, topics: list[str]) -> None:
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": WAIT_S * 1000})
    for topic in topics:
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x" * 100, partition=partition)
        producer.poll(0)
    left = producer.flush(WAIT_S)
    assert left == 0, f"{left} records were not taken"


@contextmanager
def _fsyncs(directory: Path) -> Iterator[None]:
    """Run another process that calls fsync all the time, on the same file system."""
    process = subprocess.Popen([sys.executable, "-c", _FSYNC, directory / "fsyncs"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
