"""A simulated node: the real leaders and followers on a simulated disk, above Raft and controller."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from alpacamq.cluster.commands import (
    AlterPartitions,
    IsrMember,
    IsrProposal,
    PartitionResults,
)
from alpacamq.cluster.image import Delta
from alpacamq.cluster.partition_state import PartitionId, PartitionState, min_isr
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.model.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
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
from tests.simulation.kit import MS_US
from tests.simulation.metadata_node import DEAD_MS, MetadataNode
from tests.simulation.replica_log import Record, ReplicaLog, next_digest

REPLICA_LAG_MS = 500
FETCH_WAIT_MS = 200
FETCH_TIMEOUT_MS = 500
MAX_FETCH_RECORDS = 4

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


class Waiter(NamedTuple):
    """A producer that waits for the watermark."""

    end_offset: int
    offset: int
    reply: Callable[[object], None]


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


class BrokerNode(MetadataNode):
    """A node with its partitions."""

    def on_start(self) -> None:
        self.brokers = KnownBrokers({}, ())
        self.replicas: dict[PartitionId, Replica] = {}
        super().on_start()

    def keep_house(self) -> None:
        super().keep_house()
        now_ms = self.now_ms
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
                self.advance()
            case Fetched() | Diverged() | OutOfRange() | FetchFailed():
                if message.incarnation == self.incarnation:
                    self.on_fetch_response(message)
                self.advance()
            case _:
                super().on_message(sender, message)

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

    def apply_partitions(self, partitions: Iterable[PartitionId]) -> None:
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
