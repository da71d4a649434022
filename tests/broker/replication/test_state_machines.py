"""State machines on the partitions of a replicated topic: hosted by the leader, and moved with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from alpacamq.broker.clock import SteadyClock
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.statemachine.topic import HostResources, StateMachineTopic
from alpacamq.cluster.commands import ElectionKind, ElectLeaders, NamedPartition, Reassign, Reassignment
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.errors import AlpacaError, CoordinatorUnavailable, NotCoordinator
from alpacamq.model.ids import TopicName
from tests.broker.test_state_machine_host import Add, Counters, Read, Wait

from .nodes import ReplicaCluster, ReplicaNode, a_cluster, until

COUNTERS = TopicName("counters")


class KeyedAdd(Add, frozen=True, kw_only=True):
    """An addition that finds its machine."""

    @property
    def routing_key(self) -> str:
        return self.name.decode()


class KeyedRead(Read, frozen=True, kw_only=True):
    """A read that finds its machine."""

    @property
    def routing_key(self) -> str:
        return self.name.decode()


class KeyedCounters(Counters):
    HANDLERS: ClassVar = {**Counters.HANDLERS, KeyedAdd: Counters._add, KeyedRead: Counters._read}


class Machines:
    """The counters of all nodes."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        self.cluster = cluster
        self.of: dict[int, StateMachineTopic[KeyedCounters]] = {}
        self.performed: list[int] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, node: ReplicaNode) -> None:
        resources = HostResources(
            topics=node.topics,
            snapshots=node.root / "snapshots",
            disk=node.disk,
            clock=SteadyClock(self.cluster.clock),
            executor=node.threads,
        )
        self.of[node.id] = StateMachineTopic(COUNTERS, resources, lambda _: KeyedCounters())
        self._tasks[node.id] = asyncio.create_task(self.of[node.id].run())

    async def stop(self, node_id: int) -> None:
        task = self._tasks.pop(node_id)
        del self.of[node_id]
        task.cancel()
        await asyncio.wait([task])

    def state(self, name: bytes) -> PartitionState:
        """Return the state of the partition of a counter."""
        image = next(iter(self.cluster.nodes.values())).metadata.image
        index = next(iter(self.of.values())).index_of(name.decode())
        state = image.partition(PartitionId(image.topic(COUNTERS).id, index))
        assert state is not None
        return state

    async def host(self, name: bytes) -> StateMachineHost[KeyedCounters]:
        """Return the host of a counter at the leader of its partition, once it is there."""
        await until(lambda: self._leads(name), "a host at the leader")
        leader = self.state(name).leader
        assert leader is not None
        return await self.of[leader].host_of(name.decode())

    def _leads(self, name: bytes) -> bool:
        state = self.state(name)
        if state.leader not in self.of:
            return False
        hosts = {host.partition.identity.partition: host for host in self.of[state.leader].started}
        host = hosts.get(self.of[state.leader].index_of(name.decode()))
        return host is not None and host.leader_epoch == state.leader_epoch

    async def ask(self, name: bytes, *, add: bool = False) -> int:
        request = KeyedAdd(name=name) if add else KeyedRead(name=name)
        await self.host(name)
        leader = self.state(name).leader
        assert leader is not None
        return await self.of[leader].ask(request)

    def move(self, name: bytes, *replicas: int) -> None:
        """Give the partition of a counter another order of replicas, and the first of them the lead."""
        index = next(iter(self.of.values())).index_of(name.decode())
        self.cluster.decide(Reassign(reassignments=(Reassignment(COUNTERS, index, replicas),)))
        named = (NamedPartition(COUNTERS, index),)
        self.cluster.decide(ElectLeaders(kind=ElectionKind.PREFERRED, partitions=named))


@asynccontextmanager
async def counting(root: Path, *nodes: int) -> AsyncIterator[Machines]:
    async with a_cluster(root, *nodes) as cluster:
        machines = Machines(cluster)
        for node in cluster.nodes.values():
            machines.start(node)
        try:
            await machines.of[1].all()
            yield machines
        finally:
            for node_id in list(machines.of):
                await machines.stop(node_id)


def others(state: PartitionState) -> list[int]:
    return [replica for replica in state.replicas if replica != state.leader]


async def test_each_machine_is_hosted_by_the_leader_of_its_partition_only(tmp_path: Path) -> None:
    async with counting(tmp_path, 1, 2, 3) as machines:
        names = [b"a", b"b", b"c", b"d", b"e", b"f"]
        for name in names:
            assert await machines.ask(name, add=True) == 1
        for name in names:
            state = machines.state(name)
            assert await machines.of[others(state)[0]].broker_of(name.decode()) == state.leader
            for node_id in others(state):
                with pytest.raises(NotCoordinator) as elsewhere:
                    await machines.of[node_id].ask(KeyedRead(name=name))
                assert elsewhere.value.coordinator == state.leader
        hosted = [host.partition.identity for of in machines.of.values() for host in of.started]
        assert sorted(hosted) == sorted({*hosted})
        assert len(hosted) == machines.of[1].count


async def test_acknowledged_changes_survive_the_loss_of_the_host(tmp_path: Path) -> None:
    async with counting(tmp_path, 1, 2, 3) as machines:
        for count in range(1, 6):
            assert await machines.ask(b"a", add=True) == count
        leader = machines.state(b"a").leader
        assert leader is not None
        await machines.stop(leader)
        await machines.cluster.kill(leader)
        assert await machines.ask(b"a") == 5
        assert await machines.ask(b"a", add=True) == 6


async def test_a_machine_that_moves_away_and_back_knows_what_others_wrote(tmp_path: Path) -> None:
    async with counting(tmp_path, 1, 2, 3) as machines:
        await machines.ask(b"a", add=True)
        first = await machines.host(b"a")
        one, two, three = machines.state(b"a").replicas
        machines.move(b"a", two, one, three)
        assert await machines.ask(b"a", add=True) == 2
        machines.move(b"a", one, two, three)
        assert await machines.ask(b"a", add=True) == 3
        assert await machines.host(b"a") is not first
        with pytest.raises(NotCoordinator):
            await first.ask(KeyedRead(name=b"a"))


async def test_what_waits_at_a_machine_ends_when_it_moves_away(tmp_path: Path) -> None:
    async with counting(tmp_path, 1, 2, 3) as machines:
        host = await machines.host(b"a")
        machine = await host.loaded()
        waiting = host.submit(Wait())
        await machine.has_waiter.wait()
        working = asyncio.Event()
        ended = asyncio.Event()

        async def work() -> None:
            working.set()
            await asyncio.Event().wait()

        host.spawn(work(), ended.set)
        await working.wait()
        one, two, three = machines.state(b"a").replicas
        machines.move(b"a", two, one, three)
        answer = await asyncio.wait_for(waiting, 20)
        assert isinstance(answer, NotCoordinator)
        assert answer.coordinator == two
        await asyncio.wait_for(ended.wait(), 20)
        assert host.machine is None


async def test_changes_that_are_not_committed_are_not_confirmed(tmp_path: Path) -> None:
    """The host has appended, no other replica has it, and another broker leads then."""
    async with counting(tmp_path, 1, 2, 3) as machines:
        await machines.ask(b"a", add=True)
        state = machines.state(b"a")
        host = await machines.host(b"a")
        assert state.leader is not None
        for node_id in others(state):
            await machines.stop(node_id)
            await machines.cluster.kill(node_id, notices=False)
        adding = host.submit(KeyedAdd(name=b"a"))
        await host.handled()
        node = machines.cluster.nodes[state.leader]
        await host.partition.flush_to(host.partition.log.end_offset)
        assert not adding.done()
        host.stop(NotCoordinator("moved"))
        answer: int | AlpacaError = await adding
        assert isinstance(answer, NotCoordinator)
        assert node.topics.find(COUNTERS.encode(), host.partition.identity.partition) is host.partition


async def test_a_partition_without_a_leader_has_no_coordinator(tmp_path: Path) -> None:
    async with counting(tmp_path, 1, 2) as machines:
        await machines.ask(b"a", add=True)
        index = machines.of[1].index_of("a")
        machines.cluster.decide(Reassign(reassignments=(Reassignment(COUNTERS, index, (2,)),)))
        await until(lambda: machines.state(b"a").replicas == (2,), "one replica")
        await machines.stop(2)
        await machines.cluster.kill(2)
        with pytest.raises(CoordinatorUnavailable):
            await machines.of[1].broker_of("a")
        with pytest.raises(CoordinatorUnavailable):
            await machines.of[1].ask(KeyedRead(name=b"a"))
