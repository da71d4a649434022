"""A cluster in virtual time: brokers, producers, faults, and what must hold after every event."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from uuid import UUID

import msgspec

from alpacamq.cluster.brokers import BrokerRegistration, Endpoint
from alpacamq.cluster.commands import AnyCommand, CreateTopic, Reassign, Reassignment
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.image import ClusterImage
from alpacamq.cluster.partition_state import PartitionId, PartitionState, Replicas
from alpacamq.cluster.topics import BY_DEFAULT
from alpacamq.consensus.messages import (
    Entry,
    EntryKind,
    Role,
    decode_voters,
)
from alpacamq.model.errors import InvalidVoters, NotController
from alpacamq.model.ids import BrokerId, TopicId
from alpacamq.model.state_machine import Change
from alpacamq.model.voters import Voter
from tests.simulation.broker import BrokerNode
from tests.simulation.disk import TORN
from tests.simulation.kit import (
    MS_US,
    SECOND_US,
    Chaos,
    Fault,
    Simulation,
    Violation,
    crash_all,
    crash_one,
    cut_one_link,
    cut_one_way,
    fail_disk,
    heal_network,
    pause_one,
    randomize_clocks,
    split,
    stall_disk,
)
from tests.simulation.metadata_node import DEAD_MS, MetadataNode
from tests.simulation.replica_log import Record, ReplicaLog, durable_records

TOPIC = "orders"
TOPIC_ID = TopicId(int=7)
MIN_ISR = 2
FACTOR = 3
PRODUCE_TIMEOUT_MS = 1000
RETRY_MS = 40
CHAOS_US = 8 * SECOND_US
HEALED_WITHIN_US = 15 * SECOND_US

SETTINGS = ControllerSettings(
    dead_ms=DEAD_MS, rebalance_ms=1500, drain_ms=300, shutdown_ms=1000, record_time_ms=4000
)


class Placed(NamedTuple):
    """An acknowledged record."""

    producer: int
    sequence: int
    offset: int


class Oracle:
    """Knows the whole cluster, and checks each step of each node against it.

    A digest stands for a record and all before it, so that equal digests at an offset mean equal logs.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._nodes = cluster.nodes
        self.image = ClusterImage()
        self.metadata: list[Entry] = []
        self.voters: tuple[Voter, ...] = ()
        self.leaders: dict[tuple[int, int], tuple[int, int]] = {}
        self.records: dict[tuple[int, int, int], int] = {}
        self.committed: dict[int, list[Record]] = {}
        self.acknowledged: list[tuple[int, Placed]] = []

    def fail(self, what: str) -> None:
        raise Violation(what)

    # Metadata.

    def check_metadata(self, entry: Entry) -> None:
        """Every node applies the same metadata; in it, epochs never go back and all electable hold all."""
        if entry.index <= len(self.metadata):
            if self.metadata[entry.index - 1] != entry:
                raise Violation(f"two committed metadata entries at {entry.index}")
            return
        if entry.index != len(self.metadata) + 1:
            raise Violation(f"metadata entry {entry.index} was skipped")
        self.metadata.append(entry)
        if entry.kind is EntryKind.VOTERS:
            self.voters = decode_voters(entry.payload)
        if entry.kind is not EntryKind.DATA:
            return
        before = {
            partition: self.image.partition(PartitionId(TOPIC_ID, partition)) for partition in self.committed
        }
        brokers = dict(self.image.brokers)
        delta = self.image.apply(msgspec.msgpack.decode(entry.payload, type=list[Change]))
        for broker_id in delta.brokers:
            self._cluster.tell(
                f"metadata: {_describe_broker(brokers.get(broker_id), self.image.broker(broker_id))}"
            )
        for changed in delta.partitions:
            partition = changed.partition
            self.committed.setdefault(partition, [])
            state, former = self.image.partition(changed), before.get(partition)
            assert state is not None
            if former is not None and not (
                state.leader_epoch >= former.leader_epoch and state.partition_epoch > former.partition_epoch
            ):
                raise Violation(f"epochs of partition {partition} go back: {former} to {state}")
            self._count(former, state)
            self._cluster.tell(f"metadata: {_describe(state)}")
            if state.leader is not None and state.leader not in state.isr:
                raise Violation(f"the leader of partition {partition} is not in sync: {state}")
            self._check_electable(partition)

    def _count(self, former: PartitionState | None, state: PartitionState) -> None:
        seen = self._cluster.seen
        if former is not None:
            seen["in-sync sets shrunk"] += len(state.isr) < len(former.isr)
            seen["in-sync sets grown"] += len(state.isr) > len(former.isr)
            seen["reassignments begun"] += state.is_moving and not former.is_moving
            seen["reassignments ended"] += former.is_moving and not state.is_moving
            seen["elected from the ELR"] += state.leader is not None and state.leader in former.elr
            seen["without a leader"] += state.leader is None

    def _check_electable(self, partition: int) -> None:
        """Every replica that may be elected holds everything committed, durably."""
        committed = self.committed[partition]
        state = self.image.partition(PartitionId(TOPIC_ID, partition))
        if not committed or state is None:
            return
        for member in (*state.isr, *state.elr):
            if not self.holds(member, partition, len(committed) - 1, committed[-1]):
                raise Violation(
                    f"node {member} may lead partition {partition} but lacks offset {len(committed) - 1}: "
                    f"{state}"
                )

    def holds(
        self,
        node_id: int,
        partition: int,
        offset: int,
        record: Record,
        image: ClusterImage | None = None,
    ) -> bool:
        """Whether a node holds a record durably, or its disk was replaced and `image` does not show it."""
        node = self._nodes[node_id]
        broker = (image or self.image).brokers.get(BrokerId(node_id))
        if broker is None or broker.directory_id != node.directory:
            return True
        durable = durable_records(node.disk, str(partition))
        if offset >= len(durable) or durable[offset] is TORN:
            return False
        return durable[offset].digest == record.digest

    # Partitions.

    def check_leader(self, node: BrokerNode, partition: int, epoch: int) -> None:
        """One process leads in each epoch."""
        me = (node.id, node.incarnation)
        first = self.leaders.setdefault((partition, epoch), me)
        self._cluster.simulation.trace("leads", node.id, partition, epoch)
        self._cluster.tell(f"{node.id} leads epoch {epoch}")
        if first != me:
            raise Violation(f"two leaders of partition {partition} in epoch {epoch}: {first} and {me}")

    def check_append(self, node: BrokerNode, partition: int, offset: int, record: Record) -> None:
        """Equal offset and epoch mean equal records, and equal records before them."""
        if self.records.setdefault((partition, offset, record.epoch), record.digest) != record.digest:
            raise Violation(f"node {node.id} has another record at {offset} of epoch {record.epoch}")

    def check_watermark(
        self, node: BrokerNode, partition: int, log: ReplicaLog, before: int, after: int
    ) -> None:
        """What is visible is committed: it never changes, and enough replicas hold it durably."""
        committed = self.committed[partition]
        for offset in range(before, min(after, len(committed))):
            if log.records[offset].digest != committed[offset].digest:
                raise Violation(f"node {node.id} shows another record at {offset} than was committed")
        if after <= len(committed):
            return
        committed += log.records[len(committed) : after]
        last = committed[-1]
        # As far as the leader knows: it may learn later that a disk was replaced.
        holders = [
            other for other in self._nodes if self.holds(other, partition, after - 1, last, node.image)
        ]
        if len(holders) < MIN_ISR:
            raise Violation(f"offset {after - 1} of partition {partition} is visible with {holders} only")
        self._check_electable(partition)

    def check_fetch(self, node: BrokerNode, partition: int, offset: int) -> None:
        """A follower reports only what it can never lose."""
        if len(durable_records(node.disk, str(partition))) < offset:
            raise Violation(f"node {node.id} reports {offset} before it is durable")

    def check_gap(
        self, node: BrokerNode, partition: PartitionId, epoch: int, producer: int, sequence: int
    ) -> None:
        """Only a leader whose epoch has ended can lack records that were acknowledged."""
        state = self.image.partition(partition)
        if state is not None and state.leader_epoch == epoch:
            raise Violation(f"leader {node.id} lacks {producer}/{sequence - 1}, which was acknowledged")

    def check_ack(self, partition: int, offset: int, log: ReplicaLog) -> None:
        """Only committed records are acknowledged."""
        committed = self.committed[partition]
        if offset >= len(committed) or committed[offset].digest != log.records[offset].digest:
            raise Violation(
                f"offset {offset} of partition {partition} was acknowledged, but is not committed"
            )

    def check_survival(self) -> None:
        """Every acknowledged record is where it was said to be, once, and in the producer's order."""
        for partition, placed in self.acknowledged:
            record = self.committed[partition][placed.offset]
            if (record.producer, record.sequence) != (placed.producer, placed.sequence):
                raise Violation(f"{placed} is lost: partition {partition} has {record}")
        for partition, committed in self.committed.items():
            following: dict[int, int] = {}
            for record in committed:
                if record.sequence != following.get(record.producer, 0):
                    raise Violation(f"partition {partition} repeats or skips {record}")
                following[record.producer] = record.sequence + 1


def _describe(state: PartitionState) -> str:
    leader = "no leader" if state.leader is None else f"leader {state.leader}"
    text = f"{leader} in epoch {state.leader_epoch}, in sync {_names(state.isr)}"
    return f"{text}, eligible {_names(state.elr)}" if state.elr else text


def _names(replicas: Replicas) -> str:
    return " ".join(map(str, sorted(replicas))) or "none"


def _describe_broker(former: BrokerRegistration | None, broker: BrokerRegistration) -> str:
    if former is None or former.epoch != broker.epoch:
        is_lost = former is not None and former.directory_id != broker.directory_id
        return f"broker {broker.id} registered" + (" with a new disk" if is_lost else "")
    if broker.is_fenced:
        return f"broker {broker.id} fenced"
    return f"broker {broker.id} " + ("is shutting down" if broker.is_shutting_down else "runs")


class Producer:
    """An idempotent producer with acks=all that repeats each record until it is acknowledged."""

    def __init__(self, cluster: "Cluster", number: int, partition: PartitionId) -> None:
        self._cluster = cluster
        self.number = number
        self.partition = partition
        self.sequence = 0
        self.acknowledged = 0
        self.is_stopped = False
        self._attempt = 0

    @property
    def is_idle(self) -> bool:
        return self.is_stopped and self.acknowledged == self.sequence

    def next(self) -> None:
        if not self.is_stopped:
            self.sequence += 1
            self.send()

    def send(self) -> None:
        """Send the current record to whom some node takes for the leader."""
        self._attempt += 1
        cluster, attempt = self._cluster, self._attempt
        random = cluster.simulation.random
        asked = cluster.nodes[random.choice(sorted(cluster.nodes))]
        state = asked.image.partition(self.partition) if asked.is_up else None
        leader = asked.id if state is None or state.leader is None else state.leader
        node = cluster.nodes[leader]
        cluster.simulation.after(
            PRODUCE_TIMEOUT_MS * MS_US, self._answered, attempt, self.sequence, TimeoutError()
        )
        delay_us = random.randrange(100, 4000)
        if random.random() < cluster.client_loss:
            return
        if random.random() < cluster.client_loss:
            # A copy of an old request that arrives very late.
            cluster.simulation.after(
                random.randrange(SECOND_US), self._deliver, node, node.incarnation, attempt, self.sequence
            )
        cluster.simulation.after(delay_us, self._deliver, node, node.incarnation, attempt, self.sequence)

    def _deliver(self, node: BrokerNode, incarnation: int, attempt: int, sequence: int) -> None:
        if node.is_up and node.incarnation == incarnation:
            node.perform(self._produce, node, attempt, sequence)

    def _produce(self, node: BrokerNode, attempt: int, sequence: int) -> None:
        def reply(result: object) -> None:
            cluster = self._cluster
            random = cluster.simulation.random
            cluster.simulation.trace("reply", self.number, sequence, result)
            if random.random() >= cluster.client_loss:
                cluster.simulation.after(
                    random.randrange(100, 4000), self._answered, attempt, sequence, result
                )

        node.produce(self.partition, self.number, sequence - 1, reply)
        node.advance()

    def _answered(self, attempt: int, sequence: int, result: object) -> None:
        if attempt != self._attempt or sequence != self.sequence or self.acknowledged == self.sequence:
            return
        random = self._cluster.simulation.random
        if isinstance(result, int):
            self.acknowledged = self.sequence
            placed = Placed(self.number, sequence - 1, result)
            self._cluster.oracle.acknowledged.append((self.partition.partition, placed))
            self._cluster.simulation.after(random.randrange(10, 80) * MS_US, self.next)
        else:
            self._attempt += 1
            self._cluster.simulation.after(RETRY_MS * MS_US, self.send)


class Cluster:
    """Brokers that all vote, one topic, and producers."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        partitions: int = 1,
        producers: int = 1,
        assignments: tuple[Replicas, ...] = (),
        trace_lines: int = 200,
    ) -> None:
        self.simulation = Simulation(seed, trace_lines=trace_lines)
        self.random = self.simulation.random
        self.nodes: dict[int, BrokerNode] = {}
        self.oracle = Oracle(self)
        self.client_loss = 0.0
        self.assignments = assignments
        # Told what was decided, in words.
        self.tell: Callable[[str], None] = lambda _: None
        # What happened, so that a test can tell that the simulation still tests what it is for.
        self.seen: Counter[str] = Counter()
        self._drawn = 1000
        voters = tuple(Voter(BrokerId(number), UUID(int=number)) for number in range(1, nodes + 1))
        self.oracle.voters = voters
        for voter in voters:
            self.nodes[voter.id] = BrokerNode(self, voter.id, voters)
        self.partitions = [PartitionId(TOPIC_ID, index) for index in range(partitions)]
        self.producers = [
            Producer(self, number + 1, self.partitions[number % partitions])
            for number in range(partitions * producers)
        ]

    def draw_id(self) -> int:
        self._drawn += 1
        return self._drawn

    def endpoints(self, node_id: int) -> tuple[Endpoint, ...]:
        return (Endpoint("cluster", f"node-{node_id}", 9093),)

    def new_controller(self, image: ClusterImage, last_index: int, now_ms: int) -> Controller:
        return Controller(image, SETTINGS, now_ms, last_index=last_index)

    # Life.

    def start(self) -> None:
        """Start all nodes, and create the topic once all of them are registered."""
        for node in self.nodes.values():
            node.start()
        self.simulation.run_to(
            lambda: (
                sum(broker.is_running for broker in self.oracle.image.brokers.values()) == len(self.nodes)
            ),
            within_us=5 * SECOND_US,
            what="all brokers register",
        )
        self.command(
            CreateTopic(
                name=TOPIC,
                topic_id=TOPIC_ID,
                partitions=BY_DEFAULT if self.assignments else len(self.partitions),
                replication_factor=BY_DEFAULT if self.assignments else FACTOR,
                assignments=self.assignments,
                overrides={"min.insync.replicas": str(MIN_ISR)},
            )
        )
        self.simulation.run_to(
            lambda: len(self.oracle.committed) == len(self.partitions),
            within_us=5 * SECOND_US,
            what="the topic is created",
        )
        for producer in self.producers:
            producer.next()

    def command(self, command: AnyCommand) -> None:
        """Have a node that runs send a command, without waiting for the reply."""
        running = [node for node in self.nodes.values() if node.is_up and not node.is_paused]
        if running:
            node = self.random.choice(running)
            node.call(command, lambda result: self.simulation.trace("result", type(result).__name__))
            node.advance()

    def stop_cleanly(self, node: MetadataNode) -> None:
        """End a process that has flushed everything; it starts again later."""
        self.seen["controlled shutdowns"] += 1
        for file in node.disk.files.values():
            file.finish_sync(file.begin_sync())
        node.crash_for(SECOND_US)

    def finish(self) -> None:
        """After the faults: every producer goes on, and the replicas become equal."""
        acknowledged = [producer.acknowledged for producer in self.producers]
        self.simulation.run_to(
            lambda: all(
                producer.acknowledged > before + 1
                for producer, before in zip(self.producers, acknowledged, strict=True)
            ),
            within_us=HEALED_WITHIN_US,
            what="producers go on",
        )
        for producer in self.producers:
            producer.is_stopped = True
        self.simulation.run_to(self.is_settled, within_us=HEALED_WITHIN_US, what="replicas become equal")
        self.oracle.check_survival()

    def is_settled(self) -> bool:
        if not all(producer.is_idle for producer in self.producers):
            return False
        for partition in self.partitions:
            state = self.oracle.image.partition(partition)
            if (
                state is None
                or state.leader is None
                or state.is_moving
                or set(state.isr) != set(state.replicas)
            ):
                return False
            replicas = [self.nodes[member].replicas.get(partition) for member in state.replicas]
            committed = self.oracle.committed[partition.partition]
            for replica in replicas:
                if replica is None or replica.log.end != len(committed) != replica.high_watermark:
                    return False
                if replica.log.flushed_end != len(committed) or replica.high_watermark != len(committed):
                    return False
                if committed and replica.log.digest != committed[-1].digest:
                    return False
        return True

    # Faults.

    def can_lose(self, node: BrokerNode) -> bool:
        """Whether the disk of a node can be lost without losing what is committed."""
        others = [other for other in self.nodes.values() if other is not node]
        if any(self.nodes[voter.id].directory != voter.directory for voter in self.oracle.voters):
            return False
        if len(self.oracle.voters) != len(self.nodes):
            return False
        committed_end = len(self.oracle.metadata)
        if any(len(other.disk.log("metadata").durable) < committed_end for other in others):
            return False
        brokers = self.oracle.image.brokers
        if any(brokers[BrokerId(other.id)].directory_id != other.directory for other in others):
            return False
        for partition in self.partitions:
            state = self.oracle.image.partition(partition)
            if state is None or not {*state.isr, *state.elr} - {node.id}:
                return False
        return True


def wipe_one(cluster: Cluster) -> Fault:
    def wipe(simulation: Simulation) -> None:
        """Replace the disk of a node by an empty one."""
        node = cluster.nodes[simulation.random.choice(sorted(cluster.nodes))]
        if node.is_up and not node.is_paused and cluster.can_lose(node):
            node.crash_for(SECOND_US)
            simulation.trace("wipe", node.id)
            cluster.seen["lost disks"] += 1
            node.disk.wipe()
            node.directory = UUID(int=cluster.draw_id())

    return wipe


def shut_down_one(cluster: Cluster) -> Fault:
    def shut_down(simulation: Simulation) -> None:
        """Let a node hand over its leaders, stop, and come back."""
        node = cluster.nodes[simulation.random.choice(sorted(cluster.nodes))]
        if node.is_up:
            node.wants_shutdown = True

    return shut_down


def reassign_one(cluster: Cluster) -> Fault:
    def reassign(simulation: Simulation) -> None:
        """Move a partition to other nodes, or change the order of its replicas, or cancel that."""
        random = simulation.random
        partition = random.choice(cluster.partitions)
        replicas = tuple(random.sample(sorted(cluster.nodes), FACTOR)) if random.random() < 0.8 else None
        cluster.command(Reassign(reassignments=(Reassignment(TOPIC, partition.partition, replicas),)))

    return reassign


def move_controller(cluster: Cluster) -> Fault:
    def move(simulation: Simulation) -> None:
        """Hand the metadata leadership to another voter."""
        for node in cluster.nodes.values():
            if node.is_up and not node.is_paused and node.raft.role is Role.LEADER:
                try:
                    node.raft.transfer_leadership(None, node.now_ms)
                except (InvalidVoters, NotController):
                    continue
                node.advance()

    return move


def lossy(cluster: Cluster) -> Fault:
    def change(simulation: Simulation) -> None:
        """Change how many messages are lost, doubled and late."""
        random = simulation.random
        simulation.network.loss = random.choice([0.0, 0.0, 0.02, 0.2])
        simulation.network.duplicates = random.choice([0.0, 0.1])
        simulation.network.late = random.choice([0.0, 0.01, 0.1, 0.3])
        simulation.network.max_late_us = random.choice([300_000, 1_000_000, 3_000_000])
        cluster.client_loss = random.choice([0.0, 0.1])

    return change


class Outcome(NamedTuple):
    """A run in which every invariant held. `seen` counts what happened in it."""

    trace_hash: str
    events: int
    seen: Counter[str]


def faults_of(cluster: Cluster) -> dict[Fault, float]:
    """Return all faults with their weights."""
    return {
        crash_one: 3,
        crash_all: 0.3,
        pause_one: 3,
        split: 2,
        cut_one_way: 1,
        cut_one_link: 3,
        heal_network: 6,
        stall_disk: 3,
        fail_disk: 0.5,
        wipe_one(cluster): 2,
        shut_down_one(cluster): 1.5,
        reassign_one(cluster): 4,
        move_controller(cluster): 1,
        lossy(cluster): 2,
    }


def run(seed: int, *, trace_lines: int = 200) -> Outcome:
    """Run the scenario of a seed. Raises Violation, with the last events, if an invariant does not hold."""
    shape = Random(seed)
    cluster = Cluster(
        seed,
        nodes=shape.choice([3, 3, 4, 5]),
        partitions=shape.choice([1, 2, 2, 3]),
        producers=shape.choice([1, 2, 3]),
        trace_lines=trace_lines,
    )
    simulation = cluster.simulation
    randomize_clocks(simulation, max_drift=0.1, max_offset_ms=5000)
    try:
        cluster.start()
        simulation.run_for(SECOND_US // 4)
        chaos = Chaos(simulation, faults_of(cluster), mean_gap_us=shape.choice([150, 300, 600]) * MS_US)
        simulation.run_for(CHAOS_US)
        chaos.stop()
        cluster.client_loss = 0.0
        cluster.finish()
    except Exception as error:
        error.add_note(f"seed {seed}, {simulation.now_us / SECOND_US:.6f} s")
        error.add_note("\n".join(simulation.lines))
        raise
    seen = cluster.seen
    seen["acknowledged"] = len(cluster.oracle.acknowledged)
    seen["elections"] = len(cluster.oracle.leaders)
    return Outcome(simulation.trace_hash, simulation.events, seen)
