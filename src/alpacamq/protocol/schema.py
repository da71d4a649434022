"""Encodes and decodes messages by functions that are generated and compiled on first use.

The functions are never evicted: there is one per served message and version. Large messages are
encoded and decoded by generators that yield every few entries, so that the caller can run other tasks.
"""

from collections.abc import Generator
from functools import cache
from typing import TypeVar

from .code_generator import Decoder, Encoder, SlicedDecoder, SlicedEncoder, encoder, sliced_encoder
from .notation import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def decode(message: type[M], version: int, data: memoryview, at: int = 0) -> M:
    """Decode the message in `data` from `at` to the end. Raises ProtocolError."""
    decoder: Decoder[M] = _decoder(message, version)
    return decoder(data, at)


def encode(message: Message, version: int) -> bytes:
    """Encode `message`, without fields that its version does not have."""
    return _encoder(type(message), version)(message)


def decode_in_slices(
    message: type[M], version: int, data: memoryview, at: int = 0
) -> Generator[None, None, M]:
    """Decode requests of any size in slices, and reject too many entries."""
    decoder: SlicedDecoder[M] = _sliced_decoder(message, version)
    return decoder(data, at)


def encode_in_slices(message: Message, version: int) -> Generator[int, None, bytes]:
    """Encode responses of any size in slices; yields the number of bytes so far."""
    return _sliced_encoder(type(message), version)(message)


def run_to_end(slices: Generator[object, None, T]) -> T:
    """Run a generator of slices to its end; return its result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


@cache
def _decoder(message: type[M], version: int) -> Decoder[M]:
    return Decoder(message, version)


@cache
def _encoder(message: type[Message], version: int) -> Encoder:
    return encoder(message, version)


@cache
def _sliced_decoder(message: type[M], version: int) -> SlicedDecoder[M]:
    return SlicedDecoder(message, version)


@cache
def _sliced_encoder(message: type[Message], version: int) -> SlicedEncoder:
    return sliced_encoder(message, version)
