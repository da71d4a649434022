"""The state of 256 consecutive messages: which are done, and the state of the others that were delivered.

Messages with the same state share one `LeaseGroup`: messages leased by one receive are one object, one
deadline and one entry in the stored record. A message that was never delivered takes no memory.
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


class State(IntEnum):
    """The state of a message that was delivered and is not done. The numbers are stored."""

    ACQUIRED = 0  # leased until its deadline
    BACKOFF = 1  # failed; available when its backoff ends
    AVAILABLE = 2  # ready for another delivery
    MOVING = 3  # being appended to another topic, then done: dead letter or redrive


# Possible transitions; None is done. The diagram in docs/internals/queues.md is generated from this table.
NEXT_STATES: Mapping[State, frozenset[State | None]] = {
    State.ACQUIRED: frozenset({State.ACQUIRED, State.BACKOFF, State.AVAILABLE, State.MOVING, None}),
    State.BACKOFF: frozenset({State.AVAILABLE, None}),
    State.AVAILABLE: frozenset({State.ACQUIRED, None}),
    State.MOVING: frozenset({State.AVAILABLE, None}),
}


class PendingMove(NamedTuple):
    """The target of a moving message; an empty target is the dead-letter topic of the queue."""

    sequence: int
    target: str
    reason: str


@dataclass(slots=True, eq=False)
class LeaseGroup:
    """Messages of one chunk that share lease, delivery count and state."""

    chunk: "Chunk"
    mask: int  # a bit per message
    state: State
    lane: Lane
    count: int  # deliveries so far
    due_ms: int  # when the lease or the backoff ends, or NO_DEADLINE
    acquired_ms: int
    first_ms: int  # of the first delivery
    owner: str
    move: PendingMove | None = None
    packed: bytes | None = None  # the encoded form; None after a change

    def offsets(self) -> Iterator[int]:
        """Yield the offsets of the messages, ascending."""
        return bits_of(self.mask, self.chunk.index << CHUNK_BITS)


class ChunkOwner(Protocol):
    """The partition that a chunk belongs to."""

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
    """The messages of a partition that are stored in one record."""

    __slots__ = ("absent", "done", "groups", "index", "is_dirty", "is_dropped", "is_stored", "partition")

    def __init__(self, partition: ChunkOwner, index: int) -> None:
        self.partition = partition
        self.index = index
        self.done = 0
        self.absent = 0  # offsets without a message; not stored, as the log contains this
        self.groups: dict[int, LeaseGroup] = {}  # by offset
        self.is_dirty = False
        self.is_stored = False
        self.is_dropped = False

    @property
    def end_offset(self) -> int:
        return (self.index + 1) << CHUNK_BITS

    def lease_groups(self) -> list[LeaseGroup]:
        return list(dict.fromkeys(self.groups.values()))

    def unfinished_mask(self) -> int:
        """Return the messages that were delivered and are not done."""
        mask = 0
        for leases in self.lease_groups():
            mask |= leases.mask
        return mask


def bits_of(mask: int, base: int) -> Iterator[int]:
    """Yield `base` plus the number of each set bit, ascending."""
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


def window(first: int, end: int) -> int:
    """Return the bits of offsets first..end-1, which must be in one chunk."""
    return ((1 << (end - first)) - 1) << (first & IN_CHUNK)
