"""Index files have Kafka's format; entries are believed as far as their checksums match."""

import struct
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.log.index import INTERVAL_BYTES
from alpacamq.log.index_files import (
    EMPTY_SUM,
    SUM_BYTES,
    IndexCache,
    IndexSum,
    LoadedIndex,
    matching_sums,
    mismatches,
    pack_offsets,
    pack_times,
    unpack_offsets,
    unpack_sums,
    unpack_times,
)
from alpacamq.model.batch import read_header

from .logs import a_batch, a_storage, append, flush, open_log, read_batches

UINT32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(entries=st.lists(st.tuples(UINT32, UINT32), max_size=20))
def test_offset_entries_are_relative_offset_and_position(entries: list[tuple[int, int]]) -> None:
    numbers = array("Q", [offset << 32 | position for offset, position in entries])
    packed = pack_offsets(numbers)
    assert list(struct.iter_unpack(">II", packed)) == entries
    assert unpack_offsets(packed) == numbers


@given(entries=st.lists(st.tuples(INT64, UINT32), max_size=20))
def test_time_entries_are_timestamp_and_relative_offset(entries: list[tuple[int, int]]) -> None:
    timestamps = array("q", [timestamp for timestamp, _ in entries])
    offsets = array("I", [offset for _, offset in entries])
    packed = pack_times(timestamps, offsets)
    assert list(struct.iter_unpack(">qI", packed)) == entries
    assert unpack_times(packed) == (timestamps, offsets)


Parts = list[tuple[list[int], list[tuple[int, int]]]]
PARTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2**64 - 1), max_size=4), st.lists(st.tuples(INT64, UINT32), max_size=4)
    ),
    max_size=5,
)


def files_of(parts: Parts) -> tuple[list[IndexSum], bytes, bytes]:
    """Return the sums and both files after adding each part."""
    sums: list[IndexSum] = []
    offsets = times = b""
    for number, (offset_entries, time_entries) in enumerate(parts, 1):
        more_offsets = pack_offsets(array("Q", offset_entries))
        more_times = b"".join(struct.pack(">qI", *entry) for entry in time_entries)
        sums.append((sums[-1] if sums else EMPTY_SUM).extended(more_offsets, more_times, 1000 * number))
        offsets += more_offsets
        times += more_times
    return sums, offsets, times


@given(parts=PARTS)
def test_sums_are_read_back_and_match(parts: Parts) -> None:
    sums, offsets, times = files_of(parts)
    assert unpack_sums(b"".join(each.pack() for each in sums)) == sums
    assert matching_sums(sums, offsets, times) == sums
    assert mismatches(sums, offsets, times) == ()


@given(parts=PARTS, more=st.binary(max_size=20))
def test_entries_that_no_sum_covers_are_ignored(parts: Parts, more: bytes) -> None:
    sums, offsets, times = files_of(parts)
    assert matching_sums(sums, offsets + more, times + more) == sums


A_FILE: Parts = [([1 << 32 | 5000, 2 << 32 | 10_000], [(7, 1)]), ([3 << 32 | 15_000], [(9, 3)])]


@pytest.mark.parametrize("which", [0, 1])
def test_a_cut_or_a_flipped_bit_anywhere_ends_what_is_believed(which: int) -> None:
    sums, *files = files_of(A_FILE)
    whole = files[which]
    first = (sums[0].offset_bytes, sums[0].time_bytes)[which]
    for position in range(len(whole)):
        files[which] = whole[:position]
        assert len(matching_sums(sums, *files)) == (position >= first)
        assert mismatches(sums, *files) == ((".index", ".timeindex")[which],)
        for bit in range(8):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            files[which] = bytes(broken)
            assert len(matching_sums(sums, *files)) == (position >= first)
            assert mismatches(sums, *files) == ((".index", ".timeindex")[which],)


def test_a_cut_or_a_flipped_bit_in_the_sums_ends_what_is_believed() -> None:
    sums, _, _ = files_of(A_FILE)
    data = b"".join(each.pack() for each in sums)
    for position in range(len(data)):
        assert unpack_sums(data[:position]) == sums[: position // SUM_BYTES]
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            assert unpack_sums(bytes(broken)) == sums[: position // SUM_BYTES]


def test_zeros_are_no_sum() -> None:
    assert unpack_sums(bytes(10 * SUM_BYTES)) == []


def test_a_sum_that_claims_four_billion_entries_matches_nothing() -> None:
    hostile = IndexSum(500, 2**32 - 1, 0, 2**32 - 1, 0)
    assert unpack_sums(hostile.pack()) == [hostile]
    assert matching_sums([hostile], bytes(100), bytes(100)) == []


def test_coverage_never_goes_back() -> None:
    sums = [IndexSum(500, 1, 0, 1, 0), IndexSum(400, 1, 0, 1, 0)]
    assert unpack_sums(b"".join(each.pack() for each in sums)) == sums[:1]


def an_index(entries: int) -> LoadedIndex:
    return LoadedIndex(1, array("Q", [0] * entries), array("q"), array("I"))


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
        append(log, *(a_batch(2, size=size) for _ in range(100)))
        flush(log)
    path = log.directory / f"{0:020d}.index"
    entries = list(struct.iter_unpack(">II", path.read_bytes()))
    positions = [0, *(position for _, position in entries)]
    steps = [after - before for before, after in pairwise(positions)]
    batch = len(a_batch(2, size=size))
    assert all(INTERVAL_BYTES <= step < INTERVAL_BYTES + batch or step == batch for step in steps)
    assert log.size_bytes - positions[-1] < INTERVAL_BYTES + batch
    sums = unpack_sums(path.with_suffix(".indexcrc").read_bytes())
    assert sums[-1].covered_to == log.size_bytes
    assert sums[-1].offset_count == len(entries)
    assert [(last - 1) // 2 * batch for last, _ in entries] == positions[1:]


@pytest.mark.parametrize("in_order", [True, False])
def test_time_entries_are_new_maxima_and_the_last_has_the_largest(tmp_path: Path, *, in_order: bool) -> None:
    """As in Kafka: the last offset of the batch that first had that timestamp."""
    log = open_log(tmp_path / "t-0", segment_bytes=30_000)
    for number in range(100):
        timestamp = 1000 + (number if in_order else number * 37 % 100)
        append(log, a_batch(3, size=200, timestamp=timestamp, step=0))
    log.close()
    headers = [read_header(batch) for batch in read_batches(open_log(tmp_path / "t-0"))]
    bases = [int(path.stem) for path in sorted(log.directory.glob("*.log"))]
    assert len(bases) > 2
    for base, following in pairwise(bases):
        path = log.directory / f"{base:020d}.timeindex"
        entries = list(struct.iter_unpack(">qI", path.read_bytes()))
        of_segment = [header for header in headers if base <= header.base_offset < following]
        by_last = {header.last_offset: header for header in of_segment}
        for timestamp, offset in entries:
            named = by_last[base + offset]
            earlier = [header for header in of_segment if header.base_offset < named.base_offset]
            assert named.max_timestamp == timestamp
            assert all(header.max_timestamp < timestamp for header in earlier)
        assert all(before < after for before, after in pairwise(entries))
        assert entries[-1][0] == max(header.max_timestamp for header in of_segment)
