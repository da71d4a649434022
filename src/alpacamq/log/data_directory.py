"""The broker's data directory: lock, node identity and layout.

.lock         held while a broker runs on the directory; contains its process id
running       exists from the start of a broker to its clean stop; contains the machine's boot id
stopped       the same file from a clean stop to the next start, which needs no room for it then
identity      format of the directory, its id, node id, cluster id and founding voters
partitions/   one directory per partition
metadata/     vote, broker epoch and snapshots of the cluster's metadata
snapshots/    one directory per shard of a state machine
damaged/      files set aside by repairs
repair        journal of a repair that has not finished
restoring     exists while a backup is being restored into the directory
backup/       links to the files of a backup that is being copied
.probe        written and removed to test whether a full disk has space again
"""

import fcntl
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from uuid import UUID, uuid4, uuid5

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.errors import (
    DataDirectoryInUse,
    InconsistentClusterId,
    InvalidConfig,
    InvalidVoters,
    StorageFailed,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Disk
from alpacamq.model.voters import Proposal, Voter

from .disk import remove_tree
from .health import NO_ROOM
from .partition_log import DELETED
from .sealed_file import TEMPORARY, Unreadable

FORMAT = 2
LOCK = ".lock"
RUNNING = "running"
STOPPED = "stopped"
IDENTITY = "identity"
PARTITIONS = "partitions"
METADATA = "metadata"
SNAPSHOTS = "snapshots"
TRACES = "traces"
DAMAGED = "damaged"
JOURNAL = "repair"
RESTORING = "restoring"
BACKUP = "backup"
# The boot id of a restored directory: what was not flushed when it was copied may be missing.
RESTORED = b"restored\n"
PROBE = ".probe"
MAX_IDENTITY_BYTES = 16 << 10
# Directories of format 1 have no id; theirs is derived, so that it is the same before and after it is stored.
_DERIVED_IDS = UUID("2f1d3ce5-8d0a-4d0c-9a5e-5a3f0f9f2a11")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BYTE = re.compile(r"\(byte (\d+)\)")


class LastStop(Enum):
    """How the previous run on a data directory ended."""

    CLEAN = "clean"
    KILLED = "killed"  # the operating system kept running: no write is lost
    POWER_LOST = "power lost"  # or the kernel crashed: unflushed writes may be lost


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node and cluster that a data directory belongs to.

    The cluster id is empty until the node has founded or joined a cluster. `voters` are those that founded
    it; empty if this node joined later. `proposal` is a cluster that this directory has accepted and that
    is not founded yet; it binds the directory until then.
    """

    format: int
    cluster_id: str
    node_id: int
    directory_id: UUID | None = None  # absent in format 1
    voters: tuple[Voter, ...] = ()
    proposal: Proposal | None = None
    checksum: int | None = None  # absent in directories of the first version

    @property
    def expected_checksum(self) -> int:
        if self.format == 1:
            return crc32c(f"{self.format} {self.cluster_id} {self.node_id}".encode())
        return crc32c(msgspec.json.encode(msgspec.structs.replace(self, checksum=None)))

    @property
    def is_member(self) -> bool:
        """Whether the directory belongs to a cluster."""
        return bool(self.cluster_id)


class DataDirectory:
    """One broker's data. Call `open` first and `close` at the end."""

    def __init__(self, path: Path, disk: Disk, node_id: int) -> None:
        self.path = path
        self.partitions = path / PARTITIONS
        self.metadata = path / METADATA
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
    def identity(self) -> Identity:
        assert self._identity is not None, "the data directory is not open"
        return self._identity

    @property
    def cluster_id(self) -> str:
        """The cluster, empty while the node belongs to none."""
        return self.identity.cluster_id

    @property
    def directory_id(self) -> UUID:
        """Drawn once: another id means that the data of this node was lost."""
        directory_id = self.identity.directory_id
        assert directory_id is not None, "identities of format 1 are converted when they are read"
        return directory_id

    def open(self, *, founds_cluster: bool = True, is_restoring: bool = False) -> None:
        """Create what is missing, take the lock, and remove what interrupted deletions left.

        A new directory founds a cluster of one voter, unless `founds_cluster` is False: then it belongs to
        none until `found` or `join`. With `is_restoring` the caller is the restore of a backup into it.
        """
        try:
            self._make(self.path)
            self._lock = take_lock(self._disk, self.path)
            try:
                if JOURNAL in self._disk.names(self.path):
                    raise StorageFailed(
                        f"{self.path / JOURNAL}: a repair was interrupted; finish it with "
                        f"`alpacamq repair --execute --data-dir {self.path}`"
                    )
                if RESTORING in self._disk.names(self.path) and not is_restoring:
                    raise StorageFailed(
                        f"{self.path / RESTORING}: a restore into this directory was interrupted; delete the "
                        "directory and restore again"
                    )
                self._identity = self._read_identity() or self._write_identity(founds_cluster=founds_cluster)
                self._make(self.partitions)
                self._make(self.metadata)
                self._make(self.snapshots)
                self._tidy()
                self._begin()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise StorageFailed(
                f"the data directory {self.path} cannot be used: {error.strerror or error}; node.data_dir "
                f"(--data-dir) must be a directory that user {os.geteuid()} can write"
            ) from error

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None

    def accept(self, proposal: Proposal) -> None:
        """Store durably that this directory takes part in founding a cluster. Blocking.

        Raises InconsistentClusterId or InvalidVoters if it is bound already.
        """
        identity = self.identity
        if identity.is_member and identity.cluster_id != proposal.cluster_id:
            raise InconsistentClusterId(f"{self.path} belongs to cluster {identity.cluster_id}")
        if is_bound_otherwise(identity, proposal.cluster_id) or identity.proposal not in (None, proposal):
            raise InvalidVoters(f"{self.path} has accepted another proposal, {identity.proposal}")
        if Voter(BrokerId(self._node_id), self.directory_id) not in proposal.voters:
            raise InvalidVoters(f"the proposal does not name the directory {self.directory_id}")
        if not identity.is_member and identity.proposal is None:
            self._change(proposal=proposal)

    def found(self) -> None:
        """Store durably that every voter has accepted the proposal, so that the cluster exists. Blocking."""
        identity = self.identity
        if not identity.is_member:
            assert identity.proposal is not None, "no proposal was accepted"
            proposal = identity.proposal
            self._change(cluster_id=proposal.cluster_id, voters=proposal.voters, proposal=None)

    def join(self, cluster_id: str) -> None:
        """Store durably that this directory belongs to an existing cluster, without a vote. Blocking.

        Raises InconsistentClusterId or InvalidVoters if it is bound already.
        """
        identity = self.identity
        if identity.is_member and identity.cluster_id != cluster_id:
            raise InconsistentClusterId(f"{self.path} belongs to cluster {identity.cluster_id}")
        if is_bound_otherwise(identity, cluster_id):
            raise InvalidVoters(f"{self.path} has accepted another proposal, {identity.proposal}")
        if not identity.is_member:
            self._change(cluster_id=cluster_id, proposal=None)

    def restore_id(self, directory_id: UUID) -> None:
        """Store the id that the directory had before its identity was rebuilt. Blocking."""
        own = Voter(BrokerId(self._node_id), directory_id)
        self._change(directory_id=directory_id, voters=(own,))

    def replace_identity(self, identity: Identity) -> None:
        """Store another identity durably. Blocking. Raises StorageFailed."""
        try:
            self._replace(IDENTITY, encode_identity(identity))
        except OSError as error:
            raise StorageFailed(
                f"{self.path / IDENTITY} cannot be written: {error.strerror or error}"
            ) from error
        self._identity = identity

    def power_loss_settled(self) -> None:
        """Record durably that no state refers to lost records any more. Blocking."""
        self._replace(RUNNING, boot_id())
        self.is_power_loss_open = False

    def stopped(self) -> None:
        """Record a clean stop, after everything is durable. Blocking; before `close`."""
        if not self.is_power_loss_open:
            with suppress(FileNotFoundError):  # a full disk had no space for it
                self._disk.rename(self.path / RUNNING, self.path / STOPPED)
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
                f"{path} has format {identity.format}: a newer AlpacaMQ wrote it, this one knows {FORMAT}; "
                "install the newer version again, or set another node.data_dir"
            )
        if identity.node_id != self._node_id:
            raise InvalidConfig(
                f"the data directory {self.path} belongs to node {identity.node_id}, "
                f"but this node is configured as {self._node_id}"
            )
        return self._converted(identity) if identity.format == 1 else identity

    def _converted(self, identity: Identity) -> Identity:
        """Convert an identity of version 0.1, whose node was a cluster of its own."""
        directory_id = uuid5(_DERIVED_IDS, f"{identity.cluster_id} {identity.node_id}")
        converted = seal_identity(
            Identity(
                format=FORMAT,
                cluster_id=identity.cluster_id,
                node_id=identity.node_id,
                directory_id=directory_id,
                voters=(Voter(BrokerId(identity.node_id), directory_id),),
            )
        )
        try:
            self._replace(IDENTITY, encode_identity(converted))
        except OSError as error:
            # A full disk must not prevent a start. The id is derived again next time.
            if error.errno not in NO_ROOM:
                raise
        return converted

    def _write_identity(self, *, founds_cluster: bool) -> Identity:
        if self.partitions.is_dir() and self._disk.names(self.partitions):
            raise StorageFailed(
                f"{self.path / IDENTITY} is missing although there are partitions; {self._to_repair()}"
            )
        identity = new_identity(self._node_id) if founds_cluster else empty_identity(self._node_id)
        self._replace(IDENTITY, encode_identity(identity))
        return identity

    def _change(self, **changes: object) -> None:
        self.replace_identity(seal_identity(msgspec.structs.replace(self.identity, **changes)))

    def _begin(self) -> None:
        """Determine how the last run ended, and mark the directory as running."""
        running_on = self._read(RUNNING)
        if running_on is None:
            self.last_stop = LastStop.CLEAN
            self._mark_running()
        else:
            self.last_stop = LastStop.KILLED if running_on == boot_id() else LastStop.POWER_LOST
            # The old boot id stays until that is settled: a kill meanwhile must not hide the power loss.
            self.is_power_loss_open = self.last_stop is LastStop.POWER_LOST

    def _mark_running(self) -> None:
        """Store the boot id. A full disk must not prevent a start: the broker deletes old data then.

        The file of the last clean stop takes it without more room. New directories and those of earlier
        versions have none.
        """
        path = self.path / STOPPED
        is_reused = STOPPED in self._disk.names(self.path)
        try:
            if is_reused:
                self._overwrite(path, boot_id())
            else:
                self._replace(RUNNING, boot_id())
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        if is_reused:
            # Even with an earlier boot id: a kill is taken for a power loss then, but not for a clean stop.
            self._disk.rename(path, self.path / RUNNING)
            self._disk.sync_directory(self.path)

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

    def _overwrite(self, path: Path, data: bytes) -> None:
        """Write over the content of a file, which is as long."""
        file = self._disk.open(path)
        try:
            self._disk.write(file, [data], 0)
            self._disk.sync(file)
        finally:
            self._disk.close(file)

    def _to_repair(self) -> str:
        return f"see what can be done with `alpacamq repair --data-dir {self.path}`"

    def _tidy(self) -> None:
        known = {LOCK, RUNNING, STOPPED, IDENTITY, PARTITIONS, METADATA, SNAPSHOTS, TRACES, DAMAGED, BACKUP}
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


def is_bound_otherwise(identity: Identity, cluster_id: str) -> bool:
    """Return whether a directory has accepted the proposal of another cluster."""
    return identity.proposal is not None and identity.proposal.cluster_id != cluster_id


def new_cluster_id() -> str:
    """Draw a cluster id."""
    return urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()


def new_identity(node_id: int, cluster_id: str | None = None) -> Identity:
    """Create an identity in a given cluster, or as the only voter of a new one."""
    directory_id = uuid4()
    voters = (Voter(BrokerId(node_id), directory_id),) if cluster_id is None else ()
    return seal_identity(
        Identity(
            format=FORMAT,
            cluster_id=new_cluster_id() if cluster_id is None else cluster_id,
            node_id=node_id,
            directory_id=directory_id,
            voters=voters,
        )
    )


def empty_identity(node_id: int) -> Identity:
    """Create the identity of a directory that belongs to no cluster."""
    return seal_identity(Identity(format=FORMAT, cluster_id="", node_id=node_id, directory_id=uuid4()))


def seal_identity(identity: Identity) -> Identity:
    """Return the identity with its checksum."""
    return msgspec.structs.replace(identity, checksum=identity.expected_checksum)


def format_directory(
    path: Path, disk: Disk, node_id: int, cluster_id: str, voters: tuple[Voter, ...] = ()
) -> Identity:
    """Make an empty data directory a member of a cluster by hand: a founding voter if `voters` name the node.

    To found a cluster, format one directory per voter with the same cluster id and voters. Raises
    InconsistentClusterId if the directory belongs to a cluster, InvalidConfig, or StorageFailed.
    """
    own = [voter for voter in voters if voter.id == node_id]
    if len({voter.id for voter in voters}) != len(voters):
        raise InvalidConfig("a voter is named twice")
    if not cluster_id or len(cluster_id) > 64 or not cluster_id.isprintable():
        raise InvalidConfig("a cluster id has 1 to 64 printable characters")

    def formatted(former: Identity) -> Identity:
        if former.is_member:
            raise InconsistentClusterId(f"{path} belongs to cluster {former.cluster_id} already")
        if former.proposal is not None:
            raise InvalidVoters(f"{path} has accepted cluster {former.proposal.cluster_id}; reset it first")
        return msgspec.structs.replace(
            former,
            cluster_id=cluster_id,
            voters=voters,
            directory_id=own[0].directory if own else former.directory_id,
        )

    return _rewrite_identity(path, disk, node_id, formatted)


def reset_directory(path: Path, disk: Disk, node_id: int) -> Identity:
    """Withdraw from a proposal that cannot be founded any more. The directory gets another id.

    Raises InconsistentClusterId if the directory belongs to a cluster.
    """

    def emptied(former: Identity) -> Identity:
        if former.is_member:
            raise InconsistentClusterId(
                f"{path} belongs to cluster {former.cluster_id}; to leave it, remove the node and its data"
            )
        return empty_identity(node_id)

    return _rewrite_identity(path, disk, node_id, emptied)


def _rewrite_identity(
    path: Path, disk: Disk, node_id: int, rewritten: Callable[[Identity], Identity]
) -> Identity:
    directory = DataDirectory(path, disk, node_id)
    directory.open(founds_cluster=False)
    try:
        changed = seal_identity(rewritten(directory.identity))
        if changed.directory_id != directory.directory_id and directory.partition_names():
            raise StorageFailed(f"{path} contains partitions, so its id cannot be changed")
        directory.replace_identity(changed)
        return changed
    finally:
        # The traces of a crash stay for the next start of the broker.
        if directory.last_stop is LastStop.CLEAN:
            directory.stopped()
        directory.close()


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
    is_unchecked = identity.format > FORMAT or (identity.format == 1 and identity.checksum is None)
    if not is_unchecked and identity.checksum != identity.expected_checksum:
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
