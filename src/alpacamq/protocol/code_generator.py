"""Generates the functions that encode and decode one version of one message.

They are straight-line code without calls for nested structs: adjacent fixed-width values, lengths
included, are written by one `pack` and read by one `unpack_from`. A decoder checks every length and count
against the remaining bytes before allocating; `Decoder` turns any exception into a ProtocolError, finding the
field by the line that failed. A value that does not fit its field is a bug in the broker: its encoder raises
struct.error.

Large messages have a second form: a generator that yields every few entries, so that other tasks can run.
An encoder yields the number of bytes written; a decoder counts the entries of all arrays together.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from struct import Struct, calcsize, pack
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import msgspec

from .errors import ProtocolError
from .notation import UUID_ON_WIRE, Array, Field, Fixed, Message, Prefixed, WireType, fields_of
from .varint import Malformed, check_count, check_tag_count, read_uvarint, skip_tagged_fields, uvarint


class FixedFields(msgspec.Struct, frozen=True):
    """Adjacent fixed-width values that one line reads, each with its field and size."""

    fields: tuple[tuple[str, int], ...]

    def field_at(self, left: int) -> tuple[str, int]:
        """Return the first field that does not fit in `left` bytes, and the bytes left at that point."""
        for name, size in self.fields:
            if size > left:
                return name, left
            left -= size
        raise AssertionError("the run fits")


class CodeWriter:
    """The body of one function, built line by line."""

    def __init__(self, signature: str) -> None:
        self._lines = [signature]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}
        # Fields by line number, to find the field of an error without a cost in the normal case.
        self.fields_by_line: dict[int, FixedFields] = {}
        self.field = ""

    def emit(self, line: str, fixed: FixedFields | None = None) -> None:
        self._lines.append("    " * self._depth + line)
        self.fields_by_line[len(self._lines)] = fixed or FixedFields(((self.field, 1),))

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.emit(opening)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def inside(self, field: str) -> Iterator[None]:
        """Attribute the lines emitted inside to `field`."""
        outer = self.field
        self.field = f"{outer}.{field}" if outer else field
        yield
        self.field = outer

    def name(self, stem: str) -> str:
        """Return an unused variable name."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """Return a name for `value` in the function's globals."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(stem)
        self.constants[name] = value
        return name

    def compile(self, title: str) -> dict[str, Any]:
        """Compile the function; return its globals."""
        code = compile("\n".join(self._lines) + "\n", f"<{title}>", "exec")
        space = dict(self.constants)
        exec(code, space)  # noqa: S102 - generated from our own tables
        return space


def size_of(code: str) -> int:
    return calcsize(f">{code}")


if TYPE_CHECKING:
    from types import TracebackType

Encoder = Callable[[Any], bytes]
SlicedEncoder = Callable[[Any], Generator[int, None, bytes]]

# Array entries encoded between two yields.
STRIDE = 32


def encoder(message: type[Message], version: int) -> Encoder:
    """Return the function that encodes `version` of `message`."""
    function: Encoder = _EncoderCode(message, version, sliced=False).write()
    return function


def sliced_encoder(message: type[Message], version: int) -> SlicedEncoder:
    """Return the generator function that encodes `version` of `message` in slices."""
    function: SlicedEncoder = _EncoderCode(message, version, sliced=True).write()
    return function


class _EncoderCode:
    """Generates the code that encodes the fields of a message."""

    def __init__(self, message: type[Message], version: int, *, sliced: bool) -> None:
        self._message = message
        self._version = version
        self._sliced = sliced
        self._flexible = version >= message.flexible_from
        # Fixed-width values not written yet: struct code and, unless it is padding, expression.
        self._pending: list[tuple[str, str]] = []
        self._source = CodeWriter("def encode(message):")
        self._source.constants["uvarint"] = uvarint

    def write(self) -> Any:
        self._source.emit("out = bytearray()")
        if self._sliced:
            self._source.emit("yield 0")
        self._part(self._message, "message")
        self._source.emit("return bytes(out)")
        return self._source.compile(f"encode {self._message.__name__} v{self._version}")["encode"]

    def _part(self, message: type[Message], part: str) -> None:
        """Encode the struct in the variable `part`, leaving nothing pending."""
        tagged = []
        for field in fields_of(message):
            if not field.is_in(self._version):
                continue
            if field.tag is not None:
                tagged.append(field)
            else:
                self._value(field.type, f"{part}.{field.name}", nullable=field.is_nullable(self._version))
        if self._flexible:
            self._tagged(sorted(tagged, key=lambda field: field.tag or 0), part)
        self._flush()

    def _value(self, wire: WireType, value: str, *, nullable: bool) -> None:
        match wire:
            case Fixed():
                self._pending.append((wire.code, f"{value}.bytes" if wire == UUID_ON_WIRE else value))
            case Prefixed():
                self._prefixed(wire, value, nullable=nullable)
            case Array():
                self._array(wire, value, nullable=nullable)
            case _ if nullable:
                self._nullable_part(wire, value)
            case _:
                self._part(wire, self._held(value))

    def _held(self, value: str) -> str:
        """Assign `value` to a variable, so that it is evaluated once."""
        held = self._source.name("v")
        self._source.emit(f"{held} = {value}")
        return held

    def _flush(self) -> None:
        """Write all pending values at once."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        values = ", ".join(value for _, value in self._pending if value)
        self._pending.clear()
        if not values:
            self._source.emit(f"out += {bytes(len(codes))!r}")
            return
        pack_run = self._source.constant("pack", Struct(f">{codes}").pack)
        self._source.emit(f"out += {pack_run}({values})")

    def _length(self, legacy_code: str, length: str, *, null_if: str | None) -> None:
        """Encode a length or count; null if the expression `null_if` is true."""
        number = f"{length} + 1" if self._flexible else length
        if null_if:
            number = f"{0 if self._flexible else -1} if {null_if} else {number}"
        if not self._flexible:
            self._pending.append((legacy_code, number))
            self._flush()
            return
        self._flush()
        self._uvarint(self._held(number))

    def _uvarint(self, number: str) -> None:
        with self._source.block(f"if {number} < 128:"):
            self._source.emit(f"out.append({number})")
        with self._source.block("else:"):
            self._source.emit(f"out += uvarint({number})")

    def _prefixed(self, wire: Prefixed, value: str, *, nullable: bool) -> None:
        if nullable:
            value = self._held(value)
        null_if = f"{value} is None" if nullable else None
        content = f"{value}.encode()" if wire is Prefixed.STRING else value
        content = self._held(f"b'' if {null_if} else {content}" if null_if else content)
        self._length("h" if wire is Prefixed.STRING else "i", f"len({content})", null_if=null_if)
        self._source.emit(f"out += {content}")

    def _array(self, wire: Array, value: str, *, nullable: bool) -> None:
        value = self._held(value)
        null_if = f"{value} is None" if nullable else None
        items = self._held(f"() if {null_if} else {value}") if null_if else value
        self._length("i", f"len({items})", null_if=null_if)
        element = wire.element
        if isinstance(element, Fixed) and element != UUID_ON_WIRE:
            packers = self._source.constant("packers", _ArrayPackers(element.code))
            self._source.emit(f"out += {packers}[len({items})](*{items})")
            return
        item = self._source.name("item")
        head = f"for {item} in {items}:"
        if self._sliced:
            number = self._source.name("number")
            head = f"for {number}, {item} in enumerate({items}):"
        with self._source.block(head):
            if self._sliced:
                with self._source.block(f"if not {number} % {STRIDE}:"):
                    self._source.emit("yield len(out)")
            if isinstance(element, Fixed | Prefixed):
                self._value(element, item, nullable=False)
                self._flush()
            else:
                self._part(element, item)

    def _nullable_part(self, message: type[Message], value: str) -> None:
        value = self._held(value)
        self._flush()
        with self._source.block(f"if {value} is None:"):
            self._source.emit(r"out += b'\xff'")
        with self._source.block("else:"):
            self._source.emit(r"out += b'\x01'")
            self._part(message, value)

    def _tagged(self, fields: list[Field], part: str) -> None:
        """Encode the tagged fields of a struct that differ from their default."""
        if not fields:
            self._pending.append(("x", ""))
            return
        emit = self._source.emit
        self._flush()
        outer, tags, tag = (self._source.name(stem) for stem in ("outer", "tags", "tag"))
        emit(f"{tags} = []")
        for field in fields:
            value = self._held(f"{part}.{field.name}")
            default = self._source.constant("default", field.default)
            with self._source.block(f"if {value}:" if field.default == [] else f"if {value} != {default}:"):
                emit(f"{outer} = out")
                emit("out = bytearray()")
                self._value(field.type, value, nullable=field.is_nullable(self._version))
                self._flush()
                emit(f"{tags}.append({uvarint(field.tag or 0)!r} + uvarint(len(out)) + out)")
                emit(f"out = {outer}")
        emit(f"out += uvarint(len({tags}))")
        with self._source.block(f"for {tag} in {tags}:"):
            emit(f"out += {tag}")


class _ArrayPackers(dict[int, Callable[..., bytes]]):
    """Functions that pack an array of `code`, by its length; those for short arrays are cached."""

    KEPT_UP_TO = 64

    def __init__(self, code: str) -> None:
        self._code = code

    def __missing__(self, count: int) -> Callable[..., bytes]:
        format_ = f">{count}{self._code}"
        if count > self.KEPT_UP_TO:
            return lambda *values: pack(format_, *values)
        self[count] = packer = Struct(format_).pack
        return packer


M = TypeVar("M", bound=Message)

# The most entries that the arrays of one request may have in total. Each takes more than a hundred
# bytes once it is decoded, and no client is known to need as many.
MAX_ENTRIES = 100_000
MAX_STRING_BYTES = 2**15 - 1
# Array entries decoded between two yields.


class _Reading:
    """The generated code, and the translation of its errors."""

    def __init__(self, message: type[Message], version: int, *, sliced: bool) -> None:
        self._title = f"{message.__name__} v{version}"
        writer = _DecoderCode(message, version, sliced=sliced)
        space = writer.write(self._title)
        self._function: Callable[[memoryview, int], Any] = space["decode"]
        self._runs = writer.source.fields_by_line

    def _explained(self, error: Exception, size: int) -> ProtocolError:
        trace: TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._function.__code__:
            trace = trace.tb_next
        assert trace is not None, "the error came from the function"
        fixed = self._runs[trace.tb_lineno]
        field = fixed.fields[0][0]
        match error:
            case struct.error():
                field, left = fixed.field_at(max(0, size - trace.tb_frame.f_locals["at"]))
                what = f"is cut off: {left} bytes are left"
            case IndexError():
                what = "is cut off: 0 bytes are left"
            case UnicodeDecodeError():
                what = "is not UTF-8"
            case _:
                what = str(error)
        return ProtocolError(f"{self._title}: {field} {what}" if field else f"{self._title}: {what}")


class Decoder(_Reading, Generic[M]):
    """Decodes one version of a message."""

    def __init__(self, message: type[M], version: int) -> None:
        super().__init__(message, version, sliced=False)

    def __call__(self, data: memoryview, at: int) -> M:
        try:
            message: M = self._function(data, at)
        except (struct.error, IndexError, ValueError) as error:
            raise self._explained(error, len(data)) from error
        return message


class SlicedDecoder(_Reading, Generic[M]):
    """Decodes one version of a message in slices."""

    def __init__(self, message: type[M], version: int) -> None:
        super().__init__(message, version, sliced=True)

    def __call__(self, data: memoryview, at: int) -> Generator[None, None, M]:
        try:
            message: M = yield from self._function(data, at)
        except (struct.error, IndexError, ValueError) as error:
            raise self._explained(error, len(data)) from error
        return message


class _DecoderCode:
    """Generates the code that decodes the fields of a message."""

    def __init__(self, message: type[Message], version: int, *, sliced: bool) -> None:
        self._message = message
        self._version = version
        self._sliced = sliced
        self._flexible = version >= message.flexible_from
        # Fixed-width values not read yet: struct code, variable, field.
        self._pending: list[tuple[str, str, str]] = []
        self.source = CodeWriter("def decode(data, at):")
        self.source.constants.update(
            Malformed=Malformed,
            read_uvarint=read_uvarint,
            skip_tagged_fields=skip_tagged_fields,
            check_count=check_count,
            check_tag_count=check_tag_count,
            UUID=UUID,
        )

    def write(self, title: str) -> dict[str, Any]:
        emit = self.source.emit
        emit("end = len(data)")
        if self._sliced:
            emit(f"entries = {MAX_ENTRIES}")
            emit("yield")
        value = self._part(self._message)
        # Trailing bytes are ignored, as Kafka does: librdkafka sends three bytes too many when it
        # requests all topics.
        emit(f"return {value}")
        return self.source.compile(f"decode {title}")

    def _part(self, message: type[Message]) -> str:
        """Decode a struct; return the expression that builds it, with nothing left pending."""
        arguments = []
        tagged = []
        for field in fields_of(message):
            if not field.is_in(self._version):
                continue
            if field.tag is not None:
                tagged.append(field)
                continue
            with self.source.inside(field.name):
                value = self._value(field.type, nullable=field.is_nullable(self._version))
            arguments.append(f"{field.name}={value}")
        if self._flexible:
            arguments += self._tagged(tagged)
        self._flush()
        return f"{self.source.constant('Part', message)}({', '.join(arguments)})"

    def _value(self, wire: WireType, *, nullable: bool) -> str:
        """Decode a value; return an expression for it that is valid once nothing is pending."""
        match wire:
            case Fixed():
                value = self._fixed(wire.code)
                return f"UUID(bytes={value})" if wire == UUID_ON_WIRE else value
            case Prefixed():
                return self._prefixed(wire, nullable=nullable)
            case Array():
                return self._array(wire, nullable=nullable)
            case _:
                return self._nullable_part(wire) if nullable else self._plain_part(wire)

    def _fixed(self, code: str) -> str:
        value = self.source.name("v")
        self._pending.append((code, value, self.source.field))
        return value

    def _flush(self) -> None:
        """Read all pending values at once."""
        if not self._pending:
            return
        codes = "".join(code for code, _, _ in self._pending)
        unpack = self.source.constant("unpack", _unpacker(codes))
        targets = ", ".join(value for _, value, _ in self._pending)
        fixed = FixedFields(tuple((field, size_of(code)) for code, _, field in self._pending))
        self._pending.clear()
        self.source.emit(f"{targets}, = {unpack}(data, at)", fixed)
        self.source.emit(f"at += {size_of(codes)}")

    def _length(self, legacy_code: str, *, nullable: bool) -> str:
        """Decode a length or count into a variable, -1 for null, and reject invalid values."""
        emit = self.source.emit
        length = self._fixed("B" if self._flexible else legacy_code)
        self._flush()
        if self._flexible:
            with self.source.block(f"if {length} > 127:"):
                emit(f"{length}, at = read_uvarint(data, at - 1)")
            emit(f"{length} -= 1")
        elif nullable:
            with self.source.block(f"if {length} < -1:"):
                emit(f"raise Malformed(f'has length {{{length}}}')")
        if not nullable:
            with self.source.block(f"if {length} < 0:"):
                emit(f"raise Malformed('may not be null' if {length} == -1 else f'has length {{{length}}}')")
        return length

    def _prefixed(self, wire: Prefixed, *, nullable: bool) -> str:
        emit = self.source.emit
        length = self._length("h" if wire is Prefixed.STRING else "i", nullable=nullable)
        value, stop = self.source.name("v"), self.source.name("stop")
        read = {
            Prefixed.STRING: f"str(data[at:{stop}], 'utf-8')",
            Prefixed.BYTES: f"bytes(data[at:{stop}])",
            Prefixed.RECORDS: f"data[at:{stop}]",
        }[wire]

        def take() -> None:
            if wire is Prefixed.STRING and self._flexible:
                # As Kafka does: no name is longer than earlier versions can express.
                with self.source.block(f"if {length} > {MAX_STRING_BYTES}:"):
                    emit(f"raise Malformed(f'has length {{{length}}}, more than {MAX_STRING_BYTES}')")
            emit(f"{stop} = at + {length}")
            with self.source.block(f"if {stop} > end:"):
                emit(f"raise Malformed(f'claims {{{length}}} bytes where {{end - at}} are left')")
            emit(f"{value} = {read}")
            emit(f"at = {stop}")

        self._unless_null(length, value, take, nullable=nullable)
        return value

    def _unless_null(self, length: str, value: str, take: Callable[[], None], *, nullable: bool) -> None:
        if not nullable:
            take()
            return
        with self.source.block(f"if {length} < 0:"):
            self.source.emit(f"{value} = None")
        with self.source.block("else:"):
            take()

    def _array(self, wire: Array, *, nullable: bool) -> str:
        emit = self.source.emit
        count = self._length("i", nullable=nullable)
        value = self.source.name("v")
        element = wire.element
        least = self._least_bytes(element)
        assert least > 0, f"an array of nothing in {self._message.__name__}"

        def take() -> None:
            emit(f"check_count({count}, {least}, end - at)")
            if self._sliced:
                emit(f"entries -= {count}")
                with self.source.block("if entries < 0:"):
                    emit(f"raise Malformed('makes more than {MAX_ENTRIES} entries in one request')")
            if isinstance(element, Fixed) and element != UUID_ON_WIRE:
                unpack = self.source.constant("unpack_many", unpack_many)
                emit(f"{value} = {unpack}({element.code!r}, {count}, data, at)")
                emit(f"at += {count} * {element.size}")
                return
            append = self.source.name("append")
            emit(f"{value} = []")
            emit(f"{append} = {value}.append")
            number = self.source.name("number")
            with self.source.block(f"for {number} in range({count}):"):
                if self._sliced:
                    with self.source.block(f"if not {number} % {STRIDE}:"):
                        emit("yield")
                item = self._value(element, nullable=False)
                self._flush()
                emit(f"{append}({item})")

        self._unless_null(count, value, take, nullable=nullable)
        return value

    def _plain_part(self, message: type[Message]) -> str:
        self._flush()
        return self._part(message)

    def _nullable_part(self, message: type[Message]) -> str:
        marker, value = self._fixed("b"), self.source.name("v")
        self._flush()
        with self.source.block(f"if {marker} < 0:"):
            self.source.emit(f"{value} = None")
        with self.source.block("else:"):
            self.source.emit(f"{value} = {self._part(message)}")
        return value

    def _tagged(self, fields: list[Field]) -> list[str]:
        """Decode the tagged fields at the end of a struct, skipping those not in `fields`."""
        emit = self.source.emit
        with self.source.inside("tagged_fields"):
            count = self._fixed("B")
            self._flush()
            if not fields:
                with self.source.block(f"if {count}:"):
                    emit("at = skip_tagged_fields(data, at - 1)")
                return []
            arguments, values = [], []
            for field in fields:
                value = self.source.name("v")
                values.append(value)
                default = self.source.constant("default", field.default)
                emit(f"{value} = []" if field.default == [] else f"{value} = {default}")
                arguments.append(f"{field.name}={value}")
            with self.source.block(f"if {count}:"):
                self._known_tags(count, fields, values)
        return arguments

    def _known_tags(self, count: str, fields: list[Field], values: list[str]) -> None:
        emit = self.source.emit
        number, size, stop = (self.source.name(stem) for stem in ("tag", "size", "stop"))
        emit(f"{count}, at = read_uvarint(data, at - 1)")
        emit(f"check_tag_count({count}, end - at)")
        with self.source.block(f"for _ in range({count}):"):
            emit(f"{number}, at = read_uvarint(data, at)")
            emit(f"{size}, at = read_uvarint(data, at)")
            emit(f"{stop} = at + {size}")
            with self.source.block(f"if {stop} > end:"):
                emit(f"raise Malformed(f'claims {{{size}}} bytes where {{end - at}} are left')")
            choice = "if"
            for field, value in zip(fields, values, strict=True):
                with self.source.block(f"{choice} {number} == {field.tag}:"), self.source.inside(field.name):
                    item = self._value(field.type, nullable=field.is_nullable(self._version))
                    self._flush()
                    emit(f"{value} = {item}")
                choice = "elif"
            with self.source.block("else:"):
                emit(f"at = {stop}")
            with self.source.block(f"if at != {stop}:"):
                emit(f"raise Malformed(f'number {{{number}}} does not have the {{{size}}} bytes it claims')")

    def _least_bytes(self, wire: WireType, *, nullable: bool = False) -> int:
        """Return the minimum size of a value."""
        match wire:
            case Fixed():
                return wire.size
            case Prefixed.STRING:
                return 1 if self._flexible else 2
            case Prefixed() | Array():
                return 1 if self._flexible else 4
            case _ if nullable:
                return 1
            case _:
                fields = (f for f in fields_of(wire) if f.is_in(self._version) and f.tag is None)
                least = sum(self._least_bytes(f.type, nullable=f.is_nullable(self._version)) for f in fields)
                return least + self._flexible


def unpack_many(code: str, count: int, data: memoryview, at: int) -> list[Any]:
    """Unpack `count` fixed-width values from `at`; the caller has checked that they are there."""
    return list(struct.unpack_from(f">{count}{code}", data, at))


def _unpacker(codes: str) -> Callable[..., Any]:
    return struct.Struct(f">{codes}").unpack_from
