"""Resources shared by all logs of one node."""

from dataclasses import dataclass

from alpacamq.model.ports import Clock, Disk

from .handles import FileHandles
from .index_files import IndexCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Disk, clock, open files, loaded indexes and the checkpoint interval."""

    disk: Disk
    clock: Clock
    handles: FileHandles
    indexes: IndexCache
    checkpoint_bytes: int = 8 << 20
    # Set if the system has not gone down since the last write: the page cache lost nothing.
    has_every_write: bool = False
