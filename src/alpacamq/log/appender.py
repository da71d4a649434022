"""Appends to a log: assigns offsets, writes batches, rolls segments.

The hot path of the broker. A failed write leaves the log unchanged, and the next append retries:
after a full disk has space again no restart is needed.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from alpacamq.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, place
from alpacamq.model.control import Marker, read_marker
from alpacamq.model.errors import (
    AlpacaError,
    CorruptBatch,
    FencedLeaderEpoch,
    InvalidTransactionState,
    StorageFailed,
)
from alpacamq.model.topics import TopicConfig

from .epochs import EpochHistory
from .fetched import Fetched
from .flush import UnflushedState
from .health import storage_error
from .producer_state import ProducerState, SentBatch
from .segment import MAX_RELATIVE, Segment, Segments
from .storage import Storage
from .transactions import outside_transaction

_OF_TRANSACTIONS = TRANSACTIONAL | CONTROL


class Incoming(NamedTuple):
    """Exactly one batch, checked, in writable memory."""

    data: bytearray | memoryview
    header: BatchHeader


# An Incoming, or a plain tuple of the same fields, which takes less time to make.
IncomingBatch = tuple[bytearray | memoryview, BatchHeader]


class Appended(NamedTuple):
    """The position of a batch in the log; a duplicate was there before."""

    base_offset: int
    next_offset: int
    duplicate: bool


class Appender:
    """Appends to the active segment of one log."""

    __slots__ = ("_directory", "_epochs", "_producer_state", "_segments", "_storage", "_unflushed", "config")

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        storage: Storage,
        segments: Segments,
        epochs: EpochHistory,
        producer_state: ProducerState,
        unflushed: UnflushedState,
    ) -> None:
        self.config = config
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._epochs = epochs
        self._producer_state = producer_state
        self._unflushed = unflushed

    def append(self, batches: Sequence[IncomingBatch], leader_epoch: int) -> list[Appended | AlpacaError]:
        """Append in order with as few writes as possible; return a result for each batch.

        Raises if nothing was written. If a write to a later segment fails, the batches for that segment
        get its error and those before it stay.
        """
        if leader_epoch != self._epochs.latest:
            self.start_epoch(leader_epoch)
        now_ms = self._storage.clock.now_ms()
        self.roll_if_due(now_ms)
        if len(batches) == 1:
            ((data, header),) = batches
            if header.producer_id < 0 and not header.attributes & _OF_TRANSACTIONS:
                return [self._append_alone(data, header, leader_epoch, now_ms)]
        producers = self._producer_state.producers
        segment_bytes = self.config.segment_bytes
        results: list[Appended | AlpacaError] = []
        settled = 0
        buffers: list[bytearray | memoryview] = []
        placed: list[tuple[int, int]] = []  # last offset and largest timestamp
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
                    if (refusal := self._transaction_refusal(header, in_transactions)) is not None:
                        results.append(refusal)
                        position = end - len(data)
                        continue
                    # Of the control batches, placeholders are not transactional.
                    is_marker = header.attributes & _OF_TRANSACTIONS == _OF_TRANSACTIONS
                    marker = read_marker(data) if is_marker else None
                    verdict = producers.admit(header, offset, now_ms, marker)
                    if verdict is not None:
                        if isinstance(verdict, SentBatch):
                            results.append(Appended(verdict.base_offset, verdict.next_offset, duplicate=True))
                        else:
                            results.append(verdict)
                        position = end - len(data)
                        continue
                place(data, offset, leader_epoch)
                buffers.append(data)
                placed.append((next_offset - 1, header.max_timestamp))
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

    def _transaction_refusal(
        self, header: BatchHeader, unwritten: Sequence[tuple[int, Incoming]]
    ) -> InvalidTransactionState | None:
        """Return the error of a batch outside the open transaction of its producer.

        That may begin or end with a batch in `unwritten`.
        """
        if header.is_transactional:
            return None
        transactions = self._producer_state.transactions
        is_open = transactions.open_offset(header.producer_id) is not None
        for _, batch in unwritten:
            if batch.header.producer_id == header.producer_id:
                is_open = not batch.header.is_control
        return outside_transaction(header.producer_id) if is_open else None

    def _append_alone(
        self, data: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Append one batch that is of no producer and no transaction."""
        segment = self._segments.active
        offset, position = segment.next_offset, segment.size
        next_offset, end = offset + header.last_offset_delta + 1, position + len(data)
        if position and (end > self.config.segment_bytes or next_offset - segment.base_offset > MAX_RELATIVE):
            segment = self.roll()
            position, end = 0, len(data)
        place(data, offset, leader_epoch)
        self._write_buffers(segment, (data,), now_ms)
        tail = segment.index.tail
        assert tail is not None
        tail.note(next_offset - 1, position, header.max_timestamp)
        segment.next_offset, segment.size = next_offset, end
        return Appended(offset, next_offset, False)

    def append_fetched(self, fetched: Fetched) -> None:
        """Append batches of a leader as they are, with their offsets, epochs and timestamps.

        An epoch that a batch is the first of begins at that batch. After StorageFailed, the batches
        written before the failure stay.
        """
        now_ms = self._storage.clock.now_ms()
        self.roll_if_due(now_ms)
        segment_bytes = self.config.segment_bytes
        data = fetched.data
        run: list[BatchHeader] = []
        start = position = 0
        segment = self._segments.active
        for header in fetched.headers:
            size = header.size
            is_full = (segment.size or run) and (
                segment.size + position - start + size > segment_bytes
                or header.next_offset - segment.base_offset > MAX_RELATIVE
            )
            if is_full or header.leader_epoch != self._epochs.latest:
                self._write_fetched(data[start:position], run, now_ms)
                start, run = position, []
                if is_full:
                    segment = self.roll()
                self.start_epoch(header.leader_epoch)
            run.append(header)
            position += size
        self._write_fetched(data[start:position], run, now_ms)

    def start_epoch(self, leader_epoch: int) -> None:
        """Record a new leader epoch, effective from the end of the log, before it writes anything.

        Not synced: the next flush does that before it counts the epoch's batches as flushed. If power is
        lost earlier, recovery truncates batches of an unknown epoch like incomplete ones. The first epoch
        of a log is not even written before its first checkpoint: until then, recovery reads every batch.
        """
        if leader_epoch == self._epochs.latest:
            return
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(
                f"{self._directory.name} is at leader epoch {self._epochs.latest}, not {leader_epoch}"
            )
        offset = self._segments.active.next_offset
        if not self._unflushed.has_epochs_file and not self._epochs.entries:
            self._epochs.assign(leader_epoch, offset)
            return
        extended = EpochHistory(self._epochs.entries)
        extended.assign(leader_epoch, offset)
        try:
            self._unflushed.write_epochs(extended)
        except OSError as error:
            raise storage_error(self._directory, "recording a leader epoch", error) from error
        self._epochs.assign(leader_epoch, offset)

    def roll_if_due(self, now_ms: int) -> None:
        """Begin a new segment if the active one is older than its topic allows."""
        active = self._segments.active
        if not active.size:
            return
        age_ms, config = now_ms - active.opened_ms, self.config
        # No segment is rolled before it is that old.
        least_ms = min(config.segment_ms, config.max_compaction_lag_ms) - config.segment_jitter_ms
        if age_ms >= least_ms and age_ms >= self._max_age_ms(active):
            self.roll()

    def _max_age_ms(self, segment: Segment) -> int:
        config = self.config
        age_ms = config.segment_ms
        if config.is_compacted:
            age_ms = min(age_ms, config.max_compaction_lag_ms)
        if spread_ms := min(config.segment_jitter_ms, age_ms):
            # The same after a restart.
            age_ms -= crc32(f"{self._directory.name}/{segment.base_offset}".encode()) % spread_ms
        return age_ms

    def roll(self) -> Segment:
        """Begin a new segment."""
        storage = self._storage
        sealed = self._segments.active
        fresh = Segment(self._directory, sealed.next_offset, storage)
        try:
            self._truncate_torn_tail(sealed)
            handle = storage.handles.pin(fresh.path, create=True)
            try:
                storage.disk.truncate(handle.descriptor, 0)  # an earlier attempt may have left bytes
            finally:
                handle.release()
        except OSError as error:
            storage.handles.forget(fresh.path)
            raise storage_error(self._directory, "beginning a segment", error) from error
        self._segments.add(fresh)
        self._unflushed.directory_changed = True
        self._unflushed.sealed(sealed)
        self._unflushed.snapshot(fresh.base_offset, self._producer_state)
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
        """Write placed batches, then update the log's state."""
        if not buffers:
            return
        position = segment.size
        self._write_buffers(segment, buffers, now_ms)
        tail = segment.index.tail
        assert tail is not None
        for (last_offset, max_timestamp), data in zip(placed, buffers, strict=True):
            tail.note(last_offset, position, max_timestamp)
            position += len(data)
        self._producer_state.producers.commit()
        for base_offset, (data, header) in in_transactions:
            marker = read_marker(data) if header.attributes & CONTROL else None
            self._producer_state.appended(header, base_offset, marker)
        segment.next_offset = next_offset
        segment.size = position

    def _write_fetched(self, data: memoryview, headers: list[BatchHeader], now_ms: int) -> None:
        """Write batches as they are, then update the log's state."""
        if not headers:
            return
        segment = self._segments.active
        position = start = segment.size
        self._write_buffers(segment, [data], now_ms)
        tail = segment.index.tail
        assert tail is not None
        for header in headers:
            tail.note(header.last_offset, position, header.max_timestamp)
            size = header.size
            marker = _marker(header, data, position - start) if header.is_control else None
            if header.producer_id >= 0:
                of_transaction = marker if header.is_transactional else None
                self._producer_state.producers.replay(header, now_ms, of_transaction)
            if header.attributes & _OF_TRANSACTIONS:
                self._producer_state.appended(header, header.base_offset, marker)
            position += size
        segment.next_offset = headers[-1].next_offset
        segment.size = position

    def _write_buffers(
        self, segment: Segment, buffers: Sequence[bytearray | memoryview], now_ms: int
    ) -> None:
        """Write behind the last batch; the segment's state changes after that."""
        storage = self._storage
        position = segment.size
        try:
            if segment.has_torn_tail:
                self._truncate_torn_tail(segment)
            handle = storage.handles.pin(segment.path)
            try:
                storage.disk.write(handle.descriptor, buffers, position)
            finally:
                handle.release()
        except OSError as error:
            segment.has_torn_tail = True
            with suppress(OSError):
                self._truncate_torn_tail(segment)
            # The next attempt reopens the file: the descriptor may be the cause.
            storage.handles.forget(segment.path)
            raise storage_error(self._directory, "writing", error) from error
        if not position:
            segment.opened_ms = now_ms
        segment.written_ms = now_ms

    def _truncate_torn_tail(self, segment: Segment) -> None:
        """Truncate bytes that a failed write left behind the last batch."""
        if segment.has_torn_tail:
            handle = self._storage.handles.pin(segment.path)
            try:
                self._storage.disk.truncate(handle.descriptor, segment.size)
            finally:
                handle.release()
            segment.has_torn_tail = False


def _marker(header: BatchHeader, data: memoryview, position: int) -> Marker | None:
    """Return the marker in a control batch; None if it is not one."""
    with suppress(CorruptBatch):  # its checksum is right, so it was never a marker
        return read_marker(data[position : position + header.size])
    return None
