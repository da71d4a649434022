"""Keeps the metadata log, the term and vote, and snapshots of the image on disk.

An entry of the log is a batch with one record: its index is the offset plus one, its term the leader epoch.
Version 0.1 kept keyed records in the same log; what it wrote is read once, as the first snapshot.
Everything here blocks: call it before the event loop runs, or in a thread, one call at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.broker.statemachine.snapshots import BLOCK_CHANGES, StateSnapshots, encode_block, replay
from alpacamq.consensus.messages import (
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    decode_voters,
)
from alpacamq.log.partition_log import Incoming, PartitionLog
from alpacamq.log.sealed_file import Missing, Unreadable, read_sealed, write_sealed
from alpacamq.log.storage import Storage
from alpacamq.model.batch import read_header
from alpacamq.model.errors import AlpacaError, StorageFailed
from alpacamq.model.ids import TopicId, TopicName, TopicPartition
from alpacamq.model.records import Record, write_batch
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import topic_config
from alpacamq.model.voters import Voters

IDENTITY = TopicPartition(TopicName("__cluster_metadata"), 0)
TOPIC_ID = TopicId(int=1)
# Entries are removed behind snapshots, never by age.
CONFIG = topic_config({"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(1 << 20)})

_VOTE = "vote"
_MAGIC = b"ALVO"
_VERSION = 1
# The voters are stored in front of the image's own changes.
_VOTERS_KEY = b"voters"


class Recovered(NamedTuple):
    """What the store holds: the state at the snapshot, and the entries after it, committed or not."""

    hard_state: HardState
    snapshot: Snapshot
    changes: Sequence[Change]
    entries: Sequence[Entry]
    # Whether version 0.1 wrote the state at the snapshot, which names no voters and no partitions.
    is_legacy: bool = False


# Of a node that has no part of the log yet.
EMPTY = Recovered(HardState(), Snapshot(), (), ())


def voters_of(recovered: Recovered) -> Voters:
    """Return the last voters that are stored."""
    for entry in reversed(recovered.entries):
        if entry.kind is EntryKind.VOTERS:
            return decode_voters(entry.payload)
    return recovered.snapshot.voters


class MetadataStore:
    """The metadata log of one node on its disk."""

    def __init__(self, directory: Path, snapshots: Path, storage: Storage) -> None:
        """Store the log in `directory`, snapshots and the vote in `snapshots`, which exists."""
        self._storage = storage
        self._log = PartitionLog.open(directory, CONFIG, storage)
        self._snapshots = StateSnapshots(storage.disk, snapshots)
        self._vote = snapshots / _VOTE

    @property
    def log(self) -> PartitionLog:
        return self._log

    def recover(self) -> Recovered | None:
        """Read everything; None if the directory is empty, and belongs to no cluster yet."""
        log = self._log
        if log.recovered.losses:
            raise StorageFailed(log.recovered.losses[0])
        newest = self._snapshots.newest(log.end_offset, self._epoch_at)
        is_legacy = False
        if log.start_offset > 0 and (newest is None or newest.offset < log.start_offset):
            raise StorageFailed(
                f"the metadata log begins at {log.start_offset}, and no snapshot reaches it; restore the "
                "data directory from a backup, or remove this node from the cluster and add it again"
            )
        if newest is None:
            if log.end_offset == 0:
                return None
            changes, index = self._legacy()
            snapshot = Snapshot(index, self._term_at(index - 1) if index else 0)
            is_legacy = index > 0
        else:
            voters, changes = _split_voters(list(newest.changes))
            snapshot = Snapshot(newest.offset, newest.epoch or 0, voters)
        entries = list(self._entries(snapshot.index))
        return Recovered(self._read_vote(), snapshot, changes, entries, is_legacy)

    def recover_again(self) -> Recovered | None:
        """Read everything again after a failed write, in the same process.

        A part of that write may be in the log and not on disk: it is flushed first, because all that is read
        counts as durable.
        """
        self._log.flush_now()
        return self.recover()

    def write(
        self, hard_state: HardState | None, truncate_from: int | None, entries: Sequence[Entry]
    ) -> None:
        """Write and sync what Raft asks for, in its order. May be repeated after a failure."""
        if hard_state is not None:
            body = msgspec.msgpack.encode(hard_state)
            try:
                write_sealed(self._storage.disk, self._vote, _MAGIC, _VERSION, body)
            except OSError as error:
                raise StorageFailed(f"cannot store the vote: {error.strerror or error}") from error
        if truncate_from is not None:
            self._log.truncate_to(truncate_from - 1)
        if entries:
            for term, of_term in _by_term([each for each in entries if each.index > self._log.end_offset]):
                self._append(term, of_term)
            self._log.flush_now()

    def install(self, snapshot: Snapshot) -> Sequence[Change]:
        """Begin the log at a snapshot that `write_snapshot` has stored; return its changes."""
        stored = self._snapshots.read(snapshot.index, snapshot.term)
        self._log.restart_at(snapshot.index)
        return _split_voters(stored)[1]

    def write_snapshot(self, snapshot: Snapshot, changes: Iterable[Change]) -> int:
        """Write a snapshot of the image, so that the log before the oldest one can go; return its size."""
        blocks = [encode_block([Change(_VOTERS_KEY, msgspec.msgpack.encode(snapshot.voters))])]
        block: list[Change] = []
        for change in changes:
            block.append(change)
            if len(block) >= BLOCK_CHANGES:
                blocks.append(encode_block(block))
                block = []
        blocks.append(encode_block(block))
        try:
            self._snapshots.write(snapshot.index, snapshot.term, blocks)
        except OSError as error:
            raise StorageFailed(
                f"cannot store a snapshot of the metadata: {error.strerror or error}"
            ) from error
        return sum(map(len, blocks))

    def trim(self) -> None:
        """Remove the log before the oldest snapshot."""
        oldest = self._snapshots.oldest_offset()
        if oldest is None or oldest <= self._log.start_offset or oldest > self._log.end_offset:
            return
        self._log.begin_delete_before(oldest).run()
        if (removal := self._log.begin_retention(self._storage.clock.now_ms())) is not None:
            removal.run()

    def close(self) -> None:
        """Flush the log and release its files."""
        self._log.close()

    def _append(self, term: int, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self._log.end_offset + 1, (
            f"{entries[0].index} follows {self._log.end_offset}"
        )
        now_ms = self._storage.clock.now_ms()
        batches = [
            write_batch([Record(0, now_ms, None, bytes((entry.kind,)) + entry.payload)]) for entry in entries
        ]
        for outcome in self._log.append([Incoming(batch, read_header(batch)) for batch in batches], term):
            if isinstance(outcome, AlpacaError):
                raise outcome

    def _entries(self, index: int) -> Iterator[Entry]:
        """Yield the entries after `index`. One that a repair gave up is empty."""
        following = index + 1
        for record in replay(self._log, index):
            while following <= record.offset:
                yield Entry(following, self._term_at(following - 1), EntryKind.EMPTY, b"")
                following += 1
            value = record.value or bytes((EntryKind.EMPTY,))
            yield Entry(following, self._term_at(record.offset), EntryKind(value[0]), value[1:])
            following += 1
        while following <= self._log.end_offset:
            yield Entry(following, self._term_at(following - 1), EntryKind.EMPTY, b"")
            following += 1

    def _legacy(self) -> tuple[list[Change], int]:
        """Return the records of version 0.1, of which the last of each key counts, and where they end."""
        newest: dict[bytes, Change] = {}
        for record in replay(self._log):
            if record.key is None:
                return _kept(newest), record.offset
            newest.pop(record.key, None)
            newest[record.key] = Change(record.key, record.value)
        return _kept(newest), self._log.end_offset

    def _epoch_at(self, offset: int) -> int:
        return self._log.epochs.epoch_at(offset)[0]

    def _term_at(self, offset: int) -> int:
        return max(self._epoch_at(offset), 0)

    def _read_vote(self) -> HardState:
        try:
            body = read_sealed(self._storage.disk, self._vote, _MAGIC, _VERSION)
            return msgspec.msgpack.decode(body, type=HardState)
        except Missing:
            # Of version 0.1, or of a node that has never voted.
            return HardState(max(self._log.epochs.latest, 0))
        except (Unreadable, msgspec.DecodeError) as error:
            # Without it the node could vote twice in a term.
            raise StorageFailed(
                f"{self._vote} is damaged: {error}; remove this node and add it again"
            ) from error


def _split_voters(changes: list[Change]) -> tuple[Voters, list[Change]]:
    """Split the changes of a snapshot into the voters and those of the image."""
    if not changes or changes[0].key != _VOTERS_KEY:
        return (), changes
    return msgspec.msgpack.decode(changes[0].value or b"", type=Voters), changes[1:]


def _kept(newest: dict[bytes, Change]) -> list[Change]:
    return [change for change in newest.values() if change.value is not None]


def _by_term(entries: Sequence[Entry]) -> Iterator[tuple[int, list[Entry]]]:
    """Yield runs of entries of the same term."""
    run: list[Entry] = []
    for entry in entries:
        if run and run[-1].term != entry.term:
            yield run[0].term, run
            run = []
        run.append(entry)
    if run:
        yield run[0].term, run
