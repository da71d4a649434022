"""A flipped bit anywhere in a segment is found and named; batches around it are served, appends continue."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from alpacamq.log.index_files import EMPTY_SUM, pack_offsets, unpack_offsets, unpack_sums
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import place, read_header
from alpacamq.model.errors import DamagedLog
from alpacamq.model.records import Record, write_batch

from .logs import a_batch, a_storage, append, flush, open_log, read_batches, segment_files


def a_closed_log(directory: Path) -> list[bytes]:
    """A log of six batches in two leader epochs, closed in order; its batches."""
    log = open_log(directory)
    for number in range(6):
        append(log, a_batch(2, size=30), epoch=number // 3)
    batches = read_batches(log)
    log.close()
    return batches


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def read_around_damage(log: PartitionLog) -> tuple[list[bytes], list[DamagedLog]]:
    """Read everything, seeking behind each damaged range after a second failure; return both."""
    batches: list[bytes] = []
    errors: list[DamagedLog] = []
    offset = log.start_offset
    while offset < log.end_offset:
        if good := read_one(log, offset) or read_one(log, offset):
            batches += good
            offset = read_header(good[-1]).next_offset
            continue
        with pytest.raises(DamagedLog) as refused:
            log.read(offset, 200, log.end_offset)
        assert refused.value.offsets is not None
        assert refused.value.offsets[0] <= offset < refused.value.offsets[1]
        errors.append(refused.value)
        offset = refused.value.offsets[1]
    return batches, errors


def read_one(log: PartitionLog, offset: int) -> list[bytes]:
    """One slice from `offset`, or nothing if that is refused."""
    try:
        part = log.read(offset, 200, log.end_offset)
        assert part is not None
        try:
            if not part.verified:
                log.verify(part)
            data = a_storage().disk.read(part.handle.descriptor, part.length, part.position)
        finally:
            part.release()
    except DamagedLog:
        return []
    batches = []
    while data:
        size = read_header(data).size
        batches.append(data[:size])
        data = data[size:]
    return batches


def test_a_flipped_bit_in_durable_data_is_found_wherever_it_is(tmp_path: Path) -> None:
    batches = a_closed_log(tmp_path / "good")
    size = len(batches[0])
    name = segment_files(tmp_path / "good")[0].name
    for position in range(6 * size):
        for bit in {position % 8, 7} if position % size < 61 else {position % 8}:
            broken = tmp_path / "broken"
            shutil.copytree(tmp_path / "good", broken)
            flip(broken / name, position, bit)
            log = open_log(broken)
            served, errors = read_around_damage(log)
            number = position // size
            assert served == batches[:number] + batches[number + 1 :]
            assert [error.position for error in errors] == [number * size]
            assert errors[0].offsets == (2 * number, 2 * number + 2)
            assert [str(damage) for damage in log.damages] == [str(error) for error in errors]
            assert f"{broken / name} is damaged at byte {number * size}" in str(log.damage)
            assert f"offsets {2 * number} to {2 * number + 1} cannot be read" in str(log.damage)
            assert (broken / name).stat().st_size == 6 * size
            (appended,) = append(log, a_batch(), epoch=1)
            assert appended == (12, 13, False)
            if bit == position % 8 == 3:
                log.close()
                served_again, _ = read_around_damage(open_log(broken))
                assert served_again[:-1] == served
            shutil.rmtree(broken)


def test_a_flipped_bit_after_the_recovery_point_is_found_and_cut(tmp_path: Path) -> None:
    storage = a_storage(checkpoint_bytes=1)
    log = open_log(tmp_path / "good", storage)
    append(log, *(a_batch(2, size=30) for _ in range(2)))
    flush(log)
    append(log, *(a_batch(2, size=30) for _ in range(3)))
    batches = read_batches(log)
    size = len(batches[0])
    name = segment_files(tmp_path / "good")[0].name
    for position in range(2 * size, 5 * size):
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "good", broken)
        flip(broken / name, position, position % 8)
        log = open_log(broken)
        number = position // size
        assert log.damage is None
        assert read_batches(log) == batches[:number]
        assert log.recovered.cut_bytes == (5 - number) * size
        assert any(f"{name} is cut at byte {number * size}" in note for note in log.recovered.notes)
        shutil.rmtree(broken)


@pytest.mark.parametrize("segment_bytes", [10_000, 1024])
def test_a_flipped_bit_in_the_unflushed_tail_of_a_killed_broker_is_damage(
    tmp_path: Path, segment_bytes: int
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=segment_bytes)
    append(log, *(a_batch(2, size=30) for _ in range(12)))
    batches = read_batches(log)
    files = segment_files(tmp_path / "t-0")
    flip(files[0], len(batches[0]) + 70, 1)
    killed = replace(a_storage(), has_every_write=True)
    log = open_log(tmp_path / "t-0", killed)
    served, errors = read_around_damage(log)
    assert served == [batches[0], *batches[2:]]
    assert [error.offsets for error in errors] == [(2, 4)]
    assert log.recovered.cut_bytes == 0


def test_truncated_bytes_with_sound_batches_are_saved_after_a_power_loss(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch(2, size=30) for _ in range(4)))
    batches = read_batches(log)
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, len(batches[0]) + 70, 1)
    whole = path.read_bytes()
    log = open_log(tmp_path / "t-0")
    assert read_batches(log) == batches[:1]
    kept = path.with_name(f"{path.name}.{len(batches[0])}.cut")
    assert kept.read_bytes() == whole[len(batches[0]) :]
    assert any(kept.name in note for note in log.recovered.notes)


def test_a_flipped_bit_in_a_sealed_segment_is_found_on_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(12)))
    batches = read_batches(log)
    log.close()
    files = segment_files(log.directory)
    flip(files[3], 100, 3)
    log = open_log(tmp_path / "t-0")
    assert read_batches(log, start=10) == batches[10:]
    assert log.damage is None
    served, _ = read_around_damage(log)
    assert served == batches[:6] + batches[7:]
    assert log.damage is not None
    assert log.damage.path == files[3]
    assert log.damage.offsets == (6, 7)


def test_two_damaged_places_in_a_segment_are_two_gaps(tmp_path: Path) -> None:
    batches = a_closed_log(tmp_path / "t-0")
    size = len(batches[0])
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, size + 3, 6)  # its base offset
    flip(path, 4 * size + 10, 2)  # its length
    log = open_log(tmp_path / "t-0")
    served, errors = read_around_damage(log)
    assert served == [batches[0], batches[2], batches[3], batches[5]]
    assert [error.offsets for error in errors] == [(2, 4), (8, 10)]


def test_bytes_cut_out_of_a_segment_are_a_gap_without_length(tmp_path: Path) -> None:
    batches = a_closed_log(tmp_path / "t-0")
    (path,) = segment_files(tmp_path / "t-0")
    path.write_bytes(b"".join(batches[:2] + batches[3:]))
    log = open_log(tmp_path / "t-0")
    served, errors = read_around_damage(log)
    assert served == batches[:2] + batches[3:]
    assert [error.offsets for error in errors] == [(4, 6)]
    (appended,) = append(log, a_batch(), epoch=2)
    assert appended == (12, 13, False)


@pytest.mark.parametrize("position", [3, 9, 10, 40, 65])
def test_a_batch_inside_a_record_is_not_taken_for_one_of_the_log(tmp_path: Path, position: int) -> None:
    """A value may hold a whole batch; where the batch around it is damaged, that is no batch of the log."""
    log = open_log(tmp_path / "t-0")
    inner = a_batch(1)
    place(inner, 2, 0)
    append(
        log,
        a_batch(1),
        write_batch([Record(0, 0, None, bytes(inner)), Record(1, 0, None, bytes(inner))]),
        a_batch(1),
    )
    log.close()
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, len(a_batch(1)) + position, 1)
    log = open_log(tmp_path / "t-0")
    _, errors = read_around_damage(log)
    assert [error.offsets for error in errors] == [(1, 3)]


def test_damage_survives_a_restart_and_goes_with_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300, timestamp=1000) for _ in range(12)))
    log.close()
    path = segment_files(tmp_path / "t-0")[1]
    flip(path, 300, 1)
    before = path.read_bytes()
    for _ in range(2):
        log = open_log(tmp_path / "t-0")
        _, errors = read_around_damage(log)
        assert [error.offsets for error in errors] == [(2, 3)]
        assert log.begin_compaction(1 << 50) is None
        log.close()
    assert path.read_bytes() == before
    log = open_log(tmp_path / "t-0", retention_ms=1)
    read_around_damage(log)
    assert log.damages
    removal = log.begin_retention(1 << 50)
    assert removal is not None
    removal.run()
    assert not log.damages


def test_good_data_is_verified_once(tmp_path: Path) -> None:
    batches = a_closed_log(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0")
    size = len(batches[0])
    part = log.read(0, 2 * size, 12)
    assert part is not None
    assert not part.verified
    log.verify(part)
    part.release()
    for offset, verified in ((0, True), (4, False), (0, True)):
        part = log.read(offset, 2 * size, 12)
        assert part is not None
        assert part.verified is verified
        part.release()
    part = log.read(8, 100 * size, 12)
    assert part is not None
    log.verify(part)
    part.release()
    part = log.read(0, 100 * size, 12)
    assert part is not None
    assert part.verified
    part.release()


def test_own_writes_need_no_verification(tmp_path: Path) -> None:
    batches = a_closed_log(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), epoch=1)
    part = log.read(12, 1000, 13)
    assert part is not None
    assert part.verified
    part.release()
    assert len(read_batches(log)) == len(batches) + 1


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_segment_is_damage_where_it_was(tmp_path: Path, missing: int) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(10)))
    batches = read_batches(log)
    log.close()
    files = segment_files(log.directory)
    files[missing].unlink()
    log = open_log(tmp_path / "t-0")
    assert log.damage is not None
    assert log.damage.path == files[missing - 1]
    assert log.damage.position == files[missing - 1].stat().st_size
    served, errors = read_around_damage(log)
    assert served == batches[: 2 * missing] + batches[2 * missing + 2 :]
    assert [error.offsets for error in errors] == [(2 * missing, 2 * missing + 2)]
    (appended,) = append(log, a_batch())
    assert appended == (10, 11, False)


def test_a_segment_emptied_in_the_middle_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(10)))
    log.close()
    files = segment_files(log.directory)
    files[2].write_bytes(b"")
    log = open_log(tmp_path / "t-0")
    assert log.damage is not None
    assert (log.damage.path, log.damage.position) == (files[2], 0)


def test_a_segment_that_lost_its_last_batch_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(10)))
    log.close()
    files = segment_files(log.directory)
    size = len(a_batch(size=300))
    for kept in (size, size + 1, 2 * size - 1):
        whole = files[1].read_bytes()
        files[1].write_bytes(whole[:kept])
        log = open_log(tmp_path / "t-0")
        assert log.damage is not None
        assert (log.damage.path, log.damage.position) == (files[1], size)
        files[1].write_bytes(whole)


def test_search_by_time_passes_over_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch(timestamp=1000 * number) for number in range(6)))
    log.close()
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, 3 * len(a_batch()) + 70, 1)
    log = open_log(tmp_path / "t-0")
    assert log.offset_for_timestamp(3000, 6) == (4, 4000, 0)
    assert log.offset_for_timestamp(2000, 6) == (2, 2000, 0)
    assert log.offset_for_timestamp(4500, 6) == (5, 5000, 0)
    assert log.max_timestamp(6) == (5, 5000, 0)
    assert log.damage is not None


def test_a_time_that_may_lie_in_damage_is_refused_rather_than_not_found(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch(timestamp=1000 * number) for number in range(6)))
    log.close()
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, 5 * len(a_batch()) + 70, 1)
    log = open_log(tmp_path / "t-0")
    with pytest.raises(DamagedLog, match="offsets 5 to 5 cannot be read"):
        log.offset_for_timestamp(4500, 6)


@pytest.mark.parametrize("reads", ["offset", "time"])
@pytest.mark.parametrize("sealed", [True, False])
def test_an_index_that_leads_astray_is_no_damage(tmp_path: Path, reads: str, *, sealed: bool) -> None:
    """Only its last entry is compared with the log when it is loaded."""
    log = open_log(tmp_path / "t-0", segment_bytes=30_000)
    append(log, *(a_batch(size=1000, timestamp=number) for number in range(40 if sealed else 25)))
    batches = read_batches(log)
    log.close()
    path = log.directory / f"{0:020d}.index"
    numbers = unpack_offsets(path.read_bytes())
    numbers[1] += 5
    path.write_bytes(pack_offsets(numbers))
    sums_path = path.with_suffix(".indexcrc")
    covered_to = unpack_sums(sums_path.read_bytes())[-1].covered_to
    times = path.with_suffix(".timeindex").read_bytes()
    sums_path.write_bytes(EMPTY_SUM.extended(path.read_bytes(), times, covered_to).pack())
    log = open_log(tmp_path / "t-0")
    target = (numbers[1] >> 32) + 1
    if reads == "offset":
        part = log.read(target, 1, log.end_offset)
        assert part is not None
        assert part.next_offset == target + 1
        part.release()
    else:
        assert log.offset_for_timestamp(target, log.end_offset) == (target, target, 0)
    assert log.damage is None
    append(log, a_batch(size=1000))
    assert read_batches(log)[:-1] == batches
    log.close()
    assert read_batches(open_log(tmp_path / "t-0"))[:-1] == batches


def test_batches_appended_before_damage_was_found_are_still_flushed(tmp_path: Path) -> None:
    a_closed_log(tmp_path / "t-0")
    (path,) = segment_files(tmp_path / "t-0")
    flip(path, 300, 1)
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), epoch=1)
    read_around_damage(log)
    assert log.flushed_offset == 12
    flush(log)
    assert log.flushed_offset == 13
