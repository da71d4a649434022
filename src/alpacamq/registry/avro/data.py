"""Checks that bytes are one value of an Avro type, without building the value.

A type is compiled once to nested functions that skip over its encoding. The bytes come from strangers: values
are nested at most `MAX_DEPTH` deep, which also ends values of recursive types; block counts are bounded by
the bytes that are left, and items without bytes by `MAX_EMPTY_ITEMS`, because a consumer would build them.
"""

from collections.abc import Callable
from typing import TypeAlias

from alpacamq.registry.schema import MAX_DEPTH, Mismatch

from .types import Array, AvroType, Enum, Fixed, Kind, Map, Primitive, Record, Union, excerpt

MAX_EMPTY_ITEMS = 1_000_000

# Takes the data, the position of a value and the remaining depth; returns the position after the value.
# An IndexError says that the data ends inside the value.
_Skip: TypeAlias = Callable[[bytes, int, int], int]

ENDS_EARLY = "data ends inside the value"
WRONG_SIZE = "block has another size than its header says"
TOO_DEEP = f"value is nested more than {MAX_DEPTH} deep"


class Bad(Exception):
    """The data is no value of the type. Collects the steps of the path from the inside out."""

    def __init__(self, reason: str, *steps: str) -> None:
        self.reason = reason
        self.steps = list(steps)

    def mismatch(self) -> Mismatch:
        """Return what is wrong and where."""
        return Mismatch(path="".join(reversed(self.steps)).removeprefix("."), message=self.reason)


class DataChecker:
    """Checks values of one type, one at a time."""

    def __init__(self, root: AvroType) -> None:
        self._empty_items_left = 0
        # Records are compiled one after the other, not inside each other: chains of records can be long.
        self._records: dict[int, _Skip] = {}
        self._open: list[tuple[Record, list[tuple[str, _Skip]]]] = []
        self._root = root
        self._skip = self._compile(root)
        while self._open:
            record, fields = self._open.pop()
            fields.extend((field.name, self._compile(field.type)) for field in record.fields)

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        """Return where and why the data is not exactly one value of the type."""
        if not isinstance(data, bytes):
            data = bytes(data)
        self._empty_items_left = MAX_EMPTY_ITEMS
        try:
            end = self._skip(data, 0, MAX_DEPTH)
        except Bad as bad:
            return bad.mismatch()
        except IndexError:
            return Mismatch(path="", message=ENDS_EARLY)
        if end != len(data):
            return Mismatch(path="", message=f"{len(data) - end} bytes follow the value")
        return None

    def _compile(self, of: AvroType) -> _Skip:
        match of:
            case Primitive(kind=kind):
                return _PRIMITIVES[kind]
            case Fixed(size=size):
                return _fixed(size)
            case Enum(symbols=symbols):
                return _enum(len(symbols))
            case Union(branches=branches):
                return _union([self._compile(branch) for branch in branches])
            case Array(items=items):
                return self._skip_empty_items if items.zero_width else _array(self._compile(items))
            case Map(values=values):
                return _map(self._compile(values))
        if id(of) not in self._records:
            fields: list[tuple[str, _Skip]] = []
            self._records[id(of)] = _record(fields)
            self._open.append((of, fields))
        return self._records[id(of)]

    def _skip_empty_items(self, data: bytes, position: int, depth: int) -> int:
        if not depth:
            raise Bad(TOO_DEEP)
        while True:
            count, position, end = read_block(data, position)
            if not count:
                return position
            self._empty_items_left -= count
            if self._empty_items_left < 0:
                raise Bad(f"value has more than {MAX_EMPTY_ITEMS} items without data")
            if position != end >= 0:
                raise Bad(WRONG_SIZE)


def _skip_null(_data: bytes, position: int, _depth: int) -> int:
    return position


def _skip_boolean(data: bytes, position: int, _depth: int) -> int:
    if data[position] > 1:
        raise Bad(f"boolean is {data[position]} instead of 0 or 1")
    return position + 1


def skip_int(data: bytes, position: int, _depth: int) -> int:
    """Return the position after an int, or raise Bad if it has more than 32 bits."""
    start = position
    while data[position] > 127:
        position += 1
    # The fifth byte has room for 4 of 32 bits.
    if position - start > 3 and (position - start > 4 or data[position] > 15):
        raise Bad("int has more than 32 bits")
    return position + 1


def _skip_long(data: bytes, position: int, _depth: int) -> int:
    start = position
    while data[position] > 127:
        position += 1
    # The tenth byte has room for 1 of 64 bits.
    if position - start > 8 and (position - start > 9 or data[position] > 1):
        raise Bad("long has more than 64 bits")
    return position + 1


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Read a long and return it with the position after it."""
    end = _skip_long(data, position, 0)
    value = shift = 0
    for byte in data[position:end]:
        value |= (byte & 127) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), end


def read_index(data: bytes, position: int) -> tuple[int, int]:
    """Read a long that is usually small and not negative."""
    byte = data[position]
    if byte < 128 and not byte & 1:
        return byte >> 1, position + 1
    return read_long(data, position)


def _skip_bytes(data: bytes, position: int, _depth: int) -> int:
    length = data[position]
    if length < 128 and not length & 1:
        length >>= 1
        position += 1
    else:
        length, position = read_long(data, position)
        if length < 0:
            raise Bad(f"length is {length}")
    end = position + length
    if end > len(data):
        raise Bad(ENDS_EARLY)
    return end


def _skip_string(data: bytes, position: int, _depth: int) -> int:
    length = data[position]
    if length < 128 and not length & 1:
        length >>= 1
        position += 1
    else:
        length, position = read_long(data, position)
        if length < 0:
            raise Bad(f"length is {length}")
    end = position + length
    if end > len(data):
        raise Bad(ENDS_EARLY)
    try:
        data[position:end].decode()
    except UnicodeDecodeError:
        raise Bad("string is not UTF-8") from None
    return end


def _fixed(size: int) -> _Skip:
    def skip(data: bytes, position: int, _depth: int) -> int:
        position += size
        if position > len(data):
            raise Bad(ENDS_EARLY)
        return position

    return skip


_PRIMITIVES = {
    Kind.NULL: _skip_null,
    Kind.BOOLEAN: _skip_boolean,
    Kind.INT: skip_int,
    Kind.LONG: _skip_long,
    Kind.FLOAT: _fixed(4),
    Kind.DOUBLE: _fixed(8),
    Kind.BYTES: _skip_bytes,
    Kind.STRING: _skip_string,
}


def _enum(symbols: int) -> _Skip:
    def skip(data: bytes, position: int, _depth: int) -> int:
        index, position = read_index(data, position)
        if not 0 <= index < symbols:
            raise Bad(f"symbol {index} of an enum with {symbols}")
        return position

    return skip


def _union(branches: list[_Skip]) -> _Skip:
    def skip(data: bytes, position: int, depth: int) -> int:
        index, position = read_index(data, position)
        if not 0 <= index < len(branches):
            raise Bad(f"branch {index} of a union with {len(branches)}")
        return branches[index](data, position, depth)

    return skip


def _record(fields: list[tuple[str, _Skip]]) -> _Skip:
    def skip(data: bytes, position: int, depth: int) -> int:
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        for name, skip_field in fields:
            try:
                position = skip_field(data, position, depth)
            except Bad as bad:
                bad.steps.append(f".{excerpt(name)}")
                raise
            except IndexError:
                raise Bad(ENDS_EARLY, f".{excerpt(name)}") from None
        return position

    return skip


def _array(skip_item: _Skip) -> _Skip:
    def skip(data: bytes, position: int, depth: int) -> int:
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        first = 0
        while True:
            count, position, end = read_block(data, position)
            if not count:
                return position
            if count > len(data) - position:
                raise Bad(f"block of {count} items is longer than the data")
            for index in range(first, first + count):
                try:
                    position = skip_item(data, position, depth)
                except Bad as bad:
                    bad.steps.append(f"[{index}]")
                    raise
                except IndexError:
                    raise Bad(ENDS_EARLY, f"[{index}]") from None
            first += count
            if position != end >= 0:
                raise Bad(WRONG_SIZE)

    return skip


def _map(skip_value: _Skip) -> _Skip:
    def skip(data: bytes, position: int, depth: int) -> int:
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        while True:
            count, position, end = read_block(data, position)
            if not count:
                return position
            if count > len(data) - position:
                raise Bad(f"block of {count} items is longer than the data")
            for _ in range(count):
                start = position
                position = _skip_string(data, position, depth)
                try:
                    position = skip_value(data, position, depth)
                except Bad as bad:
                    bad.steps.append(_key_step(data, start))
                    raise
                except IndexError:
                    raise Bad(ENDS_EARLY, _key_step(data, start)) from None
            if position != end >= 0:
                raise Bad(WRONG_SIZE)

    return skip


def _key_step(data: bytes, position: int) -> str:
    length, position = read_long(data, position)
    return key_step(data[position : position + length].decode())


def key_step(key: str) -> str:
    """Return the step of a path to a value of a map."""
    return f'["{excerpt(key)}"]'


def read_block(data: bytes, position: int) -> tuple[int, int, int]:
    """Return a block's number of items, where they start, and where they end (-1 if it does not say)."""
    count, position = read_index(data, position)
    if count >= 0:
        return count, position, -1
    size, position = read_long(data, position)
    if not 0 <= size <= len(data) - position:
        raise Bad(f"block of {size} bytes is longer than the data" if size >= 0 else f"length is {size}")
    return -count, position, position + size
