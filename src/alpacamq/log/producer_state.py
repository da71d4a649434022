"""Producer state of a log: sequences of idempotent producers, open and aborted transactions.

Derived from the batches. A snapshot at an offset saves scanning the batches before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import BROKER_EPOCH, BatchHeader
from alpacamq.model.control import NO_NUMBER, Marker
from alpacamq.model.errors import (
    AlpacaError,
    FencedProducer,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from alpacamq.model.ports import Disk
from alpacamq.model.topics import DAY_MS

from .sealed_file import Unreadable, prepare_sealed, publish_sealed, read_sealed
from .transactions import (
    PartitionTransactions,
    TransactionsSnapshot,
    decode_transactions,
    encode_transactions,
)

WINDOW = 5
IDLE_LIMIT_MS = DAY_MS
MAX_PRODUCERS = 100_000

SEQUENCE_MASK = 0x7FFF_FFFF  # sequences wrap to 0 after 2^31 - 1


class SentBatch(NamedTuple):
    """A batch that a producer has appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + ((self.last_sequence - self.first_sequence) & SEQUENCE_MASK) + 1


class LastMarker(NamedTuple):
    """The last marker of a producer: the epoch of its coordinator, the transaction's number, its offset."""

    coordinator_epoch: int
    number: int
    offset: int

    def is_repeated_by(self, marker: Marker) -> bool:
        """Return whether a marker is of a transaction that has ended here already.

        Its sender did not learn that. The producer may have begun another transaction since.
        """
        return NO_NUMBER < marker.number <= self.number

    def fences(self, marker: Marker) -> bool:
        """Return whether a later coordinator of the producer has written here since."""
        return marker.coordinator_epoch < self.coordinator_epoch

    def followed_by(self, marker: Marker, offset: int) -> "LastMarker":
        return LastMarker(
            max(marker.coordinator_epoch, self.coordinator_epoch), max(marker.number, self.number), offset
        )


NO_MARKER = LastMarker(-1, NO_NUMBER, -1)


class ProducerEntry(NamedTuple):
    """One producer: its epoch, its last batches (oldest first), the time of the last one, its last marker."""

    epoch: int
    batches: tuple[SentBatch, ...]
    updated_ms: int
    last_marker: LastMarker = NO_MARKER


class ProducerTable:
    """The producers of one partition, least recently active first."""

    __slots__ = ("_limit", "_states", "_undo")

    def __init__(self, states: Mapping[int, ProducerEntry] | None = None, limit: int = MAX_PRODUCERS) -> None:
        self._states: OrderedDict[int, ProducerEntry] = OrderedDict(states or ())
        self._limit = limit
        self._undo: list[tuple[int, ProducerEntry | None]] = []

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._states.get(producer_id)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """Return the sequence with which the producer's next batch must begin."""
        known = self._states.get(producer_id)
        if known is None or known.epoch != epoch or not known.batches:
            return 0
        return (known.batches[-1].last_sequence + 1) & SEQUENCE_MASK

    def last_sequence(self, producer_id: int) -> int | None:
        """Return the sequence of the producer's last record, if known."""
        known = self._states.get(producer_id)
        return None if known is None or not known.batches else known.batches[-1].last_sequence

    def admit(
        self, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None = None
    ) -> SentBatch | AlpacaError | None:
        """Check a batch about to be written at `base_offset`, and record it.

        Returns None if it was recorded, the batch that it duplicates, or the error if its sequence or
        epoch is wrong. `marker` is the content of a transaction marker.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        last = (first + header.last_offset_delta) & SEQUENCE_MASK
        known = self._states.get(producer_id)
        batches: tuple[SentBatch, ...] = ()
        if known is not None:
            if marker is not None and (verdict := _check_marker(producer_id, known, marker)) is not None:
                return verdict
            if epoch < known.epoch:
                return FencedProducer(
                    f"producer {producer_id} has epoch {known.epoch} now, epoch {epoch} is fenced"
                )
            if epoch > known.epoch:
                if first > 0:
                    return OutOfOrderSequence(
                        f"producer {producer_id} begins epoch {epoch} with sequence {first} instead of 0"
                    )
            else:
                batches = known.batches
                if first >= 0 and (repeated := _follow(producer_id, epoch, batches, first, last)) is not None:
                    return repeated
        self._enter(producer_id, epoch, batches, header, base_offset, now_ms, known, marker)
        return None

    def verdict(self, header: BatchHeader) -> SentBatch | AlpacaError | None:
        """Return the result that `admit` would give. Only between appends."""
        assert not self._undo
        verdict = self.admit(header, 0, 0)
        self.rollback()
        return verdict

    def replay(self, header: BatchHeader, now_ms: int, marker: Marker | None = None) -> None:
        """Record a batch that is in the log already. Its producer expires a day from now."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._states.get(producer_id)
        batches = known.batches if known is not None and known.epoch == epoch else ()
        self._enter(producer_id, epoch, batches, header, header.base_offset, now_ms, known, marker)
        self.commit()

    def commit(self) -> None:
        """Keep the batches admitted since the last commit: they are in the log."""
        self._undo.clear()
        while len(self._states) > self._limit:
            self._states.popitem(last=False)

    def rollback(self) -> None:
        """Undo the batches admitted since the last commit."""
        while self._undo:
            producer_id, before = self._undo.pop()
            if before is None:
                del self._states[producer_id]
            else:
                self._states[producer_id] = before

    def expire(self, now_ms: int) -> None:
        """Drop producers idle for a day."""
        while self._states:
            producer_id, oldest = next(iter(self._states.items()))
            if now_ms - oldest.updated_ms <= IDLE_LIMIT_MS:
                return
            del self._states[producer_id]

    def reset(self, states: Mapping[int, ProducerEntry]) -> None:
        """Replace all entries."""
        assert not self._undo
        self._states = OrderedDict(states)

    def copy(self) -> dict[int, ProducerEntry]:
        """Copy all entries, for a snapshot written later."""
        return dict(self._states)

    def _enter(
        self,
        producer_id: int,
        epoch: int,
        batches: tuple[SentBatch, ...],
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        before: ProducerEntry | None,
        marker: Marker | None,
    ) -> None:
        first = header.base_sequence
        if first >= 0:  # control batches have no sequence
            last = (first + header.last_offset_delta) & SEQUENCE_MASK
            batches = (*batches[1 - WINDOW :], SentBatch(first, last, base_offset))
        last_marker = NO_MARKER if before is None else before.last_marker
        if marker is not None:
            last_marker = last_marker.followed_by(marker, base_offset)
        self._undo.append((producer_id, before))
        self._states[producer_id] = ProducerEntry(epoch, batches, now_ms, last_marker)
        self._states.move_to_end(producer_id)


def follows(sequence: int, before: int) -> bool:
    """Return whether `sequence` is after `before`, allowing for wrap-around."""
    return 0 < (sequence - before) & SEQUENCE_MASK < 1 << 30


def _follow(
    producer_id: int, epoch: int, batches: tuple[SentBatch, ...], first: int, last: int
) -> SentBatch | OutOfOrderSequence | None:
    """Return None if the sequences are next, the duplicated batch, or the error."""
    expected = (batches[-1].last_sequence + 1) & SEQUENCE_MASK if batches else 0
    # Sequences of the broker's own batches ascend, but may have gaps.
    if first == expected or (epoch == BROKER_EPOCH and follows(first, expected)):
        return None
    for batch in reversed(batches):
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    return OutOfOrderSequence(f"producer {producer_id} sent sequence {first} where {expected} should follow")


def _check_marker(
    producer_id: int, known: ProducerEntry, marker: Marker
) -> SentBatch | TransactionCoordinatorFenced | None:
    """Return None if a marker may be written, the marker that it repeats, or the error."""
    last = known.last_marker
    if last.is_repeated_by(marker):
        return SentBatch(0, 0, last.offset)
    if last.fences(marker):
        return TransactionCoordinatorFenced(
            f"the coordinator of producer {producer_id} is at epoch {last.coordinator_epoch}, "
            f"not {marker.coordinator_epoch}"
        )
    return None


def encode_entries(states: Mapping[int, ProducerEntry]) -> bytes:
    return msgspec.msgpack.encode(tuple(states.items()))


def decode_entries(body: bytes) -> dict[int, ProducerEntry]:
    """Decode the entries of a snapshot. Raises Unreadable."""
    try:
        return dict(msgspec.msgpack.decode(body, type=tuple[tuple[int, ProducerEntry], ...]))
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error


class ProducerSnapshot(NamedTuple):
    """The producer state at some offset."""

    producers: Mapping[int, ProducerEntry] = {}
    transactions: TransactionsSnapshot = TransactionsSnapshot()

    @property
    def is_empty(self) -> bool:
        return not self.producers and self.transactions.is_empty


class ProducerState:
    """Producers and transactions of one log, updated with every batch."""

    __slots__ = ("producers", "transactions")

    def __init__(self) -> None:
        self.producers = ProducerTable()
        self.transactions = PartitionTransactions()

    def appended(self, header: BatchHeader, base_offset: int, marker: Marker | None) -> None:
        """Record a transactional or control batch after it was written."""
        self.transactions.appended(header, base_offset, marker)

    def replay(self, header: BatchHeader, marker: Marker | None, now_ms: int) -> None:
        """Record a batch that is in the log already."""
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms, marker if header.is_transactional else None)
        if header.is_transactional or header.is_control:
            self.transactions.appended(header, header.base_offset, marker)

    def copy(self) -> ProducerSnapshot:
        """Copy the current state."""
        return ProducerSnapshot(self.producers.copy(), self.transactions.snapshot())

    def reset(self, snapshot: ProducerSnapshot) -> None:
        """Replace the state by a snapshot."""
        self.producers.reset(snapshot.producers)
        self.transactions.reset(snapshot.transactions)


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    return msgspec.msgpack.encode(
        (encode_entries(snapshot.producers), encode_transactions(snapshot.transactions))
    )


def decode_snapshot(body: bytes) -> ProducerSnapshot:
    """Decode a snapshot. Raises Unreadable."""
    try:
        producers, transactions = msgspec.msgpack.decode(body, type=tuple[bytes, bytes])
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
    return ProducerSnapshot(decode_entries(producers), decode_transactions(transactions))


SUFFIX = ".producers"

_MAGIC = b"ALPS"
_VERSION = 1


class ProducerSnapshots:
    """The snapshot files of one partition."""

    __slots__ = ("_directory", "_disk", "_lock", "offsets")

    def __init__(self, disk: Disk, directory: Path, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        # Held while a file is renamed or removed, so that `offsets` matches the directory.
        self._lock = threading.Lock()
        self.offsets = set(offsets)

    def prepare(self, offset: int, snapshot: ProducerSnapshot) -> Path:
        """Write a snapshot to a temporary file; return its path. Sync it before `publish`."""
        return prepare_sealed(self._disk, self._path(offset), _MAGIC, _VERSION, encode_snapshot(snapshot))

    def publish(self, offset: int) -> None:
        """Rename a snapshot into place. The caller syncs the directory."""
        with self._lock:
            publish_sealed(self._disk, self._path(offset))
            self.offsets.add(offset)

    def newest(
        self, not_after: int, not_before: int, notes: list[str]
    ) -> tuple[int, ProducerSnapshot] | None:
        """Return the newest readable snapshot between two offsets; add unreadable ones to `notes`."""
        for offset in sorted(self.offsets, reverse=True):
            if not_before <= offset <= not_after:
                try:
                    return offset, check_snapshot(self._disk, self._path(offset))
                except Unreadable as error:
                    notes.append(f"{self._path(offset)} is skipped: {error}")
        return None

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove the snapshots at `offsets`. The caller syncs the directory."""
        with self._lock:
            self._remove(self.offsets.intersection(offsets))

    def remove_except(self, kept: AbstractSet[int]) -> None:
        """Remove all snapshots except `kept`. The caller syncs the directory."""
        with self._lock:
            self._remove(self.offsets - kept)

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in sorted(offsets):
            self._disk.remove(self._path(offset))
            self.offsets.discard(offset)

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SUFFIX}"


def check_snapshot(disk: Disk, path: Path) -> ProducerSnapshot:
    """Read the snapshot at `path`. Raises Unreadable."""
    return decode_snapshot(read_sealed(disk, path, _MAGIC, _VERSION))
