"""Batches of records and the order in which a partition's are sent. No I/O.

Each batch of an idempotent producer has the number of its first record in the partition. A batch whose
outcome is unknown is sent again with the same number, so that the broker writes it once. Numbers that were
assigned to a batch that was not written leave a gap, which the broker refuses: then the partition ends what
it has in flight and starts again from 0 with another producer id.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import Random
from typing import NamedTuple

from alpacamq.client.errors import DeliveryTimedOut
from alpacamq.model.batch import TRANSACTIONAL, Codec, stamp_producer
from alpacamq.model.ids import TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import NewRecord, write_new_batch

# Lengths, deltas and attributes of a record, at most; not counted are those of its headers.
RECORD_OVERHEAD_BYTES = 21
_MAX_KNOWN_KEYS = 10_000
_SEQUENCES = 1 << 31


class Identity(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    epoch: int


class State(Enum):
    """Where a batch is."""

    # Without a number, and perhaps still open for records.
    QUEUED = auto()
    IN_FLIGHT = auto()
    # With a number, to be sent again.
    WAITING = auto()
    # Not written, and to be sent with another number.
    RELEASED = auto()
    DONE = auto()


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "cancelled",
        "count",
        "data",
        "deadline",
        "delayed",
        "error",
        "identity",
        "is_in_doubt",
        "on_done",
        "partition",
        "records",
        "retry_at",
        "sequence",
        "size_bytes",
        "state",
        "timestamps",
        "urgent_at",
    )

    def __init__(self, partition: TopicPartition, *, urgent_at: float, deadline: float) -> None:
        self.partition = partition
        self.records: list[NewRecord | None] = []
        self.size_bytes = 0
        # Sent by this time, even if it is small.
        self.urgent_at = urgent_at
        self.deadline = deadline
        self.state = State.QUEUED
        self.count = 0
        self.data: bytearray | None = None
        self.identity: Identity | None = None
        self.sequence = -1
        # Whether an attempt may have been successful.
        self.is_in_doubt = False
        self.retry_at = 0.0
        # Indexes of records that were taken back, and of those that are delivered later.
        self.cancelled: list[int] = []
        self.delayed: set[int] | None = None
        self.timestamps: list[int] = []
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: Exception | None = None
        # Called once, when the outcome is known.
        self.on_done: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether the outcome has been reported."""
        return self.base_offset >= 0 or self.error is not None or self.state is State.DONE

    def cancel(self, index: int) -> bool:
        """Take a record back; False if the batch has been sent."""
        if self.data is not None or self.is_done or self.records[index] is None:
            return False
        self.records[index] = None
        self.cancelled.append(index)
        return True

    def offset_of(self, index: int) -> int:
        """Return the offset of a record; -1 if it has none yet."""
        if self.base_offset < 0 or (self.delayed is not None and index in self.delayed):
            return -1
        return self.base_offset + index - sum(each < index for each in self.cancelled)

    def timestamp_of(self, index: int) -> int:
        if self.append_time_ms >= 0:
            return self.append_time_ms
        return self.timestamps[index]

    def seal(self, codec: Codec, identity: Identity | None, sequence: int, *, transactional: bool) -> None:
        """Encode the records, or number them anew."""
        self.identity = identity
        self.sequence = sequence if identity is not None else -1
        producer_id, epoch = identity if identity is not None else (-1, -1)
        if self.data is not None:
            stamp_producer(self.data, producer_id, epoch, self.sequence)
            return
        records = [record for record in self.records if record is not None]
        self.count = len(records)
        self.timestamps = [0 if record is None else record[3] for record in self.records]
        self.data = write_new_batch(
            records,
            codec=codec,
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequence,
        )
        self.records = []  # encoded

    def finish(self, error: Exception | None = None) -> None:
        """Report the outcome, once."""
        if self.error is None:
            self.error = error
        callbacks, self.on_done = self.on_done, []
        for callback in callbacks:
            callback()


class PartitionQueue:
    """The batches of one partition, from the one that is filled to those that the broker has."""

    __slots__ = (
        "_next_sequence",
        "_sequenced",
        "_spoiled",
        "failures",
        "identity",
        "is_idempotent",
        "is_resetting",
        "most_in_flight",
        "partition",
        "queued",
        "transactional",
    )

    def __init__(
        self, partition: TopicPartition, *, idempotent: bool, most_in_flight: int, transactional: bool = False
    ) -> None:
        self.partition = partition
        self.is_idempotent = idempotent
        self.most_in_flight = most_in_flight if idempotent else 1
        self.transactional = transactional
        self.queued: deque[Batch] = deque()
        # In the order of their numbers.
        self._sequenced: deque[Batch] = deque()
        self._next_sequence = 0
        self.identity: Identity | None = None
        self.is_resetting = False
        # Attempts in a row that the broker has refused.
        self.failures = 0
        # The identity whose numbers have a gap.
        self._spoiled: Identity | None = None

    @property
    def is_empty(self) -> bool:
        return not self.queued and not self._sequenced

    @property
    def unfinished(self) -> list[Batch]:
        """The batches whose outcome is not known, in order."""
        return [batch for batch in (*self._sequenced, *self.queued) if not batch.is_done]

    @property
    def in_flight(self) -> int:
        return sum(batch.state is State.IN_FLIGHT for batch in self._sequenced)

    def needs_identity(self, identity: Identity | None) -> bool:
        """Return whether the next batch needs another producer id than this one."""
        if not self.is_idempotent or not self.queued or self._sequenced:
            return False
        return identity is None or identity == self._spoiled

    def is_ready(self, now: float, records: int, size_bytes: int) -> bool:
        """Return whether the next batch should be sent: it is full, old, or another one follows."""
        if not self.queued:
            return False
        first = self.queued[0]
        return (
            len(self.queued) > 1
            or first.data is not None
            or len(first.records) >= records
            or first.size_bytes >= size_bytes
            or first.urgent_at <= now
        )

    def due_at(self) -> float | None:
        """Return when something has to be done without another event: sending, sending again, giving up."""
        times = [batch.deadline for batch in self._sequenced if not batch.is_done]
        waiting = next((batch for batch in self._sequenced if batch.state is State.WAITING), None)
        if waiting is not None:
            times.append(waiting.retry_at)
        elif self.queued:
            times += (self.queued[0].urgent_at, self.queued[0].deadline)
        return min(times, default=None)

    def next_to_send(
        self, now: float, identity: Identity | None, codec: Codec, *, is_ready: bool
    ) -> Batch | None:
        """Return the batch to send now, which is in flight then; None if there is none."""
        for batch in self._sequenced:
            if batch.state is State.WAITING:
                if batch.retry_at > now:
                    return None
                batch.state = State.IN_FLIGHT
                return batch
        if self.is_resetting:
            if self._sequenced:
                return None
            self.is_resetting = False
            self._next_sequence = 0
            self._spoiled, self.identity = self.identity, None
        if len(self._sequenced) >= self.most_in_flight or not is_ready:
            return None
        while self.queued and len(self.queued[0].cancelled) == len(self.queued[0].records) > 0:
            self._end(self.queued.popleft())
        if not self.queued:
            return None
        if self.is_idempotent and self.identity is None:
            if identity is None or identity == self._spoiled:
                return None
            self.identity = identity
            self._next_sequence = 0
        batch = self.queued.popleft()
        batch.seal(codec, self.identity, self._next_sequence, transactional=self.transactional)
        batch.state = State.IN_FLIGHT
        self._next_sequence = (self._next_sequence + batch.count) % _SEQUENCES
        self._sequenced.append(batch)
        return batch

    def acknowledge(self, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        """Take note that a batch was written."""
        self.failures = 0
        self._sequenced.remove(batch)
        batch.base_offset = base_offset
        batch.append_time_ms = append_time_ms
        self._end(batch)

    def retry(self, batch: Batch, retry_at: float, *, in_doubt: bool) -> None:
        """Send a batch again at a time; `in_doubt` if it may have been written."""
        batch.state = State.WAITING
        batch.retry_at = retry_at
        batch.is_in_doubt |= in_doubt

    def reject(self, batch: Batch, error: Exception) -> None:
        """Take note that a batch was not written and will not be."""
        is_last = self._sequenced[-1] is batch
        self._sequenced.remove(batch)
        if is_last and not self.is_resetting and not batch.is_in_doubt:
            self._next_sequence = batch.sequence
        else:
            self.is_resetting = True
        self._end(batch, error)
        self._release()

    def lose_sequence(self, batch: Batch, error: Exception) -> None:
        """Take note that the broker refused the number of a batch."""
        if self._sequenced[0] is not batch and any(
            each.state is not State.RELEASED for each in self._before(batch)
        ):
            # One before it is missing, and comes first.
            self.retry(batch, 0.0, in_doubt=False)
            return
        self.is_resetting = True
        if batch.is_in_doubt:
            # The broker may have written it, and forgotten that it has.
            self._sequenced.remove(batch)
            self._end(batch, error)
        else:
            batch.state = State.RELEASED
        self._release()

    def _before(self, batch: Batch) -> list[Batch]:
        return list(self._sequenced)[: self._sequenced.index(batch)]

    def _release(self) -> None:
        """Put batches that need another number back in front, once nothing else is in flight."""
        if self.is_resetting and all(batch.state is State.RELEASED for batch in self._sequenced):
            for batch in reversed(self._sequenced):
                batch.state = State.QUEUED
                self.queued.appendleft(batch)
            self._sequenced.clear()

    def expire(self, now: float) -> None:
        """End the batches whose time is over.

        One that was sent stays in order as long as later ones need its number: it is sent on, although its
        outcome has been reported as unknown.
        """
        while self.queued and self.queued[0].deadline <= now:
            batch = self.queued.popleft()
            self._end(batch, _timed_out(batch, is_sent=batch.is_in_doubt))
        is_sent_on = any(
            batch.state is State.IN_FLIGHT or not (batch.is_done or batch.deadline <= now)
            for batch in self._sequenced
        )
        for batch in self._sequenced:
            if batch.deadline <= now and not batch.is_done:
                batch.finish(_timed_out(batch, is_sent=batch.is_in_doubt or is_sent_on))
        if self._sequenced and not is_sent_on:
            self._sequenced.clear()
            self.is_resetting = True

    def abandon(self, error: Exception) -> None:
        """End everything with an error; responses that arrive later are ignored."""
        batches = [*self._sequenced, *self.queued]
        if self._sequenced:
            self.is_resetting = True
        self._sequenced.clear()
        self.queued.clear()
        for batch in batches:
            self._end(batch, error)

    def restart(self) -> None:
        """Number the next batch from 0, for another identity."""
        assert self.is_empty
        self.identity = self._spoiled = None
        self._next_sequence = 0
        self.is_resetting = False

    def has_sent(self, batch: Batch) -> bool:
        """Return whether a batch is still expected to have a response."""
        return batch.state is State.IN_FLIGHT and batch in self._sequenced

    @staticmethod
    def _end(batch: Batch, error: Exception | None = None) -> None:
        batch.state = State.DONE
        batch.data = None
        batch.finish(error)


def _timed_out(batch: Batch, *, is_sent: bool) -> DeliveryTimedOut:
    outcome = "it may have been written" if is_sent else "it was not written"
    return DeliveryTimedOut(
        f"a record for {batch.partition} was not acknowledged in time; {outcome}",
        topic=batch.partition.topic,
        partition=batch.partition.partition,
        is_sent=is_sent,
    )


class Partitioner:
    """Chooses partitions of one topic as other Kafka clients do: by the key, or one batch after another."""

    def __init__(self, partitions: int, random: Random) -> None:
        self._random = random
        self._by_key: dict[bytes, int] = {}
        self.partitions = partitions
        self.sticky = 0
        self.next_sticky(range(partitions))

    def grow(self, partitions: int) -> None:
        """Use partitions that were added."""
        self.partitions = partitions
        self._by_key.clear()

    def of_key(self, key: bytes) -> int:
        partition = self._by_key.get(key)
        if partition is None:
            if len(self._by_key) >= _MAX_KNOWN_KEYS:
                self._by_key.clear()
            partition = self._by_key[key] = partition_for_key(key, self.partitions)
        return partition

    def next_sticky(self, available: Sequence[int]) -> int:
        """Choose another partition for records without a key, among those that have a leader."""
        others = [each for each in available if each != self.sticky] or list(available)
        if others:
            self.sticky = self._random.choice(others)
        return self.sticky
