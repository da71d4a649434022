"""Requests, events and effects of the delay machine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from alpacamq.model.state_machine import Change, Outcome, Request

from .blocks import SpilledBlock
from .records import IntentId
from .wheel import Slot

if TYPE_CHECKING:
    from array import array


class TargetName(NamedTuple):
    """The target partition of a message. A topic recreated under the same name has another id."""

    topic_id: bytes
    topic: str
    partition: int


class ToSchedule(NamedTuple):
    """A message and its due time."""

    target: TargetName
    due_ms: int
    envelope: bytes


class ProducerBatch(NamedTuple):
    """The batch of an idempotent producer that contained the messages; used to detect duplicates.

    `first_seen_ms` is when the batch was split into immediate and delayed messages. The delayed messages of
    a large batch are scheduled in several portions, one after the other.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    first_seen_ms: int
    portion: int = 0


class Listing(NamedTuple):
    """The number of pending messages of a topic, and the slots and blocks to search for them.

    `targets` maps target numbers to the partitions of the topic. Slots and blocks may contain messages of
    other topics too.
    """

    targets: Mapping[int, int]
    pending: int
    slots: Sequence[Slot]
    blocks: Sequence[SpilledBlock]


class PendingCounts(msgspec.Struct, frozen=True, array_like=True):
    """The number of pending messages, and the earliest due time."""

    pending: int
    next_due_ms: int | None


class Deliver(NamedTuple):
    """Effect: append these messages to the target, in this order and with these sequence numbers.

    No message may be appended before it is due.
    """

    intent: IntentId
    target: TargetName
    producer_id: int
    ids: "array[int]"
    timers: "array[int]"


class ReadBlock(NamedTuple):
    """Effect: read the block at this offset of the delay log. Answered by the event BlockLoaded."""

    day: int
    number: int
    offset: int


class Dropped(NamedTuple):
    """Effect: this many messages were dropped because their topic was deleted."""

    messages: int


def routing_key(topic: str, partition: int) -> str:
    """Return the key that decides which delay log stores the messages of a partition."""
    return f"{topic}-{partition}"


class Schedule(Request[list[int]], frozen=True, kw_only=True, tag="delay-schedule"):
    """Schedule messages of one delay log together. The reply is their ids.

    They are scheduled once, however often `source` repeats them. Fails with UnknownTopic if the topic of one
    of them was deleted, or is too new for the broker that has the delay log.
    """

    messages: Sequence[ToSchedule]
    source: ProducerBatch | None = None

    @property
    def routing_key(self) -> str:
        target = self.messages[0].target
        return routing_key(target.topic, target.partition)

    @property
    def may_be_repeated(self) -> bool:
        return self.source is not None


class FirstSeen(Request[int | None], frozen=True, kw_only=True, tag="delay-first-seen"):
    """Return when a producer's batch with messages for this target was first seen; None if it is new."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    target: TargetName
    source: ProducerBatch

    @property
    def routing_key(self) -> str:
        return routing_key(self.target.topic, self.target.partition)


class CancelMessage(Request[None], frozen=True, kw_only=True):
    """Cancel a pending message of a partition, or fail with UnknownDelayed.

    `timer` is part of the key of the message's record.
    """

    id: int
    timer: int
    topic_id: bytes
    partition: int


class ListMessages(Request[Listing], frozen=True, kw_only=True):
    """Return the slots and blocks that may contain messages of these partitions, for a search in a thread."""

    topic_id: bytes
    partitions: Sequence[int]
    after_id: int


class CountPending(Request[PendingCounts], frozen=True, kw_only=True, tag="delay-count"):
    """Count the pending messages."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class BatchesDelivered(Request[None], frozen=True, kw_only=True):
    """Event: these batches are durable in their targets, or their targets were deleted."""

    intents: Sequence[IntentId]


class BlockLoaded(Request[None], frozen=True, kw_only=True):
    """Event: the block requested by ReadBlock was read."""

    read: ReadBlock
    slot: Slot


class TopicsDeleted(Request[None], frozen=True, kw_only=True):
    """Event: a topic was deleted. Its messages are dropped in steps of bounded size."""


class ChangeWriter:
    """Adds changes to an outcome and assigns their offsets.

    The machine is the only writer of its delay log, so it knows the offset of a change before it is written.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.tombstones = 0  # records without a value

    def write(self, outcome: Outcome, change: Change) -> int:
        """Add a change to the outcome and return its offset."""
        outcome.changes.append(change)
        self.tombstones += change.value is None
        self.next_offset += 1
        return self.next_offset - 1
