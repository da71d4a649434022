"""Declarations of messages: one class a message, one line a field.

    class FetchRequest(Message, flexible_from=12):
        replica_id: Annotated[Int32, until(14)] = -1
        topics: Sequence[FetchTopic] = []
        rack_id: Annotated[String, since(11)] = ""
        cluster_id: Annotated[String | None, tag(0, since=12)] = None

The type is the wire format of a value; `since`, `until` and `between` are the versions that have it;
`| None` makes it nullable, in all versions or from `null_since` on; `tag` makes it a tagged field,
which is omitted if its value equals the default. A field that a version does not have keeps its
default when decoded and is not encoded. Texts that name topics, groups and other resources have types of
their own (`TopicName`, `GroupId`, …), which are strings on the wire.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from struct import calcsize
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec

from alpacamq.model.ports import Buffer

LATEST = 2**15 - 1
ZERO_UUID = UUID(int=0)


class Fixed(msgspec.Struct, frozen=True):
    """A value of fixed size; `code` is its letter in a struct format."""

    code: str

    @property
    def size(self) -> int:
        return calcsize(f">{self.code}")


class Prefixed(Enum):
    """A value with its length in bytes before it."""

    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


class Name(Enum):
    """What a text names: clients of a tenant know resources by other names than the broker stores."""

    TOPIC = "topic"
    # A group or transactional id.
    ID = "id"
    # A topic, group or broker, according to the resource_type beside it.
    RESOURCE = "resource"
    # Not a name, but a text for people that may contain some.
    TEXT = "text"


UUID_ON_WIRE = Fixed("16s")

Bool = Annotated[bool, Fixed("?")]
Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Uint16 = Annotated[int, Fixed("H")]
Uint32 = Annotated[int, Fixed("I")]
Float64 = Annotated[float, Fixed("d")]
Uuid = Annotated[UUID, UUID_ON_WIRE]
String = Annotated[str, Prefixed.STRING]
TopicName = Annotated[str, Prefixed.STRING, Name.TOPIC]
GroupId = Annotated[str, Prefixed.STRING, Name.ID]
TransactionalId = Annotated[str, Prefixed.STRING, Name.ID]
ResourceName = Annotated[str, Prefixed.STRING, Name.RESOURCE]
ErrorText = Annotated[str, Prefixed.STRING, Name.TEXT]
Bytes = Annotated[bytes, Prefixed.BYTES]
# Decoded as a slice of the request, never copied.
Records = Annotated[Buffer, Prefixed.RECORDS]


class Versions(msgspec.Struct, frozen=True):
    """The versions of a message that have a field."""

    first: int
    last: int


class Tag(msgspec.Struct, frozen=True):
    """A tagged field's number and first version."""

    number: int
    since: int


class NullSince(msgspec.Struct, frozen=True):
    """The first version in which a field may be null."""

    version: int


def since(version: int) -> Versions:
    return Versions(version, LATEST)


def until(version: int) -> Versions:
    return Versions(0, version)


def between(first: int, last: int) -> Versions:
    return Versions(first, last)


def null_since(version: int) -> NullSince:
    return NullSince(version)


def tag(number: int, *, since: int) -> Tag:
    return Tag(number, since)


class MessageMeta(msgspec.StructMeta):
    """Makes every message take keyword arguments only and declare its first flexible version."""

    def __new__(  # noqa: PYI034 - a metaclass cannot return Self
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        flexible_from: int | None = None,
        **options: Any,
    ) -> "MessageMeta":
        if flexible_from is not None:
            namespace["flexible_from"] = flexible_from
        return super().__new__(mcls, name, bases, namespace, kw_only=True, **options)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Message(msgspec.Struct, metaclass=MessageMeta, frozen=True, gc=False):
    """A request, a response, or a struct in one; a tree without cycles, so gc is off."""

    # The first version with compact lengths and tagged fields. A nested struct follows its message.
    flexible_from: ClassVar[int] = LATEST + 1


class Array(msgspec.Struct, frozen=True):
    """A sequence of equal elements with their count before it."""

    element: "Fixed | Prefixed | type[Message]"


WireType = Fixed | Prefixed | Array | type[Message]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a message as its class declares it."""

    name: str
    type: WireType
    versions: Versions
    nullable_from: int
    tag: int | None
    default: Any
    # What it names, or what its elements name.
    names: Name | None = None

    def is_in(self, version: int) -> bool:
        return self.versions.first <= version <= self.versions.last

    def is_nullable(self, version: int) -> bool:
        return version >= self.nullable_from


@cache
def fields_of(message: type[Message]) -> tuple[Field, ...]:
    """Return the fields of `message` in wire order."""
    hints = get_type_hints(message, include_extras=True)
    return tuple(_field(info, hints[info.name]) for info in msgspec.structs.fields(message))


def _field(info: msgspec.structs.FieldInfo, hint: Any) -> Field:
    marks: dict[type, Any] = {}
    wire: Any = None
    nullable_from = LATEST + 1
    while wire is None:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            marks.update((type(mark), mark) for mark in more)
            wire = marks.get(Fixed) or marks.get(Prefixed)
        elif get_origin(hint) in {Union, UnionType}:
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
            nullable_from = 0
        else:
            wire = _plain_type(hint)
            marks.update((type(mark), mark) for mark in _element_marks(hint))
    if NullSince in marks:
        nullable_from = marks[NullSince].version
    place = marks.get(Tag)
    versions = Versions(place.since, LATEST) if place else marks.get(Versions, Versions(0, LATEST))
    return Field(
        name=info.name,
        type=wire,
        versions=versions,
        nullable_from=nullable_from,
        tag=place.number if place else None,
        default=_default(info),
        names=marks.get(Name),
    )


def _default(info: msgspec.structs.FieldInfo) -> Any:
    """Return the default of a tagged field; None for a required field."""
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return None if info.default is msgspec.NODEFAULT else info.default


def _element_marks(hint: Any) -> Iterator[object]:
    """Yield the annotations of the elements of an array."""
    for element in get_args(hint):
        if get_origin(element) is Annotated:
            yield from (mark for mark in get_args(element)[1:] if isinstance(mark, Name))


def _plain_type(hint: Any) -> WireType:
    """Return the wire type of a hint without annotation: a struct, or an array."""
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint
    assert get_origin(hint) is Sequence, f"{hint} is not a wire type"
    (element,) = get_args(hint)
    if get_origin(element) is Annotated:
        return Array(get_args(element)[1])
    assert issubclass(element, Message), f"{hint} is not an array of a wire type"
    return Array(element)
