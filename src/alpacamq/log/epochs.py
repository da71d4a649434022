"""Leader epochs of a log: the offset at which each began.

A batch's checksum does not cover its epoch, so the epoch is checked against this history: every
stored batch has the epoch that the history gives for its offset.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.model.ports import Disk

from .sealed_file import Unreadable, prepare_sealed, publish_sealed, read_sealed, seal, write_sealed

FILE_NAME = "leader-epochs"
NO_EPOCH = -1

_MAGIC = b"ALEP"
_VERSION = 1
_FOREVER = 1 << 63


class EpochStart(NamedTuple):
    """A leader epoch and the offset of the first record it could write."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record; -1 for both where it is unknown."""

    epoch: int
    end_offset: int


class EpochHistory:
    """The epochs of one partition, oldest first; both numbers ascend.

    Verifying threads read it while the event loop adds to it: the list is replaced, never changed.
    """

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        self.latest = NO_EPOCH
        for entry in entries:
            self.assign(*entry)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def last(self) -> EpochStart | None:
        """The newest epoch and its first offset; None if there is no epoch."""
        return self._entries[-1] if self._entries else None

    def assign(self, epoch: int, offset: int) -> None:
        """Start `epoch` at `offset`. Drops an epoch that wrote nothing."""
        assert epoch > self.latest, f"epoch {epoch} follows {self.latest}"
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        self._entries = [*kept, EpochStart(epoch, offset)]
        self.latest = epoch

    def epoch_at(self, offset: int) -> tuple[int, int]:
        """Return the epoch at `offset` and the offset at which the next epoch begins."""
        entries = self._entries
        index = bisect_right(entries, offset, key=_start_offset)
        epoch = entries[index - 1].epoch if index else NO_EPOCH
        return epoch, entries[index].start_offset if index < len(entries) else _FOREVER

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the newest epoch not after `epoch`, and its end offset."""
        if epoch == self.latest:
            return EpochEnd(epoch, log_end)
        if epoch > self.latest:
            return EpochEnd(NO_EPOCH, -1)
        index = bisect_right(self._entries, epoch, key=_epoch)
        known = self._entries[index - 1].epoch if index else epoch
        return EpochEnd(known, self._entries[index].start_offset)

    def truncate_from(self, offset: int) -> None:
        """Drop epochs that began at `offset` or later."""
        self._entries = [entry for entry in self._entries if entry.start_offset < offset]
        self.latest = self._entries[-1].epoch if self._entries else NO_EPOCH

    def truncate_before(self, offset: int) -> None:
        """Drop epochs that ended before `offset`."""
        ended = bisect_right(self._entries, offset, key=_start_offset) - 1
        if ended > 0:
            self._entries = self._entries[ended:]

    def write(self, disk: Disk, directory: Path) -> None:
        """Store the history durably."""
        write_sealed(disk, directory / FILE_NAME, _MAGIC, _VERSION, self._encode())

    def prepare(self, disk: Disk, directory: Path) -> Path:
        """Write the history to a temporary file; return its path. Sync it before `publish_epochs`."""
        return prepare_sealed(disk, directory / FILE_NAME, _MAGIC, _VERSION, self._encode())

    def encode_file(self) -> bytes:
        """Encode the complete epochs file."""
        return seal(_MAGIC, _VERSION, self._encode())

    def _encode(self) -> bytes:
        return msgspec.msgpack.encode(tuple(self._entries))


def publish_epochs(disk: Disk, directory: Path) -> None:
    """Replace the stored history by the prepared one. The caller syncs the directory."""
    publish_sealed(disk, directory / FILE_NAME)


def read_epochs(disk: Disk, directory: Path) -> EpochHistory:
    """Read the history in `directory`. Raises Unreadable."""
    body = read_sealed(disk, directory / FILE_NAME, _MAGIC, _VERSION)
    try:
        entries = msgspec.msgpack.decode(body, type=tuple[EpochStart, ...])
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            raise Unreadable(f"epoch {after.epoch} cannot follow epoch {before.epoch}")
    return EpochHistory(entries)


def _epoch(entry: EpochStart) -> int:
    return entry.epoch


def _start_offset(entry: EpochStart) -> int:
    return entry.start_offset
