"""Writes JSON values as Avro data.

A type is compiled once to nested functions. Values look as `json_form` says; a field that is missing gets its
default, and one that the record lacks is refused. Values and schemas come from strangers: values are nested
at most `MAX_DEPTH` deep, and the branch of a union is chosen without trying to write the value, which could
take exponential time.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from alpacamq.registry.schema import MAX_DEPTH, InvalidData

from .data import TOO_DEEP, Bad, key_step
from .json_form import (
    BYTE_CODEC,
    NUMBERS_BY_NAME,
    JsonType,
    UnionForm,
    json_type,
    may_be_text_or_number,
    type_name,
)
from .logical import TextForm, text_form
from .types import (
    MAX_INT,
    MAX_LONG,
    Array,
    AvroType,
    Enum,
    Field,
    Fixed,
    Json,
    Kind,
    Map,
    Primitive,
    Record,
    Union,
    excerpt,
)

# Defaults that are left out can make a value much larger than its JSON.
MAX_ENCODED_BYTES: Final = 64 << 20
# Values inside one default. The defaults of records inside it count, and can multiply.
MAX_DEFAULT_VALUES: Final = 100_000
MAX_DEFAULT_BYTES: Final = 1 << 20

# Takes the data so far, a value to append and the remaining depth. Raises Bad.
_Write: TypeAlias = Callable[[bytearray, Any, int], None]

_FLOAT = struct.Struct("<f").pack
_DOUBLE = struct.Struct("<d").pack


class Encoder:
    """Writes values of one type."""

    def __init__(self, root: AvroType) -> None:
        # Records are compiled one after the other, not inside each other: chains of records can be long.
        self._records: dict[int, _RecordWriter] = {}
        self._open: list[_RecordWriter] = []
        self._write = self._compile(root)
        while self._open:
            record = self._open.pop()
            record.fields = [_FieldWriter(each, self._compile(each.type)) for each in record.type.fields]

    def encode(self, value: object) -> bytes:
        """Return the data of a value, or raise InvalidData with the place and the reason."""
        out = bytearray()
        try:
            self._write(out, value, MAX_DEPTH)
        except Bad as bad:
            raise InvalidData(bad.mismatch()) from None
        return bytes(out)

    def _compile(self, of: AvroType) -> _Write:
        match of:
            case Primitive(kind=kind):
                return _as_text(_PRIMITIVES[kind], text_form(of))
            case Fixed(size=size):
                return _as_text(_fixed(size), text_form(of))
            case Enum():
                return _enum(of)
            case Array(items=items):
                return _array(self._compile(items))
            case Map(values=values):
                return _map(self._compile(values))
            case Union(branches=branches):
                return _union(of, [self._compile(branch) for branch in branches])
        if id(of) not in self._records:
            self._records[id(of)] = record = _RecordWriter(of)
            self._open.append(record)
        return self._records[id(of)].write


class _FieldWriter:
    """Writes a field of a record."""

    __slots__ = ("_default", "field", "name", "write")

    def __init__(self, field: Field, write: _Write) -> None:
        self.field = field
        self.name = field.name
        self.write = write
        self._default: bytes | None = None

    def default(self) -> bytes:
        """Return the encoded default."""
        if self.field.default is None:
            raise Bad("the field is missing and has no default")
        if self._default is None:
            self._default = DefaultWriter().encoded(self.field)
        return self._default


class _RecordWriter:
    """Writes a record. The fields are compiled later than the record, which they may contain."""

    def __init__(self, of: Record) -> None:
        self.type = of
        self.fields: list[_FieldWriter] = []

    def write(self, out: bytearray, value: Any, depth: int) -> None:
        if type(value) is not dict:
            raise _wrong_type(value, "an object")
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        given = 0
        for field in self.fields:
            try:
                if field.name in value:
                    given += 1
                    field.write(out, value[field.name], depth)
                else:
                    out += field.default()
                    if len(out) > MAX_ENCODED_BYTES:
                        raise Bad(f"the data has more than {MAX_ENCODED_BYTES} bytes")
            except Bad as bad:
                bad.steps.append(f".{excerpt(field.name)}")
                raise
        if given != len(value):
            known = self.type.fields_by_name
            unknown = next(name for name in value if name not in known)
            raise Bad(f"record {excerpt(self.type.name.full)} has no field {excerpt(str(unknown))!r}")


class DefaultWriter:
    """Writes the default of one field: in the form of schemas, where logical types are numbers or bytes."""

    def __init__(self) -> None:
        self._values_left = MAX_DEFAULT_VALUES
        self._out = bytearray()

    def encoded(self, field: Field) -> bytes:
        """Return the data of a field's default. Raises Bad if it is too large."""
        assert field.default is not None
        self._write(field.type, field.default.value, MAX_DEPTH)
        return bytes(self._out)

    def _write(self, of: AvroType, value: Json, depth: int) -> None:
        self._values_left -= 1
        if self._values_left < 0 or len(self._out) > MAX_DEFAULT_BYTES:
            raise Bad("the default is too large")
        if not depth:
            raise Bad(TOO_DEEP)
        match of, value:
            case Primitive(kind=kind), _:
                _PRIMITIVES[kind](self._out, value, depth)
            case Fixed(size=size), _:
                _fixed(size)(self._out, value, depth)
            case Enum(), _:
                _enum(of)(self._out, value, depth)
            case Array(items=items), list():
                _write_blocks(self._out, value, lambda item: self._write(items, item, depth - 1))
            case Map(values=values), dict():
                _write_blocks(
                    self._out, value.items(), lambda entry: self._write_entry(values, entry, depth - 1)
                )
            case Union(branches=branches), _:
                index = next((at for at, branch in enumerate(branches) if _fits(branch, None, value)), 0)
                _append_long(self._out, index)
                self._write(branches[index], value, depth)
            case Record(fields=fields), dict():
                for field in fields:
                    default = field.default and field.default.value
                    self._write(field.type, value.get(field.name, default), depth - 1)
            case _:
                raise Bad("the default is no value of its type")

    def _write_entry(self, of: AvroType, entry: tuple[str, Json], depth: int) -> None:
        _write_string(self._out, entry[0], depth)
        self._write(of, entry[1], depth)


def _is_written(write: _Write, value: Json) -> bool:
    try:
        write(bytearray(), value, 1)
    except Bad:
        return False
    return True


def _fits(of: AvroType, form: TextForm | None, value: Any) -> bool:
    """Return whether a value looks like one of a type that is no union, without what is inside it."""
    if form is not None:
        try:
            raw = form.write(value)
        except ValueError:
            return False
        return isinstance(raw, bytes) or raw is not value
    match of:
        case Primitive(kind=kind):
            return _is_written(_PRIMITIVES[kind], value)
        case Fixed(size=size):
            return _is_written(_fixed(size), value)
        case Enum():
            return isinstance(value, str) and value in of.symbol_set
        case Array():
            return isinstance(value, list)
        case Map():
            return isinstance(value, dict)
        case Record():
            if not isinstance(value, dict) or not value.keys() <= of.fields_by_name.keys():
                return False
            return all(each.default is not None or each.name in value for each in of.fields)
    return False


def _wrong_type(value: object, expected: str) -> Bad:
    if value is None or isinstance(value, bool):
        shown = str(value).lower().replace("none", "null")
    elif isinstance(value, str):
        shown = f'"{excerpt(value)}"'
    elif isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 128):
        shown = repr(value)
    else:
        shown = f"a value of type {json_type(value) or type(value).__name__}"
    return Bad(f"expected {expected}, not {shown}")


def _append_long(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_null(_out: bytearray, value: Any, _depth: int) -> None:
    if value is not None:
        raise _wrong_type(value, "null")


def _write_boolean(out: bytearray, value: Any, _depth: int) -> None:
    if type(value) is not bool:
        raise _wrong_type(value, "true or false")
    out.append(value)


def _write_int(out: bytearray, value: Any, _depth: int) -> None:
    if type(value) is not int or not -MAX_INT - 1 <= value <= MAX_INT:
        raise _wrong_type(value, "a whole number of 32 bits")
    _append_long(out, value)


def _write_long(out: bytearray, value: Any, _depth: int) -> None:
    if type(value) is not int or not -MAX_LONG - 1 <= value <= MAX_LONG:
        raise _wrong_type(value, "a whole number of 64 bits")
    _append_long(out, value)


def _write_float(out: bytearray, value: Any, _depth: int) -> None:
    out += _packed(_FLOAT, value)


def _write_double(out: bytearray, value: Any, _depth: int) -> None:
    out += _packed(_DOUBLE, value)


def _packed(pack: Callable[[float], bytes], value: Any) -> bytes:
    if isinstance(value, str) and value in NUMBERS_BY_NAME:
        value = NUMBERS_BY_NAME[value]
    if type(value) not in (float, int):
        raise _wrong_type(value, "a number")
    try:
        return pack(value)
    except (OverflowError, struct.error):
        raise Bad("the number is too large for the type") from None


def _write_bytes(out: bytearray, value: Any, _depth: int) -> None:
    data = _as_bytes(value)
    _append_long(out, len(data))
    out += data


def _as_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value  # of a logical type
    if type(value) is not str:
        raise _wrong_type(value, "a string with one character per byte")
    try:
        return value.encode(BYTE_CODEC)
    except UnicodeEncodeError as error:
        raise Bad(f"character {error.start} is not a byte: it must be from U+0000 to U+00FF") from None


def _write_string(out: bytearray, value: Any, _depth: int) -> None:
    if type(value) is not str:
        raise _wrong_type(value, "a string")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise Bad("the string has half of a surrogate pair") from None
    _append_long(out, len(data))
    out += data


_PRIMITIVES: dict[Kind, _Write] = {
    Kind.NULL: _write_null,
    Kind.BOOLEAN: _write_boolean,
    Kind.INT: _write_int,
    Kind.LONG: _write_long,
    Kind.FLOAT: _write_float,
    Kind.DOUBLE: _write_double,
    Kind.BYTES: _write_bytes,
    Kind.STRING: _write_string,
}


def _fixed(size: int) -> _Write:
    def write(out: bytearray, value: Any, _depth: int) -> None:
        data = _as_bytes(value)
        if len(data) != size:
            raise Bad(f"expected {size} bytes, not {len(data)}")
        out += data

    return write


def _as_text(write_raw: _Write, form: TextForm | None) -> _Write:
    if form is None:
        return write_raw

    def write(out: bytearray, value: Any, depth: int) -> None:
        try:
            raw = form.write(value)
        except ValueError as error:
            raise Bad(str(error)) from None
        write_raw(out, raw, depth)

    return write


def _enum(of: Enum) -> _Write:
    indexes = {symbol: index for index, symbol in enumerate(of.symbols)}

    def write(out: bytearray, value: Any, _depth: int) -> None:
        index = indexes.get(value) if type(value) is str else None
        if index is None:
            raise _wrong_type(value, f"one of {excerpt(', '.join(of.symbols[:20]))}")
        _append_long(out, index)

    return write


def _array(write_item: _Write) -> _Write:
    def write(out: bytearray, value: Any, depth: int) -> None:
        if type(value) is not list:
            raise _wrong_type(value, "an array")
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1
        index = -1

        def write_next(item: Any) -> None:
            nonlocal index
            index += 1
            write_item(out, item, depth)

        try:
            _write_blocks(out, value, write_next)
        except Bad as bad:
            bad.steps.append(f"[{index}]")
            raise

    return write


def _map(write_value: _Write) -> _Write:
    def write(out: bytearray, value: Any, depth: int) -> None:
        if type(value) is not dict:
            raise _wrong_type(value, "an object")
        if not depth:
            raise Bad(TOO_DEEP)
        depth -= 1

        def write_entry(entry: tuple[Any, Any]) -> None:
            key, inner = entry
            try:
                _write_string(out, key, depth)
                write_value(out, inner, depth)
            except Bad as bad:
                bad.steps.append(key_step(str(key)))
                raise

        _write_blocks(out, value.items(), write_entry)

    return write


def _write_blocks(out: bytearray, items: Any, write_item: Callable[[Any], None]) -> None:
    """Write all items as one block, and the block without items that ends them."""
    if items:
        _append_long(out, len(items))
        for item in items:
            write_item(item)
    _append_long(out, 0)


# Of the numbers in a union: the narrowest that has all digits.
_FOR_WHOLE_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.FLOAT)
_FOR_FRACTIONS = (Kind.DOUBLE, Kind.FLOAT)


def _union(of: Union, writers: list[_Write]) -> _Write:
    form = UnionForm(of)
    texts = [text_form(branch) for branch in of.branches]
    by_kind = {branch.kind: index for index, branch in enumerate(of.branches)}

    def write(out: bytearray, value: Any, depth: int) -> None:
        if type(value) is dict and len(value) == 1 and (name := next(iter(value))) in form.names:
            index, value = form.names[name], value[name]
        else:
            index = choose(value)
        _append_long(out, index)
        writers[index](out, value, depth)

    def choose(value: Any) -> int:
        found = json_type(value)
        if found is JsonType.NULL and form.null is not None:
            return form.null
        if form.only_branch is not None:
            return form.only_branch
        usual = [index for index, each in enumerate(form.types) if each is found]
        if not usual and found in (JsonType.NUMBER, JsonType.STRING):
            usual = [index for index, each in enumerate(of.branches) if may_be_text_or_number(each)]
        if len(usual) <= 1:
            fitting: Iterable[int] = usual
        elif found is JsonType.NUMBER:
            return number(value)
        else:
            fitting = [index for index in usual if _fits(of.branches[index], texts[index], value)]
        match list(fitting):
            case [index]:
                return index
            case []:
                names = ", ".join(list(form.names)[:20])
                raise _wrong_type(value, f"a value of one of the types {excerpt(names)}")
            case several:
                fits = [type_name(of.branches[index]) for index in several[:20]]
                wrapped = f'{{"{excerpt(fits[0])}": …}}'
                raise Bad(f"the value may be of the types {excerpt(', '.join(fits))}: write {wrapped}")

    def number(value: float) -> int:
        kinds = _FOR_WHOLE_NUMBERS if type(value) is int else _FOR_FRACTIONS
        for kind in kinds:
            index = by_kind.get(kind)
            if index is not None and texts[index] is None and _is_written(writers[index], value):
                return index
        raise _wrong_type(value, f"a value of one of the types {excerpt(', '.join(form.names))}")

    return write
