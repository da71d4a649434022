"""The writing end of a log: places batches, writes them, rolls segments.

The hot path of the broker. A write that fails leaves the log as it was, and the next append
tries again: nothing needs a restart when the disk has room once more.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from alpacamq.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, place
from alpacamq.model.control import read_marker
from alpacamq.model.errors import AlpacaError, FencedLeaderEpoch, StorageFailed
from alpacamq.model.topics import TopicConfig

from .epochs import EpochHistory, publish_epochs
from .flush import FlushLedger
from .health import refused
from .producer_state import Memory, SentBatch
from .segment import MAX_RELATIVE, Segment, Segments
from .storage import Storage

_OF_TRANSACTIONS = TRANSACTIONAL | CONTROL


class Incoming(NamedTuple):
    """Exactly one batch, checked, in memory that may be written to."""

    data: bytearray | memoryview
    header: BatchHeader


class Appended(NamedTuple):
    """Where a batch is in the log; a duplicate was there before."""

    base_offset: int
    next_offset: int
    duplicate: bool


class Appender:
    """Appends to the active segment of one log."""

    __slots__ = ("_directory", "_epochs", "_ledger", "_memory", "_segments", "_storage", "config")

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        storage: Storage,
        segments: Segments,
        epochs: EpochHistory,
        memory: Memory,
        ledger: FlushLedger,
    ) -> None:
        self.config = config
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._epochs = epochs
        self._memory = memory
        self._ledger = ledger

    def append(self, batches: Sequence[Incoming], leader_epoch: int) -> list[Appended | AlpacaError]:
        """Append in order with as few writes as possible; what became of each batch.

        Raises if nothing could be written. If a later segment could not, the batches meant for
        it get that error and those before it stay.
        """
        if leader_epoch != self._epochs.latest:
            self.start_epoch(leader_epoch)
        now_ms = self._storage.clock.now_ms()
        self.roll_if_due(now_ms)
        producers = self._memory.producers
        segment_bytes = self.config.segment_bytes
        results: list[Appended | AlpacaError] = []
        settled = 0
        buffers: list[bytearray | memoryview] = []
        placed: list[tuple[int, int]] = []  # base offset and largest timestamp
        in_transactions: list[tuple[int, Incoming]] = []
        segment = self._segments.active
        offset, position = segment.next_offset, segment.size
        try:
            for data, header in batches:
                next_offset = offset + header.last_offset_delta + 1
                end = position + len(data)
                if position and (end > segment_bytes or next_offset - segment.base_offset > MAX_RELATIVE):
                    self._write(segment, buffers, placed, in_transactions, offset, now_ms)
                    settled = len(results)
                    buffers, placed, in_transactions = [], [], []
                    segment = self.roll()
                    end = len(data)
                if header.producer_id >= 0:
                    verdict = producers.admit(header, offset, now_ms)
                    if verdict is not None:
                        if isinstance(verdict, SentBatch):
                            results.append(Appended(verdict.base_offset, verdict.next_offset, duplicate=True))
                        else:
                            results.append(verdict)
                        position = end - len(data)
                        continue
                place(data, offset, leader_epoch)
                buffers.append(data)
                placed.append((offset, header.max_timestamp))
                if header.attributes & _OF_TRANSACTIONS:
                    in_transactions.append((offset, Incoming(data, header)))
                results.append(Appended(offset, next_offset, False))
                offset, position = next_offset, end
            self._write(segment, buffers, placed, in_transactions, offset, now_ms)
        except StorageFailed as error:
            producers.rollback()
            if not settled:
                raise
            return [*results[:settled], *[error] * (len(batches) - settled)]
        return results

    def start_epoch(self, leader_epoch: int) -> None:
        """Record, before it writes anything, that `leader_epoch` writes from here on.

        Not synced yet: the next flush does that before it counts what the epoch wrote as flushed. If
        power is lost earlier, batches of an epoch that is not known are cut like any that is not whole.
        The first epoch of a log is not even written down before its first checkpoint: until then, recovery
        reads every batch.
        """
        if leader_epoch == self._epochs.latest:
            return
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(
                f"{self._directory.name} is at leader epoch {self._epochs.latest}, not {leader_epoch}"
            )
        offset = self._segments.active.next_offset
        if not self._ledger.has_epochs_file and not self._epochs.entries:
            self._epochs.assign(leader_epoch, offset)
            return
        extended = EpochHistory(self._epochs.entries)
        extended.assign(leader_epoch, offset)
        try:
            extended.prepare(self._storage.disk, self._directory)
            publish_epochs(self._storage.disk, self._directory)
        except OSError as error:
            raise refused(self._directory, "recording a leader epoch", error) from error
        self._epochs.assign(leader_epoch, offset)
        self._ledger.has_epochs_file = self._ledger.epochs_changed = True

    def roll_if_due(self, now_ms: int) -> None:
        """Begin a new segment if the active one is older than segment.ms."""
        active = self._segments.active
        if active.size and now_ms - active.opened_ms >= self.config.segment_ms:
            self.roll()

    def roll(self) -> Segment:
        """Begin a new segment."""
        storage = self._storage
        sealed = self._segments.active
        fresh = Segment(self._directory, sealed.next_offset, storage)
        try:
            self._mend(sealed)
            handle = storage.handles.pin(fresh.path, create=True)
            try:
                storage.disk.truncate(handle.descriptor, 0)  # an earlier attempt may have left something
            finally:
                handle.release()
        except OSError as error:
            storage.handles.forget(fresh.path)
            raise refused(self._directory, "beginning a segment", error) from error
        self._segments.add(fresh)
        self._ledger.directory_changed = True
        self._ledger.sealed(sealed)
        self._ledger.snapshot(fresh.base_offset, self._memory)
        return fresh

    def _write(
        self,
        segment: Segment,
        buffers: list[bytearray | memoryview],
        placed: list[tuple[int, int]],
        in_transactions: list[tuple[int, Incoming]],
        next_offset: int,
        now_ms: int,
    ) -> None:
        """Write placed batches and only then let the log know them."""
        if not buffers:
            return
        storage = self._storage
        position = segment.size
        try:
            if segment.is_ragged:
                self._mend(segment)
            handle = storage.handles.pin(segment.path)
            try:
                storage.disk.write(handle.descriptor, buffers, position)
            finally:
                handle.release()
        except OSError as error:
            segment.is_ragged = True
            with suppress(OSError):
                self._mend(segment)
            # The next attempt opens the file anew: this descriptor may be the problem.
            storage.handles.forget(segment.path)
            raise refused(self._directory, "writing", error) from error
        if not position:
            segment.opened_ms = now_ms
        segment.written_ms = now_ms
        tail = segment.index.tail
        assert tail is not None
        for (offset, max_timestamp), data in zip(placed, buffers, strict=True):
            tail.note(offset, position, max_timestamp)
            position += len(data)
        self._memory.producers.commit()
        for base_offset, (data, header) in in_transactions:
            marker = read_marker(data) if header.attributes & CONTROL else None
            self._memory.appended(header, base_offset, marker)
        segment.next_offset = next_offset
        segment.size = position

    def _mend(self, segment: Segment) -> None:
        """Remove what a failed write left behind the last batch."""
        if segment.is_ragged:
            handle = self._storage.handles.pin(segment.path)
            try:
                self._storage.disk.truncate(handle.descriptor, segment.size)
            finally:
                handle.release()
            segment.is_ragged = False
