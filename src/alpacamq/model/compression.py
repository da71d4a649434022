"""Compresses and decompresses the records of a batch, with a limit on the decompressed size.

Snappy has two formats: raw blocks (librdkafka) and the framing of the Java library. Both are read; raw
blocks are written.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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
# The libraries allocate all that is requested at once, so request this much at a time.
_STEP_BYTES = 1 << 20
# gzip expands to at most 1,032 times the size: a MiB at a time.
_GZIP_STEP_BYTES = 1 << 10
# At most this much compressed data is read for the first decompressed bytes: common clients use lz4
# blocks of 64 KiB.
_PACKED_OPENING_BYTES = 68 << 10
# Snappy can only be decompressed as a whole.
_SNAPPY_OPENING_BYTES = 64 << 10


class TooMuchData(CorruptBatch):
    """The decompressed records would be larger than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the records of a batch decompress to more than {limit} bytes")


# Below the levels of its slower modes.
_LZ4_FAST = 0


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`, at a level of the codec's own scale if it has one."""
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Buffer, limit: int) -> bytes:
    """Decompress `data` to at most `limit` bytes. Raises CorruptBatch if it is not in the codec's format."""
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
        raise CorruptBatch(f"{codec.name.lower()} records cannot be decompressed: {error}") from error


def decompress_prefix(codec: Codec, data: Buffer, count: int) -> bytes:
    """Return up to `count` of the first decompressed bytes; empty if that would not be cheap.

    Fast enough for the event loop. Errors in the data are left to the full decompression.
    """
    try:
        return _OPENING[codec](memoryview(data)[:_PACKED_OPENING_BYTES], count)
    except (
        TooMuchData,
        zlib.error,
        RuntimeError,
        zstandard.ZstdError,
        cramjam.DecompressionError,
        ValueError,
        EOFError,
    ):
        return b""


def _plain(data: Buffer, limit: int) -> bytes:
    if len(data) > limit:
        raise TooMuchData(limit)
    return bytes(data)


def _gunzip(data: Buffer, limit: int) -> bytes:
    return _gather(_gzip_steps(memoryview(data)), limit)


def _gzip_steps(view: memoryview) -> Iterator[bytes]:
    # In small pieces, and not with a limit on the output: then zlib needs twice the memory of its output.
    unpacker = zlib.decompressobj(wbits=31)
    for at in range(0, len(view), _GZIP_STEP_BYTES):
        yield unpacker.decompress(view[at : at + _GZIP_STEP_BYTES])
        if unpacker.unused_data or (unpacker.eof and at + _GZIP_STEP_BYTES < len(view)):
            raise ValueError("bytes follow the end of the stream")
    if not unpacker.eof:
        raise EOFError("the stream ends early")


def _gzip(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
    return packer.compress(data) + packer.flush()


def _lz4(data: Buffer, level: int | None) -> bytes:
    return bytes(lz4.frame.compress(data, compression_level=level or _LZ4_FAST))


def _zstd(data: Buffer, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _unsnappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(view, limit)
    if len(view) < _XERIAL_HEADER_BYTES:
        raise EOFError("the framing is cut off")
    return _gather(_snappy_blocks(view, limit), limit)


def _snappy_blocks(view: memoryview, limit: int) -> Iterator[bytes]:
    at = _XERIAL_HEADER_BYTES
    while at < len(view):
        if at + _BLOCK_LENGTH.size > len(view):
            raise EOFError("a block's length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(view) - at:
            raise EOFError(f"a block of {length} bytes is cut off")
        yield _unsnappy_block(view[at : at + length], limit)
        at += length


def _unsnappy_block(data: memoryview, limit: int) -> bytes:
    if _snappy_length(data) > limit:
        raise TooMuchData(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _snappy_length(data: memoryview) -> int:
    """Read the decompressed size that a block announces, to check it before allocating."""
    length = 0
    for index, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise EOFError("a block does not say how long it is")


def _unlz4(data: Buffer, limit: int) -> bytes:
    return _gather(_lz4_steps(data), limit)


def _lz4_steps(data: Buffer) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    while not unpacker.eof:
        step = unpacker.decompress(data, max_length=_STEP_BYTES)
        if not step and not unpacker.eof:
            raise EOFError("the frame ends early")
        yield step
        data = b""  # the decompressor keeps unused input
    if unpacker.unused_data:
        raise ValueError("bytes follow the end of the frame")


def _unzstd(data: Buffer, limit: int) -> bytes:
    # The window that a frame requests is memory too: limit it along with the output, but not below
    # the minimum that every encoder may use.
    window = min(max(limit, 8 << 20), 1 << 27)
    unpacker = zstandard.ZstdDecompressor(max_window_size=window)
    # A truncated frame gives what it has without an error; the record count reveals it.
    with unpacker.stream_reader(data, read_across_frames=True) as reader:
        return _gather(iter(lambda: reader.read(_STEP_BYTES), b""), limit)


def _gather(steps: Iterable[bytes], limit: int) -> bytes:
    """Concatenate `steps`. Raises TooMuchData beyond the limit."""
    out = bytearray()
    for step in steps:
        out += step
        if len(out) > limit:
            raise TooMuchData(limit)
    return bytes(out)


_COMPRESS: Mapping[Codec, Callable[[Buffer, int | None], bytes]] = {
    Codec.NONE: lambda data, _level: bytes(data),
    Codec.GZIP: _gzip,
    Codec.SNAPPY: lambda data, _level: bytes(cramjam.snappy.compress_raw(data)),
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESS: Mapping[Codec, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}


def _unsnappy_small(data: memoryview, _count: int) -> bytes:
    return _unsnappy(data, _SNAPPY_OPENING_BYTES)


def _unzstd_opening(data: memoryview, count: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(data) as reader:
        return reader.read(count)


_OPENING: Mapping[Codec, Callable[[memoryview, int], bytes]] = {
    Codec.NONE: lambda data, count: bytes(data[:count]),
    Codec.GZIP: lambda data, count: zlib.decompressobj(wbits=31).decompress(data, count),
    Codec.SNAPPY: _unsnappy_small,
    Codec.LZ4: lambda data, count: lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=count),
    Codec.ZSTD: _unzstd_opening,
}
