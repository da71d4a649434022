"""Members of consumer groups (KIP-848) on streams of `Log.Subscribe`.

The stream is the member: the broker sends its heartbeats while it is open, and leaves the group when it ends.
Partitions that the group takes away are released when the client says so, as a Kafka client does by itself.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import aclosing, suppress
from uuid import uuid4

from alpacamq.api.rest.handlers.offsets import unknown_partitions
from alpacamq.api.rest.membership import partitions_by_topic
from alpacamq.api.rest.partition_reading import PartitionView, known_bounds
from alpacamq.broker.tracing.commits import record_commits
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    Partitions,
)
from alpacamq.coordinator.messages import (
    CommitRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResults,
)
from alpacamq.model.errors import (
    AlpacaError,
    FencedMemberEpoch,
    OffsetOutOfRange,
    StaleMemberEpoch,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.ids import TopicId, TopicName, TopicPartition
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi
from alpacamq.v1 import log_pb2 as pb
from alpacamq.v1 import messages_pb2 as m

from .call import Call
from .cursors import (
    WAIT_MS,
    Chunk,
    PartitionCursor,
    add_skipped,
    checked_bytes,
    is_batches,
    is_committed,
    resolve,
    start_of,
    until_first,
)
from .errors import InvalidField, is_retriable, to_status
from .record_encoding import length_delimited

log = get_logger(__name__)

REBALANCE_TIMEOUT_MS = 60_000
MAX_REBALANCE_TIMEOUT_MS = 3_600_000
MAX_TOPICS = 10_000
MAX_OFFSETS = 10_000
# How long leaving may take when a stream ends.
LEAVE_SECONDS = 5.0
# How soon partitions are looked for again whose leaders, or committed offsets, are not available.
UNAVAILABLE_SECONDS = 0.5

# Tags: the records of SubscribeResponse, and those of SubscribedRecords with their batches.
_RESPONSE, _RECORDS, _BATCHES = 0x22, 0x12, 0x1A


async def open_subscription(
    call: Call[pb.SubscribeRequest, pb.SubscribeResponse],
) -> "Subscription":
    """Read the first request of a stream, and return what serves the rest."""
    first = await call.recv_message()
    if first is None or first.WhichOneof("request") != "open":
        raise InvalidField("open", "the first request of a stream opens a subscription")
    opened = first.open
    if not opened.group:
        raise InvalidField("open.group", "is missing")
    if bool(opened.topics) == bool(opened.pattern):
        raise InvalidField("open.topics", "give one of topics and pattern")
    if len(opened.topics) > MAX_TOPICS:
        raise InvalidField("open.topics", f"has more than {MAX_TOPICS} topics")
    if not 0 <= opened.rebalance_timeout_ms <= MAX_REBALANCE_TIMEOUT_MS:
        raise InvalidField("open.rebalance_timeout_ms", f"must be 0 to {MAX_REBALANCE_TIMEOUT_MS}")
    if opened.start not in m.Start.values():
        raise InvalidField("open.start", f"unknown value {opened.start}")
    if opened.HasField("credit_bytes") and opened.credit_bytes < 0:
        raise InvalidField("open.credit_bytes", "must not be negative")
    subscription = Subscription(call, opened)
    subscription.check()
    call.check_quota(QuotaKey.FETCH)
    return subscription


class _Assigned:
    """A partition of the member."""

    __slots__ = ("cursor", "is_paused", "sent_offset", "version")

    def __init__(self, cursor: PartitionCursor) -> None:
        self.cursor = cursor
        # What is before it was sent; the cursor is ahead while a chunk waits for the client.
        self.sent_offset = cursor.next_offset
        self.is_paused = False
        # Changes with every seek: what was read before is not sent.
        self.version = 0


class Subscription:
    """One stream of `Subscribe`."""

    def __init__(
        self, call: Call[pb.SubscribeRequest, pb.SubscribeResponse], opened: pb.SubscribeOpen
    ) -> None:
        self._call = call
        self._broker = call.backend.broker
        self._group = call.stored_id(opened.group)
        self._opened = opened
        self._topics = tuple(call.stored_topic(name) for name in opened.topics)
        self._committed = is_committed("open.isolation", opened.isolation)
        self._as_batches = is_batches("open.format", opened.format)
        self._max_bytes = checked_bytes("open.max_bytes", opened.max_bytes)
        self._credit = opened.credit_bytes if opened.HasField("credit_bytes") else None
        self._member_id = str(uuid4())
        self._epoch = JOIN_EPOCH
        self._interval_seconds = 1.0
        # What the group has given to the member, and what it has confirmed to own.
        self._target: frozenset[TopicPartition] = frozenset()
        self._owned: set[TopicPartition] = set()
        self._assigned: dict[TopicPartition, _Assigned] = {}
        # Partitions that the client has yet to release.
        self._revoking: set[TopicPartition] = set()
        # Commits and heartbeats carry the epoch, which heartbeats change.
        self._coordination = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._is_due = asyncio.Event()
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Raise an error unless the client may read as this group."""
        self._call.check_group(Operation.READ, self._group)
        for topic in {*self._topics, *(each.topic for each in self._owned)}:
            self._call.check_topic(Operation.READ, topic)

    async def run(self) -> None:
        """Serve the stream until the client ends its side."""
        try:
            await self._join()
            parts = self._receive(), self._beat(), self._read()
            await until_first(*map(self._call.timed, parts))
        finally:
            await self._leave()

    # Membership.

    async def _join(self) -> None:
        opened = self._opened
        self._epoch = JOIN_EPOCH
        self._owned.clear()
        await self._heartbeat(
            ConsumerHeartbeatRequest(
                group=self._group,
                member_epoch=JOIN_EPOCH,
                member_id=self._member_id,
                instance_id=opened.instance_id or None,
                rack_id=opened.rack or None,
                rebalance_timeout_ms=opened.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS,
                subscribed_topics=self._topics or None,
                subscribed_regex=opened.pattern or None,
                owned={},
                client_id=opened.client_id,
                client_host=self._call.peer.rpartition(":")[0],
            )
        )
        joined = pb.Membership(group=opened.group, member_id=self._member_id)
        await self._send(pb.SubscribeResponse(joined=joined))

    async def _heartbeat(self, request: ConsumerHeartbeatRequest) -> None:
        reply: ConsumerHeartbeatReply = await self._broker.groups.ask(request)
        self._epoch = reply.member_epoch
        self._interval_seconds = reply.heartbeat_interval_ms / 1000
        if reply.assignment is not None:
            self._target = frozenset(self._named(reply.assignment))

    def _named(self, partitions: Partitions) -> Iterable[TopicPartition]:
        """Yield partitions by topic name, without those that the client may not know of."""
        for topic, indexes in partitions_by_topic(self._broker, partitions).items():
            if self._broker.access.sees_topic(self._call.caller, Operation.DESCRIBE, topic):
                for index in indexes:
                    yield TopicPartition(TopicName(topic), index)

    def _owned_ids(self) -> dict[TopicId, frozenset[int]]:
        found: dict[TopicId, set[int]] = {}
        for topic, partition in self._owned:
            if (known := self._broker.topics.image.topics.get(topic)) is not None:
                found.setdefault(known.id, set()).add(partition)
        return {topic_id: frozenset(partitions) for topic_id, partitions in found.items()}

    async def _beat(self) -> None:
        """Send heartbeats, and follow the assignment of the group."""
        while True:
            is_complete = await self._follow()
            seconds = self._interval_seconds if is_complete else UNAVAILABLE_SECONDS
            self._is_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_due.wait()
            try:
                async with self._coordination:
                    await self._heartbeat(
                        ConsumerHeartbeatRequest(
                            group=self._group,
                            member_id=self._member_id,
                            member_epoch=self._epoch,
                            instance_id=self._opened.instance_id or None,
                            owned=self._owned_ids(),
                        )
                    )
            except (FencedMemberEpoch, StaleMemberEpoch, UnknownMember):
                await self._rejoin()
            except AlpacaError as error:
                if not is_retriable(error):
                    raise

    async def _rejoin(self) -> None:
        """Join again after the group has given up the member."""
        lost = set(self._owned)
        self._assigned.clear()
        self._revoking.clear()
        self._target = frozenset()
        if lost:
            await self._send(pb.SubscribeResponse(lost=self._partition_set(lost)))
        async with self._coordination:
            await self._join()

    async def _follow(self) -> bool:
        """Take and give up partitions as the group wants it; return False if some cannot be read yet."""
        unwanted = {each for each in self._owned if each not in self._target} - self._revoking
        if unwanted:
            for each in unwanted:
                self._assigned.pop(each, None)
            self._revoking |= unwanted
            await self._send(pb.SubscribeResponse(revoked=self._partition_set(unwanted)))
        wanted = [each for each in sorted(self._target) if each not in self._owned]
        if not wanted:
            return True
        taken = await self._take(wanted)
        return len(taken) == len(wanted)

    async def _take(self, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
        """Begin to read partitions, from their committed offsets; return those that can be read now."""
        for topic in {each.topic for each in wanted}:
            self._call.check_topic(Operation.READ, topic)
        bounds = await known_bounds(self._broker, wanted)
        found = tuple(each for each in wanted if each in bounds)
        if not found:
            return []
        async with self._coordination:
            request = FetchOffsetsRequest(
                group=self._group,
                partitions=found,
                member_id=self._member_id,
                member_epoch=self._epoch,
                require_stable=True,
            )
            reply: FetchOffsetsReply = await self._broker.groups.ask(request)
        response = pb.SubscribeResponse()
        taken: dict[TopicPartition, PartitionCursor] = {}
        for identity, committed in zip(found, reply.offsets, strict=True):
            if committed.error is not None:
                continue  # a transaction that commits the offset is open; retried later
            view = PartitionView(identity, self._broker.topics.place(*identity), bounds[identity])
            offset = committed.offset
            if not view.bounds.start_offset <= offset <= view.bounds.end_offset:
                offset = start_of(view.bounds, self._opened.start, committed=self._committed)
            taken[identity] = self._cursor(view, offset)
            response.assigned.partitions.add(
                topic=self._call.local_topic(identity.topic), partition=identity.partition, offset=offset
            )
        if taken:
            self._owned |= taken.keys()
            await self._send(response)
            self._assigned |= {identity: _Assigned(cursor) for identity, cursor in taken.items()}
            self._changed.set()
            self._is_due.set()  # the group learns what the member owns
        return list(taken)

    def _cursor(self, view: PartitionView, offset: int) -> PartitionCursor:
        return PartitionCursor(
            self._broker,
            view,
            offset,
            committed=self._committed,
            as_batches=self._as_batches,
            reader=Origin(ClientApi.GRPC, self._member_id, self._group),
            records_tag=_RECORDS,
            batches_tag=_BATCHES,
        )

    async def _leave(self) -> None:
        if self._epoch == JOIN_EPOCH:
            return
        is_static = bool(self._opened.instance_id)
        request = ConsumerHeartbeatRequest(
            group=self._group,
            member_id=self._member_id,
            member_epoch=STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH,
            instance_id=self._opened.instance_id or None,
        )
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._broker.groups.ask(request)
        except (AlpacaError, TimeoutError) as error:
            # Its session expires by itself.
            log.info("member_not_removed", group=self._group, member=self._member_id, reason=str(error))

    # Requests.

    async def _receive(self) -> None:
        async for request in self._call:
            match request.WhichOneof("request"):
                case "released":
                    self._owned -= self._revoking
                    self._revoking.clear()
                    self._is_due.set()
                case "commit":
                    await self._commit(request.commit)
                case "pause":
                    self._pause(request.pause, paused=True)
                case "resume":
                    self._pause(request.resume, paused=False)
                case "seek":
                    await self._seek(request.seek)
                case "credit_bytes":
                    if request.credit_bytes < 0 or self._credit is None:
                        raise InvalidField(
                            "credit_bytes", "must be positive, and the stream opened with some"
                        )
                    self._credit += request.credit_bytes
                    self._changed.set()
                case "open":
                    raise InvalidField("open", "the stream has a subscription")
                case None:
                    raise InvalidField("request", "is missing")

    def _pause(self, partitions: pb.PartitionSet, *, paused: bool) -> None:
        """Stop or continue reading partitions. Those that were taken away meanwhile are ignored."""
        for each in partitions.topics:
            topic = TopicName(self._call.stored_topic(each.topic))
            for index in each.partitions:
                if (found := self._assigned.get(TopicPartition(topic, index))) is not None:
                    found.is_paused = paused
        self._changed.set()

    async def _seek(self, seek: pb.Seek) -> None:
        """Continue elsewhere in a partition. One that was taken away meanwhile is ignored."""
        identity = TopicPartition(TopicName(self._call.stored_topic(seek.topic)), seek.partition)
        if (found := self._assigned.get(identity)) is None:
            return
        bounds = await self._broker.reads.bounds_at(found.cursor.place)
        view = PartitionView(identity, found.cursor.place, bounds)
        (offset,) = await resolve(self._broker, [(view, seek.position)], committed=self._committed)
        found.version += 1
        found.cursor = self._cursor(view, offset)
        found.sent_offset = offset
        self._changed.set()

    async def _commit(self, commit: pb.CommitOffsets) -> None:
        result = pb.CommitResult(correlation_id=commit.correlation_id)
        try:
            await self._commit_offsets(commit, result)
        except AlpacaError as error:
            del result.offsets[:]
            result.error.CopyFrom(to_status(error, self._call.tenant))
        await self._send(pb.SubscribeResponse(committed=result))

    async def _commit_offsets(self, commit: pb.CommitOffsets, result: pb.CommitResult) -> None:
        call = self._call
        if len(commit.offsets) > MAX_OFFSETS:
            raise InvalidField("commit.offsets", f"has more than {MAX_OFFSETS} offsets")
        offsets = [
            OffsetToCommit(
                topic=call.stored_topic(each.topic),
                partition=each.partition,
                offset=each.offset,
                metadata=each.metadata,
            )
            for each in commit.offsets
        ] or [
            OffsetToCommit(topic=topic, partition=partition, offset=each.sent_offset)
            for (topic, partition), each in self._assigned.items()
        ]
        for topic in {each.topic for each in offsets}:
            call.check_topic(Operation.READ, topic)
        unknown = unknown_partitions(self._broker, offsets)
        known = tuple(each for each, error in zip(offsets, unknown, strict=True) if error is None)
        async with self._coordination:
            request = CommitRequest(
                group=self._group,
                offsets=known,
                member_id=self._member_id,
                generation=self._epoch,
                instance_id=self._opened.instance_id or None,
            )
            results: PartitionResults = await self._broker.groups.ask(request)
        origin = Origin(ClientApi.GRPC, self._member_id, self._group)
        record_commits(self._broker.topics, known, results, origin)
        outcomes = iter(results.partitions)
        for each, absent in zip(offsets, unknown, strict=True):
            added = result.offsets.add(
                topic=call.local_topic(each.topic), partition=each.partition, offset=each.offset
            )
            if (error := absent or next(outcomes).error) is not None:
                added.error.CopyFrom(to_status(error, call.tenant))

    # Records.

    async def _read(self) -> None:
        """Send records of the assigned partitions, in turns."""
        while True:
            self._changed.clear()
            if self._credit is not None and self._credit <= 0:
                await self._changed.wait()
                continue
            is_idle = True
            for identity, assigned in list(self._assigned.items()):
                if await self._read_one(identity, assigned):
                    is_idle = False
            if is_idle:
                await self._wait_for_records()

    async def _read_one(self, identity: TopicPartition, assigned: _Assigned) -> bool:
        """Send what one partition has; return whether there was something."""
        cursor, version = assigned.cursor, assigned.version
        any_sent = False
        max_bytes = self._max_bytes if self._credit is None else min(self._max_bytes, self._credit)
        if max_bytes <= 0 or not self._is_read(identity, assigned, version):
            return False
        begin = cursor.next_offset
        try:
            async with aclosing(cursor.read(max_bytes)) as chunks:
                async for chunk in chunks:
                    if not self._is_read(identity, assigned, version):
                        cursor.next_offset = begin  # paused meanwhile: what was not sent is read again
                        return any_sent
                    await self._send_chunk(identity, chunk)
                    begin = cursor.next_offset
                    if assigned.version == version:
                        assigned.sent_offset = chunk.next_offset
                    any_sent = True
        except OffsetOutOfRange:
            await self._reset(identity, assigned)
            return True
        except UnknownTopic:
            self._assigned.pop(identity, None)  # the group notices, and revokes it
        except AlpacaError as error:
            if not is_retriable(error):
                raise
        return any_sent

    def _is_read(self, identity: TopicPartition, assigned: _Assigned, version: int) -> bool:
        return (
            self._assigned.get(identity) is assigned
            and not assigned.is_paused
            and assigned.version == version
        )

    async def _reset(self, identity: TopicPartition, assigned: _Assigned) -> None:
        """Continue at the start position, because the log no longer has the offset."""
        version = assigned.version
        bounds = await self._broker.reads.bounds_at(assigned.cursor.place)
        if bounds.start_offset <= assigned.cursor.next_offset <= bounds.end_offset:
            await asyncio.sleep(UNAVAILABLE_SECONDS)  # a new leader does not know its end yet
        elif self._is_read(identity, assigned, version):
            start = start_of(bounds, self._opened.start, committed=self._committed)
            assigned.cursor.next_offset = assigned.sent_offset = start

    async def _send_chunk(self, identity: TopicPartition, chunk: Chunk) -> None:
        topic = self._call.local_topic(identity.topic)
        content = pb.SubscribedRecords(topic=topic)
        content.positions.add(
            partition=identity.partition,
            next_offset=chunk.next_offset,
            end_offset=chunk.bounds.readable_end(committed=self._committed),
        )
        add_skipped(content, identity, chunk.skipped, topic)
        if self._credit is not None:
            self._credit -= len(chunk.fields)
        fields = content.SerializeToString() + chunk.fields
        async with self._sending:
            await self._call.send_bytes(length_delimited(_RESPONSE, fields))
        await self._call.pay(QuotaKey.FETCH, len(chunk.fields), chunk.records)

    async def _wait_for_records(self) -> None:
        """Return when there may be records, or when the assignment has changed."""
        positions = {
            each.cursor.place: each.cursor.next_offset
            for each in self._assigned.values()
            if not each.is_paused
        }
        if not positions:
            await self._changed.wait()
            return
        reading = self._broker.reads.wait(positions, WAIT_MS, committed=self._committed)
        await until_first(self._changed.wait(), reading)

    # Responses.

    async def _send(self, response: pb.SubscribeResponse) -> None:
        async with self._sending:
            await self._call.send_message(response)

    def _partition_set(self, partitions: Iterable[TopicPartition]) -> pb.PartitionSet:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            by_topic.setdefault(self._call.local_topic(topic), []).append(partition)
        return pb.PartitionSet(
            topics=[pb.TopicPartitions(topic=topic, partitions=some) for topic, some in by_topic.items()]
        )
