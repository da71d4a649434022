"""Members of consumer groups with server-side assignment (KIP-848).

    async with Consumer(cluster, "billing", topics=["orders"]) as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

Partitions come and go only while the application waits for its next record: whatever was delivered before
has been processed then, and can be committed in `on_revoked`. Heartbeats are sent by a task of their own.
"""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID, uuid4

from alpacamq.client.errors import (
    ClientError,
    Closed,
    ErrorCode,
    MemberFenced,
    OffsetOutOfRange,
    Refused,
    only,
    refusal,
)
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from alpacamq.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from alpacamq.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

from .batching import Identity
from .cluster import MOVED_COORDINATOR, Backoff, Cluster, Coordinates
from .fetching import At, ConsumedRecord, Fetcher, FetchSettings, find_offsets
from .reader import CHUNK_RECORDS

T = TypeVar("T")

Callback = Callable[[Collection[TopicPartition]], Awaitable[None] | None]

_JOINING = 0
_LEAVING = -1
_LEAVING_FOR_NOW = -2
_FIRST_HEARTBEAT_S = 5.0
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a member behaves in its group."""

    # Where to start in partitions without a committed offset: "earliest", "latest", a time, or "error".
    reset: str | At = "earliest"
    # None: only `commit` commits. Otherwise what was processed is committed so often, and at the end.
    auto_commit_s: float | None = None
    # Static membership: a member that restarts within the session gets its partitions back.
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    # The time that the application has for a record when partitions are revoked.
    rebalance_timeout_ms: int = 300_000
    fetch: FetchSettings = field(default_factory=FetchSettings)


class Consumer:
    """An asynchronous iterator over the records of the partitions that the group assigns."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        topics: Collection[str] = (),
        pattern: str | None = None,
        settings: ConsumerSettings | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics, or to those whose whole names match a pattern of RE2."""
        self._cluster = cluster
        self.group = group
        self._settings = settings = settings or ConsumerSettings()
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._topics: list[str] = []
        self._pattern: str | None = None
        self.subscribe(topics, pattern=pattern)
        self._fetcher = Fetcher(cluster, settings.fetch, reset=settings.reset)
        self.member_id = str(uuid4())
        self.member_epoch = _JOINING
        self._ids: dict[str, UUID] = {}
        self._owned: set[TopicPartition] = set()
        # What the coordinator has assigned, and what it has taken away by fencing this member.
        self._target: set[TopicPartition] | None = None
        self._lost: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # The next heartbeat says everything, not only that the member is alive.
        self._is_heartbeat_full = True
        self._heartbeat_due = asyncio.Event()
        self._heartbeat_sent = asyncio.Event()
        self._is_changed = False
        self._reconciling: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._chunk: list[ConsumedRecord] = []
        self._next = 0
        # The first record of those that the application got last from `take`; -1: it got one.
        self._taken_from = -1
        self._is_waiting = False

    async def __aenter__(self) -> Self:
        self._fetcher.start()
        self._tasks.append(self._cluster.spawn(self._send_heartbeats()))
        if self._settings.auto_commit_s is not None:
            self._tasks.append(self._cluster.spawn(self._commit_regularly(self._settings.auto_commit_s)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit if auto_commit_s is set, and leave the group."""
        if error is None:
            self._is_waiting = True  # what was delivered has been processed
        await self.close()

    def subscribe(self, topics: Collection[str] = (), *, pattern: str | None = None) -> None:
        """Replace the subscription."""
        if bool(topics) == (pattern is not None):
            raise ValueError("a consumer subscribes to topics or to a pattern, not to both or neither")
        if isinstance(topics, str):
            raise TypeError("topics is a list of names, not one name")
        is_first = not self._topics and self._pattern is None
        self._topics, self._pattern = sorted(set(topics)), pattern
        if not is_first:
            self._is_heartbeat_full = True
            self._heartbeat_due.set()

    # Records.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        if self._next >= len(self._chunk) or self._is_changed:
            self._taken_from = -1
            await self._fill(CHUNK_RECORDS)
        record = self._chunk[self._next]
        self._next += 1
        return record

    async def take(
        self, max_records: int = CHUNK_RECORDS, wait_s: float | None = None
    ) -> list[ConsumedRecord]:
        """Return records of one partition; empty after `wait_s` without any."""
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        if self._next >= len(self._chunk) or self._is_changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self._fill(max_records)
            except TimeoutError:
                return []
        self._taken_from = self._next
        self._next = min(self._next + max_records, len(self._chunk))
        return self._chunk[self._taken_from : self._next]

    async def _fill(self, max_records: int) -> None:
        """Wait for records, and take part in rebalances meanwhile."""
        self._is_waiting = True
        try:
            await asyncio.sleep(0)
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._is_changed or self._reconciling is not None:
                    await self._take_part()
                if self._next < len(self._chunk):
                    return
                self._chunk, self._next = self._fetcher.take(max_records), 0
                if self._chunk:
                    return
                await self._fetcher.wait()
        finally:
            self._is_waiting = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._owned)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record that was delivered, by assigned partition."""
        positions = self._fetcher.positions()
        if self._next < len(self._chunk):
            following = self._chunk[self._next]
            if following.partition in positions:
                positions[following.partition] = following.offset
        return positions

    def _processed(self) -> dict[TopicPartition, int]:
        """Return the positions without the records that the application may still work on."""
        positions = self.positions()
        first = self._next - 1 if self._taken_from < 0 else self._taken_from
        if not self._is_waiting and 0 <= first < len(self._chunk):
            record = self._chunk[first]
            if record.partition in positions:
                positions[record.partition] = record.offset
        return positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at another offset of an assigned partition."""
        self._check_assigned([partition])
        self._return_chunk()
        self._fetcher.seek(partition, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Keep back the records of partitions until `resume`."""
        self._check_assigned(partitions)
        self._return_chunk()
        self._fetcher.pause(partitions, is_paused=True)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver the records of paused partitions again."""
        self._check_assigned(partitions)
        self._fetcher.pause(partitions, is_paused=False)

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        if others := [str(each) for each in partitions if each not in self._owned]:
            raise ValueError(f"{', '.join(others)} is not assigned to this consumer")

    def _return_chunk(self) -> None:
        """Give decoded records that were not delivered back to the fetcher."""
        if self._next < len(self._chunk):
            following = self._chunk[self._next]
            if following.partition in self._owned:
                self._fetcher.seek(following.partition, following.offset)
        self._chunk, self._next, self._taken_from = [], 0, -1

    # Rebalances.

    async def _take_part(self) -> None:
        """Take part in a rebalance; it goes on if the application does not wait that long."""
        if self._reconciling is None:
            self._is_changed = False
            self._reconciling = self._cluster.spawn(self._reconcile())
        try:
            await asyncio.shield(self._reconciling)
        except asyncio.CancelledError:
            if not self._reconciling.cancelled():
                raise  # it is this caller who was cancelled
        except BaseException:
            self._is_changed = True  # and is tried again
            self._reconciling = None
            raise
        self._reconciling = None

    async def _reconcile(self) -> None:
        """Give up partitions that others get, and begin with new ones."""
        if self._lost:
            lost, self._lost = self._lost, set()
            self._forget(lost)
            await _call(self._on_lost, lost)
        if self._target is None:
            return
        if revoked := self._owned - self._target:
            if self._settings.auto_commit_s is not None:
                # The application waits: it has processed what was delivered.
                positions = self.positions()
                await self._commit_if_member({place: positions[place] for place in revoked})
            await _call(self._on_revoked, revoked)
            self._forget(revoked)
            self._acknowledge()
        if added := self._target - self._owned:
            try:
                offsets = await self._start_offsets(added)
            except MemberFenced:
                self._heartbeat_due.set()  # which joins again
                return
            if self._lost or self._target is None or not added <= self._target:
                self._is_changed = True  # assigned otherwise meanwhile
                return
            self._owned |= added
            self._committed.update(offsets)
            self._fetcher.assign(offsets)
            self._acknowledge()
            await _call(self._on_assigned, added)

    def _forget(self, places: set[TopicPartition]) -> None:
        self._owned -= places
        self._fetcher.drop(places)
        for place in places:
            self._committed.pop(place, None)
        if self._chunk and self._chunk[0].partition in places:
            self._chunk, self._next, self._taken_from = [], 0, -1

    def _acknowledge(self) -> None:
        self._is_heartbeat_full = True
        self._heartbeat_due.set()

    async def _start_offsets(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        committed = await self.committed(places)
        missing = [place for place in places if committed[place] is None]
        if missing and self._settings.reset == "error":
            raise OffsetOutOfRange(
                f"group {self.group!r} has no committed offset in {', '.join(map(str, sorted(missing)))}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
                topic=missing[0].topic,
                partition=missing[0].partition,
            )
        isolation = self._settings.fetch.isolation
        found = await find_offsets(self._cluster, missing, self._settings.reset, isolation)
        return {**{place: each for place, each in committed.items() if each is not None}, **found}

    # Committed offsets.

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of partitions; None where there is none."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for place in sorted(partitions):
            by_topic[place.topic].append(place.partition)

        async def attempt() -> dict[TopicPartition, int | None]:
            member = OffsetFetchRequestGroup(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.member_epoch,
                topics=[
                    OffsetFetchRequestTopics(name=name, partition_indexes=each)
                    for name, each in by_topic.items()
                ],
            )
            request = OffsetFetchRequest(groups=[member], require_stable=True)
            answer = await self._cluster.call_coordinator(
                Coordinates.GROUP, self.group, request, OffsetFetchResponse
            )
            about = f"reading the offsets of group {self.group!r}"
            found = only(about, answer.groups)
            self._check(about, found.error_code)
            offsets: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
            for topic in found.topics:
                for result in topic.partitions:
                    self._check(about, result.error_code, topic.name, result.partition_index)
                    if result.committed_offset >= 0:
                        place = TopicPartition(TopicName(topic.name), result.partition_index)
                        offsets[place] = result.committed_offset
            return offsets

        return await self._as_member(attempt)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets, or all positions. Raises MemberFenced if partitions have been taken away."""
        wanted = dict(self.positions() if offsets is None else offsets)
        changed = {place: offset for place, offset in wanted.items() if self._committed.get(place) != offset}
        if not changed:
            return
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
        for place, offset in sorted(changed.items()):
            by_topic[place.topic].append(
                OffsetCommitRequestPartition(
                    partition_index=place.partition, committed_offset=offset, committed_metadata=""
                )
            )

        async def attempt() -> None:
            request = OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=self.member_epoch,
                member_id=self.member_id,
                group_instance_id=self._settings.instance_id,
                topics=[
                    OffsetCommitRequestTopic(name=name, partitions=each) for name, each in by_topic.items()
                ],
            )
            answer = await self._cluster.call_coordinator(
                Coordinates.GROUP, self.group, request, OffsetCommitResponse
            )
            for topic in answer.topics:
                for result in topic.partitions:
                    about = f"committing offsets of group {self.group!r}"
                    self._check(about, result.error_code, topic.name, result.partition_index)

        await self._as_member(attempt)
        self._committed.update({place: offset for place, offset in changed.items() if place in self._owned})

    async def commit_in(
        self, transactional_id: str, producer: Identity, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Commit offsets as a part of a transaction, which this group has been added to."""
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for place, offset in sorted(offsets.items()):
            by_topic[place.topic].append(
                TxnOffsetCommitRequestPartition(
                    partition_index=place.partition, committed_offset=offset, committed_metadata=""
                )
            )

        async def attempt() -> None:
            request = TxnOffsetCommitRequest(
                transactional_id=transactional_id,
                group_id=self.group,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                generation_id=self.member_epoch,
                member_id=self.member_id,
                group_instance_id=self._settings.instance_id,
                topics=[
                    TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in by_topic.items()
                ],
            )
            answer = await self._cluster.call_coordinator(
                Coordinates.GROUP, self.group, request, TxnOffsetCommitResponse
            )
            for topic in answer.topics:
                for result in topic.partitions:
                    about = f"committing offsets of group {self.group!r}"
                    self._check(about, result.error_code, topic.name, result.partition_index)

        await self._as_member(attempt)
        # The transaction may be aborted: a later commit of the same offset must not be left out.
        for place in offsets:
            self._committed.pop(place, None)

    def _check(self, about: str, code: int, topic: str | None = None, partition: int | None = None) -> None:
        if code in MOVED_COORDINATOR:
            self._cluster.forget_coordinator(Coordinates.GROUP, self.group)
        if code:
            where = "" if topic is None else f" in {topic}-{partition}"
            raise refusal(about + where, code, topic=topic, partition=partition)

    async def _as_member(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Send a request of a member, again if the epoch has changed since."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cluster.request_s
        while True:
            epoch = self.member_epoch
            if self._lost:
                # As a new member it would overwrite what the owners of its partitions have committed.
                raise MemberFenced(f"group {self.group!r}", ErrorCode.FENCED_MEMBER_EPOCH)
            try:
                return await self._cluster.retry(attempt)
            except MemberFenced as error:
                self._heartbeat_due.set()
                is_stale = error.code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)
                if self._is_closed or not is_stale or loop.time() > deadline:
                    raise
            if self.member_epoch == epoch:
                # The next heartbeat brings the new epoch.
                self._heartbeat_sent.clear()
                self._heartbeat_due.set()
                async with asyncio.timeout_at(deadline):
                    await self._heartbeat_sent.wait()
                if self.member_epoch == epoch:
                    raise MemberFenced(f"group {self.group!r}", ErrorCode.STALE_MEMBER_EPOCH)

    async def _commit_if_member(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit; if the partitions have other owners by now, these process the records again."""
        try:
            await self.commit(offsets)
        except MemberFenced:
            self._heartbeat_due.set()

    async def _commit_regularly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._commit_if_member(self._processed())
            except ClientError as error:
                if not error.retriable:
                    self._fail(error)
                    return

    # Heartbeats.

    async def _send_heartbeats(self) -> None:
        backoff = Backoff()
        interval_s = _FIRST_HEARTBEAT_S
        try:
            while True:
                self._heartbeat_due.clear()
                try:
                    interval_s = await self._send_heartbeat()
                except MemberFenced as error:
                    if error.code == ErrorCode.FENCED_INSTANCE_ID:
                        raise
                    self._rejoin()
                    await backoff.wait()
                    continue
                except ClientError as error:
                    is_held = isinstance(error, Refused) and error.code == ErrorCode.UNRELEASED_INSTANCE_ID
                    if not error.retriable and not is_held:
                        raise
                    self._is_heartbeat_full = True
                    await backoff.wait()
                    continue
                finally:
                    self._heartbeat_sent.set()
                backoff.reset()
                try:
                    async with asyncio.timeout(interval_s):
                        await self._heartbeat_due.wait()
                except TimeoutError:
                    pass
        except AlpacaError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._is_changed = True
        self._fetcher.wake()

    def _rejoin(self) -> None:
        """Join again after the coordinator has removed this member."""
        self.member_epoch = _JOINING
        self._is_heartbeat_full = True
        self._target = None
        self._lost |= self._owned
        if self._lost:
            self._is_changed = True
            self._fetcher.wake()

    async def _send_heartbeat(self) -> float:
        """Send a heartbeat; return when the next one is due."""
        is_full, self._is_heartbeat_full = self._is_heartbeat_full, False
        is_joining = self.member_epoch == _JOINING
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.member_epoch
        )
        if is_full:
            request = self._full_heartbeat(is_joining=is_joining)
        try:
            answer = await self._cluster.call_coordinator(
                Coordinates.GROUP, self.group, request, ConsumerGroupHeartbeatResponse
            )
            self._cluster.check_coordinated(
                Coordinates.GROUP,
                self.group,
                f"heartbeat of group {self.group!r}",
                answer.error_code,
                answer.error_message,
            )
        except BaseException:
            self._is_heartbeat_full |= is_full
            raise
        self.member_id = answer.member_id or self.member_id
        self.member_epoch = answer.member_epoch
        if answer.assignment is not None:
            await self._assigned(answer.assignment)
        return answer.heartbeat_interval_ms / 1000

    def _full_heartbeat(self, *, is_joining: bool) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        owned: dict[str, list[int]] = defaultdict(list)
        if not is_joining:
            for place in sorted(self._owned):
                owned[place.topic].append(place.partition)
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=settings.instance_id,
            rack_id=settings.rack,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            subscribed_topic_names=self._topics if self._pattern is None else [],
            subscribed_topic_regex=self._pattern,
            server_assignor=settings.assignor,
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=self._ids[name], partitions=partitions)
                for name, partitions in owned.items()
            ],
        )

    async def _assigned(self, assignment: HeartbeatAssignment) -> None:
        """Take note of an assignment; the application gets it with its next record."""
        target: set[TopicPartition] = set()
        for each in assignment.topic_partitions:
            topic = await self._cluster.retry(partial(self._cluster.topic_of_id, each.topic_id))
            if topic is None:
                continue  # deleted meanwhile: the next assignment is without it
            self._ids[topic.name] = each.topic_id
            target.update(TopicPartition(TopicName(topic.name), number) for number in each.partitions)
        self._target = target
        if target == self._owned and not self._lost:
            self._is_heartbeat_full = True  # which confirms it
        else:
            self._is_changed = True
            self._fetcher.wake()

    async def close(self) -> None:
        """Commit if auto_commit_s is set, and leave the group. Idempotent."""
        if self._is_closed:
            return
        try:
            if self._settings.auto_commit_s is not None and self.member_epoch > 0 and not self._lost:
                await self._commit_if_member(self._processed())
        finally:
            self._is_closed = True
            if self._reconciling is not None:
                self._tasks.append(self._reconciling)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._fail(Closed("the consumer is closed"))
            await self._fetcher.close()
            await self._leave()

    async def _leave(self) -> None:
        """Tell the coordinator; if it does not answer, the member ends with its session."""
        if self.member_epoch == _JOINING:
            return
        epoch = _LEAVING if self._settings.instance_id is None else _LEAVING_FOR_NOW
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._settings.instance_id,
        )
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._cluster.call_coordinator(
                    Coordinates.GROUP, self.group, request, ConsumerGroupHeartbeatResponse
                )
        except (ClientError, TimeoutError):
            return


async def _call(callback: Callback | None, places: Collection[TopicPartition]) -> None:
    if callback is not None and places:
        result = callback(sorted(places))
        if inspect.isawaitable(result):
            await result
