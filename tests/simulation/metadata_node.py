"""The metadata side of a simulated node: Raft, the controller, and the session of its broker."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.commands import (
    AnyCommand,
    Heartbeat,
    HeartbeatReply,
    RegisterBroker,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import Decision
from alpacamq.cluster.image import FEATURES, ClusterImage
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.consensus.messages import (
    EntryKind,
    HardState,
    RaftSettings,
    Ready,
    Role,
    Snapshot,
    first_entry,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.errors import (
    AlpacaError,
    InvalidVoters,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Change
from alpacamq.model.voters import Voter
from tests.simulation.kit import MS_US, SimNode

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

RAFT = RaftSettings(election_ms=200, heartbeat_ms=60)
HEARTBEAT_MS = 200
DEAD_MS = 800
CALL_TIMEOUT_MS = 400
HOUSEKEEPING_MS = 50
MAX_CHANGES = 3


class Call(NamedTuple):
    """A command for the controller."""

    incarnation: int
    call_id: int
    command: AnyCommand


class Answer(NamedTuple):
    """The reply to a command, or the error."""

    incarnation: int
    call_id: int
    result: object


class PendingReply(NamedTuple):
    """A reply of the controller that waits for the commit of an entry of its term."""

    term: int
    commit: Callable[[], None]
    lose: Callable[[], None]


class MetadataNode(SimNode):
    """One process after another on the same disk. `BrokerNode` has its partitions."""

    raft: Raft

    def __init__(self, cluster: "Cluster", node_id: int, voters: tuple[Voter, ...]) -> None:
        super().__init__(cluster.simulation, node_id)
        self.cluster = cluster
        self.directory = UUID(int=node_id)
        self.disk.log("metadata").restore([first_entry(voters)])

    # Process.

    def on_start(self) -> None:
        self.hard_state = self.disk.cell("hard-state", HardState())
        self.metadata = self.disk.log("metadata")
        self.metadata.cut_torn_tail()
        self.stored_epoch = self.disk.cell("broker-epoch", 0)
        self.queue: list[Ready] = []
        self.is_writing = False
        self.image = ClusterImage()
        self.applied = 0
        self.controller: Controller | None = None
        self.controller_term = 0
        self.pending: dict[int, list[PendingReply]] = {}
        self.calls: dict[int, Callable[[object], None]] = {}
        self.last_call = 0
        self.seen_calls: set[tuple[int, int, int]] = set()
        self.incarnation_id = UUID(int=self.cluster.draw_id())
        self.broker_epoch: int | None = None
        self.is_calling = False
        self.wants_shutdown = False
        self.next_heartbeat_ms = self.now_ms
        self.answered_ms = self.now_ms
        self.is_advancing = False
        self.raft = Raft(
            BrokerId(self.id),
            self.directory,
            hard_state=self.hard_state.value,
            snapshot=Snapshot(),
            entries=self.metadata.records,
            settings=RAFT,
            random=self.simulation.random.random,
            now_ms=self.now_ms,
            contacts=[BrokerId(node_id) for node_id in self.cluster.nodes],
        )
        self.next_housekeeping_ms = self.now_ms
        self.on_timer()

    def on_timer(self) -> None:
        now_ms = self.now_ms
        if now_ms >= self.raft.next_deadline_ms:
            self.raft.tick(now_ms)
        if now_ms >= self.next_housekeeping_ms:
            self.next_housekeeping_ms = now_ms + HOUSEKEEPING_MS
            self.keep_house()
        self.advance()
        self.set_timer(max(min(self.raft.next_deadline_ms, self.next_housekeeping_ms), now_ms + 1))

    def keep_house(self) -> None:
        """Do what is due from time to time."""
        self.keep_session()
        if self.controller is not None:
            self.tick_controller(self.controller)

    def on_message(self, sender: int, message: Any) -> None:
        match message:
            case Call():
                self.on_call(sender, message)
            case Answer(incarnation, call_id, result):
                if incarnation == self.incarnation and (done := self.calls.pop(call_id, None)):
                    done(result)
            case _:
                self.raft.step(message, self.now_ms)
        self.advance()

    @abstractmethod
    def apply(self, changes: list[Change]) -> None:
        """Apply committed metadata."""

    @abstractmethod
    def apply_partitions(self, partitions: Iterable[PartitionId]) -> None:
        """Lead, follow or drop partitions, as the image says."""

    # Raft.

    def advance(self) -> None:
        """Perform what Raft has ready."""
        if self.is_advancing:
            return
        self.is_advancing = True
        while True:
            ready = self.raft.take_ready()
            for message in ready.messages:
                self.send(message.to, message)
            for entry in ready.committed:
                self.applied = entry.index
                self.cluster.oracle.check_metadata(entry)
                if entry.kind is EntryKind.DATA:
                    self.apply(msgspec.msgpack.decode(entry.payload, type=list[Change]))
                for waiting in self.pending.pop(entry.index, ()):
                    (waiting.commit if waiting.term == entry.term else waiting.lose)()
            if ready.write is not None:
                self.queue.append(ready)
                self.write()
            self.update_controller()
            if not (ready.messages or ready.committed or ready.write is not None):
                break
        self.is_advancing = False
        if self.raft.next_deadline_ms < self.next_housekeeping_ms:
            self.set_timer(max(self.raft.next_deadline_ms, self.now_ms + 1))

    def write(self) -> None:
        if self.is_writing or not self.queue:
            return
        self.is_writing = True
        last = None
        while self.queue:
            last = self.queue.pop(0)
            if last.hard_state is not None:
                self.hard_state.write(last.hard_state)
            if last.truncate_from is not None:
                self.metadata.truncate(last.truncate_from - 1)
            self.metadata.append(*last.entries)
        assert last is not None
        self.disk.sync([self.hard_state, self.metadata], self.written, last.write)

    def written(self, write: int) -> None:
        self.is_writing = False
        self.raft.flushed(write, self.now_ms)
        self.write()
        self.advance()

    # The controller.

    def update_controller(self) -> None:
        """Begin to decide once everything that was proposed is known, and stop when another node leads."""
        raft = self.raft
        if self.controller is not None and (
            raft.role is not Role.LEADER or raft.term != self.controller_term
        ):
            self.controller = None
            pending, self.pending = self.pending, {}
            for waiting in chain.from_iterable(pending.values()):
                waiting.lose()
        # Also what a controller on this node proposed in this term, before it had to stop.
        if self.controller is None and raft.is_established and self.applied >= raft.last_index:
            self.controller_term = raft.term
            self.controller = self.cluster.new_controller(self.image, self.applied, self.now_ms)
            self.cluster.tell(f"{self.id} is controller")
            self.cluster.seen["controllers"] += 1
            self.simulation.trace("controller", self.id, raft.term)

    def tick_controller(self, controller: Controller) -> None:
        self.replace_wiped_voters()
        controller.last_index = self.raft.last_index
        self.propose(controller.tick(self.now_ms), lambda: None, lambda: None)

    def propose(
        self, decision: "Decision[Any] | None", commit: Callable[[], None], lose: Callable[[], None]
    ) -> None:
        """Write a decision; call `commit` once it and all before it are committed."""
        if decision is None:
            return
        try:
            for changes in decision.entries(MAX_CHANGES):
                self.raft.propose(msgspec.msgpack.encode(changes), self.now_ms)
        except NotController:
            self.controller = None  # it has decided something that will not be written
            lose()
            return
        index = self.raft.last_index
        if index <= self.applied:
            commit()
        else:
            self.pending.setdefault(index, []).append(PendingReply(self.raft.term, commit, lose))

    def replace_wiped_voters(self) -> None:
        """Give the vote of a lost directory to the node's new one."""
        raft = self.raft
        voters = {voter.id: voter for voter in raft.voters}
        try:
            for peer in raft.peers():
                voter = voters.get(peer.id)
                if voter is not None and voter.directory != peer.directory:
                    raft.change_voters([each for each in raft.voters if each.id != peer.id], self.now_ms)
                    return
                if voter is None:
                    raft.change_voters([*raft.voters, Voter(peer.id, peer.directory)], self.now_ms)
                    return
        except (InvalidVoters, NotController):
            return

    def on_call(self, sender: int, call: Call) -> None:
        # A connection does not duplicate, though it may deliver very late.
        key = (sender, call.incarnation, call.call_id)
        if key in self.seen_calls:
            return
        self.seen_calls.add(key)

        def answer(result: object) -> None:
            message = Answer(call.incarnation, call.call_id, result)
            if sender == self.id:
                self.later(1, self.on_message, self.id, message)
            else:
                self.send(sender, message)

        if self.controller is None:
            answer(NotController("not here", self.raft.leader))
            return
        self.controller.last_index = self.raft.last_index
        try:
            decision: Decision[Any] = self.controller.decide(call.command, self.now_ms)
        except AlpacaError as error:
            answer(error)
            return
        self.propose(
            decision,
            lambda: answer(decision.reply),
            lambda: answer(RequestTimedOut("the controller changed")),
        )

    def call(self, command: AnyCommand, done: Callable[[object], None]) -> None:
        """Send a command to the controller; `done` gets the reply or an AlpacaError."""
        self.last_call += 1
        call = Call(self.incarnation, self.last_call, command)
        self.calls[call.call_id] = done
        target: int | None = self.raft.leader
        if target is None:
            target = self.simulation.random.choice(sorted(self.cluster.nodes))
        if target == self.id:
            self.later(1, self.on_message, self.id, call)
        else:
            self.send(target, call)
        self.later(CALL_TIMEOUT_MS * MS_US, self.time_out, call.call_id)

    def time_out(self, call_id: int) -> None:
        if done := self.calls.pop(call_id, None):
            done(RequestTimedOut("no answer"))
            self.advance()

    # The session with the controller.

    @property
    def is_serving(self) -> bool:
        """Whether this process is registered, and the image knows it."""
        if self.broker_epoch is None:
            return False
        broker = self.image.brokers.get(BrokerId(self.id))
        return broker is not None and broker.epoch == self.broker_epoch

    def keep_session(self) -> None:
        if self.is_calling or self.now_ms < self.next_heartbeat_ms:
            return
        self.is_calling = True
        self.next_heartbeat_ms = self.now_ms + HEARTBEAT_MS
        if self.broker_epoch is None:
            command = RegisterBroker(
                features=FEATURES,
                id=BrokerId(self.id),
                incarnation_id=self.incarnation_id,
                directory_id=self.directory,
                last_epoch=self.stored_epoch.value,
                rack=f"rack-{self.id}",
                endpoints=self.cluster.endpoints(self.id),
            )
            self.call(command, self.registered)
        else:
            self.call(
                Heartbeat(
                    broker_id=BrokerId(self.id),
                    broker_epoch=self.broker_epoch,
                    applied_index=self.applied,
                    wants_shutdown=self.wants_shutdown,
                ),
                self.heartbeat_answered,
            )

    def registered(self, result: object) -> None:
        if isinstance(result, BrokerRegistration):
            # Stored before the first heartbeat, so that a restored backup is noticed.
            self.stored_epoch.write(result.epoch)
            self.disk.sync([self.stored_epoch], self.begin_session, result.epoch)
        else:
            self.is_calling = False

    def begin_session(self, epoch: int) -> None:
        self.broker_epoch = epoch
        self.is_calling = False
        self.next_heartbeat_ms = self.answered_ms = self.now_ms
        self.keep_session()
        if self.is_serving:
            self.apply_partitions(self.image.replicas_on(self.id))
        self.advance()

    def heartbeat_answered(self, result: object) -> None:
        self.is_calling = False
        if isinstance(result, HeartbeatReply):
            self.answered_ms = self.now_ms
            if self.wants_shutdown and result.may_shut_down:
                self.cluster.stop_cleanly(self)
        elif isinstance(result, StaleBrokerEpoch):
            self.crash_for(MS_US)
