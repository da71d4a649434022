"""Segments of an archive: each batch counts once at any time, whatever was merged or interrupted."""

from hypothesis import given
from hypothesis import strategies as st

from alpacamq_spark.pipelines.archive.segments import Segment, Weighed, in_force, merged, merges

WRITER = "0a1b2c3d"
MB = 1 << 20


def single(batch: int) -> Segment:
    return Segment(WRITER, batch, batch)


def batches(segments: list[Segment]) -> list[int]:
    return [batch for segment in segments for batch in range(segment.first, segment.last + 1)]


@given(count=st.integers(1, 60), fan_in=st.integers(2, 7), data=st.data())
def test_a_crash_at_any_point_leaves_every_batch_counted_once(
    count: int, fan_in: int, data: st.DataObject
) -> None:
    """On disk are complete segments. A merge adds one, then deletes those it covers, one by one."""
    disk = {single(batch) for batch in range(count)}
    while True:
        whole = in_force(disk)
        assert batches(whole) == list(range(count))
        planned = list(merges([Weighed(each, 1, 1) for each in whole], fan_in=fan_in, target_size=MB))
        if not planned:
            break
        for run in planned:
            target = merged(run)
            disk.add(target)
            assert batches(in_force(disk)) == list(range(count))
            for covered in run[: data.draw(st.integers(0, len(run)))]:
                disk.remove(covered)
                assert batches(in_force(disk)) == list(range(count))
    left = in_force(disk)
    assert left[-1].last == count - 1
    # As many as a number of so many digits can need, and the last batch alone.
    digits = 1
    while fan_in**digits < count:
        digits += 1
    assert len(left) <= (fan_in - 1) * digits + 1


def test_large_segments_and_the_last_batch_are_not_merged() -> None:
    small = [Weighed(single(batch), 1, 10) for batch in range(3)]
    assert list(merges(small, fan_in=3, target_size=MB)) == []
    assert list(merges([*small, Weighed(single(3), 1, 10)], fan_in=3, target_size=MB)) == [
        [single(0), single(1), single(2)]
    ]
    large = [Weighed(single(batch), 2, 4 * MB) for batch in range(9)]
    assert list(merges(large, fan_in=3, target_size=2 * MB)) == []


def test_a_gap_is_not_merged_over() -> None:
    apart = [Weighed(single(batch), 1, 10) for batch in (0, 1, 3, 4)]
    assert list(merges(apart, fan_in=2, target_size=MB)) == [[single(0), single(1)]]


@given(first=st.integers(0, 10**9), width=st.integers(1, 10**6))
def test_segments_are_known_by_their_names(first: int, width: int) -> None:
    segment = Segment(WRITER, first, first + width - 1)
    assert Segment.parse(segment.name) == segment


def test_other_directories_are_no_segments() -> None:
    for name in ("_alpacamq.json", "batches=0a1b2c3d-0000000002-0000000001", "batches=x-1-2", "topic=a"):
        assert Segment.parse(name) is None
