"""The log of one replica on a simulated disk: records with epochs, a flushed prefix, a watermark."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from alpacamq.log.epochs import EpochHistory
from tests.simulation.disk import SimDisk


class Record(NamedTuple):
    """A record as leaders write it. `digest` stands for all records up to and including this one."""

    epoch: int
    producer: int
    sequence: int
    digest: int


def next_digest(before: int, offset: int, epoch: int, producer: int, sequence: int) -> int:
    return hash((before, offset, epoch, producer, sequence))


class ReplicaLog:
    """What a process knows of its log. Only the files survive it."""

    def __init__(self, disk: SimDisk, name: str) -> None:
        self._name = name
        self._disk = disk
        self._file = disk.log(f"log-{name}")
        self._file.cut_torn_tail()
        self._watermark = disk.cell(f"watermark-{name}", 0)
        self.records: list[Record] = self._file.records
        self.epochs = EpochHistory()
        # What is found after a crash is flushed before it is used.
        self.flushed_end = 0
        self.last_offsets: dict[int, tuple[int, int]] = {}
        self._truncations = 0
        self._index(0)

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def digest(self) -> int:
        return self.records[-1].digest if self.records else 0

    @property
    def checkpoint(self) -> int:
        """The high watermark that was stored last."""
        return self._watermark.value

    def store_watermark(self, high_watermark: int) -> None:
        self._watermark.write(high_watermark)

    def append(self, records: Sequence[Record]) -> None:
        first = self.end
        self._file.append(*records)
        self._index(first)

    def _index(self, first: int) -> None:
        for offset in range(first, self.end):
            record = self.records[offset]
            if record.epoch > self.epochs.latest:
                self.epochs.assign(record.epoch, offset)
            self.last_offsets[record.producer] = (record.sequence, offset)

    def truncate(self, end: int) -> None:
        """Remove records; not durable before the next flush."""
        self._file.truncate(end)
        self.epochs.truncate_from(end)
        self.last_offsets.clear()
        for offset, record in enumerate(self.records):
            self.last_offsets[record.producer] = (record.sequence, offset)
        self.flushed_end = min(self.flushed_end, end)
        self._truncations += 1
        if self._watermark.value > end:
            self._watermark.write(end)

    def flush(self, done: Callable[[], None]) -> None:
        """Make the log durable as it is now, then call `done`."""
        self._disk.sync([self._file, self._watermark], self._flushed, self.end, self._truncations, done)

    def _flushed(self, end: int, truncations: int, done: Callable[[], None]) -> None:
        # A flush that began before a truncation says nothing about what was written since.
        if truncations == self._truncations:
            self.flushed_end = max(self.flushed_end, end)
        done()

    def remove(self) -> None:
        """Delete the files."""
        for name in (f"log-{self._name}", f"watermark-{self._name}"):
            self._disk.files.pop(name, None)


def durable_records(disk: SimDisk, name: str) -> Sequence[Record]:
    """Return what a crash now could not take from a replica."""
    file = disk.files.get(f"log-{name}")
    return () if file is None else disk.log(f"log-{name}").durable
