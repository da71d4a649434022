"""Names and numbers in paths, queries and bodies."""

from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.topics import INT32_MAX, INT64_MAX, MAX_NAME_LENGTH

TopicText = Annotated[
    str, Meta(pattern=f"^[a-zA-Z0-9._-]{{1,{MAX_NAME_LENGTH}}}$", description="a topic's name")
]
GroupText = Annotated[str, Meta(min_length=1, max_length=255, description="a group's name")]
MemberText = Annotated[str, Meta(min_length=1, max_length=255)]
ReasonText = Annotated[str, Meta(max_length=1024)]
PartitionIndex = Annotated[int, Meta(ge=0, le=INT32_MAX)]
OffsetNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
SomeMs = Annotated[int, Meta(ge=0, le=INT64_MAX)]
# The longest wait of a request.
WaitMs = Annotated[int, Meta(ge=0, le=30_000, description="how long to wait for the first message")]


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
