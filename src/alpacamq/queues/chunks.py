"""What is known of 256 neighbouring messages: which are done, and what became of the others delivered.

Messages that share a fate share one `Hold`: those leased by one receive are one object, one deadline and
one entry in the stored record, however many they are. A message that was never delivered costs nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change

from .messages import QueueId

CHUNK_BITS = 8
CHUNK_SIZE = 1 << CHUNK_BITS
IN_CHUNK = CHUNK_SIZE - 1
NO_DEADLINE = -1


class State(IntEnum):
    """What a message is in that was delivered and is not done; the numbers are stored."""

    ACQUIRED = 0  # leased, until its deadline
    BACKOFF = 1  # failed; available when its rest ends
    AVAILABLE = 2  # ready for another delivery
    MOVING = 3  # to be appended to another topic, then done


# From each state, where a message can go; None is done. docs/internals/queues.md draws it.
NEXT_STATES: Mapping[State, frozenset[State | None]] = {
    State.ACQUIRED: frozenset({State.ACQUIRED, State.BACKOFF, State.AVAILABLE, State.MOVING, None}),
    State.BACKOFF: frozenset({State.AVAILABLE, None}),
    State.AVAILABLE: frozenset({State.ACQUIRED, None}),
    State.MOVING: frozenset({State.AVAILABLE, None}),
}


class PendingMove(NamedTuple):
    """Where a moving message goes; an empty target is the queue's dead-letter topic."""

    sequence: int
    target: str
    reason: str


@dataclass(slots=True, eq=False)
class LeaseGroup:
    """Messages of one chunk that were delivered together and have had the same fate since."""

    chunk: "Chunk"
    mask: int  # a bit per message
    state: State
    lane: Lane
    count: int  # deliveries so far
    due_ms: int  # when the lease or the rest ends, or NO_DEADLINE
    acquired_ms: int
    first_ms: int  # of the first delivery
    owner: str
    move: PendingMove | None = None
    packed: bytes | None = None  # as stored, as long as nothing changes

    def offsets(self) -> Iterator[int]:
        """The messages, ascending."""
        return bits_of(self.mask, self.chunk.index << CHUNK_BITS)


class ChunkOwner(Protocol):
    """The partition of a chunk."""

    @property
    def queue(self) -> QueueId: ...
    @property
    def number(self) -> int: ...
    @property
    def start_offset(self) -> int: ...

    def advance(self) -> None: ...
    def chunk_change(self, chunk: "Chunk") -> Change: ...
    def chunk_removal(self, chunk: "Chunk") -> Change: ...


class Chunk:
    """One stored record's worth of a partition's messages."""

    __slots__ = ("absent", "done", "holds", "index", "is_dirty", "is_dropped", "is_stored", "partition")

    def __init__(self, partition: ChunkOwner, index: int) -> None:
        self.partition = partition
        self.index = index
        self.done = 0
        self.absent = 0  # offsets without a message; not stored, as the log says it again
        self.holds: dict[int, LeaseGroup] = {}  # by offset
        self.is_dirty = False
        self.is_stored = False
        self.is_dropped = False

    @property
    def end_offset(self) -> int:
        return (self.index + 1) << CHUNK_BITS

    def distinct_holds(self) -> list[LeaseGroup]:
        return list(dict.fromkeys(self.holds.values()))

    def held_mask(self) -> int:
        """The messages that were delivered and are not done."""
        mask = 0
        for hold in self.distinct_holds():
            mask |= hold.mask
        return mask


def bits_of(mask: int, base: int) -> Iterator[int]:
    """`base` plus the number of each bit that is set, ascending."""
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


def window(first: int, end: int) -> int:
    """The bits for offsets first..end-1, which lie in one chunk."""
    return ((1 << (end - first)) - 1) << (first & IN_CHUNK)
