"""Kafka's DumpLogSegments reads our index files, and finds the batches that they name."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from alpacamq.log.partition_log import PartitionLog
from tests.kafka_tools import dump_log_segments, require_kafka

from .logs import NOW_MS, a_batch, append, open_log, segment_files

COMPLAINTS = re.compile(r"mismatch|found|out of order|exception|error", re.IGNORECASE)


@pytest.fixture(autouse=True)
def kafka() -> None:
    require_kafka()


def a_log(directory: Path, *, timestamps: str, **settings: Any) -> PartitionLog:
    """Segments of batches of several records, with timestamps in order, out of order, or all the same."""
    log = open_log(directory, segment_bytes=40_000, **settings)
    for number in range(200):
        at = {"ascending": number, "mixed": number * 37 % 101, "equal": 0}[timestamps]
        append(log, a_batch(1 + number % 4, size=300, timestamp=NOW_MS + 10 * at, key=b"%d" % (number % 30)))
    return log


def check_files(*directories: Path) -> None:
    files: list[Path] = []
    for directory in directories:
        indexes = sorted(directory.glob("*.index"))
        times = sorted(directory.glob("*.timeindex"))
        assert len(indexes) == len(times) == len(segment_files(directory)) >= 3
        files += [path for path in indexes + times if path.stat().st_size]
    sane = dump_log_segments(*files, options=("--index-sanity-check",))
    assert sane.count("passed sanity check") == len(files)
    assert not COMPLAINTS.search(sane), sane
    verified = dump_log_segments(*files, options=("--verify-index-only",))
    assert not COMPLAINTS.search(verified), verified


def test_index_files_pass_kafkas_checks(tmp_path: Path) -> None:
    kinds = ("ascending", "mixed", "equal")
    for timestamps in kinds:
        a_log(tmp_path / timestamps, timestamps=timestamps).close()
    check_files(*(tmp_path / timestamps for timestamps in kinds))


@pytest.mark.parametrize(("suffix", "byte"), [(".index", -5), (".timeindex", -1)])
def test_kafka_complains_about_a_wrong_offset(tmp_path: Path, suffix: str, byte: int) -> None:
    """The tool says nothing if all is well, so this shows that it does look."""
    a_log(tmp_path / "t-0", timestamps="ascending").close()
    path = segment_files(tmp_path / "t-0")[0].with_suffix(suffix)
    entries = bytearray(path.read_bytes())
    entries[byte] ^= 1
    path.write_bytes(entries)
    told = dump_log_segments(path, options=("--verify-index-only",))
    assert COMPLAINTS.search(told), told


def test_kafka_prints_the_entries_that_are_there(tmp_path: Path) -> None:
    a_log(tmp_path / "t-0", timestamps="ascending").close()
    segment = segment_files(tmp_path / "t-0")[1]
    base = int(segment.stem)
    offsets = struct.iter_unpack(">ii", segment.with_suffix(".index").read_bytes())
    times = struct.iter_unpack(">qi", segment.with_suffix(".timeindex").read_bytes())
    told = dump_log_segments(segment.with_suffix(".index"), segment.with_suffix(".timeindex"))
    assert re.findall(r"^offset: (\d+) position: (\d+)$", told, re.MULTILINE) == [
        (str(base + offset), str(position)) for offset, position in offsets
    ]
    assert re.findall(r"^timestamp: (\d+) offset: (\d+)$", told, re.MULTILINE) == [
        (str(timestamp), str(base + offset)) for timestamp, offset in times
    ]


def test_rebuilt_index_files_pass_kafkas_checks(tmp_path: Path) -> None:
    a_log(tmp_path / "t-0", timestamps="mixed").close()
    for number, segment in enumerate(segment_files(tmp_path / "t-0")):
        suffix = (".indexcrc", ".index", ".timeindex")[number % 3]
        segment.with_suffix(suffix).write_bytes(b"x" * 77)
    log = open_log(tmp_path / "t-0", segment_bytes=40_000)
    for offset in range(log.end_offset):
        part = log.read(offset, 1, log.end_offset)
        assert part is not None
        part.release()
    log.close()
    check_files(tmp_path / "t-0")


def test_index_files_of_compacted_segments_pass_kafkas_checks(tmp_path: Path) -> None:
    log = a_log(
        tmp_path / "t-0", timestamps="ascending", cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    log.close()
    log = open_log(
        tmp_path / "t-0", segment_bytes=40_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    size = log.size_bytes
    compaction = log.begin_compaction(NOW_MS + 10_000)
    assert compaction is not None
    compaction.run()
    log.end_compaction(compaction)
    assert log.size_bytes < size
    for number in range(60):
        append(log, a_batch(3, size=900, timestamp=NOW_MS + 10_000 + number, key=b"%d" % number))
    log.close()
    check_files(tmp_path / "t-0")
