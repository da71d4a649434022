"""The entries of the log in memory, since the last compaction.

Owns the arithmetic of indexes and terms, and which entries are written and durable. The voters in force at
an index are read here too: they are part of the log and go with it when it is truncated.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from alpacamq.model.voters import Voters

from .messages import (
    NO_INDEX,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    decode_voters,
)

# What an entry takes beyond its payload, in memory and in a message.
ENTRY_OVERHEAD_BYTES = 32


@dataclass(slots=True)
class Write:
    """Writes handed to the host and not yet durable. `end_index` falls when they are truncated again."""

    number: int
    hard_state: HardState
    end_index: int


class RaftLog:
    """A log that begins after `base_index`. Invariant: entries are contiguous, terms never decrease."""

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry]) -> None:
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        self.entries: list[Entry] = []
        self.byte_count = 0
        # The voters in force from each index on; the first is that of the base.
        self._voters_from: list[int] = [snapshot.index]
        self._voters: list[Voters] = [snapshot.voters]
        for entry in entries:
            self.append(entry)
        self.flushed_index = self.last_index
        self.write_from = self.last_index + 1
        self.truncate_from: int | None = None
        self.install: Snapshot | None = None
        self._writes: deque[Write] = deque()

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def voters(self) -> Voters:
        """The voters in force: those of the last such entry, committed or not."""
        return self._voters[-1]

    @property
    def voters_index(self) -> int:
        return self._voters_from[-1]

    @property
    def previous_voters(self) -> Voters:
        """The voters before the last change, if the log still has it."""
        return self._voters[-2] if len(self._voters) > 1 else self._voters[-1]

    def voters_at(self, index: int) -> Voters:
        return self._voters[bisect_right(self._voters_from, index) - 1]

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, None where the log has no entry or no longer has it."""
        if index > self.last_index:
            return None
        if index > self.base_index:
            return self.entries[index - self.base_index - 1].term
        if index == self.base_index:
            return self.base_term
        return 0 if index == NO_INDEX else None

    def has(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def between(self, first: int, last: int) -> list[Entry]:
        """Return the entries from `first` to `last`, both included."""
        return self.entries[first - self.base_index - 1 : last - self.base_index]

    def batch_from(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from `first` on, as many as fit into `max_bytes`, but at least one."""
        start = first - self.base_index - 1
        end, size = start, 0
        while end < len(self.entries):
            size += len(self.entries[end].payload) + ENTRY_OVERHEAD_BYTES
            if size > max_bytes and end > start:
                break
            end += 1
        return tuple(self.entries[start:end])

    def last_possible_match(self, index: int, term: int) -> tuple[int, int]:
        """Return the last entry up to `index` whose term is at most `term`: no later one can be equal."""
        index = min(index, self.last_index)
        while index > self.base_index:
            found = self.entries[index - self.base_index - 1].term
            if found <= term:
                return index, found
            index -= 1
        return self.base_index, self.base_term

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, "entries are contiguous"
        assert entry.term >= self.last_term, "terms never decrease"
        self.entries.append(entry)
        self.byte_count += len(entry.payload) + ENTRY_OVERHEAD_BYTES
        if entry.kind is EntryKind.VOTERS:
            self._voters_from.append(entry.index)
            self._voters.append(decode_voters(entry.payload))

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on."""
        for entry in self.entries[index - self.base_index - 1 :]:
            self.byte_count -= len(entry.payload) + ENTRY_OVERHEAD_BYTES
        del self.entries[index - self.base_index - 1 :]
        while self._voters_from[-1] >= index:
            self._voters_from.pop()
            self._voters.pop()
        self._forget_writes_from(index)
        if index < self.write_from:
            self.truncate_from = index
            self.write_from = index

    def restart_after(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot."""
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        self.entries.clear()
        self.byte_count = 0
        self._voters_from = [snapshot.index]
        self._voters = [snapshot.voters]
        # Not even the entries that the snapshot covers are durable before it is.
        self._forget_writes_from(NO_INDEX + 1)
        self.truncate_from = None
        self.write_from = snapshot.index + 1
        self.install = snapshot

    def snapshot_at(self, index: int) -> Snapshot:
        term = self.term_at(index)
        assert term is not None, "the log still has the entry"
        return Snapshot(index, term, self.voters_at(index))

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """Drop the entries that the snapshot covers, but for the last `keep` of them."""
        self.snapshot = snapshot
        base = snapshot.index - keep
        if base <= self.base_index:
            return
        term = self.term_at(base)
        assert term is not None
        for entry in self.entries[: base - self.base_index]:
            self.byte_count -= len(entry.payload) + ENTRY_OVERHEAD_BYTES
        del self.entries[: base - self.base_index]
        self.base_index, self.base_term = base, term
        while len(self._voters_from) > 1 and self._voters_from[1] <= base:
            del self._voters_from[0]
            del self._voters[0]

    def unwritten(self) -> list[Entry]:
        return self.between(self.write_from, self.last_index)

    def begin_write(self, number: int, hard_state: HardState) -> None:
        """Note that all that is unwritten was handed to the host, under this number."""
        self._writes.append(Write(number, hard_state, self.last_index))
        self.write_from = self.last_index + 1
        self.truncate_from = None
        self.install = None

    def finish_writes(self, number: int) -> HardState | None:
        """Note that the writes up to `number` are durable. Return the hard state among them."""
        hard_state = None
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            hard_state = write.hard_state
            self.flushed_index = write.end_index
        return hard_state

    def _forget_writes_from(self, index: int) -> None:
        # A write that completes later must not count for what takes the place of its entries.
        self.flushed_index = min(self.flushed_index, index - 1)
        for write in self._writes:
            write.end_index = min(write.end_index, index - 1)
