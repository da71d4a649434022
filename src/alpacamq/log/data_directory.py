"""The broker's data directory: who owns it, which node it belongs to, and where partitions lie in it.

.lock         held while a broker runs on the directory; tells its process id
identity      format of the directory, cluster id and node id; written once
partitions/   one directory per partition
snapshots/    one directory per shard of a state machine
"""

import fcntl
import os
from base64 import urlsafe_b64encode
from pathlib import Path
from uuid import uuid4

import msgspec

from alpacamq.model.errors import DataDirectoryInUse, InvalidConfig, StorageFailed
from alpacamq.model.ports import Disk

from .disk import remove_tree
from .partition_log import DELETED
from .sealed_file import TEMPORARY

FORMAT = 1
LOCK = ".lock"
IDENTITY = "identity"
PARTITIONS = "partitions"
SNAPSHOTS = "snapshots"
MAX_IDENTITY_BYTES = 4096


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which node of which cluster a data directory belongs to."""

    format: int
    cluster_id: str
    node_id: int


class DataDirectory:
    """One broker's data. `open` before anything else, `close` at the end."""

    def __init__(self, path: Path, disk: Disk, node_id: int) -> None:
        self.path = path
        self.partitions = path / PARTITIONS
        self.snapshots = path / SNAPSHOTS
        self.foreign: tuple[str, ...] = ()
        self._disk = disk
        self._node_id = node_id
        self._lock: int | None = None
        self._identity: Identity | None = None

    @property
    def cluster_id(self) -> str:
        assert self._identity is not None, "the data directory is not open"
        return self._identity.cluster_id

    def open(self) -> None:
        """Create what is missing, keep other brokers out, and remove what interrupted deletions left."""
        try:
            self._make(self.path)
            self._lock = take_lock(self._disk, self.path)
            try:
                self._identity = self._read_identity() or self._write_identity()
                self._make(self.partitions)
                self._make(self.snapshots)
                self._tidy()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise StorageFailed(
                f"the data directory {self.path} cannot be used: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Let other brokers in."""
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None

    def partition_names(self) -> list[str]:
        """The directories of partitions, in order."""
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
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            data = self._disk.read(file, MAX_IDENTITY_BYTES, 0)
        finally:
            self._disk.close(file)
        try:
            identity = msgspec.json.decode(data, type=Identity)
        except msgspec.DecodeError as error:
            raise StorageFailed(f"{path} cannot be read: {error}") from error
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
            raise StorageFailed(f"{self.path / IDENTITY} is missing although there are partitions")
        cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        identity = Identity(format=FORMAT, cluster_id=cluster_id, node_id=self._node_id)
        path = self.path / IDENTITY
        temporary = path.with_name(IDENTITY + TEMPORARY)
        file = self._disk.open(temporary, create=True)
        try:
            self._disk.truncate(file, 0)
            self._disk.write(file, [msgspec.json.encode(identity) + b"\n"], 0)
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        self._disk.rename(temporary, path)
        self._disk.sync_directory(self.path)
        return identity

    def _tidy(self) -> None:
        known = {LOCK, IDENTITY, PARTITIONS, SNAPSHOTS}
        for name in self._disk.names(self.path):
            if name == IDENTITY + TEMPORARY:
                self._disk.remove(self.path / name)
        self.foreign = tuple(sorted(set(self._disk.names(self.path)) - known))
        for name in self._disk.names(self.partitions):
            if name.endswith(DELETED):
                remove_tree(self._disk, self.partitions / name)


def take_lock(disk: Disk, path: Path) -> int:
    """Keep other brokers out of the data directory until the returned descriptor is closed."""
    lock = disk.open(path / LOCK, create=True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = disk.read(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        disk.close(lock)
        raise DataDirectoryInUse(
            f"the data directory {path} is in use by another broker (process {holder})"
        ) from None
    disk.truncate(lock, 0)
    disk.write(lock, [f"{os.getpid()}\n".encode()], 0)
    return lock
