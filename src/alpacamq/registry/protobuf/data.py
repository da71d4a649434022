"""Checks, decodes and encodes records of a Protobuf schema.

A record begins with indexes that say which message of the schema it has: a count, then the index of the
message in the file, of a nested message in that, and so on, as zigzag varints. A single 0 stands for the
first message.

The protobuf runtime reads the message, at most 100 deep. Only if it cannot, the bytes are walked through here
to find the field where they are wrong.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError

from alpacamq.registry.schema import MAX_DEPTH, InvalidData, Mismatch

_FIRST: Final = (0,)
_MAX_VARINT_BYTES: Final = 10
_MAX_INDEX_BYTES: Final = 5

_VARINT, _I64, _LEN, _GROUP, _END_GROUP, _I32 = range(6)
_FIXED_BYTES: Final = {_I64: 8, _I32: 4}
_LENGTH_DELIMITED: Final = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
)


_PACKED_BYTES: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
# How many tags, lengths and numbers are read to find a wrong field; about 2 ms.
MAX_WALKED_VALUES: Final = 3000


class _Bad(Exception):
    """The data is no message of the schema. Collects the path of the field from the inside out."""

    def __init__(self, reason: str, *steps: str) -> None:
        self.reason = reason
        self.steps = list(steps)

    def mismatch(self) -> Mismatch:
        return Mismatch(path=".".join(reversed(self.steps)), message=self.reason)


class _Kind(NamedTuple):
    """A message that records can have."""

    read: Callable[[bytes | memoryview], Any]
    new: Callable[[], Any]
    descriptor: Any
    has_required: bool  # fields, also in messages that it may contain


class Messages:
    """The messages of one file, by their indexes."""

    def __init__(self, file: Any, pool: Any) -> None:
        self._file = file
        self._pool = pool
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        self._indexes: dict[str, tuple[int, ...]] | None = None

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        """Return where and why data is not the indexes of a message and that message."""
        try:
            self._read(data)
        except _Bad as bad:
            return bad.mismatch()
        return None

    def name(self, data: bytes | memoryview) -> str | None:
        """Return the full name of the message that data begins with; None if it names none."""
        try:
            kind, _ = self._kind_of(data)
        except _Bad:
            return None
        return str(kind.descriptor.full_name)

    def named(self, name: str | None) -> Any:
        """Return the class of a message: that of `name`, or the first. Raises InvalidData."""
        return self._kind(self._find(name)).new

    def indexes(self, name: str | None) -> bytes:
        """Return the indexes of a message: that of `name`, or the first. Raises InvalidData."""
        return write_indexes(self._find(name))

    def split(self, data: bytes | memoryview) -> tuple[str, bytes | memoryview]:
        """Return the full name of the message that data begins with, and its bytes. Raises InvalidData."""
        try:
            kind, start = self._kind_of(data)
        except _Bad as bad:
            raise InvalidData(bad.mismatch()) from None
        return str(kind.descriptor.full_name), data[start:]

    def decode(self, data: bytes | memoryview) -> Any:
        """Return a record as the value of its JSON form. Raises InvalidData."""
        try:
            message = self._read(data)
            return json_format.MessageToDict(
                message, always_print_fields_with_no_presence=True, descriptor_pool=self._pool
            )
        except _Bad as bad:
            raise InvalidData(bad.mismatch()) from None
        except (json_format.Error, TypeError, ValueError) as error:
            # An Any of a type that the schema does not import, or a timestamp out of range.
            raise InvalidData(Mismatch("", f"value has no JSON form: {error}")) from None

    def encode(self, value: Any, name: str | None) -> bytes:
        """Return a record of the JSON form of a message: that of `name`, or the first. Raises InvalidData."""
        indexes = self._find(name)
        kind = self._kind(indexes)
        message = kind.new()
        full_name = kind.descriptor.full_name
        # Only messages of Google's own, such as Timestamp, have another JSON form.
        if not isinstance(value, dict) and not full_name.startswith("google.protobuf."):
            raise InvalidData(Mismatch("", f"{full_name} must be a JSON object"))
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool, max_recursion_depth=MAX_DEPTH)
            data = message.SerializeToString(deterministic=True)
        except (json_format.ParseError, EncodeError) as error:
            raise InvalidData(Mismatch("", str(error))) from None
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidData(Mismatch("", f"not the JSON form of {full_name}: {error}")) from None
        return write_indexes(indexes) + bytes(data)

    def _find(self, name: str | None) -> tuple[int, ...]:
        if name is None:
            if not self._file.message_type:
                raise InvalidData(Mismatch("", "the schema has no messages"))
            return _FIRST
        if self._indexes is None:
            self._indexes = dict(_names(self._file))
        package = f"{self._file.package}." if self._file.package else ""
        for candidate in (name.removeprefix("."), package + name):
            if (found := self._indexes.get(candidate)) is not None:
                return found
        raise InvalidData(Mismatch("", f"the schema has no message {name!r}"))

    def _read(self, data: bytes | memoryview) -> Any:
        kind, start = self._kind_of(data)
        value = data[start:]
        try:
            message = kind.read(value)
        except DecodeError as error:
            _Walk(bytes(value)).run(kind.descriptor)
            raise _Bad(str(error)) from None
        if kind.has_required and not message.IsInitialized():
            raise _Bad("required field is missing", message.FindInitializationErrors()[0])
        return message

    def _kind_of(self, data: bytes | memoryview) -> tuple[_Kind, int]:
        """Return the message that the indexes name, and where the message begins."""
        if data and not data[0]:
            return self._kinds.get(_FIRST) or self._kind(_FIRST), 1
        count, position = _read_index(data, 0)
        if not 0 < count <= MAX_DEPTH:
            raise _Bad(f"data begins with {count} message indexes")
        indexes = []
        for _ in range(count):
            index, position = _read_index(data, position)
            indexes.append(index)
        return self._kind(tuple(indexes)), position

    def _kind(self, indexes: tuple[int, ...]) -> _Kind:
        if (known := self._kinds.get(indexes)) is not None:
            return known
        messages = self._file.message_type
        names = [self._file.package] if self._file.package else []
        for index in indexes:
            if not 0 <= index < len(messages):
                raise _Bad(f"the schema has no message with the indexes {list(indexes)}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        descriptor = self._pool.FindMessageTypeByName(".".join(names))
        message_class = message_factory.GetMessageClass(descriptor)
        found = _Kind(message_class.FromString, message_class, descriptor, _has_required(descriptor))
        self._kinds[indexes] = found
        return found


def _has_required(descriptor: Any) -> bool:
    """Return whether a message or one that it may contain has required fields."""
    seen = {descriptor.full_name}
    left = [descriptor]
    while left:
        message = left.pop()
        # Extensions can bring required fields too.
        if message.extension_ranges or any(field.is_required for field in message.fields):
            return True
        for field in message.fields:
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                left.append(field.message_type)
    return False


def _names(file: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    prefix = f"{file.package}." if file.package else ""
    left: list[tuple[str, tuple[int, ...], Any]] = [
        (prefix + message.name, (index,), message) for index, message in enumerate(file.message_type)
    ]
    while left:
        name, indexes, message = left.pop()
        if not message.options.map_entry:
            yield name, indexes
            left += [
                (f"{name}.{nested.name}", (*indexes, index), nested)
                for index, nested in enumerate(message.nested_type)
            ]


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """Return the bytes with which records of a message begin."""
    if indexes == _FIRST:
        return b"\0"
    written = bytearray()
    for value in (len(indexes), *indexes):
        left = value << 1
        while left > 127:
            written.append(left & 127 | 128)
            left >>= 7
        written.append(left)
    return bytes(written)


def _read_index(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[position : position + _MAX_INDEX_BYTES]):
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position + count + 1
    raise _Bad("data does not begin with message indexes")


class _GaveUp(Exception):
    """The wrong field is further away than it is looked for."""


class _Walk:
    """Finds the first wrong field of a message in bounded time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values_left = MAX_WALKED_VALUES

    def run(self, descriptor: Any) -> None:
        """Raise _Bad with the first field that is wrong, if one is found."""
        with suppress(_GaveUp):
            self._message(0, len(self._data), descriptor, MAX_DEPTH, None)

    def _message(self, position: int, end: int, descriptor: Any, depth: int, group: int | None) -> int:
        """Return the position after a message; that of a group ends with the tag of its number."""
        if depth < 0:
            raise _Bad(f"message is nested more than {MAX_DEPTH} deep")
        counts: dict[int, int] = {}
        while position < end:
            tag, position = self._varint(position, end)
            number, wire = tag >> 3, tag & 7
            if wire == _END_GROUP and group is not None:
                if number != group:
                    raise _Bad(f"group {group} ends with the tag of group {number}")
                return position
            field = descriptor.fields_by_number.get(number) if descriptor is not None else None
            index = counts[number] = counts.get(number, -1) + 1
            try:
                position = self._value(position, end, number, wire, field, depth)
            except _Bad as bad:
                if field is not None:
                    bad.steps.append(f"{field.name}[{index}]" if field.is_repeated else field.name)
                elif not bad.steps:
                    bad.steps.append(str(number))
                raise
        if group is not None:
            raise _Bad(f"group {group} does not end")
        return position

    def _value(self, position: int, end: int, number: int, wire: int, field: Any, depth: int) -> int:
        if not number:
            raise _Bad("field number is 0")
        if wire == _VARINT:
            return self._varint(position, end)[1]
        if wire == _GROUP:
            inner = (
                field.message_type if field is not None and field.type == FieldDescriptor.TYPE_GROUP else None
            )
            return self._message(position, end, inner, depth - 1, number)
        if wire != _LEN:
            if wire not in _FIXED_BYTES:
                raise _Bad(f"wire type {wire} is not known")
            return _within(position + _FIXED_BYTES[wire], end)
        length, position = self._varint(position, end)
        after = _within(position + length, end)
        if field is None:
            return after
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self._message(position, after, field.message_type, depth - 1, None)
        elif field.type == FieldDescriptor.TYPE_STRING:
            try:
                self._data[position:after].decode()
            except UnicodeDecodeError:
                raise _Bad("string is not UTF-8") from None
        elif field.type not in _LENGTH_DELIMITED:
            self._packed(position, after, field)
        return after

    def _packed(self, position: int, end: int, field: Any) -> None:
        size = _PACKED_BYTES.get(field.type)
        if size is not None:
            if (end - position) % size:
                raise _Bad(f"packed values have {end - position} bytes, which is no multiple of {size}")
            return
        while position < end:
            position = self._varint(position, end)[1]

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        if not self._values_left:
            raise _GaveUp
        self._values_left -= 1
        value = 0
        for count in range(_MAX_VARINT_BYTES):
            if position >= end:
                raise _Bad("data ends inside the value")
            byte = self._data[position]
            value |= (byte & 127) << 7 * count
            position += 1
            if byte < 128:
                return value, position
        raise _Bad("number has more than 64 bits")


def _within(position: int, end: int) -> int:
    if position > end:
        raise _Bad("data ends inside the value")
    return position
