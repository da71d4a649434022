"""What each idempotent producer sent last to one partition, to recognise what it sends again.

Entries are immutable and changes can be undone until `commit`, so that an append whose write
fails leaves no trace. Bounded: an idle producer is forgotten after a day, and the least
recently used go first when there are too many.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import BROKER_EPOCH, BatchHeader
from alpacamq.model.errors import AlpacaError, FencedProducer, OutOfOrderSequence
from alpacamq.model.topics import DAY_MS

from .sealed_file import Unreadable

WINDOW = 5
IDLE_LIMIT_MS = DAY_MS
MAX_PRODUCERS = 100_000

_SEQUENCE_MASK = 0x7FFF_FFFF  # sequences go on at 0 after 2^31 - 1


class SentBatch(NamedTuple):
    """A batch that a producer has had appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + ((self.last_sequence - self.first_sequence) & _SEQUENCE_MASK) + 1


class ProducerState(NamedTuple):
    """One producer: its epoch, its last batches (oldest first) and when it was last heard."""

    epoch: int
    batches: tuple[SentBatch, ...]
    updated_ms: int


class ProducerStates:
    """The producers of one partition, least recently heard first."""

    __slots__ = ("_limit", "_states", "_undo")

    def __init__(self, states: Mapping[int, ProducerState] | None = None, limit: int = MAX_PRODUCERS) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict(states or ())
        self._limit = limit
        self._undo: list[tuple[int, ProducerState | None]] = []

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """The sequence that the producer's next batch must begin with."""
        known = self._states.get(producer_id)
        if known is None or known.epoch != epoch or not known.batches:
            return 0
        return (known.batches[-1].last_sequence + 1) & _SEQUENCE_MASK

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence that the producer's last record here had."""
        known = self._states.get(producer_id)
        return None if known is None or not known.batches else known.batches[-1].last_sequence

    def admit(self, header: BatchHeader, base_offset: int, now_ms: int) -> SentBatch | AlpacaError | None:
        """Enter a batch about to be written at `base_offset`.

        Returns None if it was entered, the batch it repeats, or why it cannot follow what the
        producer sent before.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        last = (first + header.last_offset_delta) & _SEQUENCE_MASK
        known = self._states.get(producer_id)
        batches: tuple[SentBatch, ...] = ()
        if known is not None:
            if epoch < known.epoch:
                return FencedProducer(
                    f"producer {producer_id} has epoch {known.epoch} by now, so epoch {epoch} may not write"
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
        self._enter(producer_id, epoch, batches, header, base_offset, now_ms, known)
        return None

    def verdict(self, header: BatchHeader) -> SentBatch | AlpacaError | None:
        """What `admit` would say of a batch. Between appends only."""
        assert not self._undo
        verdict = self.admit(header, 0, 0)
        self.rollback()
        return verdict

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Take in a batch that is in the log already. Its producer is given a day from now."""
        known = self._states.get(header.producer_id)
        batches = known.batches if known is not None and known.epoch == header.producer_epoch else ()
        self._enter(
            header.producer_id, header.producer_epoch, batches, header, header.base_offset, now_ms, known
        )
        self.commit()

    def commit(self) -> None:
        """What was admitted is in the log."""
        self._undo.clear()
        while len(self._states) > self._limit:
            self._states.popitem(last=False)

    def rollback(self) -> None:
        """Forget what was admitted since the last commit."""
        while self._undo:
            producer_id, before = self._undo.pop()
            if before is None:
                del self._states[producer_id]
            else:
                self._states[producer_id] = before

    def expire(self, now_ms: int) -> None:
        """Forget producers not heard for a day."""
        while self._states:
            producer_id, oldest = next(iter(self._states.items()))
            if now_ms - oldest.updated_ms <= IDLE_LIMIT_MS:
                return
            del self._states[producer_id]

    def reset(self, states: Mapping[int, ProducerState]) -> None:
        """Go back to `states`."""
        assert not self._undo
        self._states = OrderedDict(states)

    def copy(self) -> dict[int, ProducerState]:
        """Everything as of now, for a snapshot written later."""
        return dict(self._states)

    def _enter(
        self,
        producer_id: int,
        epoch: int,
        batches: tuple[SentBatch, ...],
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        before: ProducerState | None,
    ) -> None:
        first = header.base_sequence
        if first >= 0:  # control batches have none
            last = (first + header.last_offset_delta) & _SEQUENCE_MASK
            batches = (*batches[1 - WINDOW :], SentBatch(first, last, base_offset))
        self._undo.append((producer_id, before))
        self._states[producer_id] = ProducerState(epoch, batches, now_ms)
        self._states.move_to_end(producer_id)


def follows(sequence: int, before: int) -> bool:
    """Whether a sequence comes after another, which it may do by starting over at 0."""
    return 0 < (sequence - before) & _SEQUENCE_MASK < 1 << 30


def _follow(
    producer_id: int, epoch: int, batches: tuple[SentBatch, ...], first: int, last: int
) -> SentBatch | OutOfOrderSequence | None:
    """None if the sequences come next, the batch they repeat, or what is wrong with them."""
    expected = (batches[-1].last_sequence + 1) & _SEQUENCE_MASK if batches else 0
    # What the broker itself sends ascends, but need not be without gaps.
    if first == expected or (epoch == BROKER_EPOCH and follows(first, expected)):
        return None
    for batch in reversed(batches):
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    return OutOfOrderSequence(f"producer {producer_id} sent sequence {first} where {expected} should follow")


def encode_states(states: Mapping[int, ProducerState]) -> bytes:
    return msgspec.msgpack.encode(tuple(states.items()))


def decode_states(body: bytes) -> dict[int, ProducerState]:
    """The states of a snapshot, or Unreadable."""
    try:
        return dict(msgspec.msgpack.decode(body, type=tuple[tuple[int, ProducerState], ...]))
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
