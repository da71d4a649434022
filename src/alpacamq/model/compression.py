"""Packing and unpacking the records of a batch, never beyond a limit the caller sets.

Snappy comes in two dresses: bare blocks (librdkafka) and the framing of the Java library.
Both are read; bare blocks are written.
"""

import zlib
from collections.abc import Callable, Mapping
from struct import Struct

import cramjam
import lz4.frame
import zstandard

from .batch import Codec
from .errors import CorruptBatch
from .ports import Buffer

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = Struct(">i")


class TooMuchData(CorruptBatch):
    """Unpacked, the records would be larger than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the records of a batch unpack to more than {limit} bytes")


def compress(codec: Codec, data: Buffer) -> bytes:
    """Pack `data`."""
    return _COMPRESS[codec](data)


def decompress(codec: Codec, data: Buffer, limit: int) -> bytes:
    """Unpack `data` to at most `limit` bytes; CorruptBatch when it is not what `codec` says."""
    try:
        return _DECOMPRESS[codec](data, limit)
    except (
        zlib.error,
        RuntimeError,
        zstandard.ZstdError,
        cramjam.DecompressionError,
        ValueError,
        EOFError,
    ) as error:
        raise CorruptBatch(
            f"records that should be {codec.name.lower()} cannot be unpacked: {error}"
        ) from error


def _plain(data: Buffer, limit: int) -> bytes:
    if len(data) > limit:
        raise TooMuchData(limit)
    return bytes(data)


def _gunzip(data: Buffer, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    out = unpacker.decompress(data, limit + 1)
    if len(out) > limit:
        raise TooMuchData(limit)
    if not unpacker.eof:
        raise EOFError("the stream ends early")
    return out


def _gzip(data: Buffer) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def _unsnappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(view, limit)
    blocks: list[bytes] = []
    at = _XERIAL_HEADER_BYTES
    room = limit
    while at < len(view):
        if at + _BLOCK_LENGTH.size > len(view):
            raise EOFError("a block's length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(view) - at:
            raise EOFError(f"a block of {length} bytes is cut off")
        block = _unsnappy_block(view[at : at + length], room)
        room -= len(block)
        at += length
        blocks.append(block)
    return b"".join(blocks)


def _unsnappy_block(data: memoryview, limit: int) -> bytes:
    if _snappy_length(data) > limit:
        raise TooMuchData(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _snappy_length(data: memoryview) -> int:
    """The unpacked size a block announces, so that nothing is allocated before it is checked."""
    length = 0
    for index, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise EOFError("a block does not say how long it is")


def _unlz4(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    out: bytes = unpacker.decompress(data, max_length=limit + 1)
    if len(out) > limit:
        raise TooMuchData(limit)
    if not unpacker.eof:
        raise EOFError("the frame ends early")
    return out


def _unzstd(data: Buffer, limit: int) -> bytes:
    # The window a frame asks for is memory too: bound it along with the output.
    window = min(max(limit, 1 << 20), 1 << 27)
    with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(data) as reader:
        out = reader.read(limit + 1)
    if len(out) > limit:
        raise TooMuchData(limit)
    return out


_COMPRESS: Mapping[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    Codec.LZ4: lambda data: bytes(lz4.frame.compress(data)),
    Codec.ZSTD: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
}
_DECOMPRESS: Mapping[Codec, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
