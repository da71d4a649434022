"""Brokers for tests of replication, without Raft: real logs, a real listener and real links each.

One controller decides for all of them; what it decides is in every image at once, unless a node is `deaf`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from alpacamq.api.cluster.listener import ClusterListener, Service
from alpacamq.api.cluster.replica_fetch import ReplicaFetches
from alpacamq.broker.metadata.metadata import Metadata
from alpacamq.broker.partition.appends import Acks, Append
from alpacamq.broker.partition.group_commit import GroupCommit
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.partition.loading import RecoveryProgress
from alpacamq.broker.partition.replicas import Replicas
from alpacamq.broker.peers.handshake import LocalNode
from alpacamq.broker.peers.link import Dialler, Peers
from alpacamq.broker.peers.values import Values
from alpacamq.broker.remote import read_values
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.remote.routing import LeaderCalls
from alpacamq.broker.replication.service import FlushPolicy, Replication, ReplicationSettings
from alpacamq.broker.topics import Topics
from alpacamq.cluster.commands import (
    Command,
    ConfigureTopic,
    CreateTopic,
    ElectionKind,
    ElectLeaders,
    Heartbeat,
    NamedPartition,
    Reassign,
    Reassignment,
    RegisterBroker,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.image import FEATURES, ClusterImage, Delta
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.address import Address
from alpacamq.model.batch import read_header
from alpacamq.model.errors import AlpacaError, RequestTimedOut
from alpacamq.model.ids import BrokerId, TimestampMs, TopicId
from alpacamq.model.records import Record, write_batch
from alpacamq.model.state_machine import Change

R = TypeVar("R")

SECRET = b"a secret of the tests, long enough"
TOPIC = "orders"
TOPIC_ID = TopicId(int=77)
SOON_SECONDS = 20


class TestClock:
    """The machine's clock, which tests can advance."""

    __test__ = False

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000 + self.ahead_ms)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_ms / 1000


class NodeMetadata:
    """The image of one node."""

    def __init__(self, cluster: "ReplicaCluster") -> None:
        self._cluster = cluster
        self.image = ClusterImage()
        self.image.apply(cluster.changes)
        self._applied = len(cluster.changes)
        self._listeners: list[Callable[[Delta], None]] = []
        self.is_deaf = False
        # Commands that reach the controller, but whose replies are lost.
        self.loses_replies = False
        # With its next command the node becomes deaf, and loses replies.
        self.becomes_deaf = False

    def subscribe(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.append(listener)

    async def ask(self, command: Command[R], timeout_seconds: float = 30) -> R:
        await asyncio.sleep(0)
        if self.becomes_deaf:
            self.is_deaf = self.loses_replies = True
        reply = self._cluster.decide(command)
        if self.loses_replies:
            raise RequestTimedOut("the reply is lost")
        return reply

    def catch_up(self) -> None:
        """Apply everything that was decided."""
        if self.is_deaf:
            return
        changes = self._cluster.changes[self._applied :]
        self._applied += len(changes)
        if delta := self.image.apply(changes):
            for listener in self._listeners:
                listener(delta)


class ReplicaNode:
    """One broker, from its data directory to its listener."""

    def __init__(self, cluster: "ReplicaCluster", node_id: int) -> None:
        self.id = BrokerId(node_id)
        self._cluster = cluster
        self.root = cluster.root / f"node-{node_id}"
        self.root.mkdir(exist_ok=True)
        self.disk = cluster.disks.get(node_id, SystemDisk())
        self.metadata = NodeMetadata(cluster)
        self.epoch = cluster.register(self)
        self.metadata.catch_up()
        self.known_damage: tuple[PartitionId, ...] = ()
        self.threads = ThreadPoolExecutor(4)
        self.flushes = GroupCommit(self.threads, disk=self.disk, root=self.root, slots=4)
        storage = Storage(
            disk=self.disk,
            clock=cluster.clock,
            handles=FileHandles(self.disk, 256),
            indexes=IndexCache(1 << 20),
            checkpoint_bytes=8 << 20,
        )
        metadata = cast("Metadata", self.metadata)
        self.replication = Replication(
            ReplicationSettings(flush=cluster.flush),
            metadata,
            node_id=self.id,
            broker_epoch=lambda: self.epoch,
            flushes=self.flushes,
            executor=self.threads,
            clock=cluster.clock,
            is_damage_known=lambda partition: partition in self.known_damage,
        )
        self.replicas = Replicas(self.root, storage, self.flushes, self.threads, replication=self.replication)
        self.has_contact = True
        self.topics = Topics(
            metadata,
            self.replicas,
            node_id=self.id,
            file_defaults={},
            has_contact=lambda: self.has_contact,
        )
        self.fetches = ReplicaFetches(
            self.topics,
            self.threads,
            self.replication.stats,
            self.replication.leader_throttle,
            self.replication.now_ms,
        )
        local = LocalNode(self.id, "cluster", bytes([node_id]) * 16)
        values = Values([Heartbeat, *read_values.VALUES])
        self.peers = Peers(Dialler(lambda: local, SECRET, values, random=lambda: 0.0))
        self.reads = RemoteReads(
            LeaderCalls(self.topics, self.id, self.peers),
            self.threads,
            unpacked_limit_bytes=64 << 20,
            compact=self._compact,
        )
        service = Service(values, dict(self.reads.handlers), {}, self.fetches.on_connection)
        self.listener = ClusterListener("127.0.0.1", 0, lambda: local, SECRET, service)
        self.address = Address(*self.listener.bind())
        self.replication.connect(self.peers)
        self._tasks: list[asyncio.Task[None]] = []

    async def _compact(self, _partition: Partition) -> bool:
        return False

    async def start(self) -> None:
        await self.topics.load_gradually(RecoveryProgress(self._cluster.clock))
        runners = [self.fetches.run, self.listener.run, self.peers.run, self.replication.run]
        self._tasks = [asyncio.create_task(run()) for run in runners]
        await self.listener.listening.wait()

    async def kill(self, *, flushes: bool = False) -> None:
        """End without a word: nothing is flushed, as if by SIGKILL, unless `flushes`."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        partitions = list(self.replicas)
        for partition in partitions:
            partition.stop(AlpacaError("killed"))
            await self.flushes.quiesce(partition)
        self.threads.shutdown()
        for partition in partitions:
            if flushes:
                partition.log.close()
            else:
                partition.log._release()
        del self._cluster.nodes[self.id]
        for result in results:
            if isinstance(result, Exception):
                raise result

    def set_contact(self, has_contact: bool) -> None:
        """Lose or find the controller."""
        self.has_contact = has_contact
        self.topics.contact_changed()

    def partition(self, index: int = 0) -> Partition:
        return self.replicas.of_topic(TOPIC_ID)[index]

    def bytes_of(self, index: int = 0) -> bytes:
        """Return everything that is stored of a partition."""
        directory = self.partition(index).log.directory
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


class ReplicaCluster:
    """Three brokers and the controller."""

    def __init__(
        self, root: Path, *, flush: FlushPolicy = FlushPolicy.ACK, clock: TestClock | None = None
    ) -> None:
        self.root = root
        self.flush = flush
        self.clock = clock or TestClock()
        self.changes: list[Change] = []
        self.disks: dict[int, SystemDisk] = {}
        self.nodes: dict[int, ReplicaNode] = {}
        self._controller = Controller(ClusterImage(), ControllerSettings(rebalance_ms=10**9), self._now_ms())
        self._incarnations = 0
        self._last_epochs: dict[int, int] = {}

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def decide(self, command: Command[R]) -> R:
        """Decide a command; the result is in all images when this returns."""
        decision = self._controller.decide(command, self._now_ms())
        self._apply(decision.changes)
        return decision.reply

    def _apply(self, changes: list[Change]) -> None:
        self.changes += changes
        for node in list(self.nodes.values()):
            node.metadata.catch_up()

    def register(self, node: ReplicaNode) -> int:
        self._incarnations += 1
        registered = self.decide(
            RegisterBroker(
                features=FEATURES,
                id=node.id,
                incarnation_id=UUID(int=self._incarnations),
                directory_id=UUID(int=1000 + node.id),
                last_epoch=self._last_epochs.get(node.id, 0),
                rack=f"rack-{node.id}",
            )
        )
        self._last_epochs[node.id] = registered.epoch
        return registered.epoch

    def heartbeat(self, node: ReplicaNode) -> None:
        """Let the controller hear from a node, and of its damage."""
        damaged = node.replicas.damaged()
        self.decide(
            Heartbeat(
                broker_id=node.id,
                broker_epoch=node.epoch,
                applied_index=1 << 40,
                damaged=damaged,
            )
        )
        node.known_damage = damaged
        node.replication.damage_known()

    async def start(self, node_id: int) -> ReplicaNode:
        node = ReplicaNode(self, node_id)
        self.nodes[node_id] = node
        await node.start()
        self.heartbeat(node)
        addresses = {each.id: each.address for each in self.nodes.values()}
        for each in self.nodes.values():
            each.peers.update(addresses)
        return node

    async def kill(self, node_id: int, *, notices: bool = True, flushes: bool = False) -> None:
        """Kill a node; `notices` lets the controller fence it at once."""
        await self.nodes[node_id].kill(flushes=flushes)
        if notices:
            self.fence(node_id)

    def fence(self, node_id: int) -> None:
        decision = self._controller.connection_lost(BrokerId(node_id), is_refused=True)
        self._apply(decision.changes)

    def create(self, *replicas: int, partitions: int = 1, **overrides: str) -> None:
        self.decide(
            CreateTopic(
                name=TOPIC,
                topic_id=TOPIC_ID,
                partitions=partitions,
                assignments=(replicas,) * partitions,
                overrides={name.replace("_", "."): value for name, value in overrides.items()},
            )
        )

    def configure(self, **overrides: str) -> None:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        self.decide(ConfigureTopic(name=TOPIC, overrides=named))

    def elect_preferred(self, index: int = 0) -> None:
        self.decide(ElectLeaders(kind=ElectionKind.PREFERRED, partitions=(NamedPartition(TOPIC, index),)))

    def reassign(self, *replicas: int, index: int = 0) -> None:
        self.decide(Reassign(reassignments=(Reassignment(TOPIC, index, replicas),)))

    def state(self, index: int = 0) -> PartitionState:
        state = self._controller.image.partition(PartitionId(TOPIC_ID, index))
        assert state is not None
        return state

    def in_sync(self, index: int = 0) -> set[int]:
        return set(self.state(index).isr)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, as far as lag is concerned."""
        self.clock.ahead_ms += milliseconds
        for node in self.nodes.values():
            self.heartbeat(node)
            node.replication._proposals.look_now()

    async def leader(self, index: int = 0) -> Partition:
        """Return the partition at its leader, once that leads."""

        def leads() -> bool:
            leader = self.state(index).leader
            node = None if leader is None else self.nodes.get(leader)
            found = None if node is None else node.topics.find(TOPIC.encode(), index)
            return found is not None and found.leader_epoch == self.state(index).leader_epoch

        await until(leads, "a leader")
        leader = self.state(index).leader
        assert leader is not None
        return self.nodes[leader].topics.partition(TOPIC, index)

    async def replicated(self, index: int = 0) -> None:
        """Return once every running replica has the same bytes and they are committed."""
        partition = await self.leader(index)
        replicas = [self.nodes[each] for each in self.state(index).replicas if each in self.nodes]

        def is_done() -> bool:
            ends = {node.partition(index).log.end_offset for node in replicas}
            return ends == {partition.end_offset} and partition.high_watermark == partition.end_offset

        await until(is_done, "equal ends")
        first, *others = (node.bytes_of(index) for node in replicas)
        assert all(each == first for each in others)


@asynccontextmanager
async def a_cluster(root: Path, *nodes: int, **options: Any) -> AsyncIterator[ReplicaCluster]:
    cluster = ReplicaCluster(root, **options)
    try:
        for node_id in nodes:
            await cluster.start(node_id)
        yield cluster
    finally:
        for node in list(cluster.nodes.values()):
            await node.kill()


def batch(*values: bytes) -> bytearray:
    return write_batch([Record(index, 1000, b"k", value) for index, value in enumerate(values)])


def staged(
    partition: Partition, data: bytearray, acks: Acks = Acks.ALL, timeout_ms: int | None = None
) -> "asyncio.Future[int]":
    """Append a batch; the result is its offset, or the error."""
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done() -> None:
        outcome = entry.outcome
        assert outcome is not None
        if isinstance(outcome, AlpacaError):
            result.set_exception(outcome)
        else:
            result.set_result(outcome.base_offset)

    entry = Append(data, read_header(data), done, None, acks, timeout_ms)
    partition.stage(entry)
    partition.commit()
    return result


async def produce(partition: Partition, *values: bytes, acks: Acks = Acks.ALL) -> int:
    async with asyncio.timeout(SOON_SECONDS):
        return await staged(partition, batch(*values), acks)


async def heard_of(leader: Partition, node_id: int, offset: int) -> None:
    """Return once a leader knows that a follower has everything before `offset`."""

    def has_come() -> bool:
        return any(each.broker_id == node_id and each.end_offset >= offset for each in leader.followers())

    await until(has_come, f"node {node_id} at {offset}")


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, turn by turn of the event loop."""
    try:
        async with asyncio.timeout(SOON_SECONDS):
            while not condition():  # noqa: ASYNC110 - any condition, not one that has an event
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None
