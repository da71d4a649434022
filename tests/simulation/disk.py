"""The disk of a simulated node: what is not synced may be lost in a crash, from the end backwards.

Each file is a journal of changes. A sync makes durable what was written before it began; it takes time, and
may fail. After a crash, a file has its durable changes and a random part of those that followed, in order.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from tests.simulation.kit import SimNode

T = TypeVar("T")

# A node that stopped because of its disk is started again within this time.
RESTART_US = 1_000_000


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


# A record of which only a part was written, and one whose bytes have changed since.
TORN: Any = _Mark("TORN")
DAMAGED: Any = _Mark("DAMAGED")


class DiskFull(Exception):
    """The write was refused, and nothing of it was written."""


class LogFile(Generic[T]):
    """A file of records that grows at its end."""

    def __init__(self, disk: "SimDisk") -> None:
        self._disk = disk
        self.records: list[T] = []
        self.durable: list[T] = []
        self._changes: deque[tuple[int, Callable[[list[T]], None]]] = deque()
        self._written = 0
        self._appends: set[int] = set()

    def append(self, *records: T) -> None:
        """Write records, each of which may survive a crash without those after it."""
        self._disk.check_space()
        for record in records:
            self._appends.add(self._written + 1)
            self._change(lambda target, record=record: target.append(record))  # type: ignore[misc]

    def truncate(self, count: int) -> None:
        """Keep the first `count` records."""
        self._change(lambda target: target.__delitem__(slice(count, None)))

    def drop_first(self, count: int) -> None:
        """Remove the first `count` records."""
        self._change(lambda target: target.__delitem__(slice(None, count)))

    def replace(self, records: Iterable[T]) -> None:
        """Put another file in this one's place, in one step."""
        content = list(records)
        self._change(lambda target: target.__setitem__(slice(None), content))

    def _change(self, change: Callable[[list[T]], None]) -> None:
        self._written += 1
        self._changes.append((self._written, change))
        change(self.records)

    def begin_sync(self) -> int:
        return self._written

    def finish_sync(self, written: int) -> None:
        while self._changes and self._changes[0][0] <= written:
            number, change = self._changes.popleft()
            self._appends.discard(number)
            change(self.durable)

    def crash(self) -> None:
        random = self._disk.random
        if self._changes:
            self.finish_sync(self._changes[0][0] - 1 + random.randrange(len(self._changes) + 1))
        if self._changes and self._changes[0][0] in self._appends and random.random() < 0.5:
            self.durable.append(TORN)
        self._changes.clear()
        self._appends.clear()
        self.records = list(self.durable)

    def cut_torn_tail(self) -> None:
        """Remove a record that was written partly, durably. What a recovery does first."""
        if self.records and self.records[-1] is TORN:
            self.restore(self.records[:-1])

    def backup(self) -> list[T]:
        return list(self.durable)

    def restore(self, records: Iterable[T]) -> None:
        self.durable = list(records)
        self.records = list(self.durable)

    def damage(self, position: int) -> None:
        """Change the bytes of a stored record."""
        self.records[position] = DAMAGED
        if position < len(self.durable):
            self.durable[position] = DAMAGED


class Cell(Generic[T]):
    """A small file that is always replaced as a whole, in one step."""

    def __init__(self, disk: "SimDisk", value: T) -> None:
        self._log: LogFile[T] = LogFile(disk)
        self._initial = value

    @property
    def value(self) -> T:
        return self._log.records[0] if self._log.records else self._initial

    @property
    def durable(self) -> T:
        return self._log.durable[0] if self._log.durable else self._initial

    def write(self, value: T) -> None:
        self._log.replace([value])

    def begin_sync(self) -> int:
        return self._log.begin_sync()

    def finish_sync(self, written: int) -> None:
        self._log.finish_sync(written)

    def crash(self) -> None:
        self._log.crash()

    def backup(self) -> list[T]:
        return self._log.backup()

    def restore(self, records: Iterable[T]) -> None:
        self._log.restore(records)


SimFile = LogFile[Any] | Cell[Any]


class SimDisk:
    """The files of a node by name."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node
        self.files: dict[str, SimFile] = {}
        self.min_sync_us = 200
        self.max_sync_us = 4_000
        self.stalled_until_us = 0
        self.fail_next_sync = False
        self.is_full = False

    @property
    def random(self) -> Any:
        return self._node.simulation.random

    def log(self, name: str) -> LogFile[Any]:
        """Open or create a file of records."""
        file = self.files.setdefault(name, LogFile(self))
        assert isinstance(file, LogFile)
        return file

    def cell(self, name: str, initial: T) -> Cell[T]:
        """Open or create a small file."""
        file = self.files.setdefault(name, Cell(self, initial))
        assert isinstance(file, Cell)
        return file

    def check_space(self) -> None:
        if self.is_full:
            raise DiskFull

    def sync(self, files: Iterable[SimFile], done: Callable[..., None], *args: Any) -> None:
        """Make durable what was written to `files` so far, then call `done`. A failure crashes the node."""
        simulation = self._node.simulation
        took_us = self.random.randrange(self.min_sync_us, self.max_sync_us)
        if self.stalled_until_us > simulation.now_us:
            took_us += self.stalled_until_us - simulation.now_us
        begun = [(file, file.begin_sync()) for file in files]
        simulation.after(took_us, self._finish_sync, self._node.incarnation, begun, done, args)

    def _finish_sync(
        self,
        incarnation: int,
        begun: list[tuple[SimFile, int]],
        done: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        node = self._node
        if incarnation != node.incarnation or not node.is_up:
            return
        if self.fail_next_sync:
            # After a failed fsync it is unknown what is stored: the process must not go on.
            self.fail_next_sync = False
            node.simulation.trace("sync-failed", node.id)
            node.crash_for(RESTART_US)
            return
        for file, written in begun:
            file.finish_sync(written)
        node.simulation.trace("synced", node.id)
        node.perform(done, *args)

    def crash(self) -> None:
        for file in self.files.values():
            file.crash()

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does. The node must be down."""
        assert not self._node.is_up
        self.files.clear()

    def backup(self) -> dict[str, list[Any]]:
        """Copy what is durable."""
        return {name: file.backup() for name, file in self.files.items()}

    def restore(self, backup: dict[str, list[Any]]) -> None:
        """Bring back an earlier copy; files that came later are gone. The node must be down."""
        assert not self._node.is_up
        self.files = {name: file for name, file in self.files.items() if name in backup}
        for name, records in backup.items():
            self.files[name].restore(records)

    def heal(self) -> None:
        self.stalled_until_us = 0
        self.fail_next_sync = self.is_full = False
