"""After a crash the log ends with its last whole batch, wherever the crash cut."""

import shutil
from pathlib import Path

import pytest

from alpacamq.log.disk import SystemDisk
from alpacamq.log.epochs import EpochHistory, EpochStart
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import HEADER_BYTES, check_batch, place
from alpacamq.model.errors import DamagedLog
from alpacamq.model.records import Record, write_batch

from .faulty_disk import FaultyDisk
from .logs import (
    FakeClock,
    a_batch,
    a_config,
    a_storage,
    append,
    flush,
    open_log,
    read_batches,
    read_values,
    segment_files,
)

FIRST = f"{0:020d}.log"


def three_batches() -> tuple[bytes, list[int]]:
    """Return the file of a log with three batches, and the end of each batch."""
    data = bytearray()
    ends = []
    for number, count in enumerate([2, 1, 3]):
        batch = a_batch(count)
        place(batch, [0, 2, 3][number], 0)
        data += batch
        ends.append(len(data))
    return bytes(data), ends


def crashed(tmp_path: Path, data: bytes) -> Path:
    """Return the directory of a log whose only segment is `data`, never flushed."""
    directory = tmp_path / "t-0"
    if directory.exists():
        shutil.rmtree(directory)
    open_log(directory).start_epoch(0)
    (directory / FIRST).write_bytes(data)
    return directory


def test_recovery_keeps_every_whole_batch_wherever_the_crash_cut(tmp_path: Path) -> None:
    data, ends = three_batches()
    for cut in range(len(data) + 1):
        log = open_log(crashed(tmp_path, data[:cut]))
        whole = max((end for end in ends if end <= cut), default=0)
        assert len(read_batches(log)) == sum(end <= cut for end in ends)
        assert log.end_offset == [0, 2, 3, 6][sum(end <= cut for end in ends)]
        assert (log.directory / FIRST).stat().st_size == whole
        assert log.recovered.cut_bytes == cut - whole
        if cut > whole:
            (note,) = [note for note in log.recovered.notes if "cut" in note]
            assert f"{FIRST} is cut at byte {whole}, {cut - whole} bytes" in note


@pytest.mark.parametrize(
    "tail", [b"\x00", b"\xff", b"\x00\x00\x00\x00\x00\x00\x00\x06\x7f\xff\xff\xff\x00\x00\x00\x00\x02"]
)
def test_a_tail_of_anything_else_is_cut(tmp_path: Path, tail: bytes) -> None:
    data, _ = three_batches()
    for size in [*range(1, 130, 7), 5000, 100_000]:
        log = open_log(crashed(tmp_path, data + (tail * size)[:size]))
        assert len(read_batches(log)) == 3
        assert log.recovered.cut_bytes == size


def test_zeros_in_place_of_any_part_of_the_last_batch_are_cut(tmp_path: Path) -> None:
    data, ends = three_batches()
    for start in range(ends[1], ends[2]):
        zeroed = data[:start] + bytes(ends[2] - start)
        if zeroed != data:
            assert len(read_batches(open_log(crashed(tmp_path, zeroed)))) == 2


def test_a_whole_batch_with_the_wrong_offset_is_cut(tmp_path: Path) -> None:
    data, _ = three_batches()
    for wrong in (0, 2, 5, 7, 1 << 40):
        stray = a_batch(2)
        place(stray, wrong, 0)
        check_batch(stray)
        log = open_log(crashed(tmp_path, data + stray))
        assert (log.end_offset, log.recovered.cut_bytes) == (6, len(stray))
        assert f"offset {wrong} where 6 should follow" in log.recovered.notes[-1]


def test_a_whole_batch_of_an_unknown_leader_is_cut(tmp_path: Path) -> None:
    data, _ = three_batches()
    stray = a_batch(2)
    place(stray, 6, 1)
    directory = crashed(tmp_path, data + stray)
    EpochHistory([EpochStart(0, 0)]).write(SystemDisk(), directory)
    log = open_log(directory)
    assert (log.end_offset, log.recovered.cut_bytes) == (6, len(stray))


def test_a_log_without_a_file_of_leader_epochs_learns_them_from_its_batches(tmp_path: Path) -> None:
    data, _ = three_batches()
    later = a_batch(2)
    place(later, 6, 1)
    log = open_log(crashed(tmp_path, data + later))
    assert (log.end_offset, log.recovered.cut_bytes) == (8, 0)
    assert log.epochs.entries == ((0, 0), (1, 6))
    log.close()
    assert open_log(log.directory).epochs.entries == ((0, 0), (1, 6))


def test_a_length_of_two_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    data, _ = three_batches()
    hostile = bytearray(a_batch(1))
    place(hostile, 6, 0)
    hostile[8:12] = (2**31 - 1).to_bytes(4, "big")
    directory = crashed(tmp_path, data + hostile + bytes(3000))

    class Bounded(FaultyDisk):
        def read(self, descriptor: int, size: int, position: int) -> bytes:
            assert size <= 1 << 20
            return super().read(descriptor, size, position)

    assert open_log(directory, a_storage(Bounded())).end_offset == 6


def test_appends_continue_after_truncation(tmp_path: Path) -> None:
    data, ends = three_batches()
    log = open_log(crashed(tmp_path, data[: ends[2] - 5]))
    append(log, a_batch([b"new"]))
    assert read_values(log)[-1] == b"new"
    log.close()
    assert read_values(open_log(log.directory))[-1] == b"new"


def test_damage_in_an_earlier_segment_after_the_recovery_point_cuts_everything_behind_it(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(12)))
    files = segment_files(log.directory)
    assert len(files) == 6
    broken = bytearray(files[2].read_bytes())
    broken[500] ^= 1
    files[2].write_bytes(broken)
    log = open_log(tmp_path / "t-0")
    assert log.damage is None
    assert log.end_offset == 5
    size = len(a_batch(size=300))
    assert log.recovered.cut_bytes == size + 3 * 2 * size
    assert any(f"{files[2].name} is cut at byte {size}" in note for note in log.recovered.notes)
    assert [path.name for path in segment_files(log.directory)] == [path.name for path in files[:3]]
    assert sorted(path.name for path in log.directory.glob("*.cut")) == [
        f"{path.name}.cut" for path in files[3:]
    ]
    append(log, a_batch())
    assert len(read_batches(log)) == 6


def test_after_a_clean_close_nothing_is_scanned(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=4096)
    append(log, *(a_batch(producer=(1, 0, number)) for number in range(100)))
    log.close()
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    assert log.recovered.clean
    assert (log.recovered.scanned_bytes, log.recovered.cut_bytes, log.recovered.notes) == (0, 0, ())
    assert "write" not in disk.calls
    assert "sync" not in disk.calls
    assert (log.end_offset, log.flushed_offset) == (100, 100)
    assert len(read_batches(log)) == 100


def test_closing_twice_without_writing_writes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch())
    log.close()
    disk = FaultyDisk()
    open_log(tmp_path / "t-0", a_storage(disk)).close()
    assert "write" not in disk.calls


def test_an_empty_log_reopens_without_remarks(tmp_path: Path) -> None:
    open_log(tmp_path / "t-0").close()
    log = open_log(tmp_path / "t-0")
    assert log.recovered.clean
    assert log.recovered.notes == ()


def test_recovery_reads_only_after_the_recovery_point(tmp_path: Path) -> None:
    storage = a_storage(checkpoint_bytes=1)
    log = open_log(tmp_path / "t-0", storage)
    append(log, *(a_batch(size=500) for _ in range(100)))
    flush(log)
    before = log.size_bytes
    append(log, *(a_batch(size=500) for _ in range(10)))
    log = open_log(tmp_path / "t-0")
    assert not log.recovered.clean
    assert log.recovered.scanned_bytes == log.size_bytes - before
    assert len(read_batches(log)) == 110


def test_recovery_makes_kept_batches_durable_before_they_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(7)))
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    assert log.flushed_offset == log.end_offset == 7
    assert disk.calls.count("sync") >= len(segment_files(log.directory))
    assert open_log(tmp_path / "t-0").recovered.clean


def test_progress_is_reported_as_bytes_of_the_total(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch(size=100_000) for _ in range(40)))
    told: list[tuple[int, int]] = []
    PartitionLog.open(
        tmp_path / "t-0", a_config(), a_storage(), progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (log.size_bytes, log.size_bytes)
    assert len(told) >= log.size_bytes >> 20
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_batch_larger_than_the_read_window_is_verified(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), a_batch(size=3_500_000), a_batch())
    assert open_log(tmp_path / "t-0").end_offset == 3
    whole = (log.directory / FIRST).read_bytes()
    for position in (2_000_000, len(a_batch()) + HEADER_BYTES, len(whole) - len(a_batch()) - 1):
        data = bytearray(whole)
        data[position] ^= 4
        assert open_log(crashed(tmp_path, bytes(data))).end_offset == 1


@pytest.mark.parametrize("kept", [0, 10, 61])
def test_bytes_that_were_flushed_and_are_gone_are_a_gap(tmp_path: Path, kept: int) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), a_batch(), a_batch())
    log.close()
    path = log.directory / FIRST
    size = len(a_batch())
    with path.open("r+b") as file:
        file.truncate(2 * size + kept)
    for end in (3, 4):
        log = open_log(tmp_path / "t-0")
        assert [damage.offsets for damage in log.damages] == [(2, 3)]
        assert any(f"{path} is damaged at byte {2 * size}" in note for note in log.recovered.notes)
        # No offset is reused: a reader of the lost record would not notice.
        assert log.end_offset == end
        append(log, a_batch())
        with pytest.raises(DamagedLog):
            log.read(2, 1000, end)
        assert len(read_batches(log, start=3)) == end - 2
        log.close()
    assert path.stat().st_size == 2 * size + kept


def test_a_segment_that_was_flushed_and_is_gone_is_a_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(7)))
    log.close()
    segment_files(log.directory)[-1].unlink()
    log = open_log(tmp_path / "t-0")
    assert [damage.offsets for damage in log.damages] == [(6, 7)]
    assert log.end_offset == 7
    append(log, a_batch())
    assert len(read_batches(log, start=7)) == 1


def test_a_first_segment_that_is_gone_is_reported(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(7)))
    log.close()
    segment_files(log.directory)[0].unlink()
    log = open_log(tmp_path / "t-0")
    assert f"{log.directory}: offsets 0 to 1 are gone with their segment" in log.recovered.losses
    assert (log.start_offset, log.end_offset) == (2, 7)
    assert len(read_batches(log)) == 5


def test_offsets_are_not_used_again_when_all_segments_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(5))
    log.close()
    (log.directory / FIRST).unlink()
    log = open_log(tmp_path / "t-0")
    assert any("are gone" in note for note in log.recovered.notes)
    assert (log.start_offset, log.end_offset) == (5, 5)
    append(log, a_batch())
    log.close()
    assert open_log(tmp_path / "t-0").end_offset == 6


def test_foreign_files_are_left_alone_and_listed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch())
    log.close()
    strangers = [
        "notes.txt",
        "123.log",
        f"{0:020d}.log.old",
        "99999999999999999999.log",
        f"{1:020d}.Log",
        "mine.tmp",
    ]
    for name in strangers:
        (log.directory / name).write_bytes(b"mine")
    (log.directory / "folder").mkdir()
    log = open_log(tmp_path / "t-0")
    assert log.recovered.clean
    for name in [*strangers, "folder"]:
        assert any(
            f"{log.directory / name} is not a file of AlpacaMQ" == note for note in log.recovered.notes
        )
    assert all((log.directory / name).read_bytes() == b"mine" for name in strangers)
    assert len(read_batches(log)) == 1


def test_half_written_files_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch())
    log.close()
    leftovers = ["checkpoint.tmp", "leader-epochs.tmp", f"{7:020d}.producers.tmp", f"{0:020d}.log.cleaned"]
    orphans = [f"{9:020d}.index", f"{9:020d}.timeindex", f"{9:020d}.indexcrc"]
    for name in [*leftovers, *orphans]:
        (log.directory / name).write_bytes(b"half")
    log = open_log(tmp_path / "t-0")
    assert not any((log.directory / name).exists() for name in [*leftovers, *orphans])
    assert log.recovered.clean


def test_an_empty_last_segment_is_the_end_of_the_log(tmp_path: Path) -> None:
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_ms=1000)
    append(log, a_batch(3))
    clock.ms += 1000
    log.roll_if_due(clock.ms)
    assert segment_files(log.directory)[-1].stat().st_size == 0
    for _ in range(2):
        log = open_log(tmp_path / "t-0", a_storage(clock=clock))
        assert log.end_offset == 3
        assert len(read_batches(log)) == 1
        log.close()


def test_a_log_that_starts_late_is_recovered(tmp_path: Path) -> None:
    """Retention has removed the first segments; later a crash takes the checkpoint with it."""
    log = open_log(tmp_path / "t-0", segment_bytes=1024, retention_bytes=1500)
    append(log, *(a_batch(size=300) for _ in range(20)))
    removal = log.begin_retention(0)
    assert removal is not None
    removal.run()
    start = log.start_offset
    assert start > 0
    log.close()
    (log.directory / "checkpoint").unlink()
    log = open_log(tmp_path / "t-0")
    assert (log.start_offset, log.end_offset) == (start, 20)
    assert len(read_batches(log)) == 20 - start


def test_a_log_start_set_by_hand_survives(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(10))
    log.begin_delete_before(4).run()
    log.close()
    log = open_log(tmp_path / "t-0")
    assert log.start_offset == 4
    (batch,) = read_batches(log)
    assert check_batch(batch).base_offset == 0


def test_producers_are_remembered_across_a_crash(tmp_path: Path) -> None:
    storage = a_storage(checkpoint_bytes=1)
    log = open_log(tmp_path / "t-0", storage)
    append(log, a_batch(3, producer=(7, 1, 0)))
    flush(log)
    append(log, a_batch(2, producer=(7, 1, 3)), a_batch(1, producer=(8, 0, 5)))
    log = open_log(tmp_path / "t-0")
    assert append(log, a_batch(3, producer=(7, 1, 0)))[0] == (0, 3, True)
    assert append(log, a_batch(2, producer=(7, 1, 3)))[0] == (3, 5, True)
    assert append(log, a_batch(1, producer=(8, 0, 5)))[0] == (5, 6, True)
    assert append(log, a_batch(1, producer=(7, 1, 5)))[0] == (6, 7, False)


def test_batches_of_several_leaders_are_recovered(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    for epoch in (0, 0, 3, 3, 9):
        append(log, a_batch(size=300), epoch=epoch)
    log = open_log(tmp_path / "t-0")
    assert log.end_offset == 5
    assert log.epochs.entries == ((0, 0), (3, 2), (9, 4))


def test_records_survive_recovery_as_they_were(tmp_path: Path) -> None:
    batch = write_batch([Record(0, 5, b"k", b"v"), Record(1, 6, None, None)])
    log = open_log(tmp_path / "t-0")
    append(log, batch)
    assert read_batches(open_log(tmp_path / "t-0")) == [bytes(batch)]
