"""Names, numbers, timestamps and durations in paths, queries and bodies.

A timestamp is a number of milliseconds since 1970 or a date with time and offset (RFC 3339); a duration is a
number of milliseconds, or text such as "30s" or "5m". Responses always contain milliseconds.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.names import MAX_TENANT_LENGTH
from alpacamq.model.topics import INT32_MAX, INT64_MAX, MAX_NAME_LENGTH

Timestamp = Annotated[int, Meta(ge=0, le=INT64_MAX)] | Annotated[datetime, Meta(tz=True)]
Duration = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(ms|s|m|h|d)$", examples=["30s", "5m"])]

# A timestamp in a query, where everything is text. Excludes what msgspec reads as seconds.
TimestampText = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,15}|[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])"
        r":[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))$",
        examples=["2026-01-31T12:00:00Z", "1769860800000"],
    ),
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


def epoch_ms(timestamp: Timestamp) -> int:
    """Return milliseconds since 1970; negative for earlier times."""
    if isinstance(timestamp, int):
        return timestamp
    return (timestamp - _EPOCH) // _MILLISECOND


def parse_epoch_ms(timestamp: TimestampText) -> int:
    """Return milliseconds since 1970 of a well-formed timestamp; raise ValueError for an invalid day."""
    if timestamp.isdigit():
        return int(timestamp)
    return epoch_ms(msgspec.convert(timestamp, datetime))


def parse_epoch_us(timestamp: TimestampText) -> int:
    """Do the same as `parse_epoch_ms` in microseconds."""
    if timestamp.isdigit():
        return int(timestamp) * 1000
    return (msgspec.convert(timestamp, datetime) - _EPOCH) // _MICROSECOND


# Operators name a topic of a tenant as TENANT:NAME.
TOPIC_PATTERN = f"([a-z0-9-]{{1,{MAX_TENANT_LENGTH}}}:)?[a-zA-Z0-9._-]{{1,{MAX_NAME_LENGTH}}}"
TopicText = Annotated[str, Meta(pattern=f"^{TOPIC_PATTERN}$", description="a topic's name")]
GroupText = Annotated[str, Meta(min_length=1, max_length=255, description="a group's name")]
MemberText = Annotated[str, Meta(min_length=1, max_length=255)]
ReasonText = Annotated[str, Meta(max_length=1024)]
PartitionIndex = Annotated[int, Meta(ge=0, le=INT32_MAX)]
OffsetNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
SomeMs = Annotated[int, Meta(ge=0, le=INT64_MAX)]
# The longest wait of a request.
WaitMs = Annotated[int, Meta(ge=0, le=30_000, description="how long to wait for the first message")]

Decode = Annotated[
    bool, Meta(description="add keys and values as they are by the schemas of the registry that they name")
]


class OfTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic."""

    topic: TopicText


class OfPartition(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition of a topic."""

    partition: PartitionIndex


class OfGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group."""

    group: GroupText


class OfQueue(OfGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group on a topic."""

    topic: TopicText
