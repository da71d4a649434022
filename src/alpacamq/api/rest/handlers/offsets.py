"""Offsets of groups: committed offsets and lag, committing and resetting."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput, Problem, problem_of
from alpacamq.api.rest.parameters import (
    MemberText,
    OffsetNumber,
    OfGroup,
    PartitionIndex,
    Timestamp,
    TopicText,
    epoch_ms,
)
from alpacamq.api.rest.partition_reading import known_bounds, offsets_at_time, view_partitions
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.broker.remote.read_values import Bounds
from alpacamq.broker.tracing.commits import record_commits
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import (
    NO_GENERATION,
    CommitRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResults,
    ResetOffsetsRequest,
)
from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    StaleMemberEpoch,
    TooManyGroups,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import INT32_MAX
from alpacamq.telemetry.tracing import ClientApi

MAX_OFFSETS = 10_000


class Place(StrEnum):
    """The start or end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OffsetsQuery(OfGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which offsets to show."""

    topic: TopicText | UnsetType = UNSET


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The committed offset of a group in a partition, the end offset, and the lag."""

    topic: str
    partition: int
    offset: int
    metadata: str
    end_offset: int | None
    lag: int | None


class GroupOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """All committed offsets of a group."""

    group: str
    offsets: list[GroupOffset]
    total_lag: int


class NewOffset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An offset to commit: the one after the last processed message."""

    topic: TopicText
    partition: PartitionIndex
    offset: OffsetNumber
    metadata: str = ""


class ResetPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new position, in all partitions or in one: one of to, offset and timestamp."""

    partition: PartitionIndex | UnsetType = UNSET
    to: Place | UnsetType = UNSET
    offset: OffsetNumber | UnsetType = UNSET
    timestamp: Timestamp | UnsetType = UNSET


class Reset(ResetPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new position of a group in a topic."""

    topic: TopicText


class OffsetChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Offsets to commit, as a member if the group has members; or `reset` for a group without members."""

    offsets: Annotated[list[NewOffset], Meta(min_length=1, max_length=MAX_OFFSETS)] | UnsetType = UNSET
    member_id: MemberText | UnsetType = UNSET
    member_epoch: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET
    reset: Annotated[list[Reset], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET
    dry_run: Annotated[bool, Meta(description="with reset: only return the new offsets")] = False


class OffsetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one partition."""

    topic: str
    partition: int
    offset: int
    error: Problem | UnsetType = UNSET


class OffsetResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of each partition, in order, and the number of failures."""

    offsets: list[OffsetResult]
    errors: int


async def show_offsets(call: Call[OffsetsQuery, Nothing]) -> GroupOffsets:
    broker, query = call.backend.broker, call.parameters
    request = FetchOffsetsRequest(group=query.group)
    reply: FetchOffsetsReply = await broker.groups.ask(request)
    if not reply.offsets:
        await broker.groups.ask(DescribeRequest(group=query.group))
    committed = [
        each
        for each in reply.offsets
        # Kafka clients reset a group with negative offsets: they mean none.
        if each.offset >= 0
        and (query.topic is UNSET or each.topic == query.topic)
        and call.sees_topic(each.topic)
    ]
    places = [TopicPartition(TopicName(each.topic), each.partition) for each in committed]
    bounds = await known_bounds(broker, places)
    shown = [_shown(each, bounds.get(place)) for each, place in zip(committed, places, strict=True)]
    return GroupOffsets(
        group=query.group,
        offsets=sorted(shown, key=lambda each: (each.topic, each.partition)),
        total_lag=sum(each.lag or 0 for each in shown),
    )


async def change_offsets(call: Call[OfGroup, OffsetChanges]) -> OffsetResults:
    body = call.body
    if (body.offsets is UNSET) == (body.reset is UNSET):
        raise ConflictingInput("/offsets: give one of offsets and reset", "/offsets")
    if body.offsets is not UNSET:
        return await _commit(call, body.offsets)
    assert body.reset is not UNSET
    return await _reset(call, body.reset)


async def commit_offsets(
    broker: Broker,
    group: str,
    query: Sequence[OffsetToCommit],
    *,
    member_id: str = "",
    member_epoch: int = NO_GENERATION,
) -> OffsetResults:
    """Commit as a member, or for a group without members."""
    unknown = unknown_partitions(broker, query)
    request = CommitRequest(
        group=group,
        offsets=tuple(each for each, error in zip(query, unknown, strict=True) if error is None),
        member_id=member_id,
        generation=member_epoch,
    )
    results: PartitionResults = await broker.groups.ask(request)
    record_commits(broker.topics, request.offsets, results, Origin(ClientApi.HTTP, member_id, group))
    return offset_results(query, unknown, results)


async def _commit(call: Call[OfGroup, OffsetChanges], offsets: Sequence[NewOffset]) -> OffsetResults:
    body = call.body
    if (body.member_id is UNSET) != (body.member_epoch is UNSET):
        raise ConflictingInput("/member_epoch: requires member_id", "/member_epoch")
    return await commit_offsets(
        call.backend.broker,
        call.parameters.group,
        to_commit(offsets),
        member_id="" if body.member_id is UNSET else body.member_id,
        member_epoch=NO_GENERATION if body.member_epoch is UNSET else body.member_epoch,
    )


async def _reset(call: Call[OfGroup, OffsetChanges], resets: Sequence[Reset]) -> OffsetResults:
    broker, group = call.backend.broker, call.parameters.group
    query = [
        each
        for at, reset in enumerate(resets)
        for each in await reset_places(broker, reset.topic, reset, f"/reset/{at}")
    ]
    if call.body.dry_run:
        shown = [
            OffsetResult(topic=each.topic, partition=each.partition, offset=each.offset) for each in query
        ]
        return OffsetResults(offsets=shown, errors=0)
    request = ResetOffsetsRequest(group=group, offsets=tuple(query))
    results: PartitionResults = await broker.groups.ask(request)
    return offset_results(query, [None] * len(query), results)


async def reset_places(broker: Broker, topic: str, reset: ResetPlace, at: str) -> list[OffsetToCommit]:
    """Return the new offsets; `at` is the JSON pointer of the position."""
    names = ("to", "offset", "timestamp")
    given = [name for name in names if getattr(reset, name) is not UNSET]
    if len(given) != 1:
        raise ConflictingInput(f"{at or 'the body'}: give one of {', '.join(names)}", at)
    views = await view_partitions(broker, topic, None if reset.partition is UNSET else [reset.partition])
    found: Mapping[PartitionId, int | None] = {}
    if reset.timestamp is not UNSET:
        found = await offsets_at_time(broker.reads, views, epoch_ms(reset.timestamp))
    query = []
    for view in views:
        start, end = view.bounds.start_offset, view.bounds.high_watermark
        if reset.to is not UNSET:
            offset = start if reset.to is Place.EARLIEST else end
        elif reset.offset is not UNSET:
            offset = reset.offset
            if not start <= offset <= end:
                raise OffsetOutOfRange(f"offset {offset} is outside of {start} to {end} of {view.identity}")
        else:
            at_time = found[view.place]
            offset = end if at_time is None else at_time
        query.append(OffsetToCommit(topic=topic, partition=view.identity.partition, offset=offset))
    return query


def to_commit(offsets: Iterable[NewOffset]) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(topic=each.topic, partition=each.partition, offset=each.offset, metadata=each.metadata)
        for each in offsets
    ]


def unknown_partitions(broker: Broker, query: Iterable[OffsetToCommit]) -> list[AlpacaError | None]:
    """Return errors for unknown partitions."""
    return [
        None
        if broker.topics.exists(each.topic.encode(), each.partition)
        else UnknownTopic(f"unknown partition {each.partition} of topic {each.topic!r}")
        for each in query
    ]


def offset_results(
    query: Sequence[OffsetToCommit], unknown: Sequence[AlpacaError | None], results: PartitionResults
) -> OffsetResults:
    """Return all results in order; if all failed with the same error, raise it."""
    known = iter(results.partitions)
    errors = [error or next(known).error for error in unknown]
    failed = [error for error in errors if error is not None]
    if len(failed) == len(query) and len({type(error) for error in failed}) == 1:
        raise failed[0]
    return OffsetResults(
        offsets=[
            OffsetResult(
                topic=each.topic,
                partition=each.partition,
                offset=each.offset,
                error=UNSET if error is None else problem_of(error),
            )
            for each, error in zip(query, errors, strict=True)
        ],
        errors=len(failed),
    )


def _shown(committed: FetchedOffset, bounds: Bounds | None) -> GroupOffset:
    return GroupOffset(
        topic=committed.topic,
        partition=committed.partition,
        offset=committed.offset,
        metadata=committed.metadata,
        end_offset=None if bounds is None else bounds.high_watermark,
        lag=None if bounds is None else max(bounds.high_watermark - committed.offset, 0),
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/groups/{group}/offsets",
        summary="Show committed offsets and lag of a group",
        handler=show_offsets,
        parameters=OffsetsQuery,
        body=Nothing,
        answers=(GroupOffsets,),
        errors=(GroupIdNotFound,),
    ),
    Route(
        method="POST",
        path="/groups/{group}/offsets",
        summary="Commit offsets, or reset a group without members",
        handler=change_offsets,
        parameters=OfGroup,
        body=OffsetChanges,
        answers=(OffsetResults,),
        errors=(
            UnknownTopic,
            UnknownMember,
            StaleMemberEpoch,
            IllegalGeneration,
            NonEmptyGroup,
            InvalidRequest,
            OffsetOutOfRange,
            OffsetMetadataTooLarge,
            TooManyGroups,
        ),
    ),
)
