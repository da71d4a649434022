"""Reads topics as logs, by offset or timestamp; searches messages by key or with a filter."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.message_json import Base64Bytes, ReadMessage, Values
from alpacamq.api.rest.parameters import (
    Decode,
    OffsetNumber,
    OfPartition,
    OfTopic,
    Timestamp,
    WaitMs,
    epoch_ms,
)
from alpacamq.api.rest.partition_reading import (
    PartitionReading,
    PartitionView,
    SkippedBatch,
    offsets_at_time,
    read_fairly,
    read_or_wait,
    skipped_of,
    view_partitions,
)
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import DamagedLog, OffsetOutOfRange, StorageFailed, UnknownTopic
from alpacamq.model.message_filter import MAX_CHARACTERS, Filter, InvalidFilter
from alpacamq.model.records import Record
from alpacamq.model.topics import INT64_MAX
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.tracing import ClientApi

MAX_BYTES = 16 << 20
_PLACE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")


class Start(StrEnum):
    """Start positions."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Isolation(StrEnum):
    """Whether records of open and aborted transactions are included."""

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
    int, Meta(ge=1, le=MAX_BYTES, description="maximum number of bytes; at least one message is returned")
]


class PartitionPlace(OfPartition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start in a partition (one of offset, timestamp and start), and limits."""

    offset: OffsetNumber | UnsetType = UNSET
    timestamp: Annotated[Timestamp, Meta(description="start at the first message since then")] | UnsetType = (
        UNSET
    )
    start: Start | UnsetType = UNSET
    until: Annotated[Timestamp, Meta(description="end before the first message since then")] | UnsetType = (
        UNSET
    )
    limit: MessageLimit = 100
    max_bytes: ByteLimit = 1 << 20
    wait_ms: WaitMs = 0
    isolation: Isolation = Isolation.READ_COMMITTED
    values: Values = Values.TEXT
    decode: Decode = False


class TopicPlace(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start in each partition (one of offsets, timestamp and start), and limits."""

    offsets: OffsetPlaces | UnsetType = UNSET
    timestamp: Annotated[Timestamp, Meta(description="start at the first message since then")] | UnsetType = (
        UNSET
    )
    start: Start | UnsetType = UNSET
    until: Annotated[Timestamp, Meta(description="end before the first message since then")] | UnsetType = (
        UNSET
    )
    limit: MessageLimit = 100
    max_bytes: ByteLimit = 1 << 20
    wait_ms: WaitMs = 0
    isolation: Isolation = Isolation.READ_COMMITTED
    values: Values = Values.TEXT
    decode: Decode = False


class PartitionMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in order. Continue at `next_offset`; `end_offset` is the end of the partition.

    `skipped` lists unreadable batches, if there are any.
    """

    topic: str
    partition: int
    messages: list[ReadMessage]
    next_offset: int
    end_offset: int
    start_offset: int
    skipped: list[SkippedBatch] | UnsetType = UNSET


class TopicMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of several partitions by timestamp, in order within each. Offsets are by partition."""

    topic: str
    messages: list[ReadMessage]
    next_offsets: dict[str, int]
    end_offsets: dict[str, int]
    skipped: list[SkippedBatch] | UnsetType = UNSET


async def read_partition(call: Call[PartitionPlace, Nothing]) -> PartitionMessages:
    broker, query = call.backend.broker, call.parameters
    views = await view_partitions(broker, query.topic, [query.partition])
    _check_one_start(query, "offset")
    offsets = None if query.offset is UNSET else {query.partition: query.offset}
    (reading,) = readings = await _readings(call, views, query, offsets)
    found: list[tuple[int, Record]] = []

    async def read() -> bool:
        page = await reading.read(query.limit, query.max_bytes)
        found.extend((reading.index, record) for record in page.records)
        return bool(found or reading.skipped)

    await read_or_wait(broker.reads, read, readings, query.wait_ms, committed=_is_committed(query))
    return PartitionMessages(
        topic=query.topic,
        partition=query.partition,
        messages=await _messages(call, found),
        next_offset=reading.next_offset,
        end_offset=reading.end_offset,
        start_offset=reading.bounds.start_offset,
        skipped=skipped_of([reading]),
    )


async def read_topic(call: Call[TopicPlace, Nothing]) -> TopicMessages:
    broker, query = call.backend.broker, call.parameters
    _check_one_start(query, "offsets")
    offsets = None if query.offsets is UNSET else places(query.offsets)
    views = await view_partitions(broker, query.topic, offsets)
    readings = await _readings(call, views, query, offsets)
    found: list[tuple[int, Record]] = []

    async def read() -> bool:
        some = await read_fairly(readings, query.limit, query.max_bytes)
        found.extend((part.index, record) for part, record in some)
        return bool(found) or any(each.skipped for each in readings)

    await read_or_wait(broker.reads, read, readings, query.wait_ms, committed=_is_committed(query))
    return TopicMessages(
        topic=query.topic,
        messages=await _messages(call, found),
        next_offsets={str(each.index): each.next_offset for each in readings},
        end_offsets={str(each.index): each.end_offset for each in readings},
        skipped=skipped_of(readings),
    )


async def _messages(
    call: Call[PartitionPlace, Nothing] | Call[TopicPlace, Nothing] | Call["KeyQuery", Nothing],
    found: Sequence[tuple[int, Record]],
) -> list[ReadMessage]:
    query = call.parameters
    return await call.backend.decoding.messages(
        call.caller, query.topic, found, query.values, decode=query.decode
    )


def _is_committed(query: PartitionPlace | TopicPlace) -> bool:
    return query.isolation is Isolation.READ_COMMITTED


async def _readings(
    call: Call[Any, Nothing],
    views: Sequence[PartitionView],
    query: PartitionPlace | TopicPlace,
    offsets: Mapping[int, int] | None,
) -> list[PartitionReading]:
    """Return the positions of a request: at `offsets` by partition, or where its start position is."""
    reads = call.backend.broker.reads
    committed = _is_committed(query)
    if offsets is None:
        offsets = await _first_offsets(reads, views, query)
    ends: Mapping[PartitionId, int | None] = {}
    if query.until is not UNSET:
        ends = await offsets_at_time(reads, views, epoch_ms(query.until))
    return [
        PartitionReading(
            reads,
            view,
            offsets[view.place.partition],
            INT64_MAX if (end := ends.get(view.place)) is None else end,
            committed=committed,
            reader=Origin(ClientApi.HTTP, call.request.peer),
        )
        for view in views
    ]


async def _first_offsets(
    reads: RemoteReads, views: Sequence[PartitionView], query: PartitionPlace | TopicPlace
) -> dict[int, int]:
    if query.timestamp is not UNSET:
        found = await offsets_at_time(reads, views, epoch_ms(query.timestamp))
        return {
            view.place.partition: view.bounds.high_watermark
            if (offset := found[view.place]) is None
            else offset
            for view in views
        }
    if query.start is Start.LATEST:
        committed = _is_committed(query)
        return {each.place.partition: each.bounds.readable_end(committed=committed) for each in views}
    return {each.place.partition: each.bounds.start_offset for each in views}


def _check_one_start(query: PartitionPlace | TopicPlace, by_offset: str) -> None:
    names = (by_offset, "timestamp", "start")
    given = [name for name in names if getattr(query, name) is not UNSET]
    if len(given) > 1:
        raise ConflictingInput(f"give one of {', '.join(names)}, not {' and '.join(given)}", given[1])


def places(text: str) -> Mapping[int, int]:
    """Parse a well-formed list of offsets."""
    places = {int(index): int(offset) for index, offset in _PLACE.findall(text)}
    if len(places) != text.count(",") + 1:
        raise ConflictingInput("offsets: duplicate partition", "offsets")
    return places


_ERRORS = (UnknownTopic, OffsetOutOfRange, DamagedLog, StorageFailed)


# Read per request; the response says where to continue.
MAX_SEARCHED_RECORDS = 50_000
MAX_SEARCHED_BYTES = 32 << 20
_STEP_RECORDS = 1000
_STEP_BYTES = 1 << 20


# With a filter, which parses the values.
_FILTERED_RECORDS = 200
_FILTERED_BYTES = 128 << 10


class KeyQuery(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key, as text or as bytes, a filter, or both, and the start offsets."""

    key: Annotated[str, Meta(max_length=65_536)] | UnsetType = UNSET
    key_base64: Base64Bytes | UnsetType = UNSET
    filter: (
        Annotated[
            str,
            Meta(
                max_length=MAX_CHARACTERS,
                description="an expression over value, key, headers, partition, offset and timestamp",
                examples=['value.total > 100 and key == "alice"'],
            ),
        ]
        | UnsetType
    ) = UNSET
    offsets: OffsetPlaces | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 100
    values: Values = Values.TEXT
    decode: Decode = False


class FoundMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that match, partition by partition. More may follow from `next_offsets` on."""

    topic: str
    messages: list[ReadMessage]
    looked_at: int
    next_offsets: dict[str, int]
    end_offsets: dict[str, int]
    skipped: list[SkippedBatch] | UnsetType = UNSET


async def find_messages(call: Call[KeyQuery, Nothing]) -> FoundMessages:
    broker, query = call.backend.broker, call.parameters
    matches = _matcher(query)
    step = (_STEP_RECORDS, _STEP_BYTES) if query.filter is UNSET else (_FILTERED_RECORDS, _FILTERED_BYTES)
    offsets = None if query.offsets is UNSET else places(query.offsets)
    views = await view_partitions(broker, query.topic, offsets)
    readings = [
        PartitionReading(
            broker.reads,
            view,
            view.bounds.start_offset if offsets is None else offsets[view.place.partition],
            INT64_MAX,
            committed=True,
        )
        for view in views
    ]
    found: list[tuple[int, Record]] = []
    looked_at = size_bytes = 0
    for reading in readings:
        while (
            reading.next_offset < reading.end_offset
            and len(found) < query.limit
            and looked_at < MAX_SEARCHED_RECORDS
            and size_bytes < MAX_SEARCHED_BYTES
        ):
            at = reading.next_offset
            page = await reading.read(*step)
            # A range without matching messages counts too: it was read.
            looked_at += max(len(page.records), reading.next_offset - at)
            size_bytes += page.size_bytes
            for record in page.records:
                if not matches(reading.index, record):
                    continue
                found.append((reading.index, record))
                if len(found) == query.limit:
                    reading.next_offset = record.offset + 1
                    break
            if reading.next_offset == at:
                break  # the limit is reached
    return FoundMessages(
        topic=query.topic,
        messages=await _messages(call, found),
        looked_at=looked_at,
        next_offsets={str(each.index): each.next_offset for each in readings},
        end_offsets={str(each.index): each.end_offset for each in readings},
        skipped=skipped_of(readings),
    )


def _matcher(query: KeyQuery) -> Callable[[int, Record], bool]:
    """Return whether a record of a partition is searched for."""
    has_key = query.key is not UNSET or query.key_base64 is not UNSET
    if query.key is not UNSET and query.key_base64 is not UNSET:
        raise ConflictingInput("give one of key and key_base64", "key")
    key = query.key.encode() if query.key is not UNSET else query.key_base64
    if query.filter is UNSET:
        if not has_key:
            raise ConflictingInput("give one of key, key_base64 and filter", "key")
        return lambda _, record: record.key == key
    try:
        found = Filter(query.filter)
    except InvalidFilter as error:
        raise ConflictingInput(f"filter: {error}", "filter") from None
    if not has_key:
        return found.matches
    return lambda partition, record: record.key == key and found.matches(partition, record)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/topics/{topic}/messages",
        summary="Read messages of all partitions, without leasing or committing",
        handler=read_topic,
        parameters=TopicPlace,
        body=Nothing,
        answers=(TopicMessages,),
        errors=_ERRORS,
        quota=QuotaKey.FETCH,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/partitions/{partition}/messages",
        summary="Read messages of a partition, without leasing or committing",
        handler=read_partition,
        parameters=PartitionPlace,
        body=Nothing,
        answers=(PartitionMessages,),
        errors=_ERRORS,
        quota=QuotaKey.FETCH,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/messages/find",
        summary="Search messages by key or with a filter",
        handler=find_messages,
        parameters=KeyQuery,
        body=Nothing,
        answers=(FoundMessages,),
        errors=(UnknownTopic, OffsetOutOfRange, DamagedLog, StorageFailed),
        quota=QuotaKey.FETCH,
    ),
)
