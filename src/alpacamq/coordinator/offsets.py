"""Committed offsets of all groups of a coordinator, and pending offsets of open transactions.

Decides which commit wins, which offsets are unstable, and when offsets expire. Groups decide who may commit.

A pending offset takes effect when its transaction commits. A later commit for the same partition that takes
effect earlier drops it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from alpacamq.model.errors import (
    AlpacaError,
    FencedProducer,
    GroupSubscribedToTopic,
    OffsetMetadataTooLarge,
    UnstableOffsetCommit,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.state_machine import Change

from .messages import (
    NO_LEADER_EPOCH,
    DeleteOffsetsRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResult,
    PartitionResults,
)
from .records import IDLE, OFFSET, PENDING, CommittedOffset, PendingOffset, key

_committed = msgspec.msgpack.Decoder(CommittedOffset)
_pending = msgspec.msgpack.Decoder(PendingOffset)
_idle = msgspec.msgpack.Decoder(int)


class Offsets:
    """Committed offsets by group and partition; pending offsets by producer."""

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # Pending offsets are indexed twice: by partition, to detect unstable ones, and by producer.
        self._pending: dict[str, dict[TopicPartition, dict[int, PendingOffset]]] = {}
        self._by_producer: dict[int, set[tuple[str, TopicPartition]]] = {}
        self._next_order = 0
        self._idle_since_ms: dict[str, int] = {}

    def groups(self) -> list[str]:
        """Return all groups with committed or pending offsets."""
        return sorted(self._committed.keys() | self._pending.keys())

    def groups_now(self) -> Iterator[str]:
        """Iterate over a copy of the groups with offsets; one with both kinds of offsets occurs twice."""
        return chain(list(self._committed), list(self._pending))

    def partitions_in(self, group: str, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic with a committed or pending offset."""
        known = {*self._committed.get(group, ()), *self._pending.get(group, ())}
        return [partition for partition in known if partition.topic == topic]

    def has_any(self, group: str) -> bool:
        return group in self._committed or group in self._pending

    def count(self, group: str) -> int:
        return len(self._committed.get(group, ()))

    def get(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._committed.get(group, {}).get(partition)

    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; the caller must not change them."""
        return self._committed.get(group, {})

    def partitions(self, group: str) -> list[TopicPartition]:
        """Return the partitions with a committed offset."""
        return [*self._committed.get(group, ())]

    def is_unstable(self, group: str, partition: TopicPartition) -> bool:
        """Return whether an open transaction may change the offset."""
        return partition in self._pending.get(group, ())

    def commit(self, group: str, partition: TopicPartition, committed: CommittedOffset) -> list[Change]:
        """Commit an offset; it replaces committed and pending ones."""
        changes = self._drop_pending(group, partition) if group in self._pending else []
        changes.append(self._put(group, partition, committed))
        return changes

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Raise FencedProducer if a newer instance of the producer has pending offsets."""
        for group, partition in self._by_producer.get(producer_id, ()):
            newer = self._pending[group][partition][producer_id].producer_epoch
            if newer > producer_epoch:
                raise FencedProducer(f"producer {producer_id} is in epoch {newer}, not {producer_epoch}")

    def add_pending(
        self,
        producer_id: int,
        producer_epoch: int,
        group: str,
        partition: TopicPartition,
        committed: CommittedOffset,
    ) -> list[Change]:
        """Add an offset that takes effect when the producer's transaction commits."""
        pending = PendingOffset(producer_epoch=producer_epoch, order=self._next_order, committed=committed)
        self._put_pending(producer_id, group, partition, pending)
        value = msgspec.msgpack.encode(pending)
        return [Change(key(PENDING, group, *partition, producer_id), value)]

    def complete(self, producer_id: int, producer_epoch: int, *, committed: bool) -> list[Change]:
        """Apply or drop the pending offsets of a producer's transaction.

        Pending offsets of a later instance of the producer stay. Repeating this changes nothing.
        """
        changes: list[Change] = []
        for group, partition in sorted(self._by_producer.get(producer_id, ())):
            pending = self._pending[group][partition][producer_id]
            if pending.producer_epoch > producer_epoch:
                continue
            changes += self._remove_pending(producer_id, group, partition)
            if committed:
                changes += self._drop_pending(group, partition, before=pending.order)
                changes.append(self._put(group, partition, pending.committed))
        return changes

    def delete(self, group: str, partition: TopicPartition) -> list[Change]:
        """Delete the committed and pending offsets of a partition."""
        changes = self._drop_pending(group, partition)
        offsets = self._committed.get(group, {})
        if offsets.pop(partition, None) is not None:
            changes.append(Change(key(OFFSET, group, *partition), None))
            if not offsets:
                del self._committed[group]
        return changes

    def delete_group(self, group: str) -> list[Change]:
        """Delete all offsets of a group."""
        changes = []
        for partition in self._known(group):
            changes += self.delete(group, partition)
        if self._idle_since_ms.pop(group, None) is not None:
            changes.append(Change(key(IDLE, group), None))
        return changes

    def delete_topic(self, topic: str) -> list[Change]:
        """Delete all offsets of a deleted topic."""
        changes = []
        for group in self.groups():
            for partition in self._known(group):
                if partition.topic == topic:
                    changes += self.delete(group, partition)
        return changes

    def trim(self, last_possible: Callable[[TopicPartition], int | None]) -> list[Change]:
        """Delete offsets of partitions without a last possible offset; lower offsets beyond it.

        New records reuse the offsets of lost ones; a group with a higher offset would skip them.
        """
        changes = []
        for group in self.groups():
            for partition in self._known(group):
                if (last := last_possible(partition)) is None:
                    changes += self.delete(group, partition)
                    continue
                committed = self.get(group, partition)
                if committed is not None and committed.offset > last:
                    changes.append(self._put(group, partition, lowered(committed, last)))
                for producer_id, pending in self._pending.get(group, {}).get(partition, {}).items():
                    if pending.committed.offset > last:
                        held = msgspec.structs.replace(pending, committed=lowered(pending.committed, last))
                        self._put_pending(producer_id, group, partition, held)
                        value = msgspec.msgpack.encode(held)
                        changes.append(Change(key(PENDING, group, *partition, producer_id), value))
        return changes

    def mark_idle(self, group: str, now_ms: int) -> Change:
        """Start the retention of the offsets of a group whose last member has left."""
        self._idle_since_ms[group] = now_ms
        return Change(key(IDLE, group), msgspec.msgpack.encode(now_ms))

    def expire(self, group: str, now_ms: int) -> list[Change]:
        """Delete the expired offsets of a group without members."""
        changes = []
        for partition in self.partitions(group):
            if self._expiry_ms(group, partition) <= now_ms and not self.is_unstable(group, partition):
                changes += self.delete(group, partition)
        return changes

    def next_expiry_ms(self, group: str) -> int | None:
        """Return when the first offset of a group without members expires."""
        return min((self._expiry_ms(group, each) for each in self._committed.get(group, ())), default=None)

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        if parts[0] == IDLE:
            if value is None:
                self._idle_since_ms.pop(parts[1], None)
            else:
                self._idle_since_ms[parts[1]] = _idle.decode(value)
            return
        group, partition = parts[1], TopicPartition(TopicName(parts[2]), parts[3])
        if parts[0] == PENDING:
            if value is None:
                self._remove_pending(parts[4], group, partition)
            else:
                self._put_pending(parts[4], group, partition, _pending.decode(value))
        elif value is not None:
            self._committed.setdefault(group, {})[partition] = _committed.decode(value)
        elif (offsets := self._committed.get(group)) is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._committed[group]

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state; offsets may change in the meantime."""
        for group in list(self._committed):
            for partition, committed in list(self._committed.get(group, {}).items()):
                yield Change(key(OFFSET, group, *partition), msgspec.msgpack.encode(committed))
        for group in list(self._pending):
            for partition, by_producer in list(self._pending.get(group, {}).items()):
                for producer_id, pending in list(by_producer.items()):
                    value = msgspec.msgpack.encode(pending)
                    yield Change(key(PENDING, group, *partition, producer_id), value)
        for group, since_ms in list(self._idle_since_ms.items()):
            yield Change(key(IDLE, group), msgspec.msgpack.encode(since_ms))

    def _put(self, group: str, partition: TopicPartition, committed: CommittedOffset) -> Change:
        self._committed.setdefault(group, {})[partition] = committed
        return Change(key(OFFSET, group, *partition), msgspec.msgpack.encode(committed))

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


def lowered(committed: CommittedOffset, offset: int) -> CommittedOffset:
    """Return a commit with an earlier offset and without leader epoch."""
    return msgspec.structs.replace(committed, offset=offset, leader_epoch=NO_LEADER_EPOCH)


def commit_offsets(
    offsets: Iterable[OffsetToCommit],
    store: Callable[[TopicPartition, CommittedOffset], list[Change]],
    max_metadata_bytes: int,
    now_ms: int,
) -> tuple[list[Change], PartitionResults]:
    """Check offsets and pass the valid ones to `store`."""
    changes: list[Change] = []
    results = []
    for each in offsets:
        error: AlpacaError | None = None
        # A negative offset is stored as it is: clients take it for none, and reset a group that way.
        if len(each.metadata.encode()) > max_metadata_bytes:
            error = OffsetMetadataTooLarge(f"offset metadata must be at most {max_metadata_bytes} bytes")
        else:
            committed = CommittedOffset(
                offset=each.offset,
                committed_at_ms=now_ms,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            changes += store(TopicPartition(TopicName(each.topic), each.partition), committed)
        results.append(PartitionResult(topic=each.topic, partition=each.partition, error=error))
    return changes, PartitionResults(partitions=tuple(results))


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
    partitions = request.partitions
    if partitions is None:
        partitions = tuple(offsets.partitions(request.group))
    return FetchOffsetsReply(offsets=tuple(_fetch_offset(offsets, request, each) for each in partitions))


def _fetch_offset(offsets: Offsets, request: FetchOffsetsRequest, partition: TopicPartition) -> FetchedOffset:
    topic, index = partition
    if request.require_stable and offsets.is_unstable(request.group, partition):
        error = UnstableOffsetCommit(f"an open transaction commits {partition}")
        return FetchedOffset(topic=topic, partition=index, error=error)
    if (found := offsets.get(request.group, partition)) is None:
        return FetchedOffset(topic=topic, partition=index)
    return FetchedOffset(
        topic=topic,
        partition=index,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )
