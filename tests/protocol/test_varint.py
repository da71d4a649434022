"""Unsigned varints at the edges of their sizes."""

import pytest

from alpacamq.protocol.varint import Malformed, read_uvarint, uvarint

EDGES = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2**31 - 1, "ffffffff07"),
    (2**32 - 1, "ffffffff0f"),
]


@pytest.mark.parametrize(("value", "text"), EDGES)
def test_a_number_has_these_bytes(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert uvarint(value) == data
    assert read_uvarint(memoryview(b"!" + data + b"!"), 1) == (value, 1 + len(data))


@pytest.mark.parametrize("text", ["ffffffff10", "8080808080", "808080808001"])
def test_more_than_32_bits_are_refused(text: str) -> None:
    with pytest.raises(Malformed, match="more than 32 bits"):
        read_uvarint(memoryview(bytes.fromhex(text)), 0)


def test_a_number_that_is_cut_off_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_uvarint(memoryview(b"\x80"), 0)
