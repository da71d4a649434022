"""Small files that are written and checked as a whole: checkpoints, epochs, producer snapshots.

A file is a header (magic, version, length, CRC-32C) and a body. It is replaced by a rename, so a
crash leaves the old version or the new one. Everything else is `Unreadable`.
"""

from collections.abc import Iterable
from pathlib import Path
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.ports import Buffer, Disk

from .disk import sync_file

TEMPORARY = ".tmp"
LIMIT_BYTES = 256 << 20

_HEADER = Struct(">4sHII")  # magic, version, body length, CRC-32C of the fields before it and the body
_CHECKED = Struct(">4sHI")
# Large bodies are checksummed in steps, so that other threads can take the interpreter lock.
_STEP_BYTES = 1 << 20


class Unreadable(Exception):
    """The file is missing or its content is not what was written."""


class Missing(Unreadable):
    """The file does not exist."""


def seal(magic: bytes, version: int, body: Buffer) -> bytes:
    """Return `body` with its header."""
    head = _CHECKED.pack(magic, version, len(body))
    return head + crc32c(body, crc32c(head)).to_bytes(4, "big") + body


def unseal(magic: bytes, version: int, data: bytes) -> bytes:
    """Return the body of a sealed file. Raises Unreadable with the reason."""
    return bytes(_unsealed(magic, version, data))


def _unsealed(magic: bytes, version: int, data: bytes) -> memoryview:
    if len(data) < _HEADER.size:
        raise Unreadable(f"{len(data)} bytes are too few")
    found, found_version, length, crc = _HEADER.unpack_from(data)
    if found != magic:
        raise Unreadable(f"it starts with {found!r} instead of {magic!r}")
    if length != len(data) - _HEADER.size:
        raise Unreadable(f"{length} bytes should follow the header but {len(data) - _HEADER.size} do")
    body = memoryview(data)[_HEADER.size :]
    if _checksum(data[: _CHECKED.size], [body]) != crc:
        raise Unreadable("its checksum does not match")
    if found_version != version:
        raise Unreadable(f"its version is {found_version}, this program reads {version}")
    return body


def _checksum(head: bytes, parts: Iterable[Buffer]) -> int:
    crc: int = crc32c(head)
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _STEP_BYTES):
            crc = crc32c(view[at : at + _STEP_BYTES], crc)
    return crc


def read_sealed(disk: Disk, path: Path, magic: bytes, version: int) -> bytes:
    """Return the body of the sealed file at `path`. Raises Unreadable for any failure."""
    return bytes(view_sealed(disk, path, magic, version))


def view_sealed(
    disk: Disk, path: Path, magic: bytes, version: int, limit_bytes: int = LIMIT_BYTES
) -> memoryview:
    """Like `read_sealed`, without copying a large body."""
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        raise Missing("it does not exist") from None
    try:
        size = disk.size(descriptor)
        if size > limit_bytes:
            raise Unreadable(f"{size} bytes are more than such a file can have")
        data = disk.read(descriptor, size, 0)
    finally:
        disk.close(descriptor)
    return _unsealed(magic, version, data)


def write_sealed(disk: Disk, path: Path, magic: bytes, version: int, *parts: Buffer) -> None:
    """Replace the file at `path` durably.

    A large body may be given in parts.
    """
    sync_file(disk, prepare_sealed(disk, path, magic, version, *parts))
    publish_sealed(disk, path)
    disk.sync_directory(path.parent)


def prepare_sealed(disk: Disk, path: Path, magic: bytes, version: int, *parts: Buffer) -> Path:
    """Write the replacement of the file at `path` to a temporary file; return its path. Does not sync."""
    head = _CHECKED.pack(magic, version, sum(map(len, parts)))
    head += _checksum(head, parts).to_bytes(4, "big")
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = disk.open(temporary, create=True)
    try:
        disk.truncate(descriptor, 0)
        disk.write(descriptor, [head, *parts], 0)
    finally:
        disk.close(descriptor)
    return temporary


def publish_sealed(disk: Disk, path: Path) -> None:
    """Rename the prepared file to `path`. The caller syncs the directory."""
    disk.rename(path.with_name(path.name + TEMPORARY), path)
