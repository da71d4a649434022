"""Messages to bytes and back, by functions that are written and compiled when first needed.

The functions are kept for good: their number is that of the messages and versions served.
"""

from functools import cache
from typing import TypeVar

from .decoder import Decoder
from .encoder import Encoder, encoder
from .notation import Message

M = TypeVar("M", bound=Message)


def decode(message: type[M], version: int, data: memoryview, at: int = 0) -> M:
    """The message that lies in `data` from `at` to the end, or ProtocolError."""
    decoder: Decoder[M] = _decoder(message, version)
    return decoder(data, at)


def encode(message: Message, version: int) -> bytes:
    """The bytes of `message`, without what its version does not have."""
    return _encoder(type(message), version)(message)


@cache
def _decoder(message: type[M], version: int) -> Decoder[M]:
    return Decoder(message, version)


@cache
def _encoder(message: type[Message], version: int) -> Encoder:
    return encoder(message, version)
