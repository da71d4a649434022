"""Checkpoints, epochs, snapshots and indexes may be missing, torn or damaged at any byte."""

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.log.checkpoint import (
    Checkpoint,
    CheckpointFile,
    RecoveryPoint,
    encode_checkpoint,
    read_checkpoint,
)
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import unpack_sums
from alpacamq.log.partition_log import PartitionLog
from alpacamq.log.sealed_file import Unreadable, read_sealed, seal, unseal, write_sealed
from alpacamq.model.batch import read_header

from .logs import a_batch, a_storage, append, flush, open_log, read_batches, segment_files

MAGIC = b"TEST"


def a_full_log(directory: Path) -> list[bytes]:
    """A log with everything a log can have: epochs, producers, several segments, several index chunks."""
    log = open_log(directory, a_storage(checkpoint_bytes=6000), segment_bytes=20_000)
    sequence = 0
    for number in range(40):
        append(
            log,
            a_batch(2, size=500, timestamp=1000 + number, producer=(5, 0, sequence)),
            a_batch(1, size=500, timestamp=500 + number),
            epoch=number // 15,
        )
        sequence += 2
        flush(log)
    batches = read_batches(log)
    log.close()
    return batches


def check(log: PartitionLog, batches: list[bytes]) -> None:
    """The log is what it was: batches, epochs, producers, lookups by offset and by time."""
    assert log.damage is None
    assert log.end_offset == 120
    assert log.epochs.entries == ((0, 0), (1, 45), (2, 90))
    assert read_batches(log) == batches
    for offset in (0, 1, 2, 44, 45, 61, 100, 119):
        part = log.read(offset, 1, 120)
        assert part is not None
        data = SystemDisk().read(part.handle.descriptor, part.length, part.position)
        part.release()
        header = read_header(data)
        assert header.base_offset <= offset < header.next_offset
    found = log.offset_for_timestamp(1020, 120)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (58, 1020)
    latest = log.max_timestamp(120)
    assert latest is not None
    assert (latest.offset, latest.timestamp_ms) == (118, 1040)
    (result,) = append(log, a_batch(2, size=500, producer=(5, 0, 78)), epoch=2)
    assert result == (117, 119, True)


def damages(data: bytes) -> Iterator[bytes]:
    """Every way a small file can be wrong: torn, extended, or with a bit flipped at some byte."""
    randomness = random.Random(len(data))
    positions = range(len(data)) if len(data) < 300 else sorted(randomness.sample(range(len(data)), 300))
    yield b""
    for position in positions:
        yield data[:position]
        broken = bytearray(data)
        broken[position] ^= 1 << randomness.randrange(8)
        yield bytes(broken)
    yield data + b"\x00"
    yield bytes(len(data))


def copies(tmp_path: Path) -> Callable[[], Path]:
    def copy() -> Path:
        target = tmp_path / "copy"
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(tmp_path / "good", target)
        return target

    return copy


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs"])
def test_a_damaged_file_costs_a_scan_and_nothing_else(tmp_path: Path, name: str) -> None:
    batches = a_full_log(tmp_path / "good")
    copy = copies(tmp_path)
    whole = (tmp_path / "good" / name).read_bytes()
    for data in damages(whole):
        directory = copy()
        (directory / name).write_bytes(data)
        log = open_log(directory)
        assert log.recovered.cut_bytes == 0
        assert log.recovered.scanned_bytes >= sum(map(len, batches))
        assert any("cannot be used, so everything is scanned" in note for note in log.recovered.notes)
        check(log, batches)
        log.close()
        assert open_log(directory).recovered.clean


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs"])
def test_a_missing_file_costs_a_scan_and_nothing_else(tmp_path: Path, name: str) -> None:
    batches = a_full_log(tmp_path / "good")
    (tmp_path / "good" / name).unlink()
    log = open_log(tmp_path / "good")
    assert log.recovered.scanned_bytes >= sum(map(len, batches))
    check(log, batches)


def test_a_damaged_snapshot_is_skipped_for_the_one_before(tmp_path: Path) -> None:
    batches = a_full_log(tmp_path / "good")
    copy = copies(tmp_path)
    newest = max((tmp_path / "good").glob("*.producers"))
    for data in damages(newest.read_bytes()):
        directory = copy()
        (directory / newest.name).write_bytes(data)
        log = open_log(directory)
        assert any(f"{newest.name} is skipped" in note for note in log.recovered.notes)
        assert 0 < log.recovered.scanned_bytes < sum(map(len, batches))
        check(log, batches)


def test_without_any_snapshot_the_log_itself_tells_about_producers(tmp_path: Path) -> None:
    batches = a_full_log(tmp_path / "good")
    snapshots = list((tmp_path / "good").glob("*.producers"))
    assert len(snapshots) >= 3
    for path in snapshots:
        path.unlink()
    log = open_log(tmp_path / "good")
    assert log.recovered.scanned_bytes == sum(map(len, batches))
    check(log, batches)


def test_snapshots_are_kept_per_segment_and_the_newest(tmp_path: Path) -> None:
    a_full_log(tmp_path / "good")
    kept = sorted(int(path.stem) for path in (tmp_path / "good").glob("*.producers"))
    bases = [int(path.stem) for path in segment_files(tmp_path / "good")]
    assert kept == [*bases[1:], 120]


INDEXES = [".index", ".timeindex", ".indexcrc"]


def indexes_of(log_path: Path) -> tuple[bytes, bytes, int]:
    """Return the offset index of a segment, the last time entry, and the log position that they cover."""
    times = log_path.with_suffix(".timeindex").read_bytes()
    (*_, written) = unpack_sums(log_path.with_suffix(".indexcrc").read_bytes())
    assert written.time_bytes == len(times)
    return log_path.with_suffix(".index").read_bytes(), times[-12:], written.covered_to


@pytest.mark.parametrize("suffix", INDEXES)
@pytest.mark.parametrize("number", [0, -1])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, suffix: str, number: int) -> None:
    batches = a_full_log(tmp_path / "good")
    copy = copies(tmp_path)
    segment = segment_files(tmp_path / "good")[number]
    path = segment.with_suffix(suffix)
    whole = indexes_of(segment)
    for data in damages(path.read_bytes()):
        directory = copy()
        (directory / path.name).write_bytes(data)
        log = open_log(directory)
        assert log.recovered.cut_bytes == 0
        check(log, batches)
        log.close()
        assert indexes_of(directory / segment.name) == whole


def test_an_index_of_a_segment_without_checksums_is_rebuilt(tmp_path: Path) -> None:
    """Kafka writes none; its index may be of another log that has the same offsets."""
    batches = a_full_log(tmp_path / "good")
    segment = segment_files(tmp_path / "good")[0]
    whole = indexes_of(segment)
    segment.with_suffix(".indexcrc").unlink()
    entries = bytearray(segment.with_suffix(".timeindex").read_bytes())
    entries[7] ^= 1  # a timestamp
    segment.with_suffix(".timeindex").write_bytes(entries)
    log = open_log(tmp_path / "good")
    check(log, batches)
    log.close()
    assert indexes_of(segment) == whole


def chunk_of_version_0_1(magic: bytes, entries: list[bytes], covered_to: int) -> bytes:
    head = struct.pack(">4sII", magic, len(entries), covered_to)
    body = b"".join(entries)
    return head + struct.pack(">I", crc32c(head + body)) + body


def test_index_files_of_version_0_1_are_rebuilt(tmp_path: Path) -> None:
    """They had the same names, chunks with checksums, and the first offset of a batch in each entry."""
    batches = a_full_log(tmp_path / "good")
    segments = segment_files(tmp_path / "good")
    whole = [indexes_of(segment) for segment in segments]
    headers = {header.last_offset: header for header in map(read_header, batches)}
    for segment in segments:
        base, size = int(segment.stem), segment.stat().st_size
        segment.with_suffix(".indexcrc").unlink()
        offsets, times = [], []
        for last, position in struct.iter_unpack(">II", segment.with_suffix(".index").read_bytes()):
            offsets.append(struct.pack(">II", headers[base + last].base_offset - base, position))
        for timestamp, last in struct.iter_unpack(">qI", segment.with_suffix(".timeindex").read_bytes()):
            times.append(struct.pack(">qq", timestamp, headers[base + last].base_offset))
        segment.with_suffix(".index").write_bytes(chunk_of_version_0_1(b"ALOX", offsets, size))
        segment.with_suffix(".timeindex").write_bytes(chunk_of_version_0_1(b"ALTX", times, size))
    log = open_log(tmp_path / "good")
    assert log.recovered.clean
    assert log.recovered.scanned_bytes == 0
    check(log, batches)
    for offset in range(log.end_offset):
        part = log.read(offset, 1, log.end_offset)
        assert part is not None
        part.release()
    log.close()
    assert [indexes_of(segment) for segment in segments] == whole


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_missing_and_empty_indexes_are_rebuilt(tmp_path: Path, how: str) -> None:
    batches = a_full_log(tmp_path / "good")
    for path in (tmp_path / "good").glob("*index*"):
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(b"")
    log = open_log(tmp_path / "good")
    check(log, batches)
    log.close()
    assert all(path.stat().st_size for path in (tmp_path / "good").glob("*index*"))
    assert len(list((tmp_path / "good").glob("*index*"))) == 3 * len(segment_files(tmp_path / "good"))


def test_an_index_that_belongs_to_another_log_is_rebuilt(tmp_path: Path) -> None:
    batches = a_full_log(tmp_path / "good")
    other = open_log(tmp_path / "other", segment_bytes=20_000)
    append(other, *(a_batch(7, size=170) for _ in range(200)))
    other.close()
    for path, theirs in zip(
        segment_files(tmp_path / "good"), segment_files(tmp_path / "other"), strict=False
    ):
        for suffix in INDEXES:
            shutil.copy(theirs.with_suffix(suffix), path.with_suffix(suffix))
    check(open_log(tmp_path / "good"), batches)


def test_a_sealed_file_is_read_back(tmp_path: Path) -> None:
    disk = SystemDisk()
    write_sealed(disk, tmp_path / "file", MAGIC, 1, b"body")
    write_sealed(disk, tmp_path / "file", MAGIC, 1, b"other body")
    assert read_sealed(disk, tmp_path / "file", MAGIC, 1) == b"other body"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(
            seal(b"ELSE", 1, b"body"), "it starts with b'ELSE' instead of b'TEST'", id="another kind"
        ),
        pytest.param(seal(MAGIC, 2, b"body"), "its version is 2, this program reads 1", id="a newer version"),
        pytest.param(seal(MAGIC, 1, b"body")[:-1], "4 bytes should follow the header but 3 do", id="torn"),
        pytest.param(seal(MAGIC, 1, b"body")[:-1] + b"x", "its checksum does not match", id="changed"),
        pytest.param(b"TEST", "4 bytes are too few", id="no header"),
    ],
)
def test_an_unreadable_sealed_file_gives_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        unseal(MAGIC, 1, data)


def test_checkpoints_of_version_0_1_can_be_read_and_are_still_written(tmp_path: Path) -> None:
    """The fields that only replicas need are in the file once they are set."""
    stored = bytes.fromhex(
        "414c4350000100000059e13a858f86ac73746172745f6f666673657403ae7265636f766572795f706f696e74930900cd02bc"
        "ad6861735f70726f647563657273c3a96f70656e65645f6d7305ac636f6d7061637465645f746f04ab646561646c696e655f"
        "6d7306"
    )
    checkpoint = Checkpoint(
        start_offset=3,
        recovery_point=RecoveryPoint(9, 0, 700),
        has_producers=True,
        opened_ms=5,
        compacted_to=4,
        deadline_ms=6,
    )
    assert encode_checkpoint(checkpoint) == stored
    (tmp_path / "checkpoint").write_bytes(stored)
    assert read_checkpoint(SystemDisk(), tmp_path) == checkpoint
    file = CheckpointFile(SystemDisk(), tmp_path, checkpoint)
    file.update(high_watermark=8)
    file.note_loss("gone")
    file.note_loss("another reason")
    found = read_checkpoint(SystemDisk(), tmp_path)
    assert (found.high_watermark, found.loss, found.start_offset) == (8, "gone", 3)
