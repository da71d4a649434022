"""Self-checking values: a number, padding derived from it, and a checksum over both."""

from struct import Struct
from zlib import crc32

_NUMBER = Struct(">q")
_CHECKSUM = Struct(">I")
OVERHEAD_BYTES = _NUMBER.size + _CHECKSUM.size
_FILLING = bytes(range(256)) * 17


def seal(number: int, size: int = 100) -> bytes:
    """Return a value of `size` bytes that carries `number`."""
    shift = number % 251
    body = _NUMBER.pack(number) + _FILLING[shift : shift + size - OVERHEAD_BYTES]
    return body + _CHECKSUM.pack(crc32(body))


def unseal(value: bytes) -> int:
    """Return the number in a sealed value; fails if a single bit has changed."""
    body, checksum = value[: -_CHECKSUM.size], value[-_CHECKSUM.size :]
    assert _CHECKSUM.unpack(checksum)[0] == crc32(body), f"a value has changed: {value!r}"
    number: int = _NUMBER.unpack_from(body)[0]
    return number
