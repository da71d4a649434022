"""Index files hold what was put in; the first bad chunk ends what is believed."""

from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.log.index import INTERVAL_BYTES
from alpacamq.log.index_files import (
    OFFSET_ENTRY_BYTES,
    OFFSET_MAGIC,
    TIME_ENTRY_BYTES,
    TIME_MAGIC,
    IndexCache,
    LoadedIndex,
    pack_chunk,
    unpack_chunks,
    unpack_entries,
)

from .logs import a_batch, a_storage, append, flush, open_log

NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(chunks=st.lists(NUMBERS, max_size=6))
def test_chunks_are_read_back(chunks: list[list[int]]) -> None:
    data = b"".join(
        pack_chunk(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, array("Q", chunk), 1000 * number)
        for number, chunk in enumerate(chunks)
    )
    entries, ends = unpack_chunks(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, data)
    assert list(unpack_entries("Q", entries)) == [number for chunk in chunks for number in chunk]
    assert [end.covered_to for end in ends] == [1000 * number for number in range(len(chunks))]
    assert not ends or ends[-1].file_bytes == len(data)


def test_entries_after_a_damaged_chunk_are_ignored() -> None:
    chunks = [pack_chunk(TIME_MAGIC, TIME_ENTRY_BYTES, array("q", [n, n, n, n]), n * 100) for n in (1, 2, 3)]
    data = b"".join(chunks)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x40
        _, ends = unpack_chunks(TIME_MAGIC, TIME_ENTRY_BYTES, bytes(broken))
        assert len(ends) == position // len(chunks[0])
        _, ends = unpack_chunks(TIME_MAGIC, TIME_ENTRY_BYTES, data[:position])
        assert len(ends) == position // len(chunks[0])


def test_a_chunk_that_claims_four_billion_entries_is_not_believed() -> None:
    hostile = OFFSET_MAGIC + b"\xff" * 4 + bytes(8)
    assert unpack_chunks(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, hostile + bytes(100)) == (b"", [])


def test_coverage_never_goes_back() -> None:
    data = pack_chunk(OFFSET_MAGIC, 8, array("Q"), 500) + pack_chunk(OFFSET_MAGIC, 8, array("Q"), 400)
    _, ends = unpack_chunks(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, data)
    assert [end.covered_to for end in ends] == [500]


def test_entries_are_big_endian_on_disk() -> None:
    chunk = pack_chunk(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, array("Q", [7 << 32 | 4096]), 5000)
    assert chunk[-8:] == bytes([0, 0, 0, 7, 0, 0, 16, 0])


def an_index(entries: int) -> LoadedIndex:
    return LoadedIndex(1, array("Q", [0] * entries), array("q"), array("q"))


def test_the_cache_keeps_the_most_recently_used_within_its_limit() -> None:
    cache = IndexCache(3 * an_index(100).size_bytes)
    paths = [Path(f"/{number}") for number in range(4)]
    for path in paths[:3]:
        cache.put(path, an_index(100))
    assert cache.get(paths[0]) is not None
    cache.put(paths[3], an_index(100))
    assert [cache.get(path) is not None for path in paths] == [True, False, True, True]
    cache.discard(paths[0])
    cache.discard(paths[0])
    assert cache.size_bytes == 2 * an_index(100).size_bytes


def test_an_index_that_grew_counts_with_its_new_size() -> None:
    cache = IndexCache(1 << 20)
    index = an_index(100)
    cache.put(Path("/a"), index)
    index.offsets.extend([0] * 50)
    cache.put(Path("/a"), index)
    assert cache.size_bytes == index.size_bytes


@pytest.mark.parametrize("size", [10, 1000, 10_000])
def test_there_is_an_entry_about_every_four_kibibytes(tmp_path: Path, size: int) -> None:
    log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1))
    for _ in range(10):
        append(log, *(a_batch(size=size) for _ in range(100)))
        flush(log)
    data = (log.directory / f"{0:020d}.index").read_bytes()
    entries, ends = unpack_chunks(OFFSET_MAGIC, OFFSET_ENTRY_BYTES, data)
    positions = [0, *(entry & 0xFFFF_FFFF for entry in unpack_entries("Q", entries))]
    steps = [after - before for before, after in pairwise(positions)]
    batch = len(a_batch(size=size))
    assert all(INTERVAL_BYTES <= step < INTERVAL_BYTES + batch or step == batch for step in steps)
    assert log.size_bytes - positions[-1] < INTERVAL_BYTES + batch
    assert ends[-1].covered_to == log.size_bytes
    offsets = [entry >> 32 for entry in unpack_entries("Q", entries)]
    assert [offset * batch for offset in offsets] == positions[1:]
