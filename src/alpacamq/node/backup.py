"""`alpacamq backup` and `alpacamq restore`: copies of a data directory, of a running broker too.

A running broker is paused while links to all of its files are made, which takes milliseconds: the copy is
what a `kill -9` at that instant would leave, and recovery handles it. Files only grow or are replaced, so
the bytes that a file had then are copied afterwards, while the broker goes on.

A backup is a directory: `data/`, the files, and `manifest.json`, their sizes and checksums. The manifest is
written last; without it, a backup is incomplete.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.metadata.opening import make_sole_voter, stored_voters
from alpacamq.broker.metadata.store import IDENTITY as METADATA_LOG
from alpacamq.log.data_directory import (
    BACKUP,
    DAMAGED,
    FORMAT,
    IDENTITY,
    JOURNAL,
    LOCK,
    METADATA,
    PARTITIONS,
    PROBE,
    RESTORED,
    RESTORING,
    RUNNING,
    STOPPED,
    TRACES,
    Identity,
    encode_identity,
    new_cluster_id,
    read_identity,
    seal_identity,
    take_lock,
)
from alpacamq.log.disk import SystemDisk
from alpacamq.log.inspection import inspect_partition
from alpacamq.log.partition_log import DELETED
from alpacamq.log.sealed_file import Unreadable
from alpacamq.model.errors import DataDirectoryInUse, InvalidConfig, InvalidVoters, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.version import VERSION
from alpacamq.model.voters import Voter

MANIFEST = "manifest.json"
DATA = "data"
MANIFEST_FORMAT = 1
# A longer pause would end sessions of clients and of the node in its cluster.
MAX_PAUSE_SECONDS = 3.0
_POLL_SECONDS = 0.001
_CHUNK_BYTES = 1 << 20
MIB = 1 << 20
_NOT_ALLOWED = "not allowed to pause it; run this as the broker's user"
# Not part of a backup: what belongs to the process, and what may be deleted at any time.
_LEFT_OUT = frozenset({LOCK, STOPPED, PROBE, BACKUP, TRACES, DAMAGED})
# File systems that are a mount point of their own have it.
_LOST_AND_FOUND = "lost+found"
_SCRATCH = ".metadata"


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a backup, by its path in the data directory."""

    path: str
    size_bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains. `paused_ms` is how long the broker stood still; null if it was stopped."""

    format: int
    version: str
    created_at: str
    node_id: int
    cluster_id: str
    directory_format: int
    paused_ms: int | None
    files: list[FileEntry]
    # Nodes that vote on the metadata of its cluster.
    voters: list[int] = []

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `-o json`, of both commands."""

    backup: str
    data_directory: str
    node_id: int
    cluster_id: str
    created_at: str
    files: int
    partitions: int
    size_bytes: int
    seconds: float
    paused_ms: int | None
    # Nodes that voted in the cluster of the backup and do not in that of the restored directory.
    former_voters: list[int] = []


class _Source(NamedTuple):
    """A file to copy, and how many of its bytes."""

    path: Path
    name: str
    size_bytes: int


def back_up(data_directory: Path, target: Path, output: str = "text") -> int:
    """Copy a data directory to a new directory, check the copy, and print what it contains."""
    began_at = time.monotonic()
    disk = SystemDisk()
    identity = _identity_of(data_directory, disk)
    if target.resolve().is_relative_to(data_directory.resolve()):
        raise InvalidConfig(f"{target} is inside the data directory; choose another place with --to")
    if not _is_empty(target):
        raise InvalidConfig(f"{target} is not an empty directory; choose another place with --to")
    try:
        (target / DATA).mkdir(parents=True, exist_ok=True)
        with _sources(data_directory, disk) as (sources, paused_ms):
            manifest = Manifest(
                format=MANIFEST_FORMAT,
                version=VERSION,
                created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                node_id=identity.node_id,
                cluster_id=identity.cluster_id,
                directory_format=identity.format,
                paused_ms=paused_ms,
                files=[
                    FileEntry(
                        path=source.name,
                        size_bytes=source.size_bytes,
                        crc32c=_copy(source.path, target / DATA / source.name, source.size_bytes),
                    )
                    for source in sources
                ],
            )
        _check_partitions(disk, target / DATA)
        voters = _voters_of(target, manifest, disk)
        manifest = msgspec.structs.replace(manifest, voters=voters)
        _sync(disk, target)
        _write(disk, target / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    except OSError as error:
        raise StorageFailed(f"the backup failed: {_reason(error)}; {target} is incomplete") from error
    _print(_report(manifest, target, data_directory, began_at), output, "backed up")
    return 0


def restore(backup: Path, target: Path, output: str = "text", *, founds_cluster: bool = False) -> int:
    """Make a data directory of a backup, and print what it contains."""
    began_at = time.monotonic()
    disk = SystemDisk()
    manifest = _read_manifest(backup)
    if not _is_empty(target):
        raise InvalidConfig(f"{target} is not an empty directory; choose another with --data-dir")
    others = [voter for voter in manifest.voters if voter != manifest.node_id]
    if others and not founds_cluster:
        raise InvalidVoters(
            f"{backup} is of node {manifest.node_id} of a cluster with further voters "
            f"({', '.join(map(str, others))}). Use --new-cluster to found a new cluster with its data; to "
            "replace the node in its cluster, start it with an empty data directory instead"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        _write(disk, target / RESTORING, f"{backup.absolute()}\n".encode())
        for file in manifest.files:
            crc = _copy(backup / DATA / file.path, target / file.path, file.size_bytes)
            if crc != file.crc32c:
                raise StorageFailed(f"{backup / DATA / file.path} is damaged: its checksum does not match")
        if manifest.paused_ms is not None:
            (target / RUNNING).write_bytes(RESTORED)
        if founds_cluster:
            identity = _founder(_identity_of(target, disk))
            (target / IDENTITY).write_bytes(encode_identity(identity))
            manifest = msgspec.structs.replace(manifest, cluster_id=identity.cluster_id)
            make_sole_voter(target, disk, SystemClock(), BrokerId(manifest.node_id), is_restoring=True)
        _sync(disk, target)
        (target / RESTORING).unlink()
        disk.sync_directory(target)
    except OSError as error:
        raise StorageFailed(f"the restore failed: {_reason(error)}; {target} is incomplete") from error
    _print(_report(manifest, backup, target, began_at, others), output, "restored")
    return 0


def _is_empty(target: Path) -> bool:
    """Return whether a directory can be filled, or created."""
    if not target.is_dir():
        return not target.exists()
    return not {each.name for each in target.iterdir()} - {_LOST_AND_FOUND}


@contextmanager
def _sources(data_directory: Path, disk: SystemDisk) -> Iterator[tuple[list[_Source], int | None]]:
    """Yield files that do not change while they are copied, and how long the broker was paused."""
    try:
        lock = take_lock(disk, data_directory)
    except DataDirectoryInUse:
        with _links(data_directory) as linked:
            yield linked
        return
    try:
        if (data_directory / JOURNAL).exists():
            raise StorageFailed(f"{data_directory / JOURNAL}: a repair was interrupted; finish it first")
        yield list(_files(data_directory, data_directory)), None
    finally:
        disk.close(lock)


@contextmanager
def _links(data_directory: Path) -> Iterator[tuple[list[_Source], int]]:
    """Pause the running broker, link all its files, and yield the links; remove them at the end."""
    staging = data_directory / BACKUP
    staging.mkdir(mode=0o700, exist_ok=True)
    lock = take_lock(SystemDisk(), staging)
    try:
        links = staging / DATA
        shutil.rmtree(links, ignore_errors=True)  # of a backup that was killed
        links.mkdir()
        try:
            # Directories before the pause, which is shorter without them.
            for directory in _directories(data_directory):
                (links / directory.relative_to(data_directory)).mkdir(parents=True, exist_ok=True)
            with _paused(_holder(data_directory)) as pause:
                sources = [_link(source, links) for source in _files(data_directory, data_directory)]
            yield sources, round(pause.seconds * 1000)
        finally:
            shutil.rmtree(links, ignore_errors=True)
    except DataDirectoryInUse:
        raise DataDirectoryInUse(f"another backup of {data_directory} is running") from None
    finally:
        os.close(lock)
        shutil.rmtree(staging, ignore_errors=True)


def _link(source: _Source, links: Path) -> _Source:
    path = links / source.name
    try:
        path.hardlink_to(source.path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)  # of a partition that is new
        path.hardlink_to(source.path)
    return _Source(path, source.name, path.stat().st_size)


class _Pause:
    """How long a process stood still."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def _paused(process_id: int) -> Iterator[_Pause]:
    """Stop a process with SIGSTOP for the duration of the block, MAX_PAUSE_SECONDS at most.

    A child of this process lets it continue if this one is killed or takes too long.
    """
    pause = _Pause()
    reading, writing = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(writing)
        select.select([reading], [], [], MAX_PAUSE_SECONDS)
        try:
            os.kill(process_id, signal.SIGCONT)
        finally:
            os._exit(0)
    os.close(reading)
    began_at = time.monotonic()
    try:
        os.kill(process_id, signal.SIGSTOP)
        while not _is_stopped(process_id):
            if time.monotonic() - began_at > MAX_PAUSE_SECONDS:
                raise StorageFailed(f"process {process_id} could not be paused in {MAX_PAUSE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        yield pause
    except PermissionError as error:
        raise StorageFailed(f"process {process_id}: {_NOT_ALLOWED}") from error
    finally:
        os.close(writing)
        os.waitpid(guard, 0)
        pause.seconds = time.monotonic() - began_at
    if pause.seconds > MAX_PAUSE_SECONDS:
        raise StorageFailed(
            f"linking the files took longer than the {MAX_PAUSE_SECONDS:.0f} s for which a broker is paused; "
            "take a snapshot of the file system instead, or stop the broker"
        )


def _is_stopped(process_id: int) -> bool:
    """Return whether all threads of a process are stopped."""
    for task in Path(f"/proc/{process_id}/task").iterdir():
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue  # the thread has ended
        if state not in ("T", "t"):
            return False
    return True


def _holder(data_directory: Path) -> int:
    """Return the id of the process that has locked a data directory."""
    lock = data_directory / LOCK
    name = lock.read_text().strip()
    if not (name.isascii() and name.isdigit() and _has_open(int(name), lock)):
        raise StorageFailed(
            f"{data_directory} is in use by process {name or 'unknown'}, which is not on this machine or not "
            "in this container: run this beside the broker"
        )
    if int(name) == 1:
        raise StorageFailed(
            "the broker is process 1 of its container, which the kernel does not pause: start it below an "
            "init process (tini, or --init of docker and podman), or share the process namespace of the pod"
        )
    return int(name)


def _has_open(process_id: int, path: Path) -> bool:
    """Return whether a process has opened a file."""
    wanted = path.stat()
    try:
        for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise StorageFailed(f"process {process_id}: {_NOT_ALLOWED}") from error
    return False


def _directories(path: Path) -> Iterator[Path]:
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False) and not _is_left_out(entry.name, path):
            yield Path(entry.path)
            yield from _directories(Path(entry.path))


def _files(path: Path, root: Path) -> Iterator[_Source]:
    for entry in os.scandir(path):
        if _is_left_out(entry.name, path):
            continue
        if entry.is_symlink():
            raise StorageFailed(
                f"{entry.path} is a symbolic link, which a backup would miss; use a mount instead"
            )
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), root)
        elif entry.is_file(follow_symlinks=False):
            found = Path(entry.path)
            yield _Source(found, str(found.relative_to(root)), entry.stat(follow_symlinks=False).st_size)


def _is_left_out(name: str, parent: Path) -> bool:
    """Return whether an entry is no part of a backup."""
    return name.endswith(DELETED) if parent.name == PARTITIONS else name in _LEFT_OUT | {_LOST_AND_FOUND}


def _copy(source: Path, target: Path, size_bytes: int) -> int:
    """Copy the first bytes of a file, and return their checksum."""
    target.parent.mkdir(parents=True, exist_ok=True)
    crc = 0
    left = size_bytes
    buffer = memoryview(bytearray(min(max(left, 1), _CHUNK_BYTES)))
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while left:
            count = reading.readinto(buffer[: min(left, len(buffer))])
            if not count:
                raise StorageFailed(
                    f"{source} became shorter while it was copied: a replica was truncated; try again"
                )
            chunk = buffer[:count]
            crc = crc32c(chunk, crc)
            left -= count
            while chunk:
                chunk = chunk[writing.write(chunk) :]
    return crc


def _write(disk: SystemDisk, path: Path, content: bytes) -> None:
    """Write a file, and make it durable."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    disk.sync_directory(path.parent)


def _sync(disk: SystemDisk, directory: Path) -> None:
    """Make everything below a directory durable."""
    if disk.sync_filesystem(directory):
        return
    for path in [directory, *_directories(directory)]:
        for entry in os.scandir(path):
            if entry.is_file(follow_symlinks=False):
                with Path(entry.path).open("rb") as file:
                    os.fsync(file.fileno())
        disk.sync_directory(path)


def _check_partitions(disk: SystemDisk, data: Path) -> None:
    """Read every batch of a copy."""
    for path in sorted((data / PARTITIONS).iterdir()):
        state = inspect_partition(disk, path)
        if state.gaps:
            segment, gap = state.gaps[0]
            raise StorageFailed(
                f"{segment.path} is damaged at byte {gap.start.position}: {gap.reason}. It is as in the data "
                "directory, unless a replica was truncated meanwhile: try again, or repair the data "
                "(`alpacamq repair`)"
            )
        if state.lost is not None:
            raise StorageFailed(
                f"{path} lacks offsets {state.lost[0]} to {state.lost[1] - 1}; repair the data directory "
                "(`alpacamq repair`)"
            )


def _voters_of(backup: Path, manifest: Manifest, disk: SystemDisk) -> list[int]:
    """Return the voters that the metadata of a copy names. Opens a copy of that: opening changes files."""
    scratch = backup / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    wanted = (IDENTITY, f"{METADATA}/", f"{PARTITIONS}/{METADATA_LOG.topic}-")
    for file in manifest.files:
        if file.path.startswith(wanted):
            _copy(backup / DATA / file.path, scratch / file.path, file.size_bytes)
    found = stored_voters(scratch, disk, SystemClock(), BrokerId(manifest.node_id))
    shutil.rmtree(scratch)
    return [voter.id for voter in found]


def _read_manifest(backup: Path) -> Manifest:
    try:
        encoded = (backup / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise InvalidConfig(
            f"{backup} has no {MANIFEST}: it is no backup, or one that was interrupted"
        ) from None
    except OSError as error:
        raise StorageFailed(f"the backup cannot be read: {_reason(error)}") from error
    try:
        found = msgspec.json.decode(encoded)
        if isinstance(found, dict) and isinstance(found.get("format"), int):
            newest = max(found["format"] - MANIFEST_FORMAT, found.get("directory_format", FORMAT) - FORMAT)
            if newest > 0:
                raise StorageFailed(
                    f"{backup} was written by a newer version, {found.get('version')}: restore it with that"
                )
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except msgspec.DecodeError as error:
        raise StorageFailed(f"{backup / MANIFEST} is damaged: {error}") from None
    for file in manifest.files:
        if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            raise StorageFailed(
                f"{backup / MANIFEST} is damaged: {file.path!r} is outside the data directory"
            )
    return manifest


def _identity_of(data_directory: Path, disk: SystemDisk) -> Identity:
    path = data_directory / IDENTITY
    try:
        return read_identity(disk, path)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidConfig(
            f"{data_directory} is not an AlpacaMQ data directory; set it with --data-dir"
        ) from None
    except Unreadable as error:
        raise StorageFailed(f"{path} is damaged at {error}") from None
    except OSError as error:
        raise StorageFailed(
            f"the data directory {data_directory} cannot be read: {_reason(error)}"
        ) from error


def _founder(identity: Identity) -> Identity:
    """Return the identity of the same directory in a new cluster.

    The directory keeps its id: its replicas are in sync only as long as it has it.
    """
    assert identity.directory_id is not None, "conversion precedes"
    own = Voter(BrokerId(identity.node_id), identity.directory_id)
    founded = msgspec.structs.replace(identity, cluster_id=new_cluster_id(), voters=(own,), proposal=None)
    return seal_identity(founded)


def _report(
    manifest: Manifest, backup: Path, data_directory: Path, began_at: float, former: Sequence[int] = ()
) -> Report:
    inside = f"{PARTITIONS}/"
    partitions = {Path(file.path).parts[1] for file in manifest.files if file.path.startswith(inside)}
    return Report(
        backup=str(backup),
        data_directory=str(data_directory),
        node_id=manifest.node_id,
        cluster_id=manifest.cluster_id,
        created_at=manifest.created_at,
        files=len(manifest.files),
        partitions=len(partitions),
        size_bytes=manifest.size_bytes,
        seconds=round(time.monotonic() - began_at, 3),
        paused_ms=manifest.paused_ms,
        former_voters=list(former),
    )


def _print(report: Report, output: str, done: str) -> None:
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    rate = report.size_bytes / MIB / max(report.seconds, 0.001)
    print(
        f"{done} node {report.node_id} of cluster {report.cluster_id}: {report.partitions} partitions, "
        f"{report.size_bytes / MIB:.1f} MiB in {report.seconds:.1f} s ({rate:.0f} MiB/s)"
    )
    if report.paused_ms is not None and done == "backed up":
        print(f"the broker was paused for {report.paused_ms} ms")
    if report.former_voters:
        gone = ", ".join(map(str, report.former_voters))
        print(
            f"a new cluster with node {report.node_id} as its only voter, without the nodes {gone}: start "
            "these with empty data directories"
        )
    print(f"as of {report.created_at}", file=sys.stderr)


def _reason(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
