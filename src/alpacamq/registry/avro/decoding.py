"""Reads Avro data as JSON values, also with a newer or older schema than that of the writer.

A pair of a writer's and a reader's type is compiled once to nested functions that read the encoding. Values
look as `json_form` says. The bytes come from strangers, as for `data`, with the same limits. In addition the
value may not be much larger than its data: records with long names or many nulls would make it so.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from alpacamq.registry.schema import MAX_DEPTH, InvalidData, InvalidSchema, Mismatch

from .data import (
    ENDS_EARLY,
    MAX_EMPTY_ITEMS,
    TOO_DEEP,
    WRONG_SIZE,
    Bad,
    key_step,
    read_block,
    read_index,
    skip_int,
)
from .encoding import DefaultWriter
from .json_form import BYTE_CODEC, UnionForm, type_name
from .logical import TextForm, text_form
from .resolution import (
    MAX_COMPARISONS,
    PROMOTIONS,
    BranchIndex,
    incompatibilities,
    names_match,
    writer_fields,
)
from .types import Array, AvroType, Enum, Field, Fixed, Kind, Map, Primitive, Record, Union, excerpt

# Takes the data, the position of a value and the remaining depth; returns the value and where it ends.
# An IndexError or struct.error says that the data ends inside the value.
_Read: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

# The size of a value is estimated, in bytes of memory or JSON, by its records and values without data.
MAX_SIZE_FACTOR = 128
FREE_SIZE = 16 << 20
# Comparing two types can take long.
_TYPES_PER_COMPARISON = 10_000
_RECORD_SIZE = 64
_FIELD_SIZE = 8

_FLOAT = struct.Struct("<f").unpack_from
_DOUBLE = struct.Struct("<d").unpack_from


class Decoder:
    """Reads values of one writer's type as those of a reader's type."""

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self._empty_items_left = 0
        self._size_left = 0
        self._types_left = MAX_COMPARISONS
        # Records are compiled one after the other, not inside each other: chains of records can be long.
        self._records: dict[tuple[int, int], _RecordReader] = {}
        self._open: list[_RecordReader] = []
        self._unions: dict[int, _ReaderUnion] = {}
        self._read = self._compile(writer, reader)
        while self._open:
            self._complete(self._open.pop())

    def decode(self, data: bytes | memoryview) -> object:
        """Return the value, or raise InvalidData with the place and the reason."""
        if not isinstance(data, bytes):
            data = bytes(data)
        self._empty_items_left = MAX_EMPTY_ITEMS
        self._size_left = FREE_SIZE + MAX_SIZE_FACTOR * len(data)
        try:
            value, end = self._read(data, 0, MAX_DEPTH)
        except Bad as bad:
            raise InvalidData(bad.mismatch()) from None
        except (IndexError, struct.error):
            raise InvalidData(Mismatch(path="", message=ENDS_EARLY)) from None
        if end != len(data):
            raise InvalidData(Mismatch(path="", message=f"{len(data) - end} bytes follow the value"))
        return value

    def spend(self, size: int) -> None:
        """Count a part of the value against the limit of its size."""
        self._size_left -= size
        if self._size_left < 0:
            raise Bad("value is much larger than its data")

    def _compile(self, writer: AvroType, reader: AvroType) -> _Read:
        self._types_left -= 1
        if self._types_left < 0 and writer is not reader:
            raise InvalidSchema("the schemas are too large to read data of one with the other")
        match writer, reader:
            case Union(), _ if writer is reader:
                form = UnionForm(writer)
                branches = [self._compile(branch, branch) for branch in writer.branches]
                return _union([_in_union(form, index, read) for index, read in enumerate(branches)])
            case Union(), _:
                return _union([self._compile(branch, reader) for branch in writer.branches])
            case _, Union():
                return self._compile_chosen(writer, reader)
            case (Record() | Enum() | Fixed()) as named, (Record() | Enum() | Fixed()) as target if (
                writer is not reader and not names_match(target, named)
            ):
                pass
            case Array(), Array():
                return self._array(writer.items, self._compile(writer.items, reader.items))
            case Map(), Map():
                return _map(self._compile(writer.values, reader.values))
            case Enum(), Enum():
                return _enum(writer, reader)
            case Record(), Record():
                return self._record(writer, reader)
            case Fixed(), Fixed() if writer.size == reader.size:
                return _shown(_fixed(writer.size), _form(writer, reader), is_bytes=True)
            case Primitive(), Primitive():
                if writer.kind is reader.kind or writer.kind in PROMOTIONS.get(reader.kind, ()):
                    return _primitive(writer, reader)
        return _refuse(
            f"data of type {excerpt(type_name(writer))} cannot be read as {excerpt(type_name(reader))}"
        )

    def _compile_chosen(self, writer: AvroType, reader: Union) -> _Read:
        """Read data as the branch of a reader's union that fits best."""
        if id(reader) not in self._unions:
            self._unions[id(reader)] = _ReaderUnion(reader)
        union = self._unions[id(reader)]
        candidates = sorted(
            union.index.candidates(writer),
            key=lambda each: (each.kind is not writer.kind, type_name(each) != type_name(writer)),
        )
        if not candidates:
            return _refuse(f"no branch of the reader's union can read type {excerpt(type_name(writer))}")
        chosen = candidates[0]
        if len(candidates) > 1 and type_name(chosen) != type_name(writer):
            chosen = next((each for each in candidates if self._is_compatible(each, writer)), chosen)
        return _in_union(union.form, union.form.names[type_name(chosen)], self._compile(writer, chosen))

    def _is_compatible(self, reader: AvroType, writer: AvroType) -> bool:
        self._types_left -= _TYPES_PER_COMPARISON
        return not incompatibilities(reader, writer)

    def _record(self, writer: Record, reader: Record) -> _Read:
        key = id(writer), id(reader)
        if key not in self._records:
            self._records[key] = record = _RecordReader(self, writer, reader)
            self._open.append(record)
        return self._records[key].read

    def _complete(self, record: "_RecordReader") -> None:
        """Compile the fields of a record."""
        writer, reader = record.writer, record.reader
        targets = {
            id(source): field for field in reader.fields for source in writer_fields(field, writer)[:1]
        }
        for field in writer.fields:
            target = targets.get(id(field))
            # A field that the reader lacks is read all the same, to find its end.
            kind = field.type if target is None else target.type
            name = None if target is None else target.name
            record.fields.append((field.name, name, self._compile(field.type, kind)))
        is_found = {target.name for target in targets.values()}
        record.added = [
            (field.name, self._default(field)) for field in reader.fields if field.name not in is_found
        ]
        names = [field.name for field in reader.fields]
        written = [name for _, name, _ in record.fields if name is not None]
        record.order = names if written != names else None
        record.size = _RECORD_SIZE + sum(_FIELD_SIZE + len(name) for name in names)

    def _default(self, field: Field) -> _Read:
        if field.default is None:
            return _refuse("the writer's schema lacks the field, and it has no default")
        try:
            encoded = DefaultWriter().encoded(field)
        except Bad as bad:
            return _refuse(bad.reason)
        read = self._compile(field.type, field.type)

        def read_default(_data: bytes, position: int, depth: int) -> tuple[Any, int]:
            self.spend(len(encoded))
            return read(encoded, 0, depth)[0], position

        return read_default

    def _array(self, writer_items: AvroType, read_item: _Read) -> _Read:
        has_no_data = writer_items.zero_width

        def read(data: bytes, position: int, depth: int) -> tuple[list[Any], int]:
            if not depth:
                raise Bad(TOO_DEEP)
            depth -= 1
            items: list[Any] = []
            while True:
                count, position, end = read_block(data, position)
                if not count:
                    return items, position
                if has_no_data:
                    self._count_empty_items(count)
                elif count > len(data) - position:
                    raise Bad(f"block of {count} items is longer than the data")
                for _ in range(count):
                    try:
                        item, position = read_item(data, position, depth)
                    except Bad as bad:
                        bad.steps.append(f"[{len(items)}]")
                        raise
                    except (IndexError, struct.error):
                        raise Bad(ENDS_EARLY, f"[{len(items)}]") from None
                    items.append(item)
                if position != end >= 0:
                    raise Bad(WRONG_SIZE)

        return read

    def _count_empty_items(self, count: int) -> None:
        self._empty_items_left -= count
        if self._empty_items_left < 0:
            raise Bad(f"value has more than {MAX_EMPTY_ITEMS} items without data")
        self.spend(count * _FIELD_SIZE)


class _ReaderUnion:
    """A union of the reader's schema that data of other types is read as."""

    def __init__(self, union: Union) -> None:
        self.form = UnionForm(union)
        self.index = BranchIndex(union)


class _RecordReader:
    """Reads a record. The fields are compiled later than the record, which they may contain."""

    def __init__(self, decoder: Decoder, writer: Record, reader: Record) -> None:
        self.writer = writer
        self.reader = reader
        self.size = 0
        # The name in the writer's schema, that in the reader's unless it lacks the field, and how to read it.
        self.fields: list[tuple[str, str | None, _Read]] = []
        self.added: list[tuple[str, _Read]] = []
        # The names in the order of the reader, if that is another than the writer's.
        self.order: list[str] | None = None
        self._decoder = decoder

    def read(self, data: bytes, position: int, depth: int) -> tuple[dict[str, Any], int]:
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        self._decoder.spend(self.size)
        record = {}
        for name, target, read_field in self.fields:
            try:
                value, position = read_field(data, position, depth)
            except Bad as bad:
                bad.steps.append(f".{excerpt(name)}")
                raise
            except (IndexError, struct.error):
                raise Bad(ENDS_EARLY, f".{excerpt(name)}") from None
            if target is not None:
                record[target] = value
        for name, read_field in self.added:
            try:
                record[name] = read_field(data, position, depth)[0]
            except Bad as bad:
                bad.steps.append(f".{excerpt(name)}")
                raise
        if self.order is not None:
            record = {name: record[name] for name in self.order}
        return record, position


def _refuse(reason: str) -> _Read:
    def refuse(_data: bytes, _position: int, _depth: int) -> tuple[Any, int]:
        raise Bad(reason)

    return refuse


def _read_null(_data: bytes, position: int, _depth: int) -> tuple[None, int]:
    return None, position


def _read_boolean(data: bytes, position: int, _depth: int) -> tuple[bool, int]:
    if data[position] > 1:
        raise Bad(f"boolean is {data[position]} instead of 0 or 1")
    return data[position] == 1, position + 1


def _read_int(data: bytes, position: int, _depth: int) -> tuple[int, int]:
    if data[position] > 127:
        skip_int(data, position, 0)
    return read_index(data, position)


def _read_long(data: bytes, position: int, _depth: int) -> tuple[int, int]:
    return read_index(data, position)


def _read_float(data: bytes, position: int, _depth: int) -> tuple[float | str, int]:
    return _finite(_FLOAT(data, position)[0]), position + 4


def _read_double(data: bytes, position: int, _depth: int) -> tuple[float | str, int]:
    return _finite(_DOUBLE(data, position)[0]), position + 8


def _finite(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _read_bytes(data: bytes, position: int, _depth: int) -> tuple[bytes, int]:
    length, position = read_index(data, position)
    if length < 0:
        raise Bad(f"length is {length}")
    end = position + length
    if end > len(data):
        raise Bad(ENDS_EARLY)
    return data[position:end], end


def _read_string(data: bytes, position: int, _depth: int) -> tuple[str, int]:
    value, end = _read_bytes(data, position, 0)
    try:
        return value.decode(), end
    except UnicodeDecodeError:
        raise Bad("string is not UTF-8") from None


def _fixed(size: int) -> _Read:
    def read(data: bytes, position: int, _depth: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(data):
            raise Bad(ENDS_EARLY)
        return data[position:end], end

    return read


_PRIMITIVES: dict[Kind, _Read] = {
    Kind.NULL: _read_null,
    Kind.BOOLEAN: _read_boolean,
    Kind.INT: _read_int,
    Kind.LONG: _read_long,
    Kind.FLOAT: _read_float,
    Kind.DOUBLE: _read_double,
    Kind.BYTES: _read_bytes,
    Kind.STRING: _read_string,
}


def _primitive(writer: Primitive, reader: Primitive) -> _Read:
    if writer.kind is reader.kind:
        return _shown(_PRIMITIVES[writer.kind], _form(writer, reader), is_bytes=writer.kind is Kind.BYTES)
    if reader.kind is Kind.STRING:
        return _read_string
    if reader.kind is Kind.BYTES:
        return _shown(_read_bytes, text_form(reader), is_bytes=True)
    read = _PRIMITIVES[writer.kind]
    if reader.kind is Kind.LONG:
        return _shown(read, text_form(reader), is_bytes=False)
    if writer.kind is Kind.FLOAT:
        return read

    def read_as_float(data: bytes, position: int, depth: int) -> tuple[float, int]:
        value, end = read(data, position, depth)
        return float(value), end

    return read_as_float


def _form(writer: AvroType, reader: AvroType) -> TextForm | None:
    """Return how to show data: the reader decides whether as text, the writer knows its unit or scale."""
    form = text_form(reader)
    return form and (text_form(writer) or form)


def _shown(read: _Read, form: TextForm | None, *, is_bytes: bool) -> _Read:
    """Return values as JSON has them."""
    if form is not None:
        return _as_text(read, form)
    if not is_bytes:
        return read

    def read_as_characters(data: bytes, position: int, depth: int) -> tuple[str, int]:
        value, end = read(data, position, depth)
        return value.decode(BYTE_CODEC), end

    return read_as_characters


def _as_text(read: _Read, form: TextForm) -> _Read:
    def read_as_text(data: bytes, position: int, depth: int) -> tuple[str | int, int]:
        value, end = read(data, position, depth)
        try:
            return form.read(value), end
        except ValueError as error:
            raise Bad(str(error)) from None

    return read_as_text


def _enum(writer: Enum, reader: Enum) -> _Read:
    known = reader.symbol_set
    symbols = [symbol if symbol in known else reader.default for symbol in writer.symbols]

    def read(data: bytes, position: int, _depth: int) -> tuple[str, int]:
        index, position = read_index(data, position)
        if not 0 <= index < len(symbols):
            raise Bad(f"symbol {index} of an enum with {len(symbols)}")
        symbol = symbols[index]
        if symbol is None:
            raise Bad(f"the reader's enum has neither symbol {excerpt(writer.symbols[index])} nor a default")
        return symbol, position

    return read


def _union(branches: list[_Read]) -> _Read:
    def read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        index, position = read_index(data, position)
        if not 0 <= index < len(branches):
            raise Bad(f"branch {index} of a union with {len(branches)}")
        return branches[index](data, position, depth)

    return read


def _in_union(form: UnionForm, index: int, read: _Read) -> _Read:
    if form.is_always_plain(index):
        return read

    def read_branch(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        value, end = read(data, position, depth)
        return form.shown(index, value), end

    return read_branch


def _map(read_value: _Read) -> _Read:
    def read(data: bytes, position: int, depth: int) -> tuple[dict[str, Any], int]:
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        values: dict[str, Any] = {}
        while True:
            count, position, end = read_block(data, position)
            if not count:
                return values, position
            if count > len(data) - position:
                raise Bad(f"block of {count} items is longer than the data")
            for _ in range(count):
                key, position = _read_string(data, position, 0)
                try:
                    values[key], position = read_value(data, position, depth)
                except Bad as bad:
                    bad.steps.append(key_step(key))
                    raise
                except (IndexError, struct.error):
                    raise Bad(ENDS_EARLY, key_step(key)) from None
            if position != end >= 0:
                raise Bad(WRONG_SIZE)

    return read
