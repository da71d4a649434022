"""Runs the Raft of the metadata log on this node: writes, sends and hands over what the core decides.

Writes are made in a thread, in order; what is decided meanwhile shares the next one. If a write fails, memory
is ahead of the disk: the core is discarded and rebuilt from what is stored.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from random import SystemRandom
from typing import Protocol
from uuid import UUID

import msgspec

from alpacamq.consensus.messages import (
    Entry,
    Message,
    PeerStatus,
    RaftSettings,
    Ready,
    RoleChange,
    SendSnapshot,
    Snapshot,
)
from alpacamq.consensus.raft import Raft
from alpacamq.log.health import is_out_of_descriptors
from alpacamq.model.errors import AlpacaError, DiskFull, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Change
from alpacamq.model.voters import Voter, Voters
from alpacamq.telemetry.logs import get_logger

from .store import EMPTY, MetadataStore, Recovered

log = get_logger(__name__)

# After a failed write: the first pause before the log is read again, and the longest.
RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
# How often to look for a free file descriptor.
DESCRIPTOR_SECONDS = 0.1
# A log that fails longer than this is given up: meanwhile the node learns nothing of the cluster.
PATIENCE_SECONDS = 3.0


class Proposed(msgspec.Struct, frozen=True):
    """The position of a proposal: committed if the entry at this index has this term."""

    index: int
    term: int


class QuorumListener(Protocol):
    """Receives what the metadata log commits, in order, on the event loop."""

    def committed(self, entries: Sequence[Entry]) -> None: ...

    def restored(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Replace the state by that of a snapshot."""
        ...

    def role_changed(self, change: RoleChange) -> None: ...

    def failed(self, error: AlpacaError) -> None:
        """Fail what waits for a commit: the log could not be written, and its outcome is unknown."""
        ...

    def given_up(self, error: AlpacaError) -> None:
        """Note that the log fails for good, and this node takes no part any more."""
        ...


class Outgoing(Protocol):
    """Sends to other nodes; both return at once."""

    def send(self, message: Message) -> None: ...

    def send_snapshot(self, wanted: SendSnapshot) -> None:
        """Stream the newest snapshot, and report its end to `Quorum.snapshot_sent`."""
        ...


class Quorum:
    """This node's part in the metadata log."""

    def __init__(
        self,
        store: MetadataStore,
        recovered: Recovered,
        *,
        node_id: BrokerId,
        directory_id: UUID,
        settings: RaftSettings,
        clock: Clock,
        executor: Executor,
        listener: QuorumListener,
        outgoing: Outgoing | None = None,
        contacts: Sequence[BrokerId] = (),
    ) -> None:
        """Start from what `store` has recovered. `outgoing` is None for a node without others."""
        self._store = store
        self._node_id = node_id
        self._directory_id = directory_id
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._listener = listener
        self._outgoing = outgoing
        self._contacts = tuple(contacts)
        self._random = SystemRandom()
        self._raft = self._core(recovered)
        self._unwritten: list[Ready] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._runs = False
        self._is_trim_due = False
        self._pause_seconds = RETRY_SECONDS
        self._failing_since: float | None = None
        # Why the log cannot be written, while it cannot.
        self.failure: str | None = None

    @property
    def leader(self) -> BrokerId | None:
        """The node that leads the metadata log, as far as known."""
        return self._raft.leader

    @property
    def term(self) -> int:
        return self._raft.term

    @property
    def is_established(self) -> bool:
        """Whether this node leads, and has applied everything that former leaders committed."""
        return self._raft.is_established and self.failure is None

    @property
    def voters(self) -> Voters:
        return self._raft.voters

    @property
    def commit_index(self) -> int:
        return self._raft.commit_index

    @property
    def last_index(self) -> int:
        return self._raft.last_index

    @property
    def log_bytes(self) -> int:
        """Bytes of the entries since the last snapshot."""
        return self._raft.log_bytes

    def peers(self) -> list[PeerStatus]:
        """Return what the leader knows of the other nodes; nothing on other nodes."""
        return self._raft.peers()

    def elect_alone(self) -> None:
        """Become the leader of a cluster of this node only. Blocking; before the event loop runs.

        Raises StorageFailed if the election cannot be written.
        """
        self._raft.tick(self._now_ms())
        self.drive_alone()

    def drive_alone(self) -> None:
        """Write and commit what was proposed, without others. Blocking; before the event loop runs."""
        while True:
            ready = self._raft.take_ready()
            self._hand_over(ready)
            if ready.write is None:
                break
            self._store.write(ready.hard_state, ready.truncate_from, ready.entries)
            self._raft.flushed(ready.write, self._now_ms())

    def restart(self) -> Recovered:
        """Start again from what is stored, after a write failed. Blocking; before the event loop runs."""
        recovered = self._store.recover_again() or EMPTY
        self._raft = self._core(recovered)
        return recovered

    def start(self) -> None:
        """Take part: set timers, write and send. On the event loop."""
        self._runs = True
        self._pump()

    async def stop(self) -> None:
        """Stop taking part, once the running write has ended."""
        self._runs = False
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            await asyncio.wait({self._writer})

    def propose(self, payload: bytes) -> Proposed:
        """Append an entry. Raises NotController, or RateLimited if too many wait."""
        if self.failure is not None:
            raise StorageFailed(self.failure)
        index = self._raft.propose(payload, self._now_ms())
        term = self._raft.term
        self._pump()
        return Proposed(index, term)

    def change_voters(self, voters: Sequence[Voter]) -> Proposed:
        """Append a change of voters by one. Raises InvalidVoters or NotController."""
        index = self._raft.change_voters(voters, self._now_ms())
        term = self._raft.term
        self._pump()
        return Proposed(index, term)

    def receive(self, message: Message) -> None:
        """Take a message of another node."""
        self._raft.step(message, self._now_ms())
        self._pump()

    def node_ended(self, node_id: BrokerId) -> None:
        """Note that the process of a node has ended."""
        self._raft.node_ended(node_id, self._now_ms())
        self._pump()

    def transfer_leadership(self, to: BrokerId | None = None) -> None:
        """Hand the leadership to another voter. Raises InvalidVoters or NotController."""
        self._raft.transfer_leadership(to, self._now_ms())
        self._pump()

    def set_contacts(self, contacts: Sequence[BrokerId]) -> None:
        """Replace the nodes to ask for a leader, besides the voters."""
        self._contacts = tuple(contacts)
        self._raft.set_contacts(contacts)

    def snapshot_position(self, index: int) -> Snapshot:
        """Return the position of a snapshot of everything committed up to `index`."""
        return self._raft.snapshot_at(index)

    def compacted(self, index: int) -> None:
        """Drop entries: a snapshot at `index` is on disk."""
        self._raft.compact(index)
        self._is_trim_due = True
        self._pump()

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Take over a snapshot that has been received and is on disk."""
        self._raft.install_snapshot(snapshot, self._now_ms())
        self._pump()

    def snapshot_sent(self, to: BrokerId, index: int, *, installed: bool) -> None:
        """Report the end of a `SendSnapshot`."""
        self._raft.snapshot_sent(to, index, self._now_ms(), installed=installed)
        self._pump()

    def _core(self, recovered: Recovered) -> Raft:
        return Raft(
            self._node_id,
            self._directory_id,
            hard_state=recovered.hard_state,
            snapshot=recovered.snapshot,
            entries=recovered.entries,
            settings=self._settings,
            random=self._random.random,
            now_ms=self._now_ms(),
            contacts=self._contacts,
        )

    def _pump(self) -> None:
        """Do everything that the core asks for, and leave its writes to the writer."""
        if not self._runs:
            return
        while True:
            ready = self._raft.take_ready()
            if ready.write is not None:
                self._unwritten.append(ready)
            self._hand_over(ready)
            if ready.write is None:
                break
        if (self._unwritten or self._is_trim_due) and self._writer is None:
            self._writer = asyncio.ensure_future(self._write())
        self._set_timer()

    def _hand_over(self, ready: Ready) -> None:
        """Hand over what is committed, then send: nothing of it may be lost if sending fails."""
        if ready.committed:
            self._listener.committed(ready.committed)
        if ready.role is not None:
            self._listener.role_changed(ready.role)
        if self._outgoing is not None:
            for message in ready.messages:
                self._outgoing.send(message)
            for wanted in ready.snapshots:
                self._outgoing.send_snapshot(wanted)

    async def _write(self) -> None:
        try:
            while self._unwritten or self._is_trim_due:
                taken, self._unwritten = self._unwritten, []
                restored = await self._written(taken)
                self._pause_seconds = RETRY_SECONDS
                self._failing_since = None
                for snapshot, changes in restored:
                    self._listener.restored(snapshot, changes)
                if taken and taken[-1].write is not None:
                    self._raft.flushed(taken[-1].write, self._now_ms())
                self._pump()
        except Exception as error:  # a bug as well: memory may be ahead of the disk
            if not isinstance(error, AlpacaError | OSError):
                log.exception("metadata_write_crashed")
            self._unwritten.clear()
            await self._rebuild(error if isinstance(error, AlpacaError) else StorageFailed(str(error)))
        finally:
            self._writer = None
        self._pump()

    async def _written(self, readys: Sequence[Ready]) -> list[tuple[Snapshot, Sequence[Change]]]:
        """Write, and wait while there is no file descriptor: no data is in doubt then."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._executor, self._write_all, readys)
            except (AlpacaError, OSError) as error:
                if not is_out_of_descriptors(error):
                    raise
                log.warning("metadata_write_postponed", reason=str(error))
            await asyncio.sleep(DESCRIPTOR_SECONDS)

    def _write_all(self, readys: Sequence[Ready]) -> list[tuple[Snapshot, Sequence[Change]]]:
        """Write in order; return the snapshots that were installed. In a thread."""
        restored = []
        for ready in _joined(readys):
            if ready.install is not None:
                restored.append((ready.install, self._store.install(ready.install)))
            self._store.write(ready.hard_state, ready.truncate_from, ready.entries)
        if self._is_trim_due:
            self._is_trim_due = False
            self._store.trim()
        return restored

    async def _rebuild(self, error: AlpacaError) -> None:
        """Read the log again until it can be read, and go on with what it holds."""
        loop = asyncio.get_running_loop()
        log.error("metadata_not_written", reason=str(error))
        self.failure = f"the metadata log cannot be written: {error}"
        self._listener.failed(error)
        if self._store.log.in_doubt is not None:
            # What is read back may not be on disk, and must not count. The next start knows what is.
            self._give_up(error)
            return
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        is_over = now - self._failing_since > PATIENCE_SECONDS
        if is_over and self._outgoing is not None and not isinstance(error, DiskFull):
            self._give_up(error)
            return
        while self._runs:
            await asyncio.sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, MAX_RETRY_SECONDS)
            try:
                recovered = await loop.run_in_executor(self._executor, self._store.recover_again)
            except (AlpacaError, OSError) as again:
                if self._store.log.in_doubt is not None:
                    self.failure = f"the metadata log cannot be written: {again}"
                    self._give_up(self._store.log.fsync_error())
                    return
                self.failure = f"the metadata log cannot be read: {again}"
                continue
            self._raft = self._core(recovered or EMPTY)
            # What the former core decided meanwhile follows entries that are not on disk.
            self._unwritten.clear()
            self.failure = None
            return

    def _give_up(self, error: AlpacaError) -> None:
        self._runs = False
        if self._outgoing is not None:  # alone, it serves on what needs no new metadata
            self._listener.given_up(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._raft.is_established and self._is_alone():
            return  # there is no follower to send heartbeats to
        seconds = max(self._raft.next_deadline_ms - self._now_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _is_alone(self) -> bool:
        return len(self._raft.voters) == 1 and not self._raft.peers()

    def _tick(self) -> None:
        self._raft.tick(self._now_ms())
        self._pump()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _joined(readys: Sequence[Ready]) -> Iterator[Ready]:
    """Join what only appends to what comes before, so that it needs no sync of its own."""
    entries: list[Entry] = []
    joined: Ready | None = None
    for ready in readys:
        appends = ready.hard_state is None and ready.truncate_from is None and ready.install is None
        if joined is not None and not appends:
            yield joined._replace(entries=entries)
        if joined is None or not appends:
            joined, entries = ready, []
        entries += ready.entries
    if joined is not None:
        yield joined._replace(entries=entries)
