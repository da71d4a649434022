"""Reading topics as the logs they are: by offset or by time, one partition or all of them."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.message_json import StoredMessage, Values, stored_message
from alpacamq.api.rest.partition_reading import (
    PartitionReading,
    SkippedBatch,
    all_partitions,
    offset_at_time,
    read_fairly,
    read_or_wait,
    skipped_of,
)
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.rest.timestamps import Timestamp, epoch_ms
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import DamagedLog, OffsetOutOfRange, StorageFailed, UnknownTopic
from alpacamq.model.topics import INT64_MAX
from alpacamq.telemetry.tracing import ClientApi

from .names import OffsetNumber, OfPartition, OfTopic, WaitMs

MAX_BYTES = 16 << 20
_PLACE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")


class Start(StrEnum):
    """Where to begin."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Isolation(StrEnum):
    """Whether records of transactions that are open, or were aborted, are read too."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


OffsetPlaces = Annotated[
    str,
    Meta(
        pattern="^[0-9]{1,10}:[0-9]{1,18}(,[0-9]{1,10}:[0-9]{1,18})*$",
        description="partition:offset, separated by commas; other partitions are not read",
        examples=["0:17,2:5"],
    ),
]
MessageLimit = Annotated[int, Meta(ge=1, le=1000, description="messages at most")]
ByteLimit = Annotated[
    int, Meta(ge=1, le=MAX_BYTES, description="bytes of them at most; one message is always read")
]


class PartitionPlace(OfPartition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to begin in a partition (one of offset, timestamp and start), and how much to read."""

    offset: OffsetNumber | UnsetType = UNSET
    timestamp: Annotated[Timestamp, Meta(description="begin with the first message of then")] | UnsetType = (
        UNSET
    )
    start: Start | UnsetType = UNSET
    until: Annotated[Timestamp, Meta(description="end before the first message of then")] | UnsetType = UNSET
    limit: MessageLimit = 100
    max_bytes: ByteLimit = 1 << 20
    wait_ms: WaitMs = 0
    isolation: Isolation = Isolation.READ_COMMITTED
    values: Values = Values.TEXT


class TopicPlace(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to begin in each partition (one of offsets, timestamp and start), and how much to read."""

    offsets: OffsetPlaces | UnsetType = UNSET
    timestamp: Annotated[Timestamp, Meta(description="begin with the first message of then")] | UnsetType = (
        UNSET
    )
    start: Start | UnsetType = UNSET
    until: Annotated[Timestamp, Meta(description="end before the first message of then")] | UnsetType = UNSET
    limit: MessageLimit = 100
    max_bytes: ByteLimit = 1 << 20
    wait_ms: WaitMs = 0
    isolation: Isolation = Isolation.READ_COMMITTED
    values: Values = Values.TEXT


class PartitionMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in order. Go on at `next_offset`; at `end_offset` there is nothing more.

    `skipped` is there if batches were passed over that nobody can read.
    """

    topic: str
    partition: int
    messages: list[StoredMessage]
    next_offset: int
    end_offset: int
    start_offset: int
    skipped: list[SkippedBatch] | UnsetType = UNSET


class TopicMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of several partitions by time, each partition's in order. Offsets are by partition."""

    topic: str
    messages: list[StoredMessage]
    next_offsets: dict[str, int]
    end_offsets: dict[str, int]
    skipped: list[SkippedBatch] | UnsetType = UNSET


async def read_partition(call: Call[PartitionPlace, Nothing]) -> PartitionMessages:
    backend, wanted = call.backend, call.parameters
    reader = Origin(ClientApi.HTTP, call.request.peer)
    partition = backend.broker.topics.partition(wanted.topic, wanted.partition)
    _check_one_start(wanted, "offset")
    offset = wanted.offset
    if offset is UNSET:
        offset = await _first_offset(backend, partition, wanted)
    reading = await _reading(backend, partition, offset, wanted, reader)
    messages: list[StoredMessage] = []

    async def read() -> bool:
        page = await reading.read(wanted.limit, wanted.max_bytes)
        messages.extend(stored_message(reading.index, record, wanted.values) for record in page.records)
        return bool(messages or reading.skipped)

    await read_or_wait(read, [partition], wanted.wait_ms)
    return PartitionMessages(
        topic=wanted.topic,
        partition=wanted.partition,
        messages=messages,
        next_offset=reading.next_offset,
        end_offset=reading.end_offset,
        start_offset=partition.log.start_offset,
        skipped=skipped_of([reading]),
    )


async def read_topic(call: Call[TopicPlace, Nothing]) -> TopicMessages:
    backend, wanted = call.backend, call.parameters
    _check_one_start(wanted, "offsets")
    reader = Origin(ClientApi.HTTP, call.request.peer)
    topics = backend.broker.topics
    if wanted.offsets is UNSET:
        readings = [
            await _reading(backend, each, await _first_offset(backend, each, wanted), wanted, reader)
            for each in all_partitions(backend.broker, wanted.topic)
        ]
    else:
        readings = [
            await _reading(backend, topics.partition(wanted.topic, index), offset, wanted, reader)
            for index, offset in places(wanted.offsets).items()
        ]
    messages: list[StoredMessage] = []

    async def read() -> bool:
        found = await read_fairly(readings, wanted.limit, wanted.max_bytes)
        messages.extend(stored_message(part.index, record, wanted.values) for part, record in found)
        return bool(messages) or any(each.skipped for each in readings)

    await read_or_wait(read, [each.partition for each in readings], wanted.wait_ms)
    return TopicMessages(
        topic=wanted.topic,
        messages=messages,
        next_offsets={str(each.index): each.next_offset for each in readings},
        end_offsets={str(each.index): each.end_offset for each in readings},
        skipped=skipped_of(readings),
    )


async def _reading(
    backend: Backend, partition: Partition, offset: int, wanted: PartitionPlace | TopicPlace, reader: Origin
) -> PartitionReading:
    before_offset = INT64_MAX
    if wanted.until is not UNSET:
        found = await offset_at_time(backend.broker, partition, epoch_ms(wanted.until))
        before_offset = INT64_MAX if found is None else found
    committed = wanted.isolation is Isolation.READ_COMMITTED
    return PartitionReading(backend, partition, offset, before_offset, committed=committed, reader=reader)


async def _first_offset(backend: Backend, partition: Partition, wanted: PartitionPlace | TopicPlace) -> int:
    if wanted.timestamp is not UNSET:
        found = await offset_at_time(backend.broker, partition, epoch_ms(wanted.timestamp))
        return partition.high_watermark if found is None else found
    if wanted.start is Start.LATEST:
        committed = wanted.isolation is Isolation.READ_COMMITTED
        return partition.last_stable_offset if committed else partition.high_watermark
    return partition.log.start_offset


def _check_one_start(wanted: PartitionPlace | TopicPlace, by_offset: str) -> None:
    names = (by_offset, "timestamp", "start")
    given = [name for name in names if getattr(wanted, name) is not UNSET]
    if len(given) > 1:
        raise ConflictingInput(f"give one of {', '.join(names)}, not {' and '.join(given)}", given[1])


def places(text: str) -> Mapping[int, int]:
    """The offsets that a well-formed list has, by partition."""
    places = {int(index): int(offset) for index, offset in _PLACE.findall(text)}
    if len(places) != text.count(",") + 1:
        raise ConflictingInput("offsets: a partition is named twice", "offsets")
    return places


_ERRORS = (UnknownTopic, OffsetOutOfRange, DamagedLog, StorageFailed)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/topics/{topic}/messages",
        summary="Read messages of all partitions, without taking them from anybody",
        handler=read_topic,
        parameters=TopicPlace,
        body=Nothing,
        answers=(TopicMessages,),
        errors=_ERRORS,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/partitions/{partition}/messages",
        summary="Read messages of a partition, without taking them from anybody",
        handler=read_partition,
        parameters=PartitionPlace,
        body=Nothing,
        answers=(PartitionMessages,),
        errors=_ERRORS,
    ),
)
