"""The trace log: written events are found again after crashes and disk errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from alpacamq.telemetry.tracing import TraceEvent
from alpacamq.telemetry.tracing import recorder as trace_log
from alpacamq.telemetry.tracing.log_files import events_of, lines_of
from alpacamq.telemetry.tracing.recorder import LogSettings, TraceLog, last_events
from tests.waiting import eventually

from .traces import event

DAY_MS = 86_400_000


def settings(directory: Path, *, file_bytes: int = 1 << 20, max_bytes: int = 1 << 30) -> LogSettings:
    return LogSettings(directory=directory, max_bytes=max_bytes, retention_ms=DAY_MS, file_bytes=file_bytes)


@contextmanager
def opened(chosen: LogSettings) -> Iterator[TraceLog]:
    log = TraceLog(chosen)
    log.open()
    try:
        yield log
    finally:
        log.close()


def write(chosen: LogSettings, events: list[TraceEvent]) -> None:
    with opened(chosen) as log:
        for each in events:
            log.put(each)


def stored(directory: Path) -> list[TraceEvent]:
    files = TraceLog(settings(directory)).files
    return [each for file in files for each in events_of(file, lambda _line: True)]


def test_events_survive_a_restart_in_order(tmp_path: Path) -> None:
    events = [event(at_us=number, trace=number, key=f"k{number}") for number in range(100)]
    write(settings(tmp_path), events[:50])
    write(settings(tmp_path), events[50:])
    assert stored(tmp_path) == events
    assert last_events(TraceLog(settings(tmp_path)).files, 10) == events[-10:]


def test_no_files_are_created_without_traces(tmp_path: Path) -> None:
    with opened(settings(tmp_path / "traces")):
        pass
    assert not (tmp_path / "traces").exists()


def test_a_full_file_is_rotated(tmp_path: Path) -> None:
    events = [event(at_us=number) for number in range(200)]
    write(settings(tmp_path, file_bytes=4000), events)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < 4400
    assert stored(tmp_path) == events


def test_the_oldest_files_are_deleted_at_the_size_limit(tmp_path: Path) -> None:
    events = [event(at_us=number) for number in range(1000)]
    write(settings(tmp_path, file_bytes=4000, max_bytes=20_000), events)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 24_000
    assert stored(tmp_path) == events[-len(stored(tmp_path)) :]


def test_expired_files_are_deleted(tmp_path: Path) -> None:
    write(settings(tmp_path, file_bytes=4000), [event(at_us=number) for number in range(100)])
    files = sorted(tmp_path.iterdir())
    for path in files:
        os.utime(path, ns=(0, 0))
    with opened(settings(tmp_path)) as log:
        log.put(event(at_us=7))
        eventually(lambda: [each.at_us for each in stored(tmp_path)] == [7])
    assert not any(path.exists() for path in files)


def test_a_torn_line_loses_only_that_line(tmp_path: Path) -> None:
    first, second, third = (event(at_us=number) for number in (1, 2, 3))
    whole = tmp_path / "whole"
    write(settings(whole), [first, second])
    (file,) = whole.iterdir()
    content = file.read_bytes()
    start = content.index(b"\n") + 1
    for cut in range(start, len(content)):
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / file.name).write_bytes(content[:cut])
        write(settings(directory), [third])
        # Without its line end the second is whole all the same.
        assert stored(directory) in ([first, third], [first, second, third])
        assert (len(stored(directory)) == 3) == (cut == len(content) - 1)


def test_foreign_files_are_ignored(tmp_path: Path) -> None:
    write(settings(tmp_path), [event()])
    (file,) = tmp_path.iterdir()
    with file.open("ab") as stream:
        stream.write(b"\xff\xfe\nnull\n{}\n[1]\n" + b"x" * 500_000 + b"\n")
    (tmp_path / "traces-note.jsonl").write_text("mine")
    write(settings(tmp_path), [event(at_us=5)])
    assert [each.at_us for each in stored(tmp_path)] == [1_000_000, 5]


def test_an_endless_line_uses_bounded_memory(tmp_path: Path) -> None:
    write(settings(tmp_path), [event()])
    (file,) = TraceLog(settings(tmp_path)).files
    file.path.write_bytes(b"x" * 3_000_000)
    assert max(map(len, lines_of(file)), default=0) < 1 << 20


def test_events_beyond_the_queue_limit_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_log, "MAX_WAITING", 10)
    log = TraceLog(settings(tmp_path))
    log._thread.start = lambda: None  # type: ignore[method-assign]  # the disk is slow
    for number in range(25):
        log.put(event(at_us=number))
    assert log.dropped == 15


def test_a_full_disk_loses_events_until_writes_succeed_again(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    directory.write_text("in the way")
    with opened(settings(directory)) as log:
        log.put(event(at_us=1))
        eventually(lambda: log.dropped == 1)
        directory.unlink()
        log.put(event(at_us=2))
        eventually(lambda: log.written == 1)
    assert [each.at_us for each in stored(directory)] == [2]
    assert log.dropped == 1
