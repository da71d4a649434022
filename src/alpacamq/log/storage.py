"""What all the logs of one node share."""

from dataclasses import dataclass

from alpacamq.model.ports import Clock, Disk

from .handles import FileHandles
from .index_files import IndexCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The disk and the clock, the open files, the loaded indexes, and how often to checkpoint."""

    disk: Disk
    clock: Clock
    handles: FileHandles
    indexes: IndexCache
    checkpoint_bytes: int = 8 << 20
    # The system did not go down since the last write: nothing is missing before what is there.
    has_every_write: bool = False
