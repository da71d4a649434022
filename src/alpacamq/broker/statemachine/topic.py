"""Runs state machines on the partitions of an internal topic, which is created when first needed.

Each broker hosts the machines of the partitions that it leads: a host starts when leading begins and is
stopped when it ends. Requests reach the machine on whichever broker it is, except those that are to be
answered here or not at all: clients of the Kafka protocol find the brokers of their coordinators themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.remote.shards import RequestCodec, ShardCalls
from alpacamq.broker.topics import Topics
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    PartitionNotReady,
)
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.ports import Disk
from alpacamq.model.state_machine import Outcome, Request, StateMachine

from .host import Batching, Now, StateMachineHost
from .snapshots import StateSnapshots

COUNT = 8
START_SECONDS = 5.0
OVERRIDES = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(64 << 20),
    "message.timestamp.type": "CreateTime",
    "segment.bytes": str(16 << 20),
}

M = TypeVar("M", bound=StateMachine)
R = TypeVar("R")


class HostResources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources shared by the hosts of state machines; each partition has its own snapshot directory."""

    topics: Topics
    snapshots: Path
    disk: Disk
    clock: Now
    executor: Executor
    # None for a cluster of this node only.
    shards: ShardCalls | None = None


def is_host_of(host: StateMachineHost[Any], led: Partition | None) -> bool:
    """Return whether a host may go on: no other broker has led its partition since it was started."""
    return led is host.partition and led.leader_epoch == host.leader_epoch


class StateMachineTopic(Generic[M]):
    """Runs a state machine on each partition that this broker leads and routes requests by their key."""

    def __init__(
        self,
        topic: TopicName,
        resources: HostResources,
        make: Callable[[Partition], M],
        *,
        perform: Callable[[StateMachineHost[M], Sequence[Any]], None] | None = None,
        read: Callable[[StateMachineHost[M], Any], None] | None = None,
        check: Callable[[Partition, M], Outcome] | None = None,
        batching: Batching | None = None,
        overrides: Mapping[str, str] | None = None,
        partitions: int = COUNT,
        requests: Iterable[type[Request[Any]]] = (),
        answer: Callable[[StateMachineHost[M], Request[Any]], Awaitable[Any]] | None = None,
        undo: Callable[[Request[Any], Any], None] | None = None,
    ) -> None:
        """Make a machine for a partition with `make`; the other callbacks are those of StateMachineHost.

        `requests` are the types that other brokers may send to machines on this one; events are ignored.
        `answer` answers a request from any broker at the broker that hosts its machine, in place of the
        host's `ask`; it is cancelled when the client of the request is. `undo` is given a request to another
        broker and its reply, if that comes after its client has gone.
        """
        self.topic = topic
        self.codec = RequestCodec(requests)
        self._answer = answer
        self.undo = undo
        self._shards = resources.shards
        self._resources = resources
        self._make = make
        self._perform = perform
        self._read = read
        self._check = check
        self._batching = batching
        self._partitions = partitions
        self._overrides = {**OVERRIDES, **(overrides or {})}
        self._topics = resources.topics
        # Of the partitions that this broker leads, by index.
        self._hosts: dict[int, StateMachineHost[M]] = {}
        self._is_started = False
        self._starting = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._runs = asyncio.Event()
        self._topics.on_leadership(topic, self._leadership_changed)
        if self._shards is not None:
            self._shards.add(self)

    @property
    def started(self) -> Sequence[StateMachineHost[M]]:
        """The hosts on this broker, in the order of their partitions."""
        return list(self._hosts.values())

    @property
    def machines(self) -> list[M]:
        """The machines on this broker that are loaded."""
        return [host.machine for host in self._hosts.values() if host.machine is not None]

    @property
    def exists(self) -> bool:
        """Whether the topic has ever been needed."""
        return self.topic in self._topics.image.topics

    @property
    def count(self) -> int:
        """The number of partitions, on any broker; 0 before the topic is needed."""
        topic = self._topics.image.topics.get(self.topic)
        return 0 if topic is None else topic.partitions

    @property
    def is_complete(self) -> bool:
        """Whether every machine is on this broker and loaded."""
        return 0 < self.count == len(self.machines)

    async def run(self) -> None:
        """Run the hosts until cancelled; at once if their topic exists."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._runs.set()
            try:
                if self.exists:
                    with suppress(PartitionNotReady):  # the broker stops before it has been recovered
                        await self.all()
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    async def all(self) -> Sequence[StateMachineHost[M]]:
        """Return every host on this broker, after starting them if necessary."""
        if not self._is_started:
            async with self._starting:
                if not self._is_started:
                    await self._start()
        return self.started

    async def host_of(self, key: str) -> StateMachineHost[M]:
        """Return the host that `key` belongs to. Raises NotCoordinator if another broker has it."""
        await self.all()
        return self.host_at(self.index_of(key))

    def loaded_host(self, key: str) -> StateMachineHost[M] | None:
        """Return the host that `key` belongs to; None unless it is on this broker, and loaded."""
        if not self._is_started:
            return None
        host = self._hosts.get(self.index_of(key))
        return host if host is not None and host.machine is not None else None

    def host_at(self, index: int) -> StateMachineHost[M]:
        """Return the host of a partition. Raises NotCoordinator if another broker has it."""
        if (host := self._hosts.get(index)) is None:
            raise self._absence(index)
        return host

    def loaded_here(self, key: str) -> StateMachineHost[M] | None:
        """Return the host that `key` belongs to; None unless its machine is loaded on this broker."""
        if not self._hosts:
            return None
        host = self._hosts.get(self.index_of(key))
        return None if host is None or host.machine is None else host

    def index_of(self, key: str) -> int:
        """Return the partition that `key` belongs to; the topic exists."""
        return crc32c(key.encode()) % self._topics.image.topics[self.topic].partitions

    async def broker_of(self, key: str) -> BrokerId:
        """Return the broker that hosts the machine of `key`, after creating the topic if necessary.

        Raises CoordinatorUnavailable if there is none now.
        """
        await self.ensure_exists()
        if (leader := self.leader_of(self.index_of(key))) is None:
            raise CoordinatorUnavailable(f"partition {self.index_of(key)} of {self.topic!r} has no leader")
        return BrokerId(leader)

    async def ensure_exists(self) -> None:
        """Create the topic if necessary; its machines may be on other brokers."""
        if not self.exists:
            await self._topics.ensure_internal(
                self.topic, partitions=self._partitions, overrides=self._overrides
            )

    async def ask(self, request: Request[R]) -> R:
        """Return the reply of the machine that a request belongs to, on any broker.

        Raises it if it is an error. Cancelling withdraws the request.
        """
        if self._shards is None:
            return await self.ask_here(request)
        await self.ensure_exists()
        return await self._shards.ask(self, self.index_of(request.routing_key), request)

    async def ask_at(self, index: int, request: Request[R]) -> R:
        """Return the reply of the machine of a partition, on any broker; the topic exists."""
        if self._shards is None:
            await self.all()
            return await self.ask_local(index, request)
        return await self._shards.ask(self, index, request)

    async def ask_here(self, request: Request[R]) -> R:
        """Return the reply of a machine on this broker. Raises NotCoordinator if another broker has it."""
        return await self._ask_host(await self.host_of(request.routing_key), request)

    async def ask_all(self, request: Request[R]) -> list[R]:
        """Return the replies of the machines on all brokers, except of those that cannot be loaded.

        Raises CoordinatorUnavailable, naming the brokers that do not answer.
        """
        if self._shards is None:
            return await self.ask_all_here(request)
        await self.ensure_exists()
        return await self._shards.ask_all(self, request)

    async def ask_all_here(self, request: Request[R]) -> list[R]:
        """Return the replies of every machine on this broker, except of those that cannot be loaded."""
        return [await self._ask_host(host, request) for host in await self.all() if host.failure is None]

    async def ask_local(self, shard: int, request: Request[R]) -> R:
        """Return the reply of a machine on this broker that a request of any broker was routed to."""
        return await self._ask_host(self._routed_to(shard), request)

    async def ask_loadable(self, shard: int, request: Request[R]) -> list[R]:
        """Return the reply of a machine on this broker; nothing if it cannot be loaded."""
        host = self._routed_to(shard)
        return [await self._ask_host(host, request)] if host.failure is None else []

    async def _ask_host(self, host: StateMachineHost[M], request: Request[R]) -> R:
        if self._answer is not None:
            return cast("R", await self._answer(host, request))
        return await host.ask(request)

    def _routed_to(self, shard: int) -> StateMachineHost[M]:
        if (host := self._hosts.get(shard)) is None:
            error = self._absence(shard)
            # That there is no leader now is no failure of the request: it has not begun.
            raise NotCoordinator(str(error)) if isinstance(error, CoordinatorUnavailable) else error
        return host

    def is_here(self, shard: int) -> bool:
        """Return whether this broker hosts the machine of a partition."""
        return shard in self._hosts

    def leader_of(self, shard: int) -> int | None:
        """Return the broker that hosts the machine of a partition; None if there is none now."""
        topic = self._topics.image.topics.get(self.topic)
        state = None if topic is None else self._topics.image.partition(PartitionId(topic.id, shard))
        return None if state is None else state.leader

    def post_all(self, event: Request[Any]) -> None:
        """Post an event to every machine on this broker."""
        for host in self.started:
            host.post(event)

    async def handled(self) -> None:
        """Return once every machine has handled what was posted to it before."""
        for host in self.started:
            await host.handled()

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return [
            f"{host.partition.identity} cannot be loaded: {host.failure}"
            for host in self.started
            if host.failure is not None
        ]

    async def flush(self) -> None:
        """Return once everything that the machines have written so far is on disk."""
        await asyncio.gather(
            *(host.partition.flush_to(host.partition.log.end_offset) for host in self.started)
        )

    async def settled(self) -> None:
        """Return once every machine has been loaded and its corrections are on disk."""
        if self.exists:
            for host in await self.all():
                with suppress(NotCoordinator):  # another broker loads it
                    await host.wait_until_loaded()
            await self.flush()

    async def _start(self) -> None:
        if self._tasks is None:
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._runs.wait()
            except TimeoutError:
                raise CoordinatorLoading("the broker is starting") from None
        # Even if it exists in the image: it may still be in creation for a request that was cancelled.
        await self._topics.create_internal(self.topic, partitions=self._partitions, overrides=self._overrides)
        self._leadership_changed()
        self._is_started = True

    def _leadership_changed(self) -> None:
        """Run hosts for exactly the partitions that this broker leads, each for its epoch."""
        if self._tasks is None:
            return
        led = self._topics.ready_partitions_of(self.topic)
        for index, host in list(self._hosts.items()):
            if not is_host_of(host, led.get(index)):
                del self._hosts[index]
                reason = f"this broker does not lead {host.partition.identity} any more"
                host.stop(NotCoordinator(reason, self.leader_of(index)))
        for index, partition in led.items():
            if index not in self._hosts:
                self._hosts[index] = host = self._host(partition)
                self._tasks.create_task(host.run())
        self._hosts = dict(sorted(self._hosts.items()))
        if self._shards is not None:
            self._shards.leadership_changed(self.topic)

    def _absence(self, index: int) -> AlpacaError:
        """Return the error for a partition that has no host here."""
        error = self._topics.absence(self.topic.encode(), index)
        if isinstance(error, NotLeader):
            return NotCoordinator(str(error), error.leader)
        if isinstance(error, LeaderNotAvailable):
            return CoordinatorUnavailable(str(error))
        return CoordinatorLoading(str(error))

    def _host(self, partition: Partition) -> StateMachineHost[M]:
        resources = self._resources
        perform, read, check = self._perform, self._read, self._check
        host: StateMachineHost[M] = StateMachineHost(
            partition,
            lambda: self._make(partition),
            StateSnapshots(resources.disk, resources.snapshots / partition.log.directory.name),
            resources.clock,
            resources.executor,
            perform=None if perform is None else lambda effects: perform(host, effects),
            read=None if read is None else lambda effect: read(host, effect),
            check=None if check is None else lambda machine: check(partition, machine),
            batching=self._batching,
        )
        return host
