"""Reads and writes the JSON of schemas: exact numbers, the order of keys kept, bounded nesting."""

import hashlib
import re
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import msgspec

from alpacamq.registry.schema import MAX_DEPTH, MAX_SCHEMA_BYTES, InvalidSchema

# A schema inside another adds up to two levels: {"properties": {"name": {…}}}.
MAX_NESTING = 2 * MAX_DEPTH
# Digits of a number, and of its exponent's value: arithmetic with larger ones takes long.
MAX_DIGITS = 1000

_EXACT = Context(prec=MAX_DIGITS)
_BYTE = re.compile(r" \(byte (\d+)\)$")


def read(text: str) -> Any:
    """Parse a schema's text. Fractions become Decimal, so that they are written as they were."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"Invalid JSON: lone surrogate at {_position(text, error.start)}") from error
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidSchema(f"The schema has {len(data)} bytes; the limit is {MAX_SCHEMA_BYTES}")
    try:
        value = _DECODER.decode(data)
    except RecursionError:
        raise InvalidSchema(f"Invalid JSON: nested more than {MAX_NESTING} levels") from None
    except msgspec.ValidationError as error:  # a number; its place is not known
        raise InvalidSchema(f"Invalid JSON: {str(error).partition(' - at `')[0]}") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        place = _BYTE.search(reason)
        end = int(place[1]) if place else len(data)
        where = _position(data[:end].decode(errors="replace"), None)
        raise InvalidSchema(f"Invalid JSON: {_BYTE.sub('', reason)} at {where}") from None
    if nesting(value) > MAX_NESTING:
        raise InvalidSchema(f"Invalid JSON: nested more than {MAX_NESTING} levels")
    return value


def write(value: Any) -> str:
    """Return JSON without white space, keys in their order."""
    return _ENCODER.encode(value).decode()


def ordered(value: Any) -> Any:
    """Return the value with the keys of every object sorted, by UTF-16 code units as in Java."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value, key=_utf16)}
    if isinstance(value, list):
        return [ordered(each) for each in value]
    return value


def identity(value: Any) -> str:
    """Return a text that equal values share, such as 1 and 1.0, or objects in another order."""
    return write(ordered(_plain(value)))


def digest(value: Any, known: dict[int, bytes]) -> bytes:
    """Return a hash that equal values share. `known` keeps those of arrays and objects, by their id().

    Unlike identities, the hashes of values inside one another take time in proportion to the outermost.
    """
    if not isinstance(value, (dict, list)):
        return identity(value).encode()
    if found := known.get(id(value)):
        return found
    if isinstance(value, dict):
        parts = [each for key in sorted(value) for each in (key.encode(), digest(value[key], known))]
    else:
        parts = [digest(each, known) for each in value]
    hashed = hashlib.sha256(type(value).__name__.encode())
    for part in parts:
        hashed.update(len(part).to_bytes(4) + part)
    known[id(value)] = hashed.digest()
    return known[id(value)]


def nesting(value: Any) -> int:
    """Return how many arrays and objects contain one another at most, without recursion."""
    depth = 0
    level = [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return depth


def pointer(path: tuple[str | int, ...]) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _exact(digits: str) -> Decimal:
    try:
        if len(digits) <= MAX_DIGITS and -MAX_DIGITS < (number := Decimal(digits)).adjusted() < MAX_DIGITS:
            return number
    except InvalidOperation:
        pass  # an exponent that no Decimal has
    raise ValueError(f"number {digits[:20]}… has more than {MAX_DIGITS} digits")


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        whole = value.to_integral_value()
        return int(whole) if whole == value else value.normalize(_EXACT)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _position(text: str, end: int | None) -> str:
    before = text[:end]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


_DECODER = msgspec.json.Decoder(float_hook=_exact)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
