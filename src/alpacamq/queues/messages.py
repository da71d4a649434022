"""Requests, replies, events and effects of the queue engine, and its view of topics and logs.

A queue is a group on a topic. The engine handles requests in batches, so that their changes are written as
one batch of few records.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from alpacamq.model.errors import AlpacaError, PartitionNotReady, UnknownTopic
from alpacamq.model.ids import TopicId
from alpacamq.model.lanes import Lane
from alpacamq.model.names import id_of, split_topic
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import Topic, TopicConfig


class OffsetRange(NamedTuple):
    """Messages first..last of one lane. All of these offsets exist and are committed.

    `keys` has one entry per message in queues with key order, otherwise it is None.
    """

    first: int
    last: int
    lane: Lane
    keys: tuple[bytes | None, ...] | None = None


class Outline(NamedTuple):
    """The messages from the requested offset up to, but not including, `next_offset`, in ascending order."""

    ranges: Sequence[OffsetRange]
    next_offset: int  # equal to the requested offset if nothing could be read
    times: Sequence[tuple[int, int]] = ()  # the first offset and the timestamp of batches, ascending


class PartitionsView(Protocol):
    """The topics of the cluster, and the bounds of their partitions as far as they are known, without I/O.

    Only `topic` says whether a topic exists. The bounds of a partition may not be known: while it is created
    or recovered, or while its leader, another broker, cannot be reached.
    """

    @property
    def version(self) -> int:
        """Return a number that changes whenever a topic is created, grown or deleted."""
        ...

    def topic(self, name: str) -> Topic | None:
        """Return the topic of this name, by the committed metadata; None if it does not exist."""
        ...

    def config(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic; None if it does not exist."""
        ...

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        """Return the first offset of a partition, and its last stable offset or its high watermark.

        Both may be behind those of its leader, never ahead. Raises PartitionNotReady if they are not known.
        """
        ...

    def leader_end(self, topic: str, partition: int) -> int | None:
        """Return the end offset of the partition's leader when stored state was last valid.

        State of later offsets refers to records that were lost, whose offsets have been or will be given to
        new ones: a power loss has cut the only replica, or a repair. The end of a follower must not be
        returned: it may only lag behind, and acknowledged messages would be delivered again. None if another
        broker leads the partition, or if more may become committed than is now. Raises PartitionNotReady if
        this broker leads the partition and has not opened it yet.
        """
        ...


def unreadable(topic: str, log: PartitionsView) -> AlpacaError:
    """Return the error for a topic that cannot be read here."""
    if log.topic(topic) is None:
        return UnknownTopic(f"unknown topic {topic!r}")
    return PartitionNotReady(f"topic {topic!r} cannot be read now")


# The group of queues that are used without a group name: SQS queues, redrive, peeking.
BUILT_IN_GROUP = "queue"


def built_in_group(topic: str) -> str:
    """Return the group of SQS clients and redrives of a topic: that of its tenant, if it has one."""
    tenant, _ = split_topic(topic)
    return BUILT_IN_GROUP if tenant is None else id_of(tenant, BUILT_IN_GROUP)


R = TypeVar("R")


class QueueId(NamedTuple):
    """A group on a topic."""

    group: str
    topic: str


class Start(StrEnum):
    """Where a group starts in a partition that it has not read before."""

    EARLIEST = "earliest"
    LATEST = "latest"


class QueueRequest(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about one queue."""

    queue: QueueId

    @property
    def routing_key(self) -> str:
        return f"{self.queue.group}\0{self.queue.topic}"


class Acquired(NamedTuple):
    """One leased message: its position, delivery count and lease. `generation` is that of the partition."""

    partition: int
    offset: int
    delivery_count: int
    lane: Lane
    deadline_ms: int
    first_delivered_ms: int
    generation: int


class ReceiveReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The leased messages, empty if none arrived in time, and the overrides of the group."""

    messages: tuple[Acquired, ...] = ()
    overrides: Mapping[str, str] = {}


class ShareTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings of a share group say about a queue. Stored with it."""

    max_deliveries: int = 0  # 0: the setting of the queue
    is_committed: bool = True


class ReceiveRequest(QueueRequest[ReceiveReply], frozen=True, kw_only=True):
    """Lease up to `max_messages` to `consumer`. Waits for messages for up to `wait_ms`.

    With `max_messages` 0 nothing is leased: the reply is sent as soon as there is a message to lease.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

    consumer: str
    max_messages: int
    visibility_ms: int | None = None  # None: the setting of the queue
    wait_ms: int = 0
    partitions: tuple[int, ...] | None = None  # None: all
    start: Start = Start.EARLIEST
    # In key order: whether this receive may lease several messages of one key, in order. The key stays
    # blocked until all of them are settled.
    key_runs: bool = False
    share: ShareTerms | None = None  # None: as before

    @property
    def max_wait_ms(self) -> int:
        return self.wait_ms

    def after(self, spent_ms: int) -> "ReceiveRequest":
        return msgspec.structs.replace(self, wait_ms=max(self.wait_ms - spent_ms, 0))


class Action(StrEnum):
    """How a consumer settles a leased message."""

    ACK = "ack"  # done
    NACK = "nack"  # failed: redeliver after a backoff, or dead-letter after the last delivery
    RELEASE = "release"  # not processed: redeliver at once; counts as a delivery
    RELEASE_UNSEEN = "undo"  # not received by the consumer: redeliver at once; does not count as a delivery
    REJECT = "reject"  # dead-letter now
    EXTEND = "extend"  # extend the lease
    MOVE = "move"  # append to another topic, then done: redrive
    DISCARD = "drop"  # done without having been processed: its time to live has expired


class Settlement(NamedTuple):
    """Settles one delivery.

    `delivery_count` and `generation` identify the delivery. Kafka's share groups identify it by `consumer`
    only; both are None then.
    """

    partition: int
    offset: int
    action: Action
    delivery_count: int | None = None
    generation: int | None = None
    consumer: str | None = None
    delay_ms: int | None = None  # NACK: backoff instead of the configured one; EXTEND: from now
    reason: str = ""  # NACK, REJECT: stored with the dead letter
    target: str = ""  # MOVE: the topic


class SettleReply(msgspec.Struct, frozen=True, kw_only=True):
    """One result per settlement, in order: None, or an error."""

    results: tuple[AlpacaError | None, ...] = ()


class SettleRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Settle deliveries of one queue."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    settlements: tuple[Settlement, ...]


class ReleaseConsumerRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Release all leases of a consumer that has disconnected, in some partitions or in all."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    consumer: str
    partitions: tuple[int, ...] | None = None  # None: all


class ResetRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Start again at these offsets; leases in these partitions end.

    A purge is a reset to the end of the log, a replay is a reset to an earlier offset. None may be behind the
    end of the partition's leader, which the engine does not know.
    """

    offsets: Mapping[int, int]


class LaneTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one lane in one partition. Totals count since the broker started."""

    ready: int = 0
    in_flight: int = 0
    backoff: int = 0
    enqueued_total: int = 0
    delivered_total: int = 0


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one partition of a queue. Everything before `start_offset` is done."""

    partition: int
    start_offset: int
    end_offset: int  # the last stable offset of the log
    ready: int
    in_flight: int
    backoff: int
    dead_lettering: int  # being moved to another topic
    oldest_offset: int | None  # the first message that is not done
    lanes: Mapping[str, LaneTotals] = {}


class DescribeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue. Totals count since the broker started."""

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
    """Override queue.* settings for this group on this topic; None removes an override."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    overrides: Mapping[str, str | None]


class DeleteRequest(QueueRequest[SettleReply], frozen=True, kw_only=True):
    """Delete the queue; GroupIdNotFound if it does not exist."""


class DescribeRequest(QueueRequest[DescribeReply], frozen=True, kw_only=True):
    """Describe the queue; GroupIdNotFound if it does not exist."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class DescribeAllReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all queues of this machine."""

    queues: tuple[DescribeReply, ...]


class DescribeAllRequest(Request[DescribeAllReply], frozen=True, kw_only=True):
    """Describe the queues of this machine."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class FinishedReply(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the offsets that are done."""

    offsets: tuple[int, ...]


class FinishedRequest(QueueRequest[FinishedReply], frozen=True, kw_only=True):
    """Find out which messages were acknowledged, discarded or moved."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    partition: int
    offsets: tuple[int, ...]


class OverridesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the topic that a group overrides."""

    overrides: Mapping[str, str] = {}


class OverridesRequest(QueueRequest[OverridesReply], frozen=True, kw_only=True):
    """Return the overrides of a queue; none for one that does not exist."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of this machine, with the overrides of each."""

    queues: tuple[tuple[QueueId, Mapping[str, str]], ...]


class ListRequest(Request[ListReply], frozen=True, kw_only=True):
    """List the queues of this machine."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class TopicsChanged(Request[None], frozen=True, kw_only=True):
    """Event: topics have changed; queues of deleted ones are deleted now instead of with the next event."""


class RecordsArrived(Request[None], frozen=True, kw_only=True):
    """Event: a partition has grown, or its log start has moved."""

    topic: str
    partition: int


class LostTail(NamedTuple):
    """A partition whose only replica has lost the records from `end_offset` on in a power cut."""

    topic_id: TopicId
    partition: int
    end_offset: int


class CutTails(Request[SettleReply], frozen=True, kw_only=True):
    """Forget the state of lost records, whose offsets will be given to new ones.

    Sent by the leader that has lost them. The engine is loaded again, which cuts its state.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

    lost: tuple[LostTail, ...]


class ReadBacklog(NamedTuple):
    """Effect: read part of a partition from `offset` on. Answered by the event BacklogRead."""

    queue: QueueId
    partition: int
    offset: int
    with_keys: bool
    generation: int  # of the partition: a read for a queue that was reset or deleted is not for its successor
    is_committed: bool = True


class BacklogRead(Request[None], frozen=True, kw_only=True):
    """Event: part of a partition was read, or nothing if it cannot be read now."""

    read: ReadBacklog
    outline: Outline


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: append this message to `target` with this producer id and sequence, then post MovesDone.

    Moves of one partition of a queue are performed in the order of their sequences. The producer id belongs
    to this partition of this queue alone, so the target detects a move that is repeated after a crash.
    """

    queue: QueueId
    topic_id: TopicId  # of the queue
    partition: int
    offset: int
    target: str  # empty: the dead-letter topic of the queue
    reason: str  # empty: a redrive, without dead-letter headers
    delivery_count: int
    producer_id: int
    sequence: int


class MovesDone(Request[None], frozen=True, kw_only=True):
    """Event: these moves were performed."""

    moves: Sequence[Move]


class MovesReturned(Request[None], frozen=True, kw_only=True):
    """Event: the target of these moves does not exist; their messages become available again."""

    moves: Sequence[Move]


class EndedLease(NamedTuple):
    """Effect: a lease expired or its consumer disconnected.

    It covers the messages `first_offset` + n for every bit n of the mask.
    """

    queue: QueueId
    partition: int
    first_offset: int
    mask: int
    delivery_count: int
    consumer: str
    is_expired: bool  # False: the consumer disconnected


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the memory of the engine."""

    max_queues: int = 10_000
    max_waiting_receives: int = 10_000
    max_indexed_runs: int = 100_000  # per queue and partition
    max_blocked_messages: int = 20_000  # per queue and partition, in key order


def fits(name: str, max_bytes: int) -> bool:
    """Return whether a name is valid UTF-8 of at most `max_bytes`."""
    try:
        return len(name.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False
