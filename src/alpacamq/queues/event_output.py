"""The changes and effects of one event.

They are collected while the event is handled, so that a chunk that changes several times is written once.
"""

from typing import Protocol

from alpacamq.model.state_machine import Change

from .chunks import Chunk
from .messages import EndedLease, Move, ReadBacklog


class Stored(Protocol):
    """An object that is stored as one record."""

    is_dirty: bool
    is_forgotten: bool

    def change(self) -> Change: ...


class EventOutput:
    """The changes, effects and reads of the event that is being handled."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.ended: list[EndedLease] = []
        self.reads: list[ReadBacklog] = []
        self._deletions: list[Change] = []
        self._records: list[Stored] = []
        self._chunks: list[Chunk] = []

    def write(self, record: Stored) -> None:
        """Write a queue or a head at the end of the event."""
        if not record.is_dirty:
            record.is_dirty = True
            self._records.append(record)

    def write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk at the end of the event."""
        if not chunk.is_dirty:
            chunk.is_dirty = True
            self._chunks.append(chunk)

    def delete_chunk(self, chunk: Chunk) -> None:
        """Delete a chunk at the end of the event."""
        chunk.is_dropped = True
        if chunk.is_stored:
            self.write_chunk(chunk)

    def delete(self, key: bytes) -> None:
        """Delete a record before everything that this event writes under its key."""
        self._deletions.append(Change(key, None))

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call."""
        if not self._chunks and not self._records and not self._deletions:
            return []
        for partition in {chunk.partition: None for chunk in self._chunks}:
            partition.advance()
        changes, self._deletions = self._deletions, []
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
        """Return the moves and the ended leases since the last call."""
        if not self.moves and not self.ended:
            return []
        effects: list[Move | EndedLease] = [*self.moves, *self.ended]
        self.moves, self.ended = [], []
        return effects

    def take_reads(self) -> list[ReadBacklog]:
        """Return the reads requested since the last call."""
        reads, self.reads = self.reads, []
        return reads
