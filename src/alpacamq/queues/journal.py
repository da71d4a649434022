"""What an event has changed, gathered while it is handled and written once at its end.

However often a chunk changes within an event, it becomes one record.
"""

from typing import Protocol

from alpacamq.model.state_machine import Change

from .chunks import Chunk
from .messages import EndedLease, Move, ReadBacklog


class Stored(Protocol):
    """Something that is one record of its own."""

    is_dirty: bool
    is_forgotten: bool

    def change(self) -> Change: ...


class Journal:
    """The changes and moves of the event that is being handled."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.ended: list[EndedLease] = []
        self.reads: list[ReadBacklog] = []
        self._gone: list[Change] = []
        self._records: list[Stored] = []
        self._chunks: list[Chunk] = []

    def mark(self, record: Stored) -> None:
        """A queue or a head is to be written."""
        if not record.is_dirty:
            record.is_dirty = True
            self._records.append(record)

    def mark_chunk(self, chunk: Chunk) -> None:
        """A chunk is to be written."""
        if not chunk.is_dirty:
            chunk.is_dirty = True
            self._chunks.append(chunk)

    def drop_chunk(self, chunk: Chunk) -> None:
        """A chunk is no longer needed."""
        chunk.is_dropped = True
        if chunk.is_stored:
            self.mark_chunk(chunk)

    def forget(self, key: bytes) -> None:
        """A record is to be removed now, whatever is written later under its key."""
        self._gone.append(Change(key, None))

    def take_changes(self) -> list[Change]:
        """Every change since last time."""
        if not self._chunks and not self._records and not self._gone:
            return []
        for partition in {chunk.partition: None for chunk in self._chunks}:
            partition.advance()
        changes, self._gone = self._gone, []
        records, self._records = self._records, []
        chunks, self._chunks = self._chunks, []
        for record in records:
            record.is_dirty = False
            if not record.is_forgotten:
                changes.append(record.change())
        for chunk in chunks:
            chunk.is_dirty = False
            if not chunk.is_dropped and chunk.end_offset > chunk.partition.start_offset:
                chunk.is_stored = True
                changes.append(chunk.partition.chunk_change(chunk))
            elif chunk.is_stored:
                chunk.is_stored = False
                changes.append(chunk.partition.chunk_removal(chunk))
        return changes

    def take_effects(self) -> list[Move | EndedLease]:
        """Return the moves, and the leases that ended by themselves, since last time."""
        if not self.moves and not self.ended:
            return []
        effects: list[Move | EndedLease] = [*self.moves, *self.ended]
        self.moves, self.ended = [], []
        return effects

    def take_reads(self) -> list[ReadBacklog]:
        """Return the reads that were requested since last time."""
        reads, self.reads = self.reads, []
        return reads
