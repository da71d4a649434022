"""Requests, replies, events and effects of the queue engine.

A queue is a group on a topic. Requests come in batches: one event brings many, so that what they
change is written as one batch of few records.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Request

from .views import Outline

# The group of a queue that nobody named one for: SQS queues, redrive, peeking.
BUILT_IN_GROUP = "queue"

R = TypeVar("R")


class QueueId(NamedTuple):
    """A group on a topic."""

    group: str
    topic: str


class Start(StrEnum):
    """Where a group begins in a partition it has never been in."""

    EARLIEST = "earliest"
    LATEST = "latest"


class QueueRequest(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about one queue."""

    queue: QueueId

    @property
    def routing_key(self) -> str:
        return f"{self.queue.group}\0{self.queue.topic}"


class Acquired(NamedTuple):
    """One message leased: where it lies and which delivery this is. `generation` is the queue's."""

    partition: int
    offset: int
    delivery_count: int
    lane: Lane
    deadline_ms: int
    first_delivered_ms: int
    generation: int


class ReceiveReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was leased; empty if nothing was there in time."""

    messages: tuple[Acquired, ...] = ()


class ReceiveRequest(QueueRequest[ReceiveReply], frozen=True, kw_only=True):
    """Lease up to `max_messages` to `consumer`. Answered by ReceiveReply, at the latest after `wait_ms`.

    With `max_messages` 0 nothing is leased: it is answered as soon as there is something to lease.
    """

    consumer: str
    max_messages: int
    visibility_ms: int | None = None  # None: the queue's own
    wait_ms: int = 0
    partitions: tuple[int, ...] | None = None  # None: all of the topic's
    start: Start = Start.EARLIEST
    # In key order: whether this receive may take several messages of one key, in order. Its key then stays
    # blocked until all of them are settled.
    key_runs: bool = False


class Action(StrEnum):
    """What a consumer wants to become of a message it holds."""

    ACK = "ack"  # done
    NACK = "nack"  # failed: again after a rest, or a dead letter when it was tried often enough
    RELEASE = "release"  # not tried: again at once (still counts as a delivery)
    RELEASE_UNSEEN = "undo"  # it never reached the consumer: again at once, as if it had not been delivered
    REJECT = "reject"  # a dead letter now
    EXTEND = "extend"  # keep it longer
    MOVE = "move"  # append it to another topic, then done: redrive
    DISCARD = "drop"  # done without having been processed (its time to live is over)


class Settlement(NamedTuple):
    """What becomes of one delivery.

    `delivery_count` and `generation` tell it from other deliveries of the message; a settlement by
    `consumer` alone (Kafka's way) has None for both.
    """

    partition: int
    offset: int
    action: Action
    delivery_count: int | None = None
    generation: int | None = None
    consumer: str | None = None
    delay_ms: int | None = None  # NACK: rest this long instead; EXTEND: until so long from now
    reason: str = ""  # NACK, REJECT: kept with the dead letter
    target: str = ""  # MOVE: the topic


class SettleReply(msgspec.Struct, frozen=True, kw_only=True):
    """One entry per settlement, in order: None if it was done, else why not."""

    results: tuple[AlpacaError | None, ...] = ()


class SettleRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Settle deliveries of one queue. Answered by SettleReply."""

    settlements: tuple[Settlement, ...]


class ReleaseConsumerRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """The consumer is gone: what it holds is available again at once. Answered by SettleReply()."""

    consumer: str


class ResetRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Begin again at these offsets; what is leased there is no longer. Answered by SettleReply().

    A purge is a reset to the end, a replay one to where it should begin.
    """

    offsets: Mapping[int, int]


class LaneTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One lane in one partition. Totals count since the broker started."""

    ready: int = 0
    in_flight: int = 0
    resting: int = 0  # waiting for their backoff to end
    enqueued_total: int = 0
    delivered_total: int = 0


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a queue. Everything before `start_offset` is done."""

    partition: int
    start_offset: int
    end_offset: int  # where the log ends for queue consumers
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int  # on their way to the dead-letter topic
    oldest_offset: int | None  # of what is not done
    lanes: Mapping[str, LaneTotals] = {}


class DescribeReply(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is. Totals count since the broker started."""

    queue: QueueId
    generation: int
    overrides: Mapping[str, str]
    dead_letter_topic: str | None = None  # None: messages are never dead-lettered
    partitions: tuple[PartitionTotals, ...] = ()
    received_total: int = 0
    acked_total: int = 0
    nacked_total: int = 0
    rejected_total: int = 0
    expired_leases_total: int = 0
    dead_lettered_total: int = 0
    redelivered_total: int = 0
    waiting_receives: int = 0


class ConfigureRequest(QueueRequest[DescribeReply], frozen=True, kw_only=True):
    """Overrides of queue.* settings for this group on this topic; None removes one. DescribeReply."""

    overrides: Mapping[str, str | None]


class DeleteRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Forget the group on this topic. Answered by SettleReply(); GroupIdNotFound if there is none."""


class DescribeRequest(QueueRequest[DescribeReply], frozen=True, kw_only=True):
    """Answered by DescribeReply; GroupIdNotFound if the group has never used the topic."""


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """The queues there are."""

    queues: tuple[QueueId, ...]


class ListRequest(Request[ListReply], frozen=True, kw_only=True):
    """All queues of this machine. Answered by ListReply."""


class TopicDeleted(Request[None], frozen=True, kw_only=True):
    """Event: a topic was deleted, and its queues with it."""

    topic: str


class RecordsArrived(Request[None], frozen=True, kw_only=True):
    """Event: a partition has grown."""

    topic: str
    partition: int


class ReadBacklog(NamedTuple):
    """Effect: read some of a partition from `offset` on. Answered by the event BacklogRead."""

    queue: QueueId
    partition: int
    offset: int
    with_keys: bool


class BacklogRead(Request[None], frozen=True, kw_only=True):
    """Event: some of a partition was read, or nothing if it cannot be read now."""

    read: ReadBacklog
    outline: Outline


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: append this message to `target`, under this producer id and sequence, then post MovesDone.

    Moves of one (queue, partition) are carried out in the order of their sequences. By producer id, which
    is one of that (queue, partition) alone, and sequence the target recognises a move that is repeated
    after a crash.
    """

    queue: QueueId
    partition: int
    offset: int
    target: str  # "" is the queue's dead-letter topic
    reason: str  # empty for a redrive: the record is moved without dead-letter headers
    delivery_count: int
    producer_id: int
    sequence: int


class MovesDone(Request[None], frozen=True, kw_only=True):
    """Event: these moves have been carried out."""

    moves: Sequence[Move]


class MovesReturned(Request[None], frozen=True, kw_only=True):
    """Event: these moves have no target; their messages are available again as if never delivered."""

    moves: Sequence[Move]


class EndedLease(NamedTuple):
    """Effect: a lease ended by itself, on the messages `first_offset` + n for every bit n of the mask."""

    queue: QueueId
    partition: int
    first_offset: int
    mask: int
    delivery_count: int
    consumer: str
    is_expired: bool  # in time; else its consumer is gone


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may hold at most."""

    max_queues: int = 10_000
    max_waiting_receives: int = 10_000
    max_indexed_runs: int = 100_000  # per queue and partition
    max_blocked_messages: int = 20_000  # per queue and partition: read ahead in key order


def fits(name: str, max_bytes: int) -> bool:
    """Whether a name can be stored."""
    try:
        return len(name.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False
