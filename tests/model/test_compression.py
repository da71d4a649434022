"""Packing and unpacking: other people's dialects are read, and nothing grows past its limit."""

import gzip
import tracemalloc
import zlib
from contextlib import suppress
from struct import pack

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka.codec import snappy_encode
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.model.batch import Codec
from alpacamq.model.compression import TooMuchData, compress, decompress
from alpacamq.model.errors import CorruptBatch

from .strategies import CODECS

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1 << 20


@given(st.binary(max_size=5000), CODECS)
def test_data_comes_back_as_it_was(data: bytes, codec: Codec) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data)) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1, 1000, MIB, MIB + 1, 3 * MIB])
def test_the_limit_is_exact(codec: Codec, size: int) -> None:
    packed = compress(codec, bytes(size))
    assert len(decompress(codec, packed, size)) == size
    with pytest.raises(TooMuchData, match=f"more than {size - 1} bytes"):
        decompress(codec, packed, size - 1)


def xerial(data: bytes, block_size: int = 32_768) -> bytes:
    """Snappy the way the Java library frames it."""
    framed: bytes = snappy_encode(data, xerial_compatible=True, xerial_blocksize=block_size)
    return framed


def bombs() -> dict[str, tuple[Codec, bytes]]:
    """Small inputs that unpack to 16 MiB and more, one for every way there is."""
    huge = bytes(16 * MIB)
    streamed = zstandard.ZstdCompressor(level=3).compressobj()
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return {
        "gzip": (Codec.GZIP, gzip.compress(huge)),
        "snappy": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(huge))),
        "snappy that only claims": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
        "snappy in frames": (
            Codec.SNAPPY,
            b"\x82SNAPPY\x00" + pack(">ii", 1, 1) + (pack(">i", len(block)) + block) * 16,
        ),
        "lz4": (Codec.LZ4, lz4.frame.compress(huge)),
        "lz4 that does not say": (Codec.LZ4, lz4.frame.compress(huge, store_size=False)),
        "lz4 in small blocks": (
            Codec.LZ4,
            lz4.frame.compress(huge, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False),
        ),
        "zstd": (Codec.ZSTD, zstandard.compress(huge)),
        "zstd that does not say": (Codec.ZSTD, streamed.compress(huge) + streamed.flush()),
    }


BOMBS = bombs()


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_decompression_bomb_is_refused_without_allocating(bomb: tuple[Codec, bytes]) -> None:
    codec, packed = bomb
    limit = MIB
    tracemalloc.start()
    try:
        with pytest.raises(TooMuchData):
            decompress(codec, packed, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The libraries' own output buffers count; what they do not report is bounded by their windows.
    assert peak < 6 * limit


def test_a_zstd_window_beyond_all_reason_is_refused() -> None:
    magic, descriptor = b"\x28\xb5\x2f\xfd", b"\x00"
    window_of_2_gib = bytes([(31 - 10) << 3])
    frame = magic + descriptor + window_of_2_gib + b"\x01\x00\x00"
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame, MIB)


def test_a_zstd_window_writers_use_by_default_is_fine_under_a_small_limit() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=23)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert decompress(Codec.ZSTD, packer.compress(b"hello") + packer.flush(), 100) == b"hello"


@given(st.binary(max_size=3000), st.integers(1, 1000))
def test_snappy_is_read_bare_and_in_the_java_framing(data: bytes, block_size: int) -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 3000) == data
    assert decompress(Codec.SNAPPY, xerial(data, block_size), 3000) == data


def test_lz4_is_read_however_it_was_framed() -> None:
    data = b"hello world" * 1000
    for options in (
        {"content_checksum": True},
        {"block_linked": False},
        {"store_size": False},
        {"block_checksum": True},
    ):
        assert decompress(Codec.LZ4, lz4.frame.compress(data, **options), len(data)) == data


def test_several_zstd_frames_are_one_stream() -> None:
    packed = zstandard.compress(b"hello ") + zstandard.compress(b"world")
    assert decompress(Codec.ZSTD, packed, 100) == b"hello world"


@pytest.mark.parametrize("codec", PACKING)
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, b"hello" * 100) + b"and then some", MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_data_cut_anywhere_is_refused(codec: Codec) -> None:
    packed = compress(codec, bytes(range(256)) * 4)
    for cut in range(len(packed)):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:cut], MIB)


def test_the_java_framing_cut_anywhere_but_between_blocks_is_refused() -> None:
    data = bytes(range(256)) * 4
    packed = xerial(data, 512)
    whole = set()
    for cut in range(8, len(packed)):
        try:
            whole.add(decompress(Codec.SNAPPY, packed[:cut], MIB))
        except CorruptBatch:
            continue
    assert whole == {b"", data[:512]}


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
def test_a_block_longer_than_the_data_is_refused(length: int) -> None:
    with pytest.raises(CorruptBatch, match="is cut off"):
        decompress(Codec.SNAPPY, b"\x82SNAPPY\x00" + pack(">iii", 1, 1, length) + b"\0" * 10, MIB)


@given(st.binary(max_size=400), CODECS)
@settings(max_examples=300)
def test_any_bytes_unpack_or_are_refused(data: bytes, codec: Codec) -> None:
    with suppress(CorruptBatch):
        assert len(decompress(codec, data, 10_000)) <= 10_000


@given(
    st.sampled_from(PACKING),
    st.binary(min_size=1, max_size=500),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=400)
def test_changed_bytes_unpack_or_are_refused(
    codec: Codec, data: bytes, changes: list[tuple[int, int]]
) -> None:
    packed = bytearray(compress(codec, data))
    for at, value in changes:
        packed[at % len(packed)] = value
    with suppress(CorruptBatch):
        assert len(decompress(codec, packed, 10_000)) <= 10_000


def test_a_bare_deflate_stream_is_not_gzip() -> None:
    with pytest.raises(CorruptBatch, match="gzip records cannot be decompressed"):
        decompress(Codec.GZIP, zlib.compress(b"hello"), MIB)
