"""Resources shared by all logs of one node."""

import msgspec

from alpacamq.model.ports import Clock, Disk

from .handles import NO_DESCRIPTORS, FileHandles, Handle
from .index_files import IndexCache

__all__ = ["NO_DESCRIPTORS", "FileHandles", "Handle", "Storage"]


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Disk, clock, open files, loaded indexes and the checkpoint interval."""

    disk: Disk
    clock: Clock
    handles: FileHandles
    indexes: IndexCache
    checkpoint_bytes: int = 8 << 20
    # Set if the system has not gone down since the last write: the page cache lost nothing.
    has_every_write: bool = False
