"""The broker's data directory: lock, node identity and layout.

.lock         held while a broker runs on the directory; contains its process id
running       exists from the start of a broker to its clean stop; contains the machine's boot id
identity      format of the directory, cluster id and node id; written once
partitions/   one directory per partition
snapshots/    one directory per shard of a state machine
damaged/      files set aside by repairs
repair        journal of a repair that has not finished
.probe        written and removed to test whether a full disk has space again
"""

import fcntl
import os
import re
from base64 import urlsafe_b64encode
from contextlib import suppress
from enum import Enum
from pathlib import Path
from uuid import uuid4

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.errors import DataDirectoryInUse, InvalidConfig, StorageFailed
from alpacamq.model.ports import Disk

from .disk import remove_tree
from .health import NO_ROOM
from .partition_log import DELETED
from .sealed_file import TEMPORARY, Unreadable

FORMAT = 1
LOCK = ".lock"
RUNNING = "running"
IDENTITY = "identity"
PARTITIONS = "partitions"
SNAPSHOTS = "snapshots"
TRACES = "traces"
DAMAGED = "damaged"
JOURNAL = "repair"
PROBE = ".probe"
MAX_IDENTITY_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BYTE = re.compile(r"\(byte (\d+)\)")


class LastStop(Enum):
    """How the previous run on a data directory ended."""

    CLEAN = "clean"
    KILLED = "killed"  # the operating system kept running: no write is lost
    POWER_LOST = "power lost"  # or the kernel crashed: unflushed writes may be lost


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The node and cluster that a data directory belongs to."""

    format: int
    cluster_id: str
    node_id: int
    checksum: int | None = None  # absent in directories of the first version

    @property
    def expected_checksum(self) -> int:
        return crc32c(f"{self.format} {self.cluster_id} {self.node_id}".encode())


class DataDirectory:
    """One broker's data. Call `open` first and `close` at the end."""

    def __init__(self, path: Path, disk: Disk, node_id: int) -> None:
        self.path = path
        self.partitions = path / PARTITIONS
        self.snapshots = path / SNAPSHOTS
        self.foreign: tuple[str, ...] = ()
        self._disk = disk
        self._node_id = node_id
        self._lock: int | None = None
        self._identity: Identity | None = None
        self.last_stop = LastStop.CLEAN
        # Whether state may still refer to records lost in a power loss.
        self.is_power_loss_open = False

    @property
    def cluster_id(self) -> str:
        assert self._identity is not None, "the data directory is not open"
        return self._identity.cluster_id

    def open(self) -> None:
        """Create what is missing, take the lock, and remove what interrupted deletions left."""
        try:
            self._make(self.path)
            self._lock = take_lock(self._disk, self.path)
            try:
                if JOURNAL in self._disk.names(self.path):
                    raise StorageFailed(
                        f"{self.path / JOURNAL}: a repair was interrupted; finish it with "
                        f"`alpacamq repair --execute --data-dir {self.path}`"
                    )
                self._identity = self._read_identity() or self._write_identity()
                self._make(self.partitions)
                self._make(self.snapshots)
                self._tidy()
                self._begin()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise StorageFailed(
                f"the data directory {self.path} cannot be used: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None

    def power_loss_settled(self) -> None:
        """Record durably that no state refers to lost records any more. Blocking."""
        self._replace(RUNNING, boot_id())
        self.is_power_loss_open = False

    def stopped(self) -> None:
        """Record a clean stop, after everything is durable. Blocking; before `close`."""
        if not self.is_power_loss_open:
            with suppress(FileNotFoundError):  # a full disk had no space for it
                self._disk.remove(self.path / RUNNING)
            self._disk.sync_directory(self.path)

    def partition_names(self) -> list[str]:
        """Return the names of the partition directories, in order."""
        return sorted(self._disk.names(self.partitions))

    def _make(self, path: Path) -> None:
        if not path.is_dir():
            if not path.parent.is_dir():
                self._make(path.parent)
            self._disk.make_directory(path)
            self._disk.sync_directory(path.parent)

    def _read_identity(self) -> Identity | None:
        path = self.path / IDENTITY
        try:
            identity = read_identity(self._disk, path)
        except FileNotFoundError:
            return None
        except Unreadable as error:
            raise StorageFailed(f"{path} is damaged at {error}; {self._to_repair()}") from error
        if identity.format > FORMAT:
            raise StorageFailed(
                f"{path} has format {identity.format}: a newer AlpacaMQ wrote it, this one knows {FORMAT}"
            )
        if identity.node_id != self._node_id:
            raise InvalidConfig(
                f"the data directory {self.path} belongs to node {identity.node_id}, "
                f"but this node is configured as {self._node_id}"
            )
        return identity

    def _write_identity(self) -> Identity:
        if self.partitions.is_dir() and self._disk.names(self.partitions):
            raise StorageFailed(
                f"{self.path / IDENTITY} is missing although there are partitions; {self._to_repair()}"
            )
        identity = new_identity(self._node_id)
        self._replace(IDENTITY, encode_identity(identity))
        return identity

    def _begin(self) -> None:
        """Determine how the last run ended, and mark the directory as running."""
        running_on = self._read(RUNNING)
        if running_on is None:
            self.last_stop = LastStop.CLEAN
            try:
                self._replace(RUNNING, boot_id())
            except OSError as error:
                # A full disk must not prevent a start: the broker frees space by deleting old data.
                if error.errno not in NO_ROOM:
                    raise
        else:
            self.last_stop = LastStop.KILLED if running_on == boot_id() else LastStop.POWER_LOST
            # The old boot id stays until that is settled: a kill meanwhile must not hide the power loss.
            self.is_power_loss_open = self.last_stop is LastStop.POWER_LOST

    def _read(self, name: str) -> bytes | None:
        try:
            file = self._disk.open(self.path / name)
        except FileNotFoundError:
            return None
        try:
            return self._disk.read(file, MAX_IDENTITY_BYTES, 0)
        finally:
            self._disk.close(file)

    def _replace(self, name: str, data: bytes) -> None:
        path = self.path / name
        temporary = path.with_name(name + TEMPORARY)
        file = self._disk.open(temporary, create=True)
        try:
            self._disk.truncate(file, 0)
            self._disk.write(file, [data], 0)
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        self._disk.rename(temporary, path)
        self._disk.sync_directory(self.path)

    def _to_repair(self) -> str:
        return f"see what can be done with `alpacamq repair --data-dir {self.path}`"

    def _tidy(self) -> None:
        known = {LOCK, RUNNING, IDENTITY, PARTITIONS, SNAPSHOTS, TRACES, DAMAGED}
        for name in self._disk.names(self.path):
            if name in (IDENTITY + TEMPORARY, RUNNING + TEMPORARY, PROBE):
                self._disk.remove(self.path / name)
        self.foreign = tuple(sorted(set(self._disk.names(self.path)) - known))
        for name in self._disk.names(self.partitions):
            if name.endswith(DELETED):
                remove_tree(self._disk, self.partitions / name)


def boot_id() -> bytes:
    """Return the kernel's boot id."""
    return _BOOT_ID.read_bytes()


def new_identity(node_id: int, cluster_id: str | None = None) -> Identity:
    """Create an identity, in a new cluster unless one is given."""
    if cluster_id is None:
        cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
    identity = Identity(format=FORMAT, cluster_id=cluster_id, node_id=node_id)
    return msgspec.structs.replace(identity, checksum=identity.expected_checksum)


def encode_identity(identity: Identity) -> bytes:
    return msgspec.json.encode(identity) + b"\n"


def read_identity(disk: Disk, path: Path) -> Identity:
    """Read the identity at `path`. Raises FileNotFoundError, or Unreadable that begins with the position."""
    file = disk.open(path)
    try:
        data = disk.read(file, MAX_IDENTITY_BYTES, 0)
    finally:
        disk.close(file)
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        found = _BYTE.search(str(error))
        raise Unreadable(f"byte {found[1] if found else len(data)}: {error}") from error
    # The fields a newer version checksums are not known here.
    is_known = identity.format <= FORMAT and identity.checksum is not None
    if is_known and identity.checksum != identity.expected_checksum:
        raise Unreadable("byte 0: its checksum does not match")
    return identity


def take_lock(disk: Disk, path: Path) -> int:
    """Lock the data directory until the returned descriptor is closed."""
    lock = disk.open(path / LOCK, create=True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = disk.read(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        disk.close(lock)
        raise DataDirectoryInUse(
            f"the data directory {path} is in use by another broker (process {holder})"
        ) from None
    try:
        disk.truncate(lock, 0)
        disk.write(lock, [f"{os.getpid()}\n".encode()], 0)
    except BaseException as error:
        # The process id is for messages only: a full disk must not prevent a start.
        if not (isinstance(error, OSError) and error.errno in NO_ROOM):
            disk.close(lock)
            raise
    return lock
