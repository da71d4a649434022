"""Committed offsets of all groups of a coordinator, and pending offsets of open transactions.

Decides which commit wins, which offsets are unstable, and when offsets expire. Groups decide who may commit.

A pending offset takes effect when its transaction commits. A later commit for the same partition that takes
effect earlier drops it.

Offsets have the id of their topic, because topics are deleted and created again while a coordinator is not
running. Only offsets of topics that the coordinator knows are stored, so one whose topic it does not know
belongs to a deleted topic. Such offsets count as absent; they are removed when the coordinator hears of the
deletion, when it is loaded, or by the next commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from alpacamq.model.control import NO_NUMBER
from alpacamq.model.errors import (
    AlpacaError,
    FencedProducer,
    GroupSubscribedToTopic,
    InvalidTransactionState,
    OffsetMetadataTooLarge,
    UnknownTopic,
    UnstableOffsetCommit,
)
from alpacamq.model.ids import NO_TOPIC_ID, TopicId, TopicName, TopicPartition
from alpacamq.model.state_machine import Change, Request

from .messages import (
    NO_LEADER_EPOCH,
    CommitRequest,
    DeleteOffsetsRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResult,
    PartitionResults,
    ResetOffsetsRequest,
    TxnCommitRequest,
)
from .records import IDLE, OFFSET, PENDING, CommittedOffset, PendingOffset, encode, key

_committed = msgspec.msgpack.Decoder(CommittedOffset)
_pending = msgspec.msgpack.Decoder(PendingOffset)
_idle = msgspec.msgpack.Decoder(int)

R = TypeVar("R")

_COMMITS = (CommitRequest, TxnCommitRequest, ResetOffsetsRequest)


class OffsetLimit(NamedTuple):
    """The largest offset that a group can have reached in a partition, and the id of its topic."""

    topic_id: TopicId
    last_offset: int


# Returns the limit of offsets with a topic id, or with NO_TOPIC_ID; None if their topic was deleted.
LimitOf = Callable[[TopicPartition, TopicId], OffsetLimit | None]


# Producers whose last transaction is remembered.
MAX_ENDED = 10_000


class Offsets:
    """Committed offsets by group and partition; pending offsets by producer."""

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # Pending offsets are indexed twice: by partition, to detect unstable ones, and by producer.
        self._pending: dict[str, dict[TopicPartition, dict[int, PendingOffset]]] = {}
        self._by_producer: dict[int, set[tuple[str, TopicPartition]]] = {}
        self._next_order = 0
        # The last transaction that has ended, by producer, the latest last. Not stored: a request that was
        # confirmed before it ended and has not arrived yet ends with the coordinator it was sent to.
        self._ended: dict[int, int] = {}
        self._idle_since_ms: dict[str, int] = {}
        # One object per topic id and partition: there are up to a million offsets. Used during replay only.
        self._topic_ids: dict[int, TopicId] = {}
        self._partitions: dict[tuple[str, int], TopicPartition] = {}

    def groups(self) -> list[str]:
        """Return all groups with committed or pending offsets."""
        return sorted(self._committed.keys() | self._pending.keys())

    def groups_now(self) -> Iterator[str]:
        """Iterate over a copy of the groups with offsets; one with both kinds of offsets occurs twice."""
        return chain(list(self._committed), list(self._pending))

    def partitions_in(self, group: str, topics: AbstractSet[str]) -> dict[str, list[TopicPartition]]:
        """Return the partitions of these topics with a committed or pending offset, by topic."""
        found: dict[str, dict[TopicPartition, None]] = {}
        # There may be many groups, and most have no offset of these topics.
        for offsets in (self._committed.get(group), self._pending.get(group)):
            for partition in offsets or ():
                if partition.topic in topics:
                    found.setdefault(partition.topic, {})[partition] = None
        return {topic: [*partitions] for topic, partitions in found.items()} if found else {}

    def has_any(self, group: str) -> bool:
        return group in self._committed or group in self._pending

    def count(self, group: str) -> int:
        return len(self._committed.get(group, ()))

    def get(self, group: str, partition: TopicPartition, topic_id: TopicId) -> CommittedOffset | None:
        """Return the committed offset of a partition of this topic."""
        found = self._committed.get(group, {}).get(partition)
        return found if found is not None and found.is_of(topic_id) else None

    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; the caller must not change them."""
        return self._committed.get(group, {})

    def partitions(self, group: str) -> list[TopicPartition]:
        """Return the partitions with a committed offset."""
        return [*self._committed.get(group, ())]

    def is_unstable(self, group: str, partition: TopicPartition, topic_id: TopicId) -> bool:
        """Return whether an open transaction may change the offset of this topic."""
        pending = self._pending.get(group, {}).get(partition, {})
        return any(each.committed.is_of(topic_id) for each in pending.values())

    def commit(self, group: str, partition: TopicPartition, committed: CommittedOffset) -> list[Change]:
        """Commit an offset; it replaces committed and pending ones."""
        changes = self._drop_pending(group, partition) if group in self._pending else []
        changes.append(self._put(group, partition, committed))
        return changes

    def check_producer(self, producer_id: int, producer_epoch: int, number: int) -> None:
        """Raise unless offsets of this transaction may be added: it has not ended, and no later one began."""
        if NO_NUMBER < number <= self._ended.get(producer_id, NO_NUMBER):
            raise InvalidTransactionState(f"transaction {number} of producer {producer_id} has ended")
        for group, partition in self._by_producer.get(producer_id, ()):
            newer = self._pending[group][partition][producer_id].producer_epoch
            if newer > producer_epoch:
                raise FencedProducer(f"producer {producer_id} is in epoch {newer}, not {producer_epoch}")

    def add_pending(
        self,
        producer_id: int,
        producer_epoch: int,
        number: int,
        group: str,
        partition: TopicPartition,
        committed: CommittedOffset,
    ) -> list[Change]:
        """Add an offset that takes effect when the producer's transaction commits."""
        pending = PendingOffset(
            producer_epoch=producer_epoch, order=self._next_order, committed=committed, number=number
        )
        self._put_pending(producer_id, group, partition, pending)
        return [_pending_change(producer_id, group, partition, pending)]

    def complete(
        self, producer_id: int, producer_epoch: int, number: int, *, committed: bool
    ) -> list[Change]:
        """Apply or drop the pending offsets of a producer's transaction.

        Pending offsets of a later transaction of the producer stay. Repeating this changes nothing.
        """
        self._note_end(producer_id, number)
        changes: list[Change] = []
        for group, partition in sorted(self._by_producer.get(producer_id, ())):
            pending = self._pending[group][partition][producer_id]
            if pending.is_of_later_than(producer_epoch, number):
                continue
            changes += self._remove_pending(producer_id, group, partition)
            if committed and not pending.is_left_over(number):
                changes += self._drop_pending(group, partition, before=pending.order)
                changes.append(self._put(group, partition, pending.committed))
        return changes

    def delete(self, group: str, partition: TopicPartition) -> list[Change]:
        """Delete the committed and pending offsets of a partition."""
        return self._drop_pending(group, partition) + self._remove(group, partition)

    def delete_group(self, group: str) -> list[Change]:
        """Delete all offsets of a group."""
        changes: list[Change] = []
        for partition in self._known(group):
            changes += self.delete(group, partition)
        if self._idle_since_ms.pop(group, None) is not None:
            changes.append(Change(key(IDLE, group), None))
        return changes

    def delete_topic(self, topic: str, current_id: TopicId) -> list[Change]:
        """Delete the offsets of deleted topics of this name."""
        changes = []
        for group in self.groups():
            for partition in self._known(group):
                if partition.topic == topic:
                    changes += self.delete_stale(group, partition, current_id)
        return changes

    def delete_stale(self, group: str, partition: TopicPartition, current_id: TopicId) -> list[Change]:
        """Delete the offsets of a partition that are not of the current topic."""
        changes = []
        for producer_id, pending in [*self._pending.get(group, {}).get(partition, {}).items()]:
            if not pending.committed.is_of(current_id):
                changes += self._remove_pending(producer_id, group, partition)
        committed = self._committed.get(group, {}).get(partition)
        if committed is not None and not committed.is_of(current_id):
            changes += self._remove(group, partition)
        return changes

    def trim(self, limit_of: LimitOf) -> list[Change]:
        """Delete offsets of deleted topics, and lower offsets beyond the largest possible one.

        New records reuse the offsets of lost ones; a group with a higher offset would skip them. Offsets
        without a topic id get that of their topic.
        """
        changes: list[Change] = []
        limits: dict[TopicPartition, tuple[TopicId, OffsetLimit | None]] = {}
        for group in list(self._committed):
            for partition, committed in list(self._committed[group].items()):
                topic_id = committed.topic_id
                known = limits.get(partition)
                if known is None or known[0] is not topic_id:
                    known = limits[partition] = topic_id, limit_of(partition, topic_id)
                trimmed = _trimmed(committed, known[1])
                if trimmed is None:
                    changes += self._remove(group, partition)
                elif trimmed is not committed:
                    changes.append(self._put(group, partition, trimmed))
        for group in list(self._pending):
            for partition in list(self._pending[group]):
                for producer_id, pending in [*self._pending.get(group, {}).get(partition, {}).items()]:
                    trimmed = _trimmed(pending.committed, limit_of(partition, pending.committed.topic_id))
                    if trimmed is None:
                        changes += self._remove_pending(producer_id, group, partition)
                    elif trimmed is not pending.committed:
                        held = msgspec.structs.replace(pending, committed=trimmed)
                        self._put_pending(producer_id, group, partition, held)
                        changes.append(_pending_change(producer_id, group, partition, held))
        return changes

    def mark_idle(self, group: str, now_ms: int) -> Change:
        """Start the retention of the offsets of a group whose last member has left."""
        self._idle_since_ms[group] = now_ms
        return Change(key(IDLE, group), msgspec.msgpack.encode(now_ms))

    def expire(self, group: str, now_ms: int) -> list[Change]:
        """Delete the expired offsets of a group without members."""
        changes = []
        for partition in self.partitions(group):
            is_pending = partition in self._pending.get(group, ())
            if self._expiry_ms(group, partition) <= now_ms and not is_pending:
                changes += self.delete(group, partition)
        return changes

    def next_expiry_ms(self, group: str) -> int | None:
        """Return when the first offset of a group without members expires."""
        return min((self._expiry_ms(group, each) for each in self._committed.get(group, ())), default=None)

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        kind = parts[0]
        if kind == IDLE:
            if value is None:
                self._idle_since_ms.pop(parts[1], None)
            else:
                self._idle_since_ms[parts[1]] = _idle.decode(value)
            return
        group, place = parts[1], parts[2:4]
        if (partition := self._partitions.get(place)) is None:
            partition = self._partitions[place] = TopicPartition(*place)
        if kind == PENDING:
            if value is None:
                self._remove_pending(parts[4], group, partition)
            else:
                pending = _pending.decode(value)
                self._share_topic_id(pending.committed)
                self._put_pending(parts[4], group, partition, pending)
        elif value is not None:
            committed = _committed.decode(value)
            self._share_topic_id(committed)
            if (offsets := self._committed.get(group)) is None:
                offsets = self._committed[group] = {}
            offsets[partition] = committed
        else:
            self._remove(group, partition)

    def loaded(self) -> None:
        """Free what only replay needs."""
        self._topic_ids.clear()
        self._partitions.clear()

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state; offsets may change in the meantime."""
        for group in list(self._committed):
            for partition, committed in list(self._committed.get(group, {}).items()):
                yield Change(key(OFFSET, group, *partition), encode(committed))
        for group in list(self._pending):
            for partition, by_producer in list(self._pending.get(group, {}).items()):
                for producer_id, pending in list(by_producer.items()):
                    yield _pending_change(producer_id, group, partition, pending)
        for group, since_ms in list(self._idle_since_ms.items()):
            yield Change(key(IDLE, group), msgspec.msgpack.encode(since_ms))

    def _note_end(self, producer_id: int, number: int) -> None:
        self._ended[producer_id] = max(number, self._ended.pop(producer_id, NO_NUMBER))
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _put(self, group: str, partition: TopicPartition, committed: CommittedOffset) -> Change:
        if (offsets := self._committed.get(group)) is None:
            offsets = self._committed[group] = {}
        offsets[partition] = committed
        return Change(key(OFFSET, group, *partition), encode(committed))

    def _remove(self, group: str, partition: TopicPartition) -> list[Change]:
        """Delete the committed offset of a partition."""
        offsets = self._committed.get(group, {})
        if offsets.pop(partition, None) is None:
            return []
        if not offsets:
            del self._committed[group]
        return [Change(key(OFFSET, group, *partition), None)]

    def _share_topic_id(self, committed: CommittedOffset) -> None:
        # By the number: the hash of a UUID takes longer than all else here.
        shared = self._topic_ids.setdefault(committed.topic_id.int, committed.topic_id)
        msgspec.structs.force_setattr(committed, "topic_id", shared)

    def _known(self, group: str) -> list[TopicPartition]:
        """Return the partitions with a committed or pending offset."""
        return sorted({*self._committed.get(group, ()), *self._pending.get(group, ())})

    def _expiry_ms(self, group: str, partition: TopicPartition) -> int:
        committed_at_ms = self._committed[group][partition].committed_at_ms
        return max(committed_at_ms, self._idle_since_ms.get(group, committed_at_ms)) + self._retention_ms

    def _put_pending(
        self, producer_id: int, group: str, partition: TopicPartition, pending: PendingOffset
    ) -> None:
        self._pending.setdefault(group, {}).setdefault(partition, {})[producer_id] = pending
        self._by_producer.setdefault(producer_id, set()).add((group, partition))
        self._next_order = max(self._next_order, pending.order + 1)

    def _drop_pending(self, group: str, partition: TopicPartition, before: int | None = None) -> list[Change]:
        """Drop the pending offsets of a partition; with `before`, only those with a lower order."""
        changes = []
        for producer_id, pending in [*self._pending.get(group, {}).get(partition, {}).items()]:
            if before is None or pending.order < before:
                changes += self._remove_pending(producer_id, group, partition)
        return changes

    def _remove_pending(self, producer_id: int, group: str, partition: TopicPartition) -> list[Change]:
        by_producer = self._pending.get(group, {}).get(partition, {})
        if by_producer.pop(producer_id, None) is None:
            return []
        if not by_producer:
            del self._pending[group][partition]
            if not self._pending[group]:
                del self._pending[group]
        held = self._by_producer[producer_id]
        held.discard((group, partition))
        if not held:
            del self._by_producer[producer_id]
        return [Change(key(PENDING, group, *partition, producer_id), None)]


def _trimmed(committed: CommittedOffset, limit: OffsetLimit | None) -> CommittedOffset | None:
    """Return a commit within its limit; None if its topic was deleted."""
    if limit is None:
        return None
    if committed.topic_id is not limit.topic_id and committed.topic_id != limit.topic_id:
        committed = msgspec.structs.replace(committed, topic_id=limit.topic_id)
    if committed.offset > limit.last_offset:
        return msgspec.structs.replace(committed, offset=limit.last_offset, leader_epoch=NO_LEADER_EPOCH)
    return committed


def _pending_change(
    producer_id: int, group: str, partition: TopicPartition, pending: PendingOffset
) -> Change:
    return Change(key(PENDING, group, *partition, producer_id), encode(pending))


def with_topic_ids(request: Request[R], id_of: Callable[[str], TopicId]) -> Request[R]:
    """Add the topic ids that a request for offsets lacks. `id_of` returns NO_TOPIC_ID for unknown topics."""
    if isinstance(request, _COMMITS):
        offsets = tuple(
            msgspec.structs.replace(each, topic_id=id_of(each.topic))
            if each.topic_id == NO_TOPIC_ID
            else each
            for each in request.offsets
        )
        return cast("Request[R]", msgspec.structs.replace(request, offsets=offsets))
    if isinstance(request, FetchOffsetsRequest) and request.partitions:
        given = request.topic_ids
        ids = {
            topic: given.get(topic) or id_of(topic) for topic in {each.topic for each in request.partitions}
        }
        return cast("Request[R]", msgspec.structs.replace(request, topic_ids=ids))
    return request


def commit_offsets(
    offsets: Iterable[OffsetToCommit],
    store: Callable[[TopicPartition, CommittedOffset], list[Change]],
    id_of: Callable[[str], TopicId],
    max_metadata_bytes: int,
    now_ms: int,
) -> tuple[list[Change], PartitionResults]:
    """Check offsets and pass the valid ones to `store`; `id_of` returns the ids of known topics."""
    changes: list[Change] = []
    results = []
    for each in offsets:
        error: AlpacaError | None = None
        # A negative offset is stored as it is: clients take it for none, and reset a group that way.
        topic, topic_id, metadata = each.topic, each.topic_id, each.metadata
        if not _is_of_known_topic(topic_id, id_of(topic)):
            error = UnknownTopic(f"topic {topic!r} with id {topic_id} is unknown")
        elif metadata and len(metadata.encode()) > max_metadata_bytes:
            error = OffsetMetadataTooLarge(
                f"the metadata of the offset of {topic}-{each.partition} is longer than "
                f"{max_metadata_bytes} bytes"
            )
        else:
            committed = CommittedOffset(
                offset=each.offset,
                committed_at_ms=now_ms,
                leader_epoch=each.leader_epoch,
                metadata=metadata,
                topic_id=topic_id,
            )
            changes += store(TopicPartition(TopicName(topic), each.partition), committed)
        results.append(PartitionResult(topic=topic, partition=each.partition, error=error))
    return changes, PartitionResults(partitions=tuple(results))


def _is_of_known_topic(topic_id: TopicId, current_id: TopicId) -> bool:
    """Return whether an offset is of the topic that has its name, and not of a deleted or later one."""
    # Comparing UUIDs is a call of Python.
    return (topic_id is current_id or topic_id == current_id) and current_id is not NO_TOPIC_ID


def delete_offsets(
    offsets: Offsets, request: DeleteOffsetsRequest, is_read: Callable[[str], bool]
) -> tuple[list[Change], PartitionResults]:
    """Delete offsets of topics that no member reads."""
    changes: list[Change] = []
    results = []
    read = {topic for topic in {each.topic for each in request.partitions} if is_read(topic)}
    for partition in request.partitions:
        error = None
        if partition.topic in read:
            error = GroupSubscribedToTopic(f"members of {request.group!r} read {partition.topic!r}")
        else:
            changes += offsets.delete(request.group, partition)
        results.append(PartitionResult(topic=partition.topic, partition=partition.partition, error=error))
    return changes, PartitionResults(partitions=tuple(results))


def fetch_offsets(offsets: Offsets, request: FetchOffsetsRequest) -> FetchOffsetsReply:
    """Return the requested offsets, or all of the group."""
    if request.partitions is None:
        wanted = [(each, found.topic_id) for each, found in offsets.committed(request.group).items()]
    else:
        ids = request.topic_ids
        wanted = [(each, ids.get(each.topic, NO_TOPIC_ID)) for each in request.partitions]
    return FetchOffsetsReply(offsets=tuple(_fetch_offset(offsets, request, *each) for each in wanted))


def _fetch_offset(
    offsets: Offsets, request: FetchOffsetsRequest, partition: TopicPartition, topic_id: TopicId
) -> FetchedOffset:
    topic, index = partition
    if request.require_stable and offsets.is_unstable(request.group, partition, topic_id):
        error = UnstableOffsetCommit(f"an open transaction commits {partition}")
        return FetchedOffset(topic=topic, partition=index, topic_id=topic_id, error=error)
    if (found := offsets.get(request.group, partition, topic_id)) is None:
        return FetchedOffset(topic=topic, partition=index, topic_id=topic_id)
    return FetchedOffset(
        topic=topic,
        partition=index,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        topic_id=topic_id,
    )
