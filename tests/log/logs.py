"""Logs for tests: opening one, filling it, and reading everything back the way a broker would."""

from collections.abc import Sequence
from pathlib import Path

from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.partition_log import Appended, Incoming, PartitionLog
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.batch import Codec, check_batch, read_header
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TimestampMs
from alpacamq.model.ports import Disk
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.model.topics import TopicConfig, topic_config

NOW_MS = 1_000_000_000


class FakeClock:
    """A clock that tests advance."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.ms)

    def monotonic(self) -> float:
        return self.ms / 1000


def a_storage(
    disk: Disk | None = None,
    clock: FakeClock | None = None,
    *,
    handles: int = 16,
    index_bytes: int = 1 << 20,
    checkpoint_bytes: int = 8 << 20,
) -> Storage:
    disk = disk or SystemDisk()
    return Storage(
        disk=disk,
        clock=clock or FakeClock(),
        handles=FileHandles(disk, handles),
        indexes=IndexCache(index_bytes),
        checkpoint_bytes=checkpoint_bytes,
    )


def a_config(**settings: object) -> TopicConfig:
    """Settings by their names with underscores."""
    return topic_config({name.replace("_", "."): str(value) for name, value in settings.items()})


def open_log(directory: Path, storage: Storage | None = None, **settings: object) -> PartitionLog:
    return PartitionLog.open(directory, a_config(**settings), storage or a_storage())


def a_batch(
    values: Sequence[bytes] | int = 1,
    *,
    timestamp: int = NOW_MS,
    step: int = 1,
    size: int = 20,
    codec: Codec = Codec.NONE,
    key: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """Build a batch of `values`, or of that many generated ones; `producer` is id, epoch, sequence."""
    if isinstance(values, int):
        values = [bytes([65 + index % 26]) * size for index in range(values)]
    producer_id, producer_epoch, base_sequence = producer
    return write_batch(
        [Record(index, timestamp + index * step, key, value) for index, value in enumerate(values)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def append(log: PartitionLog, *batches: bytearray, epoch: int = 0) -> list[Appended | AlpacaError]:
    return log.append([Incoming(batch, check_batch(batch)) for batch in batches], epoch)


def flush(log: PartitionLog) -> None:
    """A whole flush, as the broker does it."""
    flush = log.begin_flush()
    if flush is not None:
        flush.run()
        log.end_flush(flush, None)


def read_batches(
    log: PartitionLog, disk: Disk | None = None, start: int | None = None, max_bytes: int = 1 << 20
) -> list[bytes]:
    """Every batch from `start` on, verified as the broker does it, and each one whole and in order."""
    disk = disk or SystemDisk()
    offset = log.start_offset if start is None else start
    batches: list[bytes] = []
    while (part := log.read(offset, max_bytes, log.end_offset)) is not None:
        try:
            if not part.verified:
                log.verify(part)
            data = disk.read(part.handle.descriptor, part.length, part.position)
        finally:
            part.release()
        assert len(data) == part.length
        while data:
            size = read_header(data).size
            header = check_batch(data[:size])
            assert header.base_offset <= offset < header.next_offset or header.base_offset == offset
            offset = header.next_offset
            batches.append(data[:size])
            data = data[size:]
        assert offset == part.next_offset
    return batches


def read_values(log: PartitionLog, disk: Disk | None = None) -> list[bytes | None]:
    return [record.value for batch in read_batches(log, disk) for record in read_records(batch)]


def segment_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
