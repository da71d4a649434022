"""What is asked of the delay machine, and what it asks of its host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from alpacamq.model.outcome import Change, Outcome

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
    parted_ms: int
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


@dataclass(slots=True)
class DelayOutcome(Outcome):
    """Effects, like replies, wait until the changes are durable."""

    effects: list[Deliver | ReadBlock | Dropped] = field(default_factory=list)


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
