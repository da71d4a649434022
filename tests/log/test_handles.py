"""Few files are open, whatever the number of partitions; a file in use is never closed."""

import errno
import os
import threading
from pathlib import Path
from random import Random

import pytest

from alpacamq.log.disk import SystemDisk
from alpacamq.log.storage import FileHandles

from .logs import a_batch, a_storage, append, flush, open_log, read_batches


class CountingDisk(SystemDisk):
    """Knows what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open_now: set[int] = set()
        self.most = 0

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self.open_now.add(descriptor)
        self.most = max(self.most, len(self.open_now))
        return descriptor

    def close(self, descriptor: int) -> None:
        self.open_now.remove(descriptor)
        super().close(descriptor)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}" for number in range(10)]
    for path in paths:
        path.write_text(path.name)
    return paths


def test_the_least_recently_used_file_is_closed_first(files: list[Path]) -> None:
    disk = CountingDisk()
    handles = FileHandles(disk, 2)
    first = handles.pin(files[0])
    first.release()
    handles.pin(files[1]).release()
    assert handles.pin(files[0]) is first
    first.release()
    handles.pin(files[2]).release()
    assert handles.pin(files[0]) is first
    assert len(handles) == len(disk.open_now) == 2


def test_a_pinned_file_is_not_closed_even_beyond_the_limit(files: list[Path]) -> None:
    disk = CountingDisk()
    handles = FileHandles(disk, 2)
    pinned = [handles.pin(path) for path in files]
    assert [os.pread(handle.descriptor, 10, 0).decode() for handle in pinned] == [path.name for path in files]
    for handle in pinned:
        handle.release()
    assert len(handles) == len(disk.open_now) == 2


def test_a_file_is_opened_once_for_all_users(files: list[Path]) -> None:
    handles = FileHandles(CountingDisk(), 2)
    first, second = handles.pin(files[0]), handles.pin(files[0])
    assert first is second
    first.release()
    handles.pin(files[1])
    handles.pin(files[2])
    assert os.pread(second.descriptor, 10, 0) == b"0"


def test_a_forgotten_file_stays_open_while_pinned(files: list[Path]) -> None:
    disk = CountingDisk()
    handles = FileHandles(disk, 5)
    old = handles.pin(files[0])
    files[0].unlink()
    handles.forget(files[0])
    files[0].write_text("new")
    new = handles.pin(files[0])
    assert os.pread(old.descriptor, 10, 0) == b"0"
    assert os.pread(new.descriptor, 10, 0) == b"new"
    old.release()
    assert disk.open_now == {new.descriptor}
    new.release()
    handles.forget(files[0])
    handles.forget(files[0])
    assert disk.open_now == set()


def test_close_closes_unpinned_files(files: list[Path]) -> None:
    disk = CountingDisk()
    handles = FileHandles(disk, 5)
    handles.pin(files[0]).release()
    used = handles.pin(files[1])
    handles.close()
    assert disk.open_now == {used.descriptor}


def test_a_file_that_cannot_be_opened_takes_no_room(files: list[Path]) -> None:
    handles = FileHandles(CountingDisk(), 2)
    with pytest.raises(FileNotFoundError):
        handles.pin(files[0].with_name("missing"))
    assert len(handles) == 0


def test_threads_may_share_them(files: list[Path]) -> None:
    disk = CountingDisk()
    handles = FileHandles(disk, 3)
    failures: list[str] = []

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(500):
            path = random.choice(files)
            handle = handles.pin(path)
            if os.pread(handle.descriptor, 10, 0).decode() != path.name:
                failures.append(path.name)
            if random.random() < 0.1:
                handles.forget(path)
            handle.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    handles.close()
    assert disk.open_now == set()


def test_many_logs_share_few_open_files(tmp_path: Path) -> None:
    disk = CountingDisk()
    storage = a_storage(disk, handles=8)
    logs = [open_log(tmp_path / f"t-{number}", storage) for number in range(60)]
    for log in logs:
        append(log, a_batch())
    for log in logs:
        flush(log)
        assert len(read_batches(log)) == 1
    assert disk.most <= 8 + 2
    for log in logs:
        log.close()
    assert disk.open_now == set()
    for number in range(60):
        open_log(tmp_path / f"t-{number}", storage)
    assert disk.open_now == set()


class FullDisk(CountingDisk):
    """A disk with a limited number of descriptors."""

    def __init__(self, descriptors: int) -> None:
        super().__init__()
        self._descriptors = descriptors

    def open(self, path: Path, *, create: bool = False) -> int:
        if len(self.open_now) >= self._descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, create=create)


def test_idle_files_are_closed_where_descriptors_run_out(files: list[Path]) -> None:
    handles = FileHandles(FullDisk(3), 8)
    for path in files:
        handles.pin(path).release()
    pinned = [handles.pin(path) for path in files[:3]]
    with pytest.raises(OSError, match="Too many open files"):
        handles.pin(files[3])
    pinned.pop().release()
    handles.pin(files[3])


def test_clients_cannot_take_the_files_that_the_log_needs(files: list[Path]) -> None:
    handles = FileHandles(CountingDisk(), 3)
    reading = [handles.pin_for_client(path) for path in files[:3]]
    with pytest.raises(OSError, match="clients are reading 3 files already"):
        handles.pin_for_client(files[3])
    handles.pin_for_client(files[0]).release()
    handles.pin(files[3]).release()
    reading.pop().release()
    handles.pin_for_client(files[3])


class SlowToClose(CountingDisk):
    """Closes files as slowly as a test wants, as happens for a large removed file."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closing = threading.Event()
        self.may_close = threading.Event()

    def close(self, descriptor: int) -> None:
        self.is_closing.set()
        assert self.may_close.wait(20)
        super().close(descriptor)


@pytest.mark.parametrize("is_pinned", [False, True])
def test_other_files_can_be_used_while_one_is_being_freed(files: list[Path], *, is_pinned: bool) -> None:
    disk = SlowToClose()
    handles = FileHandles(disk, 5)
    handle = handles.pin(files[0])
    if not is_pinned:
        handle.release()

    def free() -> None:
        handles.forget(files[0])
        if is_pinned:
            handle.release()

    freeing = threading.Thread(target=free)
    freeing.start()
    assert disk.is_closing.wait(20)
    other = threading.Thread(target=lambda: handles.pin(files[1]).release())
    other.start()
    other.join(20)
    assert not other.is_alive()
    disk.may_close.set()
    freeing.join()
