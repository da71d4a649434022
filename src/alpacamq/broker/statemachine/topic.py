"""Runs a state machine on each partition of an internal topic, which is created when first needed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import CoordinatorLoading, PartitionNotReady
from alpacamq.model.ids import TopicName
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """Resources shared by the hosts of state machines; each partition has its own snapshot directory."""

    topics: Topics
    snapshots: Path
    disk: Disk
    clock: Now
    executor: Executor


class StateMachineTopic(Generic[M]):
    """Runs a state machine on each partition of an internal topic and routes requests by their key."""

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
    ) -> None:
        """Make a machine for a partition with `make`; the other callbacks are those of StateMachineHost."""
        self.topic = topic
        self._resources = resources
        self._make = make
        self._perform = perform
        self._read = read
        self._check = check
        self._batching = batching
        self._overrides = {**OVERRIDES, **(overrides or {})}
        self._topics = resources.topics
        self._hosts: list[StateMachineHost[M]] = []
        self._starting = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._runs = asyncio.Event()

    @property
    def started(self) -> Sequence[StateMachineHost[M]]:
        """The hosts; empty before the first is needed."""
        return self._hosts

    @property
    def machines(self) -> list[M]:
        """The machines that are loaded."""
        return [host.machine for host in self._hosts if host.machine is not None]

    @property
    def exists(self) -> bool:
        """Whether the topic has ever been needed."""
        return self.topic in self._topics.image.topics

    async def run(self) -> None:
        """Run the hosts until cancelled; at once if their topic exists."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._runs.set()
            if self.exists:
                with suppress(PartitionNotReady):  # the broker stops before it has been recovered
                    await self.all()
            await asyncio.Event().wait()

    async def all(self) -> Sequence[StateMachineHost[M]]:
        """Return every host, after starting them if necessary."""
        if self._hosts:
            return self._hosts
        async with self._starting:
            if not self._hosts:
                await self._start()
        return self._hosts

    async def host_of(self, key: str) -> StateMachineHost[M]:
        """Return the host that `key` belongs to, for as long as the topic exists."""
        await self.all()
        return self._hosts[self.index_of(key)]

    def index_of(self, key: str) -> int:
        """Return the partition that `key` belongs to; the hosts have been started."""
        return crc32c(key.encode()) % len(self._hosts)

    async def ask(self, request: Request[R]) -> R:
        """Return the reply to a request, or raise it if it is an error."""
        host = await self.host_of(request.routing_key)
        return await host.ask(request)

    async def ask_all(self, request: Request[R]) -> list[R]:
        """Return the replies of every machine to a request, except of those that cannot be loaded."""
        return [await host.ask(request) for host in await self.all() if host.failure is None]

    def post_all(self, event: Request[Any]) -> None:
        """Post an event to every machine."""
        for host in self._hosts:
            host.post(event)

    async def handled(self) -> None:
        """Return once every machine has handled what was posted to it before."""
        for host in self._hosts:
            await host.handled()

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return [
            f"{host.partition.identity} cannot be loaded: {host.failure}"
            for host in self._hosts
            if host.failure is not None
        ]

    async def flush(self) -> None:
        """Return once everything that the machines have written so far is on disk."""
        await asyncio.gather(
            *(host.partition.flush_to(host.partition.log.end_offset) for host in self._hosts)
        )

    async def settled(self) -> None:
        """Return once every machine has been loaded and its corrections are on disk."""
        if self.exists:
            for host in await self.all():
                await host.wait_until_loaded()
            await self.flush()

    async def _start(self) -> None:
        if self._tasks is None:
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._runs.wait()
            except TimeoutError:
                raise CoordinatorLoading("the broker is starting") from None
        assert self._tasks is not None
        # Even if it exists in the image: it may still be in creation for a request that was cancelled.
        await self._topics.create_internal(self.topic, partitions=COUNT, overrides=self._overrides)
        hosts = [self._host(partition) for partition in self._topics.partitions_of(self.topic)]
        for host in hosts:
            self._tasks.create_task(host.run())
        self._hosts = hosts

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
