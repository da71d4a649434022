"""How long does it take to find a record by offset and by timestamp in a log of a million?

In this process on the log itself, with batches of 1 and of 100 records, and over the wire from one connection
that waits for each answer.
"""

import random
import shutil
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from struct import Struct

from alpacamq.broker.clock import SystemClock
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.partition_log import Incoming, PartitionLog
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.batch import CRC_AT, checksum, read_header
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import topic_config

from . import topics, wire
from .clients import percentile
from .report import OURS, Floor, Report
from .servers import Server
from .session import Session

SIZE = 100
TOPIC = "sought"
WIRE_BATCH = 100
APPENDED_AT_ONCE = 500
FLOOR = Floor(at_most=1.0)
_TIMESTAMPS_AT = 27
_TIMESTAMPS = Struct(">qq")
_CRC = Struct(">I")


def run(session: Session, report: Report) -> None:
    records = session.scaled(1_000_000, 100_000)
    lookups = session.scaled(5_000, 500)
    for per_batch in (1, 100):
        _in_process(session, report, records, per_batch, lookups)
    for contender in session.contenders:
        with session.server(contender) as server:
            _over_the_wire(session, report, server, records, lookups)


def _in_process(session: Session, report: Report, records: int, per_batch: int, lookups: int) -> None:
    directory = session.new_directory()
    directory.mkdir()
    try:
        log = _written_log(directory, records, per_batch)
        end = log.end_offset

        def by_offset(offset: int) -> None:
            part = log.read(offset, 1, end)
            assert part is not None
            part.release()

        def by_timestamp(offset: int) -> None:
            found = log.offset_for_timestamp(_timestamp_of(offset, per_batch), end)
            assert found is not None
            assert found.offset == offset - offset % per_batch

        for name, seek in (("offset", by_offset), ("timestamp", by_timestamp)):
            session.settle()
            runs = [_timed(seek, end, lookups) for _ in range(session.repeats)]
            _report(report, OURS, f"by {name} in process, {records:,} records, {per_batch} in a batch", runs)
        log.close()
    finally:
        shutil.rmtree(directory)


def _over_the_wire(session: Session, report: Report, server: Server, records: int, lookups: int) -> None:
    topics.create(server.address, TOPIC, 1)
    with wire.connect(server.address) as connection:
        for batch in islice(_batches(WIRE_BATCH), records // WIRE_BATCH):
            connection.sendall(wire.produce_request(TOPIC, 0, bytes(batch), acks=1))
            wire.check_produced(bytes(4) + wire.receive(connection), TOPIC)

        def by_offset(offset: int) -> None:
            wire.check_fetched(_asked(connection, wire.fetch_request(TOPIC, 0, offset, 1)), TOPIC)

        def by_timestamp(offset: int) -> None:
            request = wire.offset_for_timestamp_request(TOPIC, 0, _timestamp_of(offset, WIRE_BATCH))
            found = wire.offset_for_timestamp(_asked(connection, request), TOPIC)
            assert found == offset - offset % WIRE_BATCH

        for name, seek in (("offset", by_offset), ("timestamp", by_timestamp)):
            _timed(seek, records, lookups)  # warms up
            session.settle()
            runs = [_timed(seek, records, lookups) for _ in range(session.repeats)]
            case = f"by {name} over the wire, {records:,} records, {WIRE_BATCH} in a batch"
            _report(report, server.name, case, runs)


def _asked(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return wire.receive(connection)


def _timed(seek: Callable[[int], None], end: int, lookups: int) -> "array[int]":
    """Nanoseconds of each of many searches at random; the same places every time."""
    places = random.Random(1)
    clock = time.monotonic_ns
    waits = array("q")
    for _ in range(lookups):
        offset = places.randrange(end)
        began_ns = clock()
        seek(offset)
        waits.append(clock() - began_ns)
    return waits


def _report(report: Report, server: str, case: str, runs: "list[array[int]]") -> None:
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        promised = server == OURS and "offset in process" in case
        report(
            case=f"{case}, {name}",
            server=server,
            unit="ms",
            samples=[percentile(run, share) / 1e6 for run in runs],
            floor=FLOOR if promised else None,
        )


def _written_log(directory: Path, records: int, per_batch: int) -> PartitionLog:
    disk = SystemDisk()
    storage = Storage(
        disk=disk, clock=SystemClock(), handles=FileHandles(disk, 64), indexes=IndexCache(8 << 20)
    )
    log = PartitionLog.open(directory / "sought-0", topic_config({}), storage)
    batches = islice(_batches(per_batch), records // per_batch)
    while group := list(islice(batches, APPENDED_AT_ONCE)):
        log.append([Incoming(batch, read_header(batch)) for batch in group], 0)
    assert log.end_offset == records
    return log


def _batches(per_batch: int) -> Iterator[bytearray]:
    """Batches of which each is a millisecond younger than the one before."""
    template = write_batch([Record(index, 0, None, b"x" * SIZE) for index in range(per_batch)])
    number = 0
    while True:
        batch = bytearray(template)
        timestamp_ms = _timestamp_of(number * per_batch, per_batch)
        _TIMESTAMPS.pack_into(batch, _TIMESTAMPS_AT, timestamp_ms, timestamp_ms)
        _CRC.pack_into(batch, CRC_AT, checksum(batch))
        yield batch
        number += 1


_BEGAN_MS = time.time_ns() // 1_000_000 - 10_000_000


def _timestamp_of(offset: int, per_batch: int) -> int:
    return _BEGAN_MS + offset // per_batch
