"""Unsigned varints, the lengths and counts of flexible versions: seven bits a byte, lowest first."""

MAX_BYTES = 5
# Messages have few tagged fields; a request must not make the broker count through millions.
MAX_TAGGED_FIELDS = 100
_LAST_BYTE_MAX = 0x0F  # the fifth byte holds the top four of 32 bits
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


class Malformed(ValueError):
    """An invalid value, reported by code that does not know the field's name."""


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """Read the varint at `at`; return it and its end. Raises IndexError if the data ends first."""
    value = shift = 0
    for count in range(1, MAX_BYTES + 1):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if count == MAX_BYTES and byte > _LAST_BYTE_MAX:
                break
            return value, at
        shift += 7
    raise Malformed("is a varint of more than 32 bits")


def uvarint(value: int) -> bytes:
    """Encode `value` as an unsigned varint."""
    if value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tagged_fields(data: memoryview, at: int) -> int:
    """Return the end of the tagged fields that begin at `at`, none of which is known here."""
    count, at = read_uvarint(data, at)
    check_tag_count(count, len(data) - at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > len(data) - at:
            raise Malformed(f"claims {size} bytes where {len(data) - at} are left")
        at += size
    return at


def check_count(count: int, least_bytes: int, left: int) -> None:
    """Reject a count of entries that cannot fit, before allocating for them."""
    if count * least_bytes > left:
        raise Malformed(f"claims {count} entries where {left} bytes are left")


def check_tag_count(count: int, left: int) -> None:
    """Reject a count of tagged fields that cannot fit or is not plausible."""
    check_count(count, 2, left)
    if count > MAX_TAGGED_FIELDS:
        raise Malformed(f"claims {count} tagged fields, more than {MAX_TAGGED_FIELDS}")
