"""The files compaction reads and writes: bounded memory, merged neighbours, nothing left after a fault."""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from alpacamq.log.compaction import READ_BYTES, clean
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import CRC_AT, EPOCH_AT, FRAME, FRAME_BYTES, read_header
from alpacamq.model.errors import DamagedLog
from alpacamq.model.ports import Buffer
from alpacamq.model.records import write_batch
from alpacamq.model.topics import topic_config

from .sealed_log import SealedLog, records


def a_log(directory: Path, disk: SystemDisk | None = None) -> SealedLog:
    """Three segments of three batches in which every key but the last is written again."""
    log = SealedLog(directory, disk=disk)
    for base in range(0, 18, 6):
        log.add_segment(
            *(
                write_batch(records(offset, [(b"a", b"1"), (f"{offset}".encode(), bytes(200))]))
                for offset in range(base, base + 6, 2)
            )
        )
    return log


def test_small_neighbours_become_one_segment(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    sealed = tuple(log.segments)
    (segment,) = log.clean().segments
    assert segment.replaces == sealed
    assert (segment.base_offset, segment.end_offset) == (0, 18)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000000.log"]


def test_segments_grow_together_no_further_than_a_segment_may(tmp_path: Path) -> None:
    log = SealedLog(tmp_path, topic_config({"segment.bytes": "1024"}))
    for base in range(12):
        log.add_segment(write_batch(records(base, [(f"{base}".encode(), bytes(200))])))
    log.clean()
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    assert all(512 < segment.size_bytes <= 1024 for segment in log.segments)
    assert len(log.records()) == 12


def test_segments_stay_apart_where_offsets_would_not_fit_the_index(tmp_path: Path) -> None:
    log = SealedLog(tmp_path)
    half = 1 << 30
    for number in range(3):
        log.add_segment(write_batch((), base_offset=number * half, last_offset=(number + 1) * half - 1))
    log.add_segment(write_batch(records(3 * half, [(b"a", b"1")])))
    log.clean()
    assert [segment.base_offset for segment in log.segments] == [0, half, 2 * half]


def test_a_segment_without_anything_to_drop_is_not_written_again(tmp_path: Path) -> None:
    log = SealedLog(tmp_path, topic_config({"segment.bytes": "1024"}))
    log.add_segment(write_batch(records(0, [(b"a", bytes(900))])))
    log.add_segment(write_batch(records(1, [(b"b", bytes(450)), (b"b", bytes(450))])))
    log.add_segment(write_batch(records(3, [(b"c", bytes(900))])))
    files = log.files()
    cleaned = log.try_clean()
    assert [segment.base_offset for segment in cleaned.segments] == [1]
    assert cleaned.first_dirty_offset == 4
    assert cleaned.bytes_before == sum(map(len, files.values()))
    assert {name: data for name, data in log.files().items() if name in files} == files
    assert log.files().keys() - files.keys() == {f"{1:020d}.log.cleaned"}


def test_the_part_before_the_first_change_is_carried_over(tmp_path: Path) -> None:
    log = SealedLog(tmp_path)
    untouched = [
        write_batch(records(offset, [(f"{offset}".encode(), bytes(30_000))])) for offset in range(60)
    ]
    log.add_segment(*untouched, write_batch(records(60, [(b"x", b"1"), (b"x", b"2")])))
    log.clean()
    assert log.batches()[:60] == untouched
    assert len(log.records()) == 61


def test_a_leftover_of_the_same_name_is_written_over(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    (tmp_path / f"{0:020d}.log.cleaned").write_bytes(bytes(100_000))
    log.clean()
    assert [record.offset for record in log.records()] == [*range(1, 17, 2), 16, 17]


def test_a_segment_is_never_read_whole(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Watched(SystemDisk):
        def read(self, descriptor: int, size: int, position: int) -> bytes:
            sizes.append(size)
            return super().read(descriptor, size, position)

    log = SealedLog(tmp_path, disk=Watched())
    large = write_batch(records(0, [(b"large", bytes(2 * READ_BYTES))]))
    rest = [write_batch(records(offset, [(b"a", bytes(50_000))])) for offset in range(1, 100)]
    log.add_segment(large, *rest)
    log.clean()
    assert max(sizes) == len(large)
    assert [record.offset for record in log.records()] == [0, 99]


def open_files(directory: Path) -> list[str]:
    """Return the files of a directory that this process has open, deleted ones included."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            targets.append(str(descriptor.readlink()))
    return sorted(target for target in targets if target.startswith(str(directory)))


def flips(batch_start: int, size: int) -> list[tuple[int, int]]:
    """Every byte of a batch but its leader epoch, which only the log's epoch history can check."""
    return [
        (batch_start, batch_start + at)
        for at in range(size)
        if not EPOCH_AT <= at < CRC_AT - 1  # the byte before the checksum is the format
    ]


def test_a_flipped_bit_anywhere_stops_the_cleaning_and_changes_nothing(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    segment = log.segments[1]
    data = segment.path.read_bytes()
    size = read_header(data).size
    opened = open_files(tmp_path)
    for start, at in flips(0, size) + flips(size, size) + flips(2 * size, size):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        segment.path.write_bytes(damaged)
        files = log.files()
        with pytest.raises(DamagedLog) as caught:
            log.try_clean()
        assert (caught.value.path, caught.value.position) == (segment.path, start)
        assert log.files() == files
    assert open_files(tmp_path) == opened


def test_damage_that_only_the_second_pass_meets_leaves_no_cleaned_file(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    log.first_dirty_offset = 12
    path = log.segments[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    files = log.files()
    with pytest.raises(DamagedLog):
        log.try_clean()
    assert log.files() == files


def with_length(length: int) -> Callable[[bytes], bytes]:
    return lambda data: FRAME.pack(FRAME.unpack_from(data)[0], length) + data[FRAME_BYTES:]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="the last byte is gone"),
        pytest.param(lambda data: data[: len(data) // 2], id="half of it is gone"),
        pytest.param(lambda _: b"", id="it is empty"),
        pytest.param(lambda data: bytes(len(data)), id="it is zeros"),
        pytest.param(with_length(2**31 - 1), id="a batch claims two gigabytes"),
        pytest.param(with_length(-1), id="a batch claims less than nothing"),
        pytest.param(with_length(48), id="a batch claims less than its header"),
        pytest.param(lambda data: data[78:] + data[:78], id="batches changed places"),
    ],
)
def test_a_changed_segment_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    log = a_log(tmp_path)
    path = log.segments[2].path
    path.write_bytes(damage(path.read_bytes()))
    files = log.files()
    with pytest.raises(DamagedLog) as caught:
        log.try_clean()
    assert caught.value.path == path
    assert log.files() == files


def test_a_segment_that_ends_before_the_next_begins_is_refused(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    whole = log.segments[1]
    log.segments[1] = type(whole)(
        path=whole.path,
        base_offset=whole.base_offset,
        end_offset=whole.end_offset + 1,
        size_bytes=whole.size_bytes,
    )
    with pytest.raises(DamagedLog, match="it ends before offset 12, not 13"):
        log.try_clean()


@pytest.mark.parametrize("last_offset", [1, 9])
def test_a_batch_whose_offsets_leave_the_segment_is_named(tmp_path: Path, last_offset: int) -> None:
    log = SealedLog(tmp_path)
    first = write_batch(records(0, [(b"a", b"1"), (b"b", b"1")]))
    odd = write_batch((), base_offset=2, last_offset=last_offset)
    log.add_segment(first, odd, write_batch(records(3, [(b"c", b"1")])))
    with pytest.raises(DamagedLog, match="leads out of the segment") as caught:
        log.try_clean()
    assert caught.value.position == len(first)


class FailingDisk(SystemDisk):
    """Works until the given call, then fails."""

    def __init__(self, method: str, calls: int, error: OSError) -> None:
        super().__init__()
        self.method = method
        self.calls = calls
        self.error = error

    def count(self, method: str) -> None:
        if method == self.method:
            self.calls -= 1
            if self.calls < 0:
                raise self.error

    def open(self, path: Path, *, create: bool = False) -> int:
        self.count("create" if create else "open")
        return super().open(path, create=create)

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        self.count("read")
        return super().read(descriptor, size, position)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self.count("write")
        super().write(descriptor, buffers, position)

    def sync(self, descriptor: int) -> None:
        self.count("sync")
        super().sync(descriptor)


@pytest.mark.parametrize("method", ["create", "open", "read", "write", "sync"])
def test_a_disk_that_fails_leaves_everything_as_it_was(tmp_path: Path, method: str) -> None:
    log = a_log(tmp_path)
    log.config = topic_config({"segment.bytes": "1024"})  # so that several files are written
    files = log.files()
    opened = open_files(tmp_path)
    failures = 0
    for calls in range(100):
        log.disk = FailingDisk(method, calls, OSError(errno.ENOSPC, "No space left on device"))
        try:
            cleaned = log.try_clean()
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - how often it is raised differs
            failures += 1
            assert log.files() == files
        else:
            assert len(cleaned.segments) == 3
            break
    assert failures == calls > 0
    assert open_files(tmp_path) == opened


def test_compaction_can_be_cancelled_at_any_batch(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    files = log.files()
    read_bytes = 0

    class Enough(Exception):
        pass

    def pace(size: int) -> None:
        nonlocal read_bytes
        read_bytes += size
        if read_bytes > 1.9 * sum(map(len, files.values())):
            raise Enough

    with pytest.raises(Enough):
        clean(
            log.segments,
            first_dirty_offset=0,
            config=log.config,
            now_ms=0,
            disk=log.disk,
            directory=tmp_path,
            pace=pace,
        )
    assert log.files() == files
