"""Small files that are written whole and checked whole: checkpoints, epochs, producer snapshots.

A file is a header (what it is, version, length, CRC-32C) and a body. It is replaced by a
rename, so a crash leaves the old one or the new one. Anything else is `Unreadable`.
"""

from pathlib import Path
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.ports import Buffer, Disk

from .disk import sync_file

TEMPORARY = ".tmp"
LIMIT_BYTES = 256 << 20

_HEADER = Struct(">4sHII")  # magic, version, body length, CRC-32C of what precedes it and of the body
_CHECKED = Struct(">4sHI")


class Unreadable(Exception):
    """The file is not as it was written, or not there."""


class Missing(Unreadable):
    """The file is not there."""


def seal(magic: bytes, version: int, body: Buffer) -> bytes:
    """`body` with the header that lets a reader trust it."""
    head = _CHECKED.pack(magic, version, len(body))
    return head + crc32c(body, crc32c(head)).to_bytes(4, "big") + body


def unseal(magic: bytes, version: int, data: bytes) -> bytes:
    """The body of a sealed file, or Unreadable saying why not."""
    if len(data) < _HEADER.size:
        raise Unreadable(f"{len(data)} bytes are too few")
    found, found_version, length, crc = _HEADER.unpack_from(data)
    if found != magic:
        raise Unreadable(f"it starts with {found!r} instead of {magic!r}")
    if length != len(data) - _HEADER.size:
        raise Unreadable(f"{length} bytes should follow the header but {len(data) - _HEADER.size} do")
    body = data[_HEADER.size :]
    if crc32c(body, crc32c(data[: _CHECKED.size])) != crc:
        raise Unreadable("its checksum does not match")
    if found_version != version:
        raise Unreadable(f"its version is {found_version}, this program reads {version}")
    return body


def read_sealed(disk: Disk, path: Path, magic: bytes, version: int) -> bytes:
    """The body of the sealed file at `path`; Unreadable if it cannot be had, for whatever reason."""
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        raise Missing("it does not exist") from None
    try:
        size = disk.size(descriptor)
        if size > LIMIT_BYTES:
            raise Unreadable(f"{size} bytes are more than such a file can have")
        data = disk.read(descriptor, size, 0)
    finally:
        disk.close(descriptor)
    return unseal(magic, version, data)


def write_sealed(disk: Disk, path: Path, magic: bytes, version: int, body: Buffer) -> None:
    """Replace the file at `path`; once this returns, it is on the medium under its name."""
    sync_file(disk, prepare_sealed(disk, path, magic, version, body))
    publish_sealed(disk, path)
    disk.sync_directory(path.parent)


def prepare_sealed(disk: Disk, path: Path, magic: bytes, version: int, body: Buffer) -> Path:
    """Write what is to replace the file at `path` into one beside it, which is returned and not synced."""
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = disk.open(temporary, create=True)
    try:
        disk.truncate(descriptor, 0)
        disk.write(descriptor, [seal(magic, version, body)], 0)
    finally:
        disk.close(descriptor)
    return temporary


def publish_sealed(disk: Disk, path: Path) -> None:
    """Let what was prepared take the place of the file at `path`. The caller syncs the directory."""
    disk.rename(path.with_name(path.name + TEMPORARY), path)
