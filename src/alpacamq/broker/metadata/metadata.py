"""The cluster's metadata on this node: the image, and commands to the controller.

The image changes by committed entries only. The node that leads the metadata log is the controller: it
decides on commands against everything proposed so far, and replies once its proposal is committed. Other
nodes forward commands to it, and return once their own image has the result.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from alpacamq.cluster.cluster_time import ClusterTime
from alpacamq.cluster.commands import (
    AddVoter,
    AllocateProducerIds,
    AnyCommand,
    Command,
    CreateTopic,
    DescribeQuorum,
    Done,
    EnableSessions,
    EndSession,
    Heartbeat,
    QuorumCommand,
    QuorumStatus,
    RegisterBroker,
    RemoveVoter,
    ReplicaProgress,
    UnregisterBroker,
    decode_reply,
    encode_reply,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import ControllerSettings, Decision
from alpacamq.cluster.image import FEATURES, ClusterImage, Delta, difference, unsupported_feature
from alpacamq.consensus.messages import (
    Entry,
    EntryKind,
    Role,
    RoleChange,
    Snapshot,
)
from alpacamq.model.errors import (
    AlpacaError,
    CorruptState,
    InvalidRequest,
    InvalidVoters,
    NotController,
    PeerUnavailable,
    RequestTimedOut,
    StorageFailed,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Change
from alpacamq.model.voters import Voter
from alpacamq.telemetry.logs import get_logger

from .quorum import Proposed, Quorum
from .store import MetadataStore, Recovered

log = get_logger(__name__)
R = TypeVar("R")

# How long a command may take, elections included; and the pause after an attempt without a controller.
COMMAND_SECONDS = 30.0
RETRY_SECONDS = 0.1
# How long a request about an unknown topic waits for the controller, which may know it.
CATCH_UP_SECONDS = 5.0
# A controller whose timers are later than this was paused.
MAX_LATE_MS = 1000
# Changes of a large decision that need not be atomic are split into entries of this many.
CHANGES_PER_ENTRY = 5000
# A snapshot is taken when the log has grown by this much, or by as much as the last one had.
SNAPSHOT_BYTES = 8 << 20

# Commands that may be decided twice: the second time finds what the first one did.
REPEATABLE = (AllocateProducerIds, CreateTopic, EnableSessions, EndSession, Heartbeat, RegisterBroker)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


class ControllerReply(msgspec.Struct, frozen=True, array_like=True):
    """The encoded reply to a forwarded command, and the index at which its result is in every image."""

    applied: int
    reply: bytes


# Sends a command to another node, which is believed to be the controller, with a timeout in milliseconds.
Forward = Callable[[BrokerId, Command[Any], int], Awaitable[ControllerReply]]


def was_paused(due_ms: int, now_ms: int) -> bool:
    """Return whether a timer fired so late that this process did not run, or its event loop did not."""
    return now_ms - due_ms > MAX_LATE_MS


@dataclass(slots=True)
class _Waiter:
    proposed: Proposed
    done: asyncio.Future[None]


class Decided(NamedTuple):
    """The controller's reply to a command, in force once the proposal is committed."""

    reply: Any
    proposed: Proposed


class Metadata:
    """The image of this node, its part in the metadata log, and the controller while it leads."""

    def __init__(
        self,
        store: MetadataStore,
        recovered: Recovered,
        *,
        node_id: BrokerId,
        clock: Clock,
        executor: Executor,
        settings: ControllerSettings,
        resume_clocks: Callable[[int], None] = lambda _time_ms: None,
    ) -> None:
        """Start with the image of the last snapshot; `connect` follows.

        `resume_clocks` is given the last recorded time before this node uses its own as the cluster's.
        """
        self.image = ClusterImage()
        self.image.apply(recovered.changes)
        self._check_features()
        self.applied_index = recovered.snapshot.index
        self._node_id = node_id
        self._store = store
        self._clock = clock
        self._executor = executor
        self._settings = settings
        self._resume_clocks = resume_clocks
        self._quorum: Quorum
        # Cluster time as this node knows it; the controller's, while that is here.
        self.time = ClusterTime(clock.now_ms(), self._now_ms())
        self._ended: Callable[[], Sequence[BrokerId]] = lambda: ()
        self._controller: Controller | None = None
        # The last proposal of this controller: replies wait for it, so that none leaves before its reason.
        self._last = Proposed(0, 0)
        self._waiters: deque[_Waiter] = deque()
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._listeners: list[Callable[[Delta], None]] = []
        self._has_failed = asyncio.Event()
        self._failure: AlpacaError | None = None
        self._known_leader: BrokerId | None = None
        # Controllers that this node has seen elected, for metrics.
        self.controller_changes = 0
        # Commands that wait for the reply of another node.
        self._until_replaced: set[asyncio.Future[None]] = set()
        # Waits for the controller's last entry: the one that has begun, and the one that begins after it.
        self._catching_up: asyncio.Future[None] | None = None
        self._next_catch_up: asyncio.Future[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_due_ms = 0
        self._forward: Forward | None = None
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_taking_snapshot = False
        self._bytes_since_snapshot = sum(len(entry.payload) for entry in recovered.entries)
        self._snapshot_due_bytes = SNAPSHOT_BYTES

    def connect(
        self,
        quorum: Quorum,
        forward: Forward | None = None,
        ended: Callable[[], Sequence[BrokerId]] = lambda: (),
    ) -> None:
        """Use `quorum`, whose listener this object is, and forward commands with `forward`.

        `ended` returns the nodes that are known to have ended when this node becomes controller.
        """
        self._quorum = quorum
        self._forward = forward
        self._ended = ended

    def start(self) -> None:
        """Take part in the cluster, if that has not begun. On the event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._quorum.start()
            self._plan_tick()

    async def watch(self) -> None:
        """Raise when the node has to stop: a committed entry cannot be applied, or the log fails for good."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure

    async def stop(self) -> None:
        """Stop taking part."""
        self._is_stopped = True
        for waiting in (self._catching_up, self._next_catch_up):
            if waiting is not None:
                waiting.cancel()
        await self._quorum.stop()
        self._resign(RequestTimedOut("the broker is stopping; the command may have taken effect"))

    @property
    def quorum(self) -> Quorum:
        return self._quorum

    @property
    def controller_id(self) -> BrokerId | None:
        """The node that is the controller, as far as known."""
        return self._quorum.leader

    @property
    def is_controller(self) -> bool:
        return self._controller is not None

    @property
    def is_alone(self) -> bool:
        """Whether this is the only node: no other could become controller or lead."""
        others = {*self.image.brokers, *(voter.id for voter in self._quorum.voters)} - {self._node_id}
        return not others

    def subscribe(self, listener: Callable[[Delta], None]) -> None:
        """Call a listener with every difference, right after it was applied to the image."""
        self._listeners.append(listener)

    # Commands.

    async def ask(self, command: Command[R], timeout_seconds: float = COMMAND_SECONDS) -> R:
        """Return the controller's reply to a command, once its result is in this node's image.

        Raises NotController if there is none in time, RequestTimedOut if the outcome is unknown.
        """
        self.start()
        refusal: NotController | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    refusal = None
                    try:
                        return await self._attempt(command, timeout_seconds)
                    except (NotController, PeerUnavailable) as error:
                        # An election is going on, or the former controller has ended: nothing was proposed.
                        refusal = NotController(str(error), self._quorum.leader)
                    if self._quorum.failure is not None:
                        raise StorageFailed(self._quorum.failure)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            if refusal is not None:
                raise refusal from None
            raise RequestTimedOut(f"no reply of the controller within {timeout_seconds:g} s") from None

    async def _attempt(self, command: Command[R], timeout_seconds: float) -> R:
        if self._controller is not None:
            decided = self.decide(command)
            try:
                await self._committed(decided.proposed)
            except RequestTimedOut as error:
                if isinstance(command, REPEATABLE) and not self._is_stopped:
                    raise NotController(str(error), self._quorum.leader) from None
                raise
            reply: R = decided.reply
            return reply
        controller = self._quorum.leader
        if controller is None or controller == self._node_id or self._forward is None:
            raise NotController("no controller is elected", controller)
        answer = await self._forwarded(self._forward, controller, command, timeout_seconds)
        await self.wait_until_applied(answer.applied)
        return decode_reply(command, answer.reply)

    async def _forwarded(
        self, forward: Forward, controller: BrokerId, command: Command[Any], timeout_seconds: float
    ) -> ControllerReply:
        """Return the reply of another node, unless it ceases to be the controller meanwhile."""
        replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until_replaced.add(replaced)
        answering: asyncio.Future[Any] = asyncio.ensure_future(
            forward(controller, command, int(timeout_seconds * 1000))
        )
        try:
            await asyncio.wait({answering, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answer: ControllerReply = await answering
                return answer
        except (RequestTimedOut, StorageFailed) as error:
            # Another node may be the controller next, and finds what this one has done.
            if isinstance(command, REPEATABLE):
                raise NotController(str(error), self._quorum.leader) from None
            raise
        finally:
            answering.cancel()
            self._until_replaced.discard(replaced)
        if isinstance(command, REPEATABLE):
            raise NotController(f"node {controller} is not the controller any more", self._quorum.leader)
        raise RequestTimedOut("the controller changed; the command may have taken effect")

    async def answer(self, command: AnyCommand) -> ControllerReply:
        """Answer a command that another node forwarded. Raises NotController."""
        decided = self.decide(command)
        await self._committed(decided.proposed)
        return ControllerReply(decided.proposed.index, encode_reply(decided.reply))

    def decide(self, command: Command[Any]) -> Decided:
        """Decide on a command and propose the result. Raises NotController, or the command's error."""
        if self._controller is None:
            raise NotController(f"node {self._node_id} is not the controller", self._quorum.leader)
        if isinstance(command, QuorumCommand):
            return Decided(self._decide_on_quorum(command), self._last)
        if isinstance(command, UnregisterBroker):
            self._check_does_not_vote(command.broker_id)
        self._controller.last_index = self._last.index
        decision = self._controller.decide(command, self._now_ms())
        self._propose(decision)
        return Decided(decision.reply, self._last)

    def _check_does_not_vote(self, node_id: BrokerId) -> None:
        """Refuse to forget a voter: a majority would still need it, and its address would be lost."""
        if any(voter.id == node_id for voter in self._quorum.voters):
            raise InvalidRequest(f"node {node_id} is a voter of the metadata log; remove its vote first")

    def _decide_on_quorum(self, command: QuorumCommand) -> QuorumStatus | Done:
        """Answer a command about the metadata log, as its leader."""
        quorum = self._quorum
        match command:
            case AddVoter():
                self._last = quorum.change_voters(
                    (*quorum.voters, Voter(command.node_id, command.directory_id))
                )
            case RemoveVoter():
                removed = Voter(command.node_id, command.directory_id)
                if removed not in quorum.voters:
                    raise InvalidVoters(f"node {removed.id} with this directory is not a voter")
                self._last = quorum.change_voters([each for each in quorum.voters if each != removed])
            case DescribeQuorum():
                return self._quorum_status()
        return Done()

    def _quorum_status(self) -> QuorumStatus:
        quorum = self._quorum
        ahead_ms = self._clock.now_ms() - self._now_ms()
        progress = {
            Voter(peer.id, peer.directory): ReplicaProgress(
                node_id=peer.id,
                directory_id=peer.directory,
                end_index=peer.match_index,
                last_contact_ms=peer.heard_ms + ahead_ms,
            )
            for peer in quorum.peers()
        }
        for voter in quorum.voters:
            if voter.id == self._node_id:
                now_ms = self._clock.now_ms()
                progress[voter] = ReplicaProgress(
                    node_id=voter.id,
                    directory_id=voter.directory,
                    end_index=quorum.last_index,
                    last_contact_ms=now_ms,
                )
        return QuorumStatus(
            leader=self._node_id,
            term=quorum.term,
            commit_index=quorum.commit_index,
            voters=tuple(each for voter, each in progress.items() if voter in quorum.voters),
            observers=tuple(each for voter, each in progress.items() if voter not in quorum.voters),
        )

    def cluster_time_ms(self) -> int:
        """Return the cluster time."""
        return self.time.at(self._now_ms())

    def heard_time(self, time_ms: int, sent_ms: int) -> None:
        """Learn the controller's time from a reply to a request that was sent at `sent_ms` by this node."""
        if self._controller is None:
            self.time.observe(time_ms, sent_ms, self._now_ms())

    def connection_lost(self, broker_id: BrokerId, *, is_refused: bool) -> None:
        """Tell the controller, if it is on this node, that a broker's connection was lost.

        If the process was the controller and has ended, another is elected at once.
        """
        if is_refused and self._loop is not None and not self._is_stopped:
            self._quorum.node_ended(broker_id)
        if self._controller is not None:
            self._controller.last_index = self._last.index
            lost = self._controller.connection_lost(broker_id, is_refused=is_refused)
            with suppress(AlpacaError):  # it has resigned
                self._propose(lost)

    def former_process_ended(self) -> None:
        """Tell the controller on this node that its last process has ended: this one has its directory."""
        if self._controller is not None:
            self._controller.end_session(self._node_id)

    def decide_alone(self, command: Command[R]) -> R:
        """Decide on a command in a cluster of this node only. Blocking; before the event loop runs."""
        decided = self.decide(command)
        self._quorum.drive_alone()
        reply: R = decided.reply
        return reply

    async def wait_until_applied(self, index: int) -> None:
        """Return once the image contains everything up to `index`."""
        if index > self.applied_index:
            applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._applied_waiters.append((index, applied))
            await applied

    @property
    def may_be_behind(self) -> bool:
        """Whether another node may have committed entries that this one has not applied."""
        return self._forward is not None and self._controller is None

    async def catch_up(self) -> None:
        """Return once the image contains everything that was committed before this call.

        Raises NotController, RequestTimedOut. Callers share requests: one at a time is sent.
        """
        if not self.may_be_behind:
            return
        if self._next_catch_up is None:
            self._next_catch_up = asyncio.ensure_future(self._catch_up_after(self._catching_up))
        await asyncio.shield(self._next_catch_up)

    async def _catch_up_after(self, earlier: "asyncio.Future[None] | None") -> None:
        if earlier is not None:
            # Its reply may have left the controller before this caller began to wait.
            await asyncio.wait({earlier})
        self._catching_up, self._next_catch_up = self._next_catch_up, None
        await self.ask(DescribeQuorum(), CATCH_UP_SECONDS)

    # What the metadata log hands over.

    def committed(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries to the image, and answer the commands that wait for them."""
        with self._failing():
            self._apply(entries)
        self._answer_waiters(entries)
        self._lead_if_established()
        self._snapshot_if_due()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Stop the node if the block raises CorruptState.

        Skipping a change would leave this node with another state than the others have.
        """
        try:
            yield
        except CorruptState as error:
            log.error("metadata_not_understood", reason=str(error))
            self._failure = error
            self._has_failed.set()
            raise

    def _check_features(self) -> None:
        """Raise CorruptState if the cluster uses a feature at a level that this version does not support."""
        if (unsupported := unsupported_feature(self.image.features, FEATURES)) is not None:
            raise CorruptState(unsupported)

    def apply_stored(self, entries: Sequence[Entry]) -> None:
        """Apply stored entries of a cluster of this node only: what it has on disk is committed.

        For a start on a full disk, where no election can be stored.
        """
        self._apply(entries)

    def restored(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Replace the image by that of a snapshot."""
        before, self.image = self.image, ClusterImage()
        with self._failing():
            self.image.apply(changes)
            self._check_features()
        self.applied_index = snapshot.index
        self._notify(difference(before, self.image))

    def role_changed(self, change: RoleChange) -> None:
        """Stop or start being the controller."""
        log.info("metadata_role", role=change.role.value, term=change.term, leader=change.leader)
        if change.leader != self._known_leader:
            self._known_leader = change.leader
            self.controller_changes += change.leader is not None
            for replaced in self._until_replaced:
                if not replaced.done():
                    replaced.set_result(None)
        if change.role is not Role.LEADER or change.term != self._last.term:
            self._resign(RequestTimedOut("the controller changed; the command may have taken effect"))
        self._lead_if_established()

    def failed(self, error: AlpacaError) -> None:
        """Stop being the controller: the metadata log could not be written."""
        self._resign(error)

    def given_up(self, error: AlpacaError) -> None:
        """Have the node stop: it would learn of no change, and others can take over."""
        self._failure = StorageFailed(f"the metadata log fails: {error}")
        self._has_failed.set()

    @property
    def has_failed(self) -> bool:
        """Whether this node takes no part in the cluster any more."""
        return self._failure is not None

    def _apply(self, entries: Sequence[Entry]) -> None:
        delta = Delta()
        for entry in entries:
            if entry.index <= self.applied_index:
                continue
            assert entry.index == self.applied_index + 1, f"{entry.index} follows {self.applied_index}"
            if entry.kind is EntryKind.DATA:
                delta |= self.image.apply(_decode(entry.payload))
            self.applied_index = entry.index
            self._bytes_since_snapshot += len(entry.payload)
        if delta.features:
            self._check_features()
        self._notify(delta)

    def _notify(self, delta: Delta) -> None:
        waiting, self._applied_waiters = self._applied_waiters, []
        for index, applied in waiting:
            if applied.done():
                continue  # cancelled
            if index > self.applied_index:
                self._applied_waiters.append((index, applied))
            else:
                applied.set_result(None)
        if delta:
            for listener in self._listeners:
                listener(delta)

    def _answer_waiters(self, entries: Sequence[Entry]) -> None:
        """Answer the commands whose entries are committed; the waiters are in the order of their entries."""
        terms = {entry.index: entry.term for entry in entries}
        while self._waiters and self._waiters[0].proposed.index <= self.applied_index:
            waiter = self._waiters.popleft()
            proposed, done = waiter.proposed, waiter.done
            if done.done():
                continue
            if terms.get(proposed.index, proposed.term) == proposed.term:
                done.set_result(None)
            else:
                done.set_exception(RequestTimedOut("another controller took over; the command was lost"))

    async def _committed(self, proposed: Proposed) -> None:
        if proposed.index > self.applied_index:
            waiter = _Waiter(proposed, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
            await waiter.done

    # Snapshots.

    def snapshot(self) -> tuple[Snapshot, ClusterImage]:
        """Return the position of everything applied so far, and an image of it."""
        return self._quorum.snapshot_position(self.applied_index), self.image.copy()

    async def install(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Store a snapshot that another node has sent, and continue from it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._store.write_snapshot, snapshot, changes)
        self._quorum.install_snapshot(snapshot)
        await self.wait_until_applied(snapshot.index)

    def _snapshot_if_due(self) -> None:
        is_due = self._bytes_since_snapshot >= self._snapshot_due_bytes
        if self._is_taking_snapshot or self._loop is None or not is_due:
            return
        self._is_taking_snapshot = True
        self._bytes_since_snapshot = 0
        taken = self._quorum.snapshot_position(self.applied_index)
        writing = self._loop.run_in_executor(self._executor, self._write_snapshot, taken, self.image.copy())
        writing.add_done_callback(lambda ended: self._snapshot_written(taken, ended))

    def _write_snapshot(self, taken: Snapshot, image: ClusterImage) -> int:
        return self._store.write_snapshot(taken, image.changes())

    def _snapshot_written(self, taken: Snapshot, writing: "asyncio.Future[int]") -> None:
        self._is_taking_snapshot = False
        if writing.cancelled():
            return
        if (error := writing.exception()) is not None:
            log.warning("metadata_snapshot_failed", reason=str(error))
            return
        self._snapshot_due_bytes = max(SNAPSHOT_BYTES, writing.result())
        self._quorum.compacted(taken.index)
        log.info("metadata_snapshot_written", index=taken.index, size_bytes=writing.result())

    # The controller.

    def _lead_if_established(self) -> None:
        """Become the controller once everything that former controllers proposed is applied."""
        quorum = self._quorum
        # Also what a controller on this node proposed before it resigned: it is not in the image yet.
        if self._controller is None and quorum.is_established and self.applied_index >= quorum.last_index:
            self._last = Proposed(quorum.last_index, quorum.term)
            self._resume_clocks(self.image.time_ms)
            self.time.lead(self._clock.now_ms(), self.image.time_ms, self._now_ms())
            self._controller = Controller(
                self.image,
                self._settings,
                self._now_ms(),
                time=self.time,
                last_index=quorum.last_index,
            )
            log.info("controller_started", node=self._node_id, term=quorum.term)
            for node_id in self._ended():
                self.connection_lost(node_id, is_refused=True)
            self._plan_tick()

    def _resign(self, error: AlpacaError) -> None:
        if self._controller is not None:
            log.info("controller_stopped", node=self._node_id, reason=str(error))
        self._controller = None
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done.done():
                waiter.done.set_exception(error.with_traceback(None))

    def _propose(self, decision: Decision[Any]) -> None:
        try:
            for changes in decision.entries(CHANGES_PER_ENTRY):
                self._last = self._quorum.propose(_encode(changes))
        except AlpacaError as error:
            # The controller has decided what is not proposed: the next one starts from the image. What was
            # proposed before may still be committed.
            self._resign(RequestTimedOut(f"{error}; the command may have taken effect"))
            if self._loop is not None:
                self._loop.call_later(RETRY_SECONDS, self._lead_if_established)
            raise
        self._plan_tick()

    def _plan_tick(self) -> None:
        """Call the controller when something is due."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        due_ms = None if self._controller is None else self._controller.next_deadline_ms
        if due_ms is not None and self._loop is not None:
            now_ms = self._now_ms()
            self._tick_due_ms = max(due_ms, now_ms)
            self._tick_timer = self._loop.call_later((self._tick_due_ms - now_ms) / 1000, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        if self._controller is not None:
            self._controller.last_index = self._last.index
            # After a pause of this process, or a jump of a clock, its own heartbeat is late as well.
            self._controller.keep_session(self._node_id, self._now_ms())
            if was_paused(self._tick_due_ms, self._now_ms()):
                log.warning("controller_was_paused", late_ms=self._now_ms() - self._tick_due_ms)
                self._controller.was_paused(self._now_ms())
            with suppress(AlpacaError):  # it has resigned
                self._propose(self._controller.tick(self._now_ms()))
            self._plan_tick()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
