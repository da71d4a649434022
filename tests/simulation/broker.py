"""A simulated node: the real Raft, controller, leaders and followers, on a simulated disk and network."""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.commands import (
    AlterPartitions,
    AnyCommand,
    Heartbeat,
    HeartbeatReply,
    IsrMember,
    IsrProposal,
    PartitionResults,
    RegisterBroker,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import Decision
from alpacamq.cluster.image import ClusterImage, Delta
from alpacamq.cluster.partition_state import PartitionId, PartitionState, min_isr
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.consensus.messages import (
    EntryKind,
    HardState,
    RaftSettings,
    Ready,
    Role,
    Snapshot,
    Voter,
    first_entry,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.errors import (
    AlpacaError,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidVoters,
    NotController,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Change
from alpacamq.replication.follower import (
    FetchError,
    FetchPosition,
    FlushTo,
    PartitionFollower,
    RestartAt,
    TruncateTo,
)
from alpacamq.replication.leader import (
    CommittedState,
    KnownBrokers,
    PartitionLeader,
    ProposeIsr,
)
from tests.simulation.kit import MS_US, SimNode
from tests.simulation.replica_log import Record, ReplicaLog, next_digest

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

RAFT = RaftSettings(election_ms=200, heartbeat_ms=60)
HEARTBEAT_MS = 200
DEAD_MS = 800
REPLICA_LAG_MS = 500
CALL_TIMEOUT_MS = 400
FETCH_WAIT_MS = 200
FETCH_TIMEOUT_MS = 500
HOUSEKEEPING_MS = 50
MAX_FETCH_RECORDS = 4
MAX_CHANGES = 3

FETCH_ERRORS = {
    FencedLeaderEpoch: FetchError.FENCED_LEADER_EPOCH,
    UnknownLeaderEpoch: FetchError.UNKNOWN_LEADER_EPOCH,
    NotLeader: FetchError.NOT_LEADER,
    StaleBrokerEpoch: FetchError.STALE_BROKER_EPOCH,
}


class Fetch(NamedTuple):
    """A fetch of one partition by a replica. The incarnation stands for the connection."""

    partition: PartitionId
    incarnation: int
    request_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


class Fetched(NamedTuple):
    """A response with records, or with none."""

    partition: PartitionId
    incarnation: int
    request_id: int
    offset: int
    records: tuple[Record, ...]
    high_watermark: int


class Diverged(NamedTuple):
    """A response that says where the logs part."""

    partition: PartitionId
    incarnation: int
    request_id: int
    epoch: int
    end_offset: int


class OutOfRange(NamedTuple):
    """A response that says where the leader's log ends."""

    partition: PartitionId
    incarnation: int
    request_id: int
    end_offset: int


class FetchFailed(NamedTuple):
    """A response without anything."""

    partition: PartitionId
    incarnation: int
    request_id: int
    error: FetchError


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


class Waiter(NamedTuple):
    """A producer that waits for the watermark."""

    end_offset: int
    offset: int
    reply: Callable[[object], None]


class PendingReply(NamedTuple):
    """A reply of the controller that waits for the commit of an entry of its term."""

    term: int
    commit: Callable[[], None]
    lose: Callable[[], None]


class Replica:
    """One partition on one node: its log and its role."""

    def __init__(self, partition: PartitionId, log: ReplicaLog) -> None:
        self.partition = partition
        self.log = log
        self.follower = PartitionFollower(log.epochs)
        self.leader: PartitionLeader | None = None
        self.leader_epoch = -1
        self.high_watermark = log.checkpoint
        self.parked: list[tuple[int, int, Fetch]] = []
        self.waiters: list[Waiter] = []
        self.is_flushing = self.is_cutting = False


class BrokerNode(SimNode):
    """One process after another on the same disk."""

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
        self.brokers = KnownBrokers({}, ())
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
        self.replicas: dict[PartitionId, Replica] = {}
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
        now_ms = self.now_ms
        self.keep_session()
        if self.controller is not None:
            self.tick_controller(self.controller)
        for replica in list(self.replicas.values()):
            if replica.leader is not None:
                replica.leader.tick(now_ms)
                self.progress(replica)
                self.answer_parked(replica)
            else:
                self.drive(replica)

    def on_message(self, sender: int, message: Any) -> None:
        match message:
            case Fetch():
                self.on_fetch(sender, message)
            case Fetched() | Diverged() | OutOfRange() | FetchFailed():
                if message.incarnation == self.incarnation:
                    self.on_fetch_response(message)
            case Call():
                self.on_call(sender, message)
            case Answer(incarnation, call_id, result):
                if incarnation == self.incarnation and (done := self.calls.pop(call_id, None)):
                    done(result)
            case _:
                self.raft.step(message, self.now_ms)
        self.advance()

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
        """Begin to decide once all committed metadata is known, and stop when another node leads."""
        raft = self.raft
        if self.controller is not None and (
            raft.role is not Role.LEADER or raft.term != self.controller_term
        ):
            self.controller = None
            pending, self.pending = self.pending, {}
            for waiting in chain.from_iterable(pending.values()):
                waiting.lose()
        if self.controller is None and raft.is_established and self.applied >= raft.commit_index:
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

    # Metadata.

    def apply(self, changes: list[Change]) -> None:
        was_serving = self.is_serving
        delta: Delta = self.image.apply(changes)
        if delta.brokers:
            brokers = self.image.brokers.values()
            self.brokers.epochs = {broker.id: broker.epoch for broker in brokers}
            self.brokers.joinable = {
                broker.id for broker in brokers if broker.is_running and not broker.is_shutting_down
            }
        if self.is_serving:
            if was_serving:
                self.apply_partitions(
                    [partition for partition in sorted(delta.partitions) if self.concerns(partition)]
                )
            else:
                self.apply_partitions(self.image.replicas_on(self.id))

    def concerns(self, partition: PartitionId) -> bool:
        state = self.image.partition(partition)
        return partition in self.replicas or (state is not None and self.id in state.replicas)

    def apply_partitions(self, partitions: Any) -> None:
        for partition in sorted(partitions):
            self.apply_partition(partition)

    def apply_partition(self, partition: PartitionId) -> None:
        """Lead, follow or drop one partition, as the image says."""
        state = self.image.partition(partition)
        replica = self.replicas.get(partition)
        if state is None or self.id not in state.replicas:
            if replica is not None:
                self.stop_leading(replica)
                del self.replicas[partition]
                replica.log.remove()
            return
        if replica is None:
            replica = Replica(partition, ReplicaLog(self.disk, str(partition.partition)))
            self.replicas[partition] = replica
            if replica.high_watermark > replica.log.end:
                self.cluster.oracle.fail(
                    f"node {self.id} has less than its checkpoint of {partition.partition}"
                )
        now_ms = self.now_ms
        if state.leader == self.id:
            committed = self.committed_state(partition, state)
            if replica.leader is not None and replica.leader.leader_epoch == state.leader_epoch:
                replica.leader.updated(committed, now_ms)
            elif state.leader_epoch > replica.leader_epoch:
                self.stop_leading(replica)
                replica.leader_epoch = state.leader_epoch
                self.cluster.oracle.check_leader(self, partition.partition, state.leader_epoch)
                replica.leader = PartitionLeader(
                    broker_id=BrokerId(self.id),
                    state=committed,
                    log_end=replica.log.end,
                    flushed_end=replica.log.flushed_end,
                    high_watermark=min(replica.high_watermark, replica.log.end),
                    replica_lag_ms=REPLICA_LAG_MS,
                    brokers=self.brokers,
                    now_ms=now_ms,
                )
                self.flush(replica)
            self.progress(replica)
        elif state.leader_epoch > replica.leader_epoch:
            self.stop_leading(replica)
            replica.leader_epoch = state.leader_epoch
            replica.follower.follow(
                None if state.leader is None else BrokerId(state.leader),
                state.leader_epoch,
                log_end=replica.log.end,
                flushed_end=replica.log.flushed_end,
                high_watermark=replica.high_watermark,
            )
            self.drive(replica)

    def committed_state(self, partition: PartitionId, state: PartitionState) -> CommittedState:
        topic = self.image.topic_by_id(partition.topic_id)
        assert topic is not None
        required = min_isr(configured_min_isr(self.image, topic), state.replication_factor)
        return CommittedState(
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=[BrokerId(broker) for broker in state.replicas],
            isr=[BrokerId(broker) for broker in state.isr],
            min_isr=required,
        )

    # Leading.

    def stop_leading(self, replica: Replica) -> None:
        replica.leader = None
        waiters, replica.waiters = replica.waiters, []
        for waiter in waiters:
            waiter.reply(NotLeader("another broker leads now"))
        parked, replica.parked = replica.parked, []
        for _, sender, fetch in parked:
            self.refuse_fetch(sender, fetch, FetchError.NOT_LEADER)

    def produce(
        self, partition: PartitionId, producer: int, sequence: int, reply: Callable[[object], None]
    ) -> None:
        """Append a record of an idempotent producer with acks=all."""
        replica = self.replicas.get(partition)
        leader = None if replica is None else replica.leader
        if replica is None or leader is None or self.now_ms - self.answered_ms > DEAD_MS:
            reply(NotLeader("not here", None))
            return
        log = replica.log
        try:
            leader.check_writable()
        except NotEnoughReplicas as error:
            reply(error)
            return
        last, offset = log.last_offsets.get(producer, (-1, -1))
        if sequence > last + 1:
            # The client sends one after the other, so what it sent before was acknowledged by a later leader.
            self.cluster.oracle.check_gap(self, partition, leader.leader_epoch, producer, sequence)
            reply(NotLeader("wait", None))
            return
        if sequence > last:
            offset = log.end
            epoch = leader.leader_epoch
            record = Record(
                epoch, producer, sequence, next_digest(log.digest, offset, epoch, producer, sequence)
            )
            self.cluster.oracle.check_append(self, partition.partition, offset, record)
            log.append([record])
            leader.appended(log.end, self.now_ms)
            self.flush(replica)
        replica.waiters.append(Waiter(offset + 1, offset, reply))
        self.progress(replica)

    def progress(self, replica: Replica) -> None:
        """Perform what follows from the state of a leader."""
        leader = replica.leader
        if leader is None:
            return
        if leader.unsent is not None:
            self.send_proposal(replica, leader.take_proposal())
        if leader.high_watermark > replica.high_watermark:
            self.learn_watermark(replica, leader.high_watermark)
        if replica.waiters:
            waiters, replica.waiters = replica.waiters, []
            for waiter in waiters:
                try:
                    if leader.is_replicated(waiter.end_offset):
                        self.cluster.oracle.check_ack(replica.partition.partition, waiter.offset, replica.log)
                        waiter.reply(waiter.offset)
                    else:
                        replica.waiters.append(waiter)
                except NotEnoughReplicasAfterAppend as error:
                    waiter.reply(error)
        self.answer_parked(replica)

    def learn_watermark(self, replica: Replica, high_watermark: int) -> None:
        self.cluster.oracle.check_watermark(
            self, replica.partition.partition, replica.log, replica.high_watermark, high_watermark
        )
        if replica.leader is not None:
            self.cluster.tell(f"{self.id} commits up to {high_watermark}")
        replica.high_watermark = high_watermark
        replica.log.store_watermark(high_watermark)

    def send_proposal(self, replica: Replica, proposal: ProposeIsr) -> None:
        leader = replica.leader
        assert self.broker_epoch is not None
        members = " ".join(str(member.broker_id) for member in proposal.isr)
        self.cluster.tell(f"{self.id} proposes in sync {members}")
        command = AlterPartitions(
            broker_id=BrokerId(self.id),
            broker_epoch=self.broker_epoch,
            proposals=(
                IsrProposal(
                    replica.partition.topic_id,
                    replica.partition.partition,
                    proposal.leader_epoch,
                    proposal.partition_epoch,
                    tuple(IsrMember(*member) for member in proposal.isr),
                ),
            ),
        )

        def done(result: object) -> None:
            assert leader is not None
            if replica.leader is not leader:
                return
            if isinstance(result, PartitionResults):
                (outcome,) = result.results
                if outcome.state is not None and outcome.failure is None:
                    leader.altered(
                        proposal.request_id,
                        self.committed_state(replica.partition, outcome.state),
                        self.now_ms,
                    )
                elif outcome.failure is not None and outcome.failure.error == IneligibleReplica.__name__:
                    self.cluster.seen["proposals rejected"] += 1
                    leader.alter_rejected(proposal.request_id, self.now_ms)
                else:
                    leader.alter_unknown(proposal.request_id, self.now_ms)
            else:
                self.cluster.seen["proposals in doubt"] += 1
                leader.alter_unknown(proposal.request_id, self.now_ms)
            self.progress(replica)

        self.call(command, done)

    def flush(self, replica: Replica) -> None:
        """Flush a log, one flush at a time."""
        log = replica.log
        if replica.is_flushing or log.flushed_end == log.end:
            return
        replica.is_flushing = True

        def done() -> None:
            replica.is_flushing = False
            if self.replicas.get(replica.partition) is not replica:
                return
            if replica.leader is not None:
                replica.leader.flushed(log.flushed_end)
                self.flush(replica)
                self.progress(replica)
            else:
                if replica.follower.log_end == log.end:
                    replica.follower.flushed(log.flushed_end)
                    self.follower_progress(replica)
                self.drive(replica)
            self.advance()

        log.flush(done)

    def on_fetch(self, sender: int, fetch: Fetch) -> None:
        replica = self.replicas.get(fetch.partition)
        if replica is None or replica.leader is None:
            state = self.image.partition(fetch.partition)
            is_behind = state is None or state.leader_epoch < fetch.leader_epoch
            self.refuse_fetch(
                sender, fetch, FetchError.UNKNOWN_LEADER_EPOCH if is_behind else FetchError.NOT_LEADER
            )
            return
        leader = replica.leader
        base = (fetch.partition, fetch.incarnation, fetch.request_id)
        try:
            found = leader.check_fetch(
                fetch.leader_epoch, fetch.last_epoch, fetch.offset, 0, replica.log.epochs
            )
            if found is not None:
                self.send(sender, Diverged(*base, *found))
                return
            leader.fetched(BrokerId(sender), fetch.broker_epoch, fetch.offset, self.now_ms)
        except OffsetOutOfRange:
            self.send(sender, OutOfRange(*base, leader.log_end))
            return
        except (FencedLeaderEpoch, UnknownLeaderEpoch, StaleBrokerEpoch) as error:
            self.refuse_fetch(sender, fetch, FETCH_ERRORS[type(error)])
            return
        replica.parked.append((self.now_ms + FETCH_WAIT_MS, sender, fetch))
        self.progress(replica)

    def answer_parked(self, replica: Replica) -> None:
        """Answer fetches for which there is something, or that have waited long enough."""
        leader = replica.leader
        if leader is None or not replica.parked:
            return
        now_ms = self.now_ms
        parked, replica.parked = replica.parked, []
        for deadline_ms, sender, fetch in parked:
            has_news = fetch.offset < leader.log_end or fetch.high_watermark < min(
                leader.high_watermark, fetch.offset
            )
            if has_news or now_ms >= deadline_ms:
                records = tuple(replica.log.records[fetch.offset : fetch.offset + MAX_FETCH_RECORDS])
                self.send(
                    sender,
                    Fetched(
                        fetch.partition,
                        fetch.incarnation,
                        fetch.request_id,
                        fetch.offset,
                        records,
                        leader.high_watermark,
                    ),
                )
            else:
                replica.parked.append((deadline_ms, sender, fetch))

    def refuse_fetch(self, sender: int, fetch: Fetch, error: FetchError) -> None:
        self.send(sender, FetchFailed(fetch.partition, fetch.incarnation, fetch.request_id, error))

    # Following.

    def drive(self, replica: Replica) -> None:
        """Do what the follower wants next."""
        if self.replicas.get(replica.partition) is not replica or self.broker_epoch is None:
            return
        if replica.leader is not None or replica.is_cutting:
            return
        follower, log = replica.follower, replica.log
        match follower.next_step(self.now_ms):
            case FetchPosition(request_id, leader_id, leader_epoch, offset, last_epoch):
                fetch = Fetch(
                    replica.partition,
                    self.incarnation,
                    request_id,
                    self.broker_epoch,
                    leader_epoch,
                    offset,
                    last_epoch,
                    follower.high_watermark,
                )
                self.cluster.oracle.check_fetch(self, replica.partition.partition, offset)
                self.send(leader_id, fetch)
                self.later(FETCH_TIMEOUT_MS * MS_US, self.fetch_timed_out, replica, request_id)
            case FlushTo():
                self.flush(replica)
            case TruncateTo(offset, lost_committed) | RestartAt(offset, lost_committed):
                if lost_committed:
                    self.cluster.oracle.fail(f"node {self.id} truncates committed records")
                self.cut(replica, offset)
            case None:
                pass
        assert log.end == follower.log_end or follower.leader_epoch < 0 or replica.is_cutting

    def cut(self, replica: Replica, offset: int) -> None:
        log, epoch = replica.log, replica.follower.leader_epoch
        replica.is_cutting = True
        self.cluster.tell(f"{self.id} truncates from {log.end} to {offset}")
        self.cluster.seen["truncations"] += 1
        self.cluster.seen["truncated records"] += log.end - offset
        log.truncate(offset)
        replica.high_watermark = min(replica.high_watermark, offset)

        def done() -> None:
            replica.is_cutting = False
            if self.replicas.get(replica.partition) is replica and replica.leader is None:
                if replica.follower.leader_epoch == epoch:
                    replica.follower.truncated(log.end)
                self.drive(replica)
            self.advance()

        log.flush(done)

    def fetch_timed_out(self, replica: Replica, request_id: int) -> None:
        replica.follower.failed(request_id, FetchError.UNREACHABLE, self.now_ms)
        self.drive(replica)
        self.advance()

    def on_fetch_response(self, response: Fetched | Diverged | OutOfRange | FetchFailed) -> None:
        replica = self.replicas.get(response.partition)
        if replica is None or replica.leader is not None:
            return
        follower, now_ms, request_id = replica.follower, self.now_ms, response.request_id
        match response:
            case Fetched(offset=offset, records=records, high_watermark=high_watermark):
                if follower.received(
                    request_id,
                    end_offset=offset + len(records),
                    last_epoch=records[-1].epoch if records else -1,
                    high_watermark=high_watermark,
                    start_offset=0,
                    now_ms=now_ms,
                ):
                    for place, record in enumerate(records):
                        self.cluster.oracle.check_append(
                            self, response.partition.partition, offset + place, record
                        )
                    replica.log.append(records)
                    follower.appended(request_id, replica.log.end)
                self.follower_progress(replica)
            case Diverged(epoch=epoch, end_offset=end_offset):
                follower.diverged(request_id, epoch, end_offset, now_ms)
            case OutOfRange(end_offset=end_offset):
                follower.out_of_range(request_id, 0, end_offset, now_ms)
            case FetchFailed(error=error):
                follower.failed(request_id, error, now_ms)
        self.drive(replica)

    def follower_progress(self, replica: Replica) -> None:
        if replica.follower.high_watermark > replica.high_watermark:
            self.learn_watermark(replica, replica.follower.high_watermark)


def _nothing() -> None:
    pass
