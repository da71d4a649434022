"""Three brokers in this process, joined to a cluster: real metadata, replication and connections on loopback.

    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=6)
        broker = cluster[1]                                # the Broker of node 1
        other = cluster.follower_of("orders", 0)           # a Broker that does not lead the partition
        await cluster.kill(cluster.leader_id("orders", 0)) # as by kill -9; its data stays
        await cluster.led("orders", 0)                     # the leader, once there is one
        await cluster.start(1)                             # on its data, as another incarnation

Failure detection is fast here: elections take tens of milliseconds, and a process that ends is noticed by its
refused connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.member import CLUSTER_LISTENER, MemberSettings, NodeAddress
from alpacamq.broker.metadata.registration import RegistrationSettings
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer, Purpose
from alpacamq.broker.peers.link import Dialler
from alpacamq.cluster.commands import ElectionKind, ElectLeaders, NamedPartition, Reassign, Reassignment
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError, RequestTimedOut
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.ports import Clock
from alpacamq.model.topics import Topic
from alpacamq.node.cluster import ClusterConfig, NodeListener
from alpacamq.telemetry.metrics import Metrics
from tests.ports import free_ports

COMMAND_ATTEMPTS = 3
SOON_SECONDS = 30
HEARTBEAT_MS = 300
DEAD_MS = 3000
ELECTION_MS = 300

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Wires:
    """The connections that brokers have opened to each other: they can be lost, or cut until healed."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int, asyncio.BaseProtocol]] = []
        self._cut: set[frozenset[int]] = set()

    def opened(self, source: int, target: int, protocol: asyncio.BaseProtocol) -> None:
        self._open.append((source, target, protocol))

    def check(self, source: int, target: int) -> None:
        if frozenset((source, target)) in self._cut:
            raise TimeoutError("cut by the test")

    def lose(self, *nodes: int) -> None:
        """Reset the connections between these nodes, or of one node; they are opened again."""
        kept = []
        for source, target, protocol in self._open:
            pair = {source, target}
            if pair <= {*nodes} if len(nodes) > 1 else pair & {*nodes}:
                if (transport := getattr(protocol, "_transport", None)) is not None:
                    transport.abort()
            else:
                kept.append((source, target, protocol))
        self._open = kept

    def cut(self, first: int, second: int) -> None:
        """Cut two nodes off from each other; new connections time out."""
        self._cut.add(frozenset((first, second)))
        self.lose(first, second)

    def heal(self) -> None:
        self._cut.clear()


class WiredDialler(Dialler):
    """Opens connections under the control of a test."""

    wires: Wires

    async def open(
        self, address: Address, node_id: BrokerId, purpose: Purpose, follow: Callable[[Peer], P]
    ) -> P:
        own = self.local().node_id
        self.wires.check(own, node_id)
        protocol = await super().open(address, node_id, purpose, follow)
        self.wires.opened(own, node_id, protocol)
        return protocol


class RunningBroker:
    """One broker with its cluster listener and tasks."""

    def __init__(self, cluster: "ThreeBrokers", node_id: int, settings: Mapping[str, Any]) -> None:
        address = cluster.addresses[node_id]
        nodes = tuple(NodeAddress(BrokerId(each), where) for each, where in cluster.addresses.items())
        self.broker = Broker(
            BrokerSettings(
                **{
                    "node_id": BrokerId(node_id),
                    "data_directory": cluster.root / f"node-{node_id}",
                    "tracing": None,
                    "registration": RegistrationSettings(
                        endpoints={CLUSTER_LISTENER: address, "kafka": Address("127.0.0.1", 9000 + node_id)},
                        rack=f"rack-{node_id}",
                        heartbeat_ms=HEARTBEAT_MS,
                    ),
                    "controller": ControllerSettings(dead_ms=DEAD_MS, rebalance_ms=10**9),
                    "member": MemberSettings(nodes=nodes, election_ms=ELECTION_MS, advertised=address),
                    **settings,
                }
            ),
            clock=cluster.clocks.get(node_id),
            metrics=Metrics(),
        )
        self._config = ClusterConfig(listen=address)
        self._wires = cluster.wires
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = False

    async def start(self) -> None:
        """Join the cluster, or found it with the others; returns once the broker serves."""
        broker = self.broker
        broker.open_directory()
        assert broker.member is not None
        self._control_dialling()
        listener = NodeListener(self._config, broker.member)
        listener.bind()
        self._tasks = [asyncio.create_task(listener.run()), asyncio.create_task(broker.member.run())]
        await broker.join()
        self._is_open = True
        listener.serve_fetches(broker)
        self._tasks.append(asyncio.create_task(broker.run()))
        await broker.recover()
        await broker.registration.wait_until_unfenced()

    async def end(self) -> None:
        """End all tasks and connections at once, and release the data directory."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._is_open:
            await self.broker.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _control_dialling(self) -> None:
        assert self.broker.member is not None
        peers = self.broker.member.peers
        dialler = WiredDialler(*peers._dialler)
        dialler.wires = self._wires
        peers._dialler = dialler
        for link in peers._links.values():
            link._dialler = dialler


class ThreeBrokers:
    """The running brokers by node id, 1 to 3."""

    def __init__(self, root: Path, settings: Mapping[str, Any]) -> None:
        self.root = root
        self.wires = Wires()
        self.addresses = {
            number: Address("127.0.0.1", port) for number, port in enumerate(free_ports(3), start=1)
        }
        self.settings = settings
        # Clocks of nodes, used when they are started; the others have the system clock.
        self.clocks: dict[int, Clock] = {}
        self._nodes: dict[int, RunningBroker] = {}

    def __getitem__(self, node_id: int) -> Broker:
        return self._nodes[node_id].broker

    @property
    def brokers(self) -> dict[int, Broker]:
        """The brokers that run now."""
        return {node_id: node.broker for node_id, node in self._nodes.items()}

    @property
    def any(self) -> Broker:
        """A broker that runs."""
        return next(iter(self.brokers.values()))

    async def start(self, *node_ids: int) -> None:
        """Start brokers that do not run; returns once they serve."""
        nodes = {node_id: RunningBroker(self, node_id, self.settings) for node_id in node_ids}
        self._nodes.update(nodes)
        async with asyncio.timeout(SOON_SECONDS), asyncio.TaskGroup() as tasks:
            for node in nodes.values():
                tasks.create_task(node.start())

    async def kill(self, node_id: int) -> None:
        """End a broker without notice, as kill -9 does, except that its files are flushed."""
        await self._nodes.pop(node_id).end()

    async def stop(self, node_id: int) -> None:
        """Stop a broker as SIGTERM does: its leaders move first."""
        await self._nodes[node_id].broker.leave()
        await self.kill(node_id)

    async def create(self, name: str, *, partitions: int = 3, **options: Any) -> Topic:
        """Create a topic; returns once every broker knows it and every partition has a leader that leads."""
        topic = await self.any.topics.create(name, partitions=partitions, **options)
        for index in range(topic.partitions):
            await self.led(name, index)
        await self.until(
            lambda: all(name in broker.topics.image.topics for broker in self.brokers.values()),
            f"{name} on every broker",
        )
        return topic

    def state(self, topic: str, index: int = 0) -> PartitionState:
        """Return a partition as the running broker that has applied most of the metadata log knows it."""
        newest = max(self.brokers.values(), key=lambda broker: broker.metadata.applied_index)
        image = newest.topics.image
        state = image.partition(PartitionId(image.topics[TopicName(topic)].id, index))
        assert state is not None
        return state

    def leader_id(self, topic: str, index: int = 0) -> int:
        leader = self.state(topic, index).leader
        assert leader is not None, f"partition {index} of {topic} has no leader"
        return leader

    def leader_of(self, topic: str, index: int = 0) -> Broker:
        return self[self.leader_id(topic, index)]

    def follower_of(self, topic: str, index: int = 0) -> Broker:
        """Return a running broker that does not lead a partition."""
        leader = self.leader_id(topic, index)
        return next(broker for node_id, broker in self.brokers.items() if node_id != leader)

    async def led(self, topic: str, index: int = 0) -> Partition:
        """Return a partition at its leader, once a running broker leads it."""

        def partition() -> Partition | None:
            if not any(TopicName(topic) in each.topics.image.topics for each in self.brokers.values()):
                return None
            leader = self.state(topic, index).leader
            if leader not in self._nodes:
                return None
            return self[leader].topics.find(topic.encode(), index)

        await self.until(lambda: partition() is not None, f"a leader of {topic}-{index}")
        found = partition()
        assert found is not None
        return found

    async def move_leader(self, topic: str, index: int, node_id: int) -> None:
        """Move the leadership of a partition to another broker, which need not have a replica yet."""
        state = self.state(topic, index)
        replicas = (node_id, *(each for each in state.replicas if each != node_id))
        await self._command(Reassign(reassignments=(Reassignment(topic, index, replicas),)))
        await self.until(
            lambda: (
                node_id in self.state(topic, index).isr and self.state(topic, index).replicas[0] == node_id
            ),
            f"node {node_id} first replica of {topic}-{index}",
        )
        await self._command(
            ElectLeaders(kind=ElectionKind.PREFERRED, partitions=(NamedPartition(topic, index),))
        )
        await self.until(
            lambda: (
                self.state(topic, index).leader == node_id
                and self[node_id].topics.find(topic.encode(), index) is not None
            ),
            f"node {node_id} to lead {topic}-{index}",
        )

    async def _command(self, command: Reassign | ElectLeaders) -> None:
        """Send a command that may be repeated; on a busy machine, the controller may change meanwhile."""
        for _ in range(COMMAND_ATTEMPTS):
            with suppress(RequestTimedOut):
                await self.any.metadata.ask(command)
                return
        raise AssertionError(f"the controller did not answer: {command}")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, turn by turn of the event loop."""
        try:
            async with asyncio.timeout(SOON_SECONDS):
                while not condition():  # noqa: ASYNC110 - any condition, not one that has an event
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None


@asynccontextmanager
async def three_brokers(
    root: Path, clocks: Mapping[int, Clock] | None = None, **settings: Any
) -> AsyncIterator[ThreeBrokers]:
    """Run a cluster of three; `settings` are fields of BrokerSettings."""
    cluster = ThreeBrokers(root, settings)
    cluster.clocks.update(clocks or {})
    try:
        await cluster.start(1, 2, 3)
        yield cluster
    finally:
        failures: list[BaseException] = []
        for node_id in list(cluster.brokers):
            try:
                async with asyncio.timeout(SOON_SECONDS):
                    await cluster.kill(node_id)
            except (AlpacaError, TimeoutError) as error:
                failures.append(error)
        if failures:
            raise failures[0]
