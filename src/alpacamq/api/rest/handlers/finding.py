"""Looking for messages by their key: reads on until enough are found or enough has been read."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.message_json import Base64Bytes, StoredMessage, Values, stored_message
from alpacamq.api.rest.partition_reading import PartitionReading, SkippedBatch, all_partitions, skipped_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import DamagedLog, OffsetOutOfRange, StorageFailed, UnknownTopic
from alpacamq.model.topics import INT64_MAX

from .names import OfTopic
from .reading import OffsetPlaces, places

# What one request reads at most; the answer says where to go on.
MAX_LOOKED_AT = 50_000
MAX_BYTES = 32 << 20
_STEP_RECORDS = 1000
_STEP_BYTES = 1 << 20


class KeyWanted(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key, as text or as bytes, and where to begin."""

    key: Annotated[str, Meta(max_length=65_536)] | UnsetType = UNSET
    key_base64: Base64Bytes | UnsetType = UNSET
    offsets: OffsetPlaces | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 100
    values: Values = Values.TEXT


class FoundMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages with the key, partition by partition. There may be more from `next_offsets` on."""

    topic: str
    messages: list[StoredMessage]
    looked_at: int
    next_offsets: dict[str, int]
    end_offsets: dict[str, int]
    skipped: list[SkippedBatch] | UnsetType = UNSET


async def find_messages(call: Call[KeyWanted, Nothing]) -> FoundMessages:
    backend, wanted = call.backend, call.parameters
    key = _key(wanted)
    partitions = all_partitions(backend.broker, wanted.topic)
    starts = {each.identity.partition: each.log.start_offset for each in partitions}
    if wanted.offsets is not UNSET:
        starts = dict(places(wanted.offsets))
    readings = [
        PartitionReading(
            backend, backend.broker.topics.partition(wanted.topic, index), offset, INT64_MAX, committed=True
        )
        for index, offset in starts.items()
    ]
    messages: list[StoredMessage] = []
    looked_at = size_bytes = 0
    for reading in readings:
        while (
            reading.next_offset < reading.end_offset
            and len(messages) < wanted.limit
            and looked_at < MAX_LOOKED_AT
            and size_bytes < MAX_BYTES
        ):
            at = reading.next_offset
            page = await reading.read(_STEP_RECORDS, _STEP_BYTES)
            # A stretch without messages counts, too: it was read all the same.
            looked_at += max(len(page.records), reading.next_offset - at)
            size_bytes += page.size_bytes
            for record in page.records:
                if record.key != key:
                    continue
                messages.append(stored_message(reading.index, record, wanted.values))
                if len(messages) == wanted.limit:
                    reading.next_offset = record.offset + 1
                    break
            if reading.next_offset == at:
                break  # the rest is not to be read yet
    return FoundMessages(
        topic=wanted.topic,
        messages=messages,
        looked_at=looked_at,
        next_offsets={str(each.index): each.next_offset for each in readings},
        end_offsets={str(each.index): each.end_offset for each in readings},
        skipped=skipped_of(readings),
    )


def _key(wanted: KeyWanted) -> bytes:
    if (wanted.key is UNSET) == (wanted.key_base64 is UNSET):
        raise ConflictingInput("give one of key and key_base64", "key")
    if wanted.key is not UNSET:
        return wanted.key.encode()
    assert wanted.key_base64 is not UNSET
    return wanted.key_base64


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/topics/{topic}/messages/find",
        summary="Look for messages by their key",
        handler=find_messages,
        parameters=KeyWanted,
        body=Nothing,
        answers=(FoundMessages,),
        errors=(UnknownTopic, OffsetOutOfRange, DamagedLog, StorageFailed),
    ),
)
