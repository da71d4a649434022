"""Polling as a group: a topic as a queue, message by message, or as a member with partitions of its own."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.coordination import ask_group
from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.membership import Membership, heard, member
from alpacamq.api.rest.message_json import (
    LeasedMessage,
    TopicMessage,
    Values,
    leased_message,
    topic_message,
)
from alpacamq.api.rest.partition_reading import PartitionReading, SkippedBatch, arrivals, read_fairly
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.consumer.messages import ConsumerMemberDescription
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import FetchOffsetsReply, FetchOffsetsRequest, OffsetToCommit
from alpacamq.model.errors import (
    AlpacaError,
    FencedInstanceId,
    FencedMemberEpoch,
    InvalidGroupId,
    OffsetOutOfRange,
    PolicyViolation,
    StaleMemberEpoch,
    TooManyGroups,
    TooManyInFlight,
    TooManyWaiting,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX
from alpacamq.queues.messages import QueueId, Start
from alpacamq.telemetry.tracing import ClientApi

from .members import MembershipAnswer, membership_answer
from .names import MemberText, OfGroup, TopicText, WaitMs
from .offsets import commit_offsets

CURSOR_PATTERN = (
    r"^[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}@[0-9]{1,18})+"
    r"(,[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}@[0-9]{1,18})+)*$"
)
_PLACE = re.compile(r"([0-9]+)@([0-9]+)")


def write_cursor(positions: Mapping[TopicPartition, int]) -> str:
    """The positions as text; empty if there are none."""
    by_topic: dict[str, str] = {}
    for (topic, partition), offset in sorted(positions.items()):
        by_topic[topic] = by_topic.get(topic, topic) + f":{partition}@{offset}"
    return ",".join(by_topic.values())


def read_cursor(cursor: str) -> dict[TopicPartition, int]:
    """The positions that a well-formed cursor holds."""
    positions: dict[TopicPartition, int] = {}
    for partition, offset in _places(cursor):
        if partition in positions:
            raise ConflictingInput(f"cursor: {partition} is in it twice", "cursor")
        positions[partition] = offset
    return positions


def _places(cursor: str) -> Iterator[tuple[TopicPartition, int]]:
    for part in cursor.split(","):
        topic, _, places = part.partition(":")
        for index, offset in _PLACE.findall(places):
            yield TopicPartition(TopicName(topic), int(index)), int(offset)


MAX_BYTES = 16 << 20


class Poll(OfGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `topic`: lease messages of it. With `member`: read the partitions which that member has."""

    topic: TopicText | UnsetType = UNSET
    member: MemberText | UnsetType = UNSET
    max: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 10
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = 1 << 20
    wait_ms: WaitMs = 30_000
    start: Annotated[Start, Meta(description="where the group begins where it has never been")] = (
        Start.EARLIEST
    )
    values: Values = Values.TEXT
    visibility_ms: (
        Annotated[int, Meta(ge=0, le=DAY_MS, description="of a queue: how long the lease lasts")] | UnsetType
    ) = UNSET
    consumer: Annotated[str, Meta(max_length=255, description="of a queue: who holds the messages")] = ""
    member_epoch: (
        Annotated[int, Meta(ge=0, le=INT32_MAX, description="of a member: refuse it if it missed a change")]
        | UnsetType
    ) = UNSET
    cursor: (
        Annotated[
            str,
            Meta(
                pattern=CURSOR_PATTERN,
                max_length=12_000,
                description="of a member: the cursor of the last answer, to read on from there",
                examples=["orders:0@17:1@5"],
            ),
        ]
        | UnsetType
    ) = UNSET
    commit: Annotated[bool, Meta(description="of a member: commit where the cursor is, before reading")] = (
        False
    )


class QueuePoll(msgspec.Struct, frozen=True, kw_only=True):
    """Messages leased to the one who asked; none if none was there in time."""

    group: str
    topic: str
    messages: list[LeasedMessage]


class MemberPoll(MembershipAnswer, frozen=True, kw_only=True):
    """Messages of a member's partitions, and the cursor to go on with."""

    messages: list[TopicMessage]
    cursor: str
    skipped: list[SkippedBatch] | UnsetType = UNSET


async def poll(call: Call[Poll, Nothing]) -> QueuePoll | MemberPoll:
    wanted = call.parameters
    if wanted.topic is not UNSET:
        return await _poll_queue(call, wanted.topic)
    if wanted.member is UNSET:
        raise ConflictingInput("topic: give one of topic (a queue) and member", "topic")
    return await _MemberPolling(call.backend, wanted, wanted.member).run()


async def _poll_queue(call: Call[Poll, Nothing], topic: str) -> QueuePoll:
    wanted = call.parameters
    for name in ("member", "member_epoch", "cursor"):
        if getattr(wanted, name) is not UNSET:
            raise ConflictingInput(f"{name}: a queue has no members; give it or topic", name)
    deliveries = await call.backend.broker.queues.receive(
        QueueId(wanted.group, topic),
        consumer=wanted.consumer or call.request.peer,
        max_messages=wanted.max,
        visibility_ms=None if wanted.visibility_ms is UNSET else wanted.visibility_ms,
        wait_ms=wanted.wait_ms,
        max_bytes=wanted.max_bytes,
        start=wanted.start,
        api=ClientApi.HTTP,
    )
    return QueuePoll(
        group=wanted.group,
        topic=topic,
        messages=[leased_message(each, wanted.values) for each in deliveries],
    )


class _MemberPolling:
    """One poll of a member, which keeps it a member for as long as it waits."""

    def __init__(self, backend: Backend, wanted: Poll, member_id: str) -> None:
        self._backend = backend
        self._broker = backend.broker
        self._wanted = wanted
        self._member_id = member_id
        self._positions = {} if wanted.cursor is UNSET else read_cursor(wanted.cursor)
        self._epoch = None if wanted.member_epoch is UNSET else wanted.member_epoch
        self._skipped: list[SkippedBatch] = []

    async def run(self) -> MemberPoll:
        wanted = self._wanted
        known = await member(self._broker, wanted.group, self._member_id, self._epoch)
        # Before the heartbeat: that gives up what others are waiting for.
        if wanted.commit and self._positions:
            await self._commit(known)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wanted.wait_ms / 1000
        while True:
            membership = await heard(self._broker, wanted.group, known)
            partitions = self._partitions(membership.assigned)
            with arrivals(partitions.values()) as arriving:
                messages = await self._read(membership, partitions)
                left_seconds = deadline - loop.time()
                if messages or self._skipped or left_seconds <= 0:
                    return self._answer(membership, messages)
                interval_seconds = membership.heartbeat_interval_ms / 1000
                await arriving.wait(min(left_seconds, interval_seconds))
            known = await member(self._broker, wanted.group, self._member_id)

    async def _commit(self, known: ConsumerMemberDescription) -> None:
        offsets = [
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in self._positions.items()
        ]
        await commit_offsets(
            self._broker,
            self._wanted.group,
            offsets,
            member_id=self._member_id,
            member_epoch=known.member_epoch,
        )

    def _partitions(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        find = self._broker.topics.find
        found = ((each, find(each.topic.encode(), each.partition)) for each in assigned)
        return {identity: partition for identity, partition in found if partition is not None}

    async def _read(
        self, membership: Membership, partitions: Mapping[TopicPartition, Partition]
    ) -> list[TopicMessage]:
        wanted = self._wanted
        await self._find_positions(membership, partitions)
        readings = {
            identity: PartitionReading(
                self._backend,
                partition,
                self._in_range(partition, self._positions[identity]),
                INT64_MAX,
                committed=True,
                reader=Origin(ClientApi.HTTP, self._member_id, wanted.group),
            )
            for identity, partition in partitions.items()
            if identity in self._positions
        }
        found = await read_fairly(list(readings.values()), wanted.max, wanted.max_bytes)
        for identity, reading in readings.items():
            self._positions[identity] = reading.next_offset
            self._skipped += reading.skipped
        return [
            topic_message(reading.partition.identity.topic, reading.index, record, wanted.values)
            for reading, record in found
        ]

    async def _find_positions(
        self, membership: Membership, partitions: Mapping[TopicPartition, Partition]
    ) -> None:
        """Where to begin in partitions that the cursor does not tell of: where the group has come to."""
        missing = tuple(each for each in partitions if each not in self._positions)
        if not missing:
            return
        request = FetchOffsetsRequest(
            group=self._wanted.group,
            partitions=missing,
            member_id=membership.member_id,
            member_epoch=membership.member_epoch,
            require_stable=True,
        )
        reply: FetchOffsetsReply = await ask_group(self._broker, GroupCoordinator.fetch_offsets, request)
        for identity, committed in zip(missing, reply.offsets, strict=True):
            if committed.error is None:  # else a transaction is about to decide; later, then
                offset = committed.offset
                self._positions[identity] = offset if offset >= 0 else self._start(partitions[identity])

    def _in_range(self, partition: Partition, offset: int) -> int:
        """The offset, or where to begin again if retention has passed it or the log was cut short."""
        if partition.log.start_offset <= offset <= partition.high_watermark:
            return offset
        return self._start(partition)

    def _start(self, partition: Partition) -> int:
        if self._wanted.start is Start.LATEST:
            return partition.last_stable_offset
        return partition.log.start_offset

    def _answer(self, membership: Membership, messages: list[TopicMessage]) -> MemberPoll:
        answer = membership_answer(self._backend, self._wanted.group, membership)
        held = {each: self._positions[each] for each in membership.assigned if each in self._positions}
        return MemberPoll(
            **msgspec.structs.asdict(answer),
            messages=messages,
            cursor=write_cursor(held),
            skipped=self._skipped or UNSET,
        )


_ERRORS: tuple[type[AlpacaError], ...] = (
    UnknownTopic,
    PolicyViolation,
    InvalidGroupId,
    TooManyGroups,
    TooManyInFlight,
    TooManyWaiting,
    UnknownMember,
    StaleMemberEpoch,
    FencedMemberEpoch,
    FencedInstanceId,
    OffsetOutOfRange,
)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/groups/{group}/poll",
        summary="Lease messages of a topic as a queue, or read on as a member",
        handler=poll,
        parameters=Poll,
        body=Nothing,
        answers=(QueuePoll, MemberPoll),
        errors=_ERRORS,
        has_effects=True,
    ),
)
