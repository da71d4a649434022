"""A log that lacks records it had acknowledged as durable says so, until it is rebuilt."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alpacamq.log.checkpoint import FILE_NAME as CHECKPOINT
from alpacamq.log.disk import SystemDisk
from alpacamq.log.inspection import inspect_partition
from alpacamq.log.partition_log import PartitionLog
from alpacamq.log.repair import RepairJournal, cut_at, skip_gaps
from alpacamq.log.storage import Storage
from alpacamq.model.errors import AlpacaError, DamagedLog

from .faulty_disk import Fault, FaultyDisk
from .logs import a_batch, a_storage, append, flush, open_log, read_batches, segment_files

SETTINGS: dict[str, Any] = {"segment_bytes": 1024}


def reopen(log: PartitionLog, storage: Storage | None = None) -> PartitionLog:
    return open_log(log.directory, storage, **SETTINGS)


def a_log(directory: Path) -> PartitionLog:
    """A log of twelve batches in six segments, closed in order."""
    directory.parent.mkdir(exist_ok=True)
    log = open_log(directory, a_storage(checkpoint_bytes=1), **SETTINGS)
    for number in range(12):
        append(log, a_batch(size=400), epoch=number // 5)
        flush(log)
    log.close()
    assert len(segment_files(directory)) == 6
    return log


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def nothing(_directory: Path) -> None:
    pass


def remove_segments(directory: Path) -> None:
    for path in segment_files(directory):
        path.unlink()


def remove_start(directory: Path) -> None:
    (directory / CHECKPOINT).unlink()
    segment_files(directory)[0].unlink()


def cut_the_tail(directory: Path) -> None:
    """Leave half a batch behind the recovery point, as a crash does."""
    path = segment_files(directory)[-1]
    path.write_bytes(path.read_bytes() + path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "is_lost"),
    [
        pytest.param(nothing, False, id="nothing"),
        pytest.param(cut_the_tail, False, id="an incomplete tail"),
        pytest.param(lambda d: segment_files(d)[0].unlink(), True, id="the first segment is gone"),
        pytest.param(lambda d: segment_files(d)[2].unlink(), True, id="a segment is gone"),
        pytest.param(lambda d: segment_files(d)[-1].unlink(), True, id="the last segment is gone"),
        pytest.param(remove_segments, True, id="all segments are gone"),
        pytest.param(lambda d: shorten(segment_files(d)[-1], 1), True, id="the last batch is incomplete"),
        pytest.param(lambda d: shorten(segment_files(d)[1], 1), True, id="a segment is shorter"),
        pytest.param(lambda d: segment_files(d)[1].write_bytes(b""), True, id="a segment is empty"),
        pytest.param(lambda d: segment_files(d)[-1].write_bytes(b""), True, id="the last segment is empty"),
        pytest.param(lambda d: flip(d / CHECKPOINT, 20), True, id="the checkpoint is damaged"),
        pytest.param(lambda d: (d / CHECKPOINT).write_bytes(b""), True, id="the checkpoint is empty"),
        pytest.param(remove_start, True, id="checkpoint and first segment are gone"),
    ],
)
def test_recovery_knows_what_is_lost(tmp_path: Path, damage: Callable[[Path], object], is_lost: bool) -> None:
    log = a_log(tmp_path / "t-0")
    damage(log.directory)
    for _ in range(3):
        log = reopen(log)
        assert log.has_lost_data == is_lost, log.recovered
        assert (log.loss is not None) == is_lost
        log.close()


@pytest.mark.parametrize("segment", range(6))
def test_damage_that_a_reader_finds_is_remembered(tmp_path: Path, segment: int) -> None:
    log = a_log(tmp_path / "t-0")
    flip(segment_files(log.directory)[segment], 100)
    log = reopen(log)
    assert not log.has_lost_data
    with pytest.raises(DamagedLog):
        read_batches(log)
    assert log.has_lost_data
    log = reopen(log)  # killed
    assert log.has_lost_data
    log.close()
    assert reopen(log).has_lost_data


def test_damage_that_a_compaction_finds_is_remembered(tmp_path: Path) -> None:
    log = a_log(tmp_path / "t-0")
    flip(segment_files(log.directory)[2], 100)
    log = open_log(log.directory, **SETTINGS, cleanup_policy="compact")
    compaction = log.begin_compaction(log.recovered.scanned_bytes, force=True)
    assert compaction is not None
    with pytest.raises(DamagedLog):
        compaction.run()
    assert log.has_lost_data
    assert reopen(log).has_lost_data


@pytest.mark.parametrize("cuts", [True, False])
def test_a_repaired_log_looks_sound_but_has_lost_data(tmp_path: Path, *, cuts: bool) -> None:
    log = a_log(tmp_path / "partitions" / "t-0")
    flip(segment_files(log.directory)[2], 100)
    state = inspect_partition(SystemDisk(), log.directory)
    [(segment, gap)] = state.gaps
    changes = cut_at(state, segment, gap) if cuts else skip_gaps(state)
    RepairJournal(SystemDisk(), tmp_path).make(changes, "before")
    log = reopen(log)
    read_batches(log)
    assert log.end_offset == (gap.start.offset if cuts else 12)
    assert log.damages == []
    assert log.has_lost_data
    assert "repair" in str(log.loss)


def test_damage_behind_the_recovery_point_counts_if_the_system_stayed_up(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(size=400), a_batch(size=400), a_batch(size=400))
    flush(log)
    flip(segment_files(log.directory)[0], 600)
    storage = a_storage()
    is_up = Storage(
        disk=storage.disk,
        clock=storage.clock,
        handles=storage.handles,
        indexes=storage.indexes,
        has_every_write=True,
    )
    log = PartitionLog.open(log.directory, log.config, is_up)
    assert log.has_lost_data
    assert log.end_offset == 3


def test_after_a_failed_flush_the_data_is_in_doubt_also_after_a_restart(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), **SETTINGS)
    append(log, a_batch())
    disk.fail(Fault("sync", errno.EIO, suffix=".log", times=1))
    with pytest.raises(AlpacaError):
        log.flush_now()
    assert log.in_doubt is not None
    assert log.has_lost_data
    log = reopen(log)
    assert log.in_doubt is None
    assert log.has_lost_data
    assert log.loss is not None
    assert "a flush failed" in log.loss


def test_a_lack_of_descriptors_is_no_loss(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), **SETTINGS)
    append(log, a_batch())
    begun = log.begin_flush()
    assert begun is not None
    log.end_flush(begun, OSError(errno.EMFILE, "Too many open files"))
    assert not log.has_lost_data
    flush(log)
    assert not log.has_lost_data


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_rebuilt_log_has_lost_nothing(tmp_path: Path, *, is_damaged: bool) -> None:
    log = a_log(tmp_path / "t-0")
    batches = read_batches(reopen(log))
    if is_damaged:
        flip(segment_files(log.directory)[2], 100)
        log = reopen(log)
        with pytest.raises(DamagedLog):
            read_batches(log)
    else:
        segment_files(log.directory)[2].unlink()
        log = reopen(log)
    assert log.has_lost_data
    log.restart_at(0)
    assert not log.has_lost_data
    log.append_fetched(b"".join(batches), 9)
    flush(log)
    assert not log.has_lost_data
    log = reopen(log)
    assert not log.has_lost_data
    assert read_batches(log) == batches


def test_only_a_log_that_did_not_exist_is_created(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert log.recovered.created
    assert not log.has_lost_data
    assert not reopen(log).recovered.created
