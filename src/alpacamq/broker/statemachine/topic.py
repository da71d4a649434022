"""All shards of one internal topic. The topic is made when it is first needed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import CoordinatorLoading, PartitionNotReady
from alpacamq.model.ids import TopicName
from alpacamq.model.outcome import Outcome

from .shard import Machine, Shard

COUNT = 8
START_SECONDS = 5.0
OVERRIDES = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(64 << 20),
    "message.timestamp.type": "CreateTime",
    "segment.bytes": str(16 << 20),
}

M = TypeVar("M", bound=Machine)


class Shards(Generic[M]):
    """The shards of one internal topic, and which of them a key belongs to."""

    def __init__(
        self,
        topic: TopicName,
        topics: Topics,
        make: Callable[[Partition], Shard[M]],
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self._overrides = {**OVERRIDES, **(overrides or {})}
        self._topics = topics
        self._make = make
        self._shards: list[Shard[M]] = []
        self._starting = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._runs = asyncio.Event()

    @property
    def started(self) -> Sequence[Shard[M]]:
        """The shards, none before the first is needed."""
        return self._shards

    async def run(self) -> None:
        """Run the shards until cancelled; at once if their topic exists."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._runs.set()
            if self.topic in self._topics.image.topics:
                with suppress(PartitionNotReady):  # the broker stops before it has been recovered
                    await self.all()
            await asyncio.Event().wait()

    async def all(self) -> Sequence[Shard[M]]:
        """Every shard, started if need be."""
        if self._shards:
            return self._shards
        async with self._starting:
            if not self._shards:
                await self._start()
        return self._shards

    async def index_of(self, key: str) -> int:
        """Which shard `key` belongs to, for as long as the topic exists."""
        await self.all()
        return self.started_index_of(key)

    def started_index_of(self, key: str) -> int:
        """The same where the shards have been started."""
        return crc32c(key.encode()) % len(self._shards)

    async def ask(self, key: str, event: Callable[[M, object, int], Outcome]) -> Any:
        """Ask the shard that `key` belongs to."""
        shards = await self.all()
        return await shards[await self.index_of(key)].ask(event)

    async def ask_all(self, event: Callable[[M, object, int], Outcome]) -> list[Any]:
        """Ask every shard the same, save those that cannot be loaded: what lives there is not known."""
        return [await shard.ask(event) for shard in await self.all() if shard.failure is None]

    def failures(self) -> list[str]:
        """The shards that cannot be loaded, and why."""
        return [
            f"{shard.partition.identity} cannot be loaded: {shard.failure}"
            for shard in self._shards
            if shard.failure is not None
        ]

    async def flush(self) -> None:
        """Return once everything that the shards have written so far is on disk."""
        await asyncio.gather(
            *(shard.partition.flush_to(shard.partition.log.end_offset) for shard in self._shards)
        )

    async def settled(self) -> None:
        """Return once every shard that there should be has been loaded and is on disk."""
        if self.topic in self._topics.image.topics:
            for shard in await self.all():
                await shard.wait_until_loaded()
            await self.flush()

    async def _start(self) -> None:
        if self._tasks is None:
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._runs.wait()
            except TimeoutError:
                raise CoordinatorLoading("the broker is starting") from None
        assert self._tasks is not None
        # Also where it is known already: it may be about to be made for somebody who has gone since.
        await self._topics.create_internal(self.topic, partitions=COUNT, overrides=self._overrides)
        shards = [self._make(partition) for partition in self._topics.partitions_of(self.topic)]
        for shard in shards:
            self._tasks.create_task(shard.run())
        self._shards = shards
