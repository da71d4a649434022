"""Requests, events and effects of the delay machine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from alpacamq.model.state_machine import Change, Outcome, Request

from .blocks import Block
from .records import IntentId
from .wheel import Slot

if TYPE_CHECKING:
    from array import array


class TargetName(NamedTuple):
    """The partition a message is for. A topic that is made anew under its name is another."""

    topic_id: bytes
    topic: str
    partition: int


class ToSchedule(NamedTuple):
    """A message and when it is due."""

    target: TargetName
    due_ms: int
    envelope: bytes


class Source(NamedTuple):
    """The batch of an idempotent producer that messages came with: what repeats it is not taken in twice.

    `parted_ms` is when it was decided which of its messages are for later. Those of a large batch come in
    several portions, one after the other.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    first_seen_ms: int
    portion: int = 0


class Listing(NamedTuple):
    """Messages of a topic: how many wait, and where; among others in these slots and blocks.

    `targets` are the numbers of the topic's partitions, and the partitions.
    """

    targets: Mapping[int, int]
    pending: int
    slots: Sequence[Slot]
    blocks: Sequence[Block]


class PendingCounts(NamedTuple):
    """How many messages wait, and when the first is due."""

    pending: int
    next_due_ms: int | None


class Deliver(NamedTuple):
    """Effect: append these messages to the target, in this order and under these sequences.

    None before its time.
    """

    intent: IntentId
    target: TargetName
    producer_id: int
    ids: "array[int]"
    words: "array[int]"


class ReadBlock(NamedTuple):
    """Effect: read the block at this offset of the delay log and hand it back."""

    day: int
    number: int
    offset: int


class Dropped(NamedTuple):
    """Effect: so many messages will not be delivered, since their topic is gone."""

    messages: int


class Schedule(Request[list[int]], frozen=True, kw_only=True):
    """Schedule messages together; the reply is their ids, or [] if the source batch came before."""

    messages: Sequence[ToSchedule]
    source: Source | None = None


class CancelMessage(Request[None], frozen=True, kw_only=True):
    """Cancel a message that waits for a partition; UnknownDelayed. `word` is from the key of its record."""

    id: int
    word: int
    topic_id: bytes
    partition: int


class ListMessages(Request[Listing], frozen=True, kw_only=True):
    """Locate the messages for partitions of a topic, for a thread to search."""

    topic_id: bytes
    partitions: Sequence[int]
    after_id: int


class CountPending(Request[PendingCounts], frozen=True, kw_only=True):
    """Count the messages that wait."""


class BatchesDelivered(Request[None], frozen=True, kw_only=True):
    """Event: these batches are on disk in their targets, or their targets were deleted."""

    intents: Sequence[IntentId]


class BlockLoaded(Request[None], frozen=True, kw_only=True):
    """Event: a block was read as requested by ReadBlock."""

    read: ReadBlock
    slot: Slot


class TopicsDeleted(Request[None], frozen=True, kw_only=True):
    """Event: a topic was deleted; messages for it are dropped, some at a time."""


class Journal:
    """Knows the offset of every change before it is written: nobody else writes to the delay log."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        # Records that say that others are no longer needed.
        self.tombstones = 0

    def write(self, outcome: Outcome, change: Change) -> int:
        """Have a change written, and return its offset."""
        outcome.changes.append(change)
        self.tombstones += change.value is None
        self.next_offset += 1
        return self.next_offset - 1
