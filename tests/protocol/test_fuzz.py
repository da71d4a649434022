"""Arbitrary bytes: decoders raise only ProtocolError, and allocate nothing large."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.fetch_codec import decode_fetch
from alpacamq.protocol.framing import read_request_header
from alpacamq.protocol.messages.fetch import FetchRequest
from alpacamq.protocol.messages.produce import ProduceRequest
from alpacamq.protocol.notation import Message
from alpacamq.protocol.produce_codec import decode_produce
from alpacamq.protocol.schema import decode, encode

from . import test_fetch_codec, test_produce_codec
from .specimens import layouts, name_of, specimen

# False lengths and counts, in both encodings.
CLAIMS = [
    bytes.fromhex(text) for text in ("7fffffff", "ffffffff", "80000000", "7fff", "ffffffff07", "ffffffff0f")
]
NASTY_BYTES = (0x00, 0x01, 0x7F, 0xFF)


def distortions(valid: bytes, seed: int) -> Iterator[bytes]:
    """`valid` cut at every byte, lied to at every byte, and scrambled; then plain noise."""
    yield from (valid[:cut] for cut in range(len(valid)))
    for at in range(len(valid)):
        yield from (valid[:at] + bytes((byte,)) + valid[at + 1 :] for byte in NASTY_BYTES)
        yield from (valid[:at] + claim + valid[at + len(claim) :] for claim in CLAIMS)
    rng = random.Random(seed)
    for _ in range(100):
        scrambled = bytearray(valid)
        for _ in range(rng.randrange(1, 6)):
            scrambled[rng.randrange(len(valid))] = rng.randrange(256)
        yield bytes(scrambled)
        at, stop = sorted(rng.randrange(len(valid) + 1) for _ in range(2))
        yield valid[:at] + valid[stop:]
        yield valid[:at] + rng.randbytes(rng.randrange(9)) + valid[at:]
        yield rng.randbytes(rng.randrange(200))


FUZZED = [case for case in layouts() if encode(specimen(*case), case[1])]
REQUESTS = [(message, version) for message, version in FUZZED if message.__name__.endswith("Request")]


@pytest.mark.parametrize(("message", "version"), FUZZED, ids=name_of)
def test_arbitrary_bytes_give_a_message_or_a_protocol_error(message: type[Message], version: int) -> None:
    for data in distortions(encode(specimen(message, version), version), seed=version):
        with suppress(ProtocolError):
            read = decode(message, version, memoryview(data))
            # A decoded message is complete: it can be encoded, and decodes to the same. Compared encoded,
            # because some floats are not equal to themselves.
            encoded = encode(read, version)
            assert encode(decode(message, version, memoryview(encoded)), version) == encoded


@pytest.mark.parametrize(("message", "version"), REQUESTS, ids=name_of)
def test_a_claim_of_two_billion_entries_makes_no_room_for_them(message: type[Message], version: int) -> None:
    valid = encode(specimen(message, version), version)
    decode(message, version, memoryview(valid))  # compiled before memory is watched

    def peak(data: bytes) -> int:
        tracemalloc.start()
        with suppress(ProtocolError):
            decode(message, version, memoryview(data))
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    for at in range(len(valid)):
        for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"):
            data = valid[:at] + claim + valid[at + len(claim) :]
            # Other threads of the process allocate, too, but not each time.
            assert any(peak(data) < 256 * 1024 for _ in range(3))


def hand_written() -> list[tuple[type[Message], int]]:
    return [
        (api.request, version)
        for api in (APIS[ApiKey.PRODUCE], APIS[ApiKey.FETCH])
        for version in range(api.min_version, api.max_version + 1)
    ]


DECODERS: dict[type[Message], Callable[[int, memoryview, int], object]] = {
    ProduceRequest: decode_produce,
    FetchRequest: decode_fetch,
}
AS_CALL: dict[type[Message], Callable[..., object]] = {
    ProduceRequest: test_produce_codec.as_call,
    FetchRequest: test_fetch_codec.as_call,
}


@pytest.mark.parametrize(("message", "version"), hand_written(), ids=name_of)
def test_hand_written_decoders_equal_the_generated_ones(message: type[Message], version: int) -> None:
    """The hand-written decoders may accept more: they do not check the content of unknown tagged fields."""
    for distorted in distortions(encode(specimen(message, version), version), seed=version):
        data = memoryview(distorted)
        try:
            compiled = decode(message, version, data)
        except ProtocolError:
            with suppress(ProtocolError):
                DECODERS[message](version, data, 0)
        else:
            assert DECODERS[message](version, data, 0) == AS_CALL[message](compiled, version)


def test_arbitrary_bytes_give_a_request_header_or_a_protocol_error() -> None:
    for text in ("0003 0008 00000007 0004 6b636174 aabb", "0003 0009 00000007 0001 61 01 05 02 eeee aabb"):
        for data in distortions(bytes.fromhex(text), seed=1):
            with suppress(ProtocolError):
                header = read_request_header(memoryview(data))
                assert header.body_at <= len(data)
