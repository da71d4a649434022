"""Messages to bytes and back, by functions that are written and compiled when first needed.

The functions are kept for good: their number is that of the messages and versions served.
What may be large is read and written by generators that stop every few entries: whoever drives
them decides at each stop whether it is somebody else's turn.
"""

from collections.abc import Generator
from functools import cache
from typing import TypeVar

from .decoder import Decoder, SlicedDecoder
from .encoder import Encoder, SlicedEncoder, encoder, sliced_encoder
from .notation import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def decode(message: type[M], version: int, data: memoryview, at: int = 0) -> M:
    """The message that lies in `data` from `at` to the end, or ProtocolError."""
    decoder: Decoder[M] = _decoder(message, version)
    return decoder(data, at)


def encode(message: Message, version: int) -> bytes:
    """The bytes of `message`, without what its version does not have."""
    return _encoder(type(message), version)(message)


def decode_in_slices(
    message: type[M], version: int, data: memoryview, at: int = 0
) -> Generator[None, None, M]:
    """Like `decode`, for requests of any size: stops in between, and refuses too many entries."""
    decoder: SlicedDecoder[M] = _sliced_decoder(message, version)
    return decoder(data, at)


def encode_in_slices(message: Message, version: int) -> Generator[int, None, bytes]:
    """Like `encode`, for responses of any size: stops in between, each time with the bytes so far."""
    return _sliced_encoder(type(message), version)(message)


def run_to_end(slices: Generator[object, None, T]) -> T:
    """Drive a generator of slices without giving anybody else a turn; returns its result."""
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
