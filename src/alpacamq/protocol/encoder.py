"""Generates the function that encodes one version of one message.

Straight-line code: adjacent fixed-width values and lengths are written by one `pack`. A value that
does not fit its field is a bug in the broker and raises struct.error.

Large responses are encoded by a second form: a generator that yields every few entries, with the
number of bytes written.
"""

from collections.abc import Callable, Generator
from struct import Struct, pack
from typing import Any

from .code_writer import CodeWriter
from .notation import UUID_ON_WIRE, Array, Field, Fixed, Message, Prefixed, WireType, fields_of
from .varint import uvarint

Encoder = Callable[[Any], bytes]
SlicedEncoder = Callable[[Any], Generator[int, None, bytes]]

# Array entries encoded between two yields.
STRIDE = 32


def encoder(message: type[Message], version: int) -> Encoder:
    """Return the function that encodes `version` of `message`."""
    function: Encoder = _Writer(message, version, sliced=False).write()
    return function


def sliced_encoder(message: type[Message], version: int) -> SlicedEncoder:
    """Return the generator function that encodes `version` of `message` in slices."""
    function: SlicedEncoder = _Writer(message, version, sliced=True).write()
    return function


class _Writer:
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
