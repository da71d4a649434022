"""The topics of this broker: their partitions, and every change to them.

Changes are serialized: each is validated against the image, written to the metadata log, then applied
to disk. After a crash between the last two, the next start creates missing partitions; stray files are
reported and left alone. A change that has begun is completed even if its client disconnects.

During start-up, partitions can be found as they become ready; changes wait until all are.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import uuid4

from alpacamq.cluster.broker_config import ALL_BROKERS, check_overrides, topic_defaults, usable
from alpacamq.cluster.image import ClusterImage, broker_config_change, topic_change, topic_removal
from alpacamq.cluster.topics import BY_DEFAULT, TopicLimits, configured, created, grown
from alpacamq.log.partition_log import PartitionLog, ScanProgress, sync_recovered_logs
from alpacamq.log.storage import Storage
from alpacamq.model.errors import (
    AlpacaError,
    PartitionNotReady,
    PolicyViolation,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.topics import Topic, TopicConfig, is_topic_name, topic_config
from alpacamq.telemetry.logs import get_logger

from .metadata_log import MetadataLog
from .partition.group_commit import GroupCommit
from .partition.leader import Partition
from .partition.loading import Loading, RecoveryProgress
from .slices import in_slices
from .tracing.tracing import Tracing

log = get_logger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

MAX_NAME_IN_PATH = 180
ID_BYTES = 16
# New partitions are created in slices, a few slices in parallel.
SLICE = 32
SLICES_AT_ONCE = 3
# Topics that get new defaults between two turns of the event loop.
CONFIGURED_AT_ONCE = 50


def directory_name(identity: TopicPartition, topic_id: TopicId) -> str:
    """Return the directory of a partition. The id separates a topic from the data of a deleted namesake.

    A long name is cut: file names are limited to 255 bytes, and the id distinguishes such topics.
    """
    return f"{identity.topic[:MAX_NAME_IN_PATH]}-{identity.partition}.{topic_id.hex[:12]}"


def _uninterrupted(
    change: Callable[Concatenate["Topics", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Topics", P], Coroutine[Any, Any, T]]:
    """Let a change complete when the task that waits for it is cancelled."""

    @wraps(change)
    async def shielded(self: "Topics", /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.ensure_future(change(self, *args, **kwargs))
        self._in_progress.add(task)
        task.add_done_callback(self._in_progress.discard)
        return await asyncio.shield(task)

    return shielded


class TopicListener(Protocol):
    """Receives changes to topics, before the next change."""

    async def topic_deleted(self, topic: str) -> None: ...
    def topic_grown(self, topic: str) -> None: ...


class Topics:
    """All topics and partitions, by the keys that requests carry."""

    def __init__(
        self,
        metadata: MetadataLog,
        directory: Path,
        storage: Storage,
        flushes: GroupCommit,
        executor: Executor,
        *,
        node_id: BrokerId,
        limits: TopicLimits,
        file_defaults: Mapping[str, str],
        tracing: Tracing | None = None,
        power_lost: bool = False,
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._storage = storage
        self._flushes = flushes
        self._executor = executor
        self._limits = limits
        self._node_id = node_id
        self._file_defaults = file_defaults
        # Replaced by another object when they change.
        self.defaults = topic_defaults(metadata.image, node_id, file_defaults)
        self._report_unusable()
        self._tracing = tracing
        # Whether state may refer to records lost in a power cut.
        self.power_lost = power_lost
        # Requests carry a name or an id as bytes: a lookup by bytes saves decoding them.
        self._partitions: dict[bytes, list[Partition]] = {}
        # The ready partitions of topics that are not complete yet.
        self._recovered: dict[bytes, dict[int, Partition]] = {}
        self._loading: Loading | None = None
        self._complete: dict[TopicName, asyncio.Event] = {}
        self._changing = asyncio.Lock()
        self._in_progress: set[asyncio.Future[Any]] = set()
        self._listeners: list[TopicListener] = []

    def subscribe(self, listener: TopicListener) -> None:
        """Notify a listener of every change from now on."""
        self._listeners.append(listener)

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    def find(self, key: bytes, index: int) -> Partition | None:
        """Return partition `index` of the topic whose name or 16-byte id is `key`, if this broker leads it.

        None does not mean that it does not exist: only the image says that. `absence` tells the reason.
        """
        partitions = self._partitions.get(key)
        if partitions is None:
            return self._recovered[key].get(index) if key in self._recovered else None
        return partitions[index] if 0 <= index < len(partitions) else None

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition that this broker leads; else raise the reason that `absence` returns."""
        if (found := self.find(name.encode(), index)) is None:
            raise self.absence(name.encode(), index)
        return found

    @property
    def is_recovering(self) -> bool:
        """Whether partitions are still being opened; no topic changes meanwhile."""
        return self._loading is not None

    def exists(self, key: bytes, index: int) -> bool:
        """Return whether the cluster has partition `index` of the topic whose name or 16-byte id is `key`."""
        topic = self._topic(key)
        return topic is not None and 0 <= index < topic.partitions

    def absence(self, key: bytes, index: int) -> AlpacaError:
        """Return the error for a partition that `find` does not return."""
        if (topic := self._topic(key)) is None:
            name = key.decode(errors="replace")
            # A random id is not a valid name; a name of the same length is.
            if len(key) == ID_BYTES and not is_topic_name(name):
                return UnknownTopicId(f"no topic has the id {key.hex()}")
            return UnknownTopic(f"no topic is named {name!r}")
        if not 0 <= index < topic.partitions:
            return UnknownTopic(
                f"topic {topic.name!r} has {topic.partitions} partitions, no partition {index}"
            )
        if self._loading is not None:
            return PartitionNotReady(f"partition {index} of topic {topic.name!r} is being recovered")
        return PartitionNotReady(f"partition {index} of topic {topic.name!r} is being created")

    def _topic(self, key: bytes) -> Topic | None:
        topic = self.image.topic_by_id(TopicId(bytes=key)) if len(key) == ID_BYTES else None
        return topic or self.image.topics.get(TopicName(key.decode(errors="replace")))

    def partitions_of(self, name: str) -> Sequence[Partition]:
        """Return a topic's partitions in order; empty while it is being created, recovered or deleted."""
        return self._partitions.get(name.encode(), ())

    def ready_partitions_of(self, name: str) -> Mapping[int, Partition]:
        """Return the ready partitions, also of a topic that is being recovered."""
        recovered = self._recovered.get(name.encode())
        return dict(enumerate(self.partitions_of(name))) if recovered is None else dict(recovered)

    def all_partitions(self) -> Iterator[Partition]:
        """Yield every ready partition."""
        for name in list(self.image.topics):
            yield from self.ready_partitions_of(name).values()

    def config_of(self, topic: Topic) -> TopicConfig:
        return topic_config(topic.overrides, self.defaults.merged)

    def load(self, progress: RecoveryProgress, start_number: int) -> None:
        """Open every partition of every topic. Blocking."""
        loading = self._begin_loading(progress, start_number, self._admit_recovered)
        loading.run(self.image.topics.values())
        self._loading = None

    async def load_gradually(self, progress: RecoveryProgress, start_number: int) -> bool:
        """Open every partition in threads. Ready ones can be found at once; changes wait until all are.

        Returns false if `stop_loading` was called first.
        """
        loop = asyncio.get_running_loop()

        def ready(topic: Topic, partitions: list[Partition]) -> None:
            loop.call_soon_threadsafe(self._admit_recovered, topic, partitions)

        loading = self._begin_loading(progress, start_number, ready)
        self._complete = {name: asyncio.Event() for name in self.image.topics}
        async with self._changing:
            try:
                # Loading has its own threads: it may take long, and open partitions need the shared ones.
                is_complete = await loop.run_in_executor(None, loading.run, list(self.image.topics.values()))
                await asyncio.sleep(0)  # the last partitions it handed over are admitted
                if is_complete:
                    self._loading = None
            finally:
                for complete in self._complete.values():
                    complete.set()
                self._complete.clear()
        return is_complete

    def stop_loading(self) -> None:
        """Make `load_gradually` return soon. Partitions not yet opened stay unavailable."""
        if self._loading is not None:
            self._loading.stop()

    def power_loss_settled(self) -> None:
        """Forget the power loss: no state refers to lost records any more."""
        self.power_lost = False
        for partition in self.all_partitions():
            partition.cut_offset = None

    @_uninterrupted
    async def create(
        self,
        name: str,
        *,
        partitions: int = BY_DEFAULT,
        replication_factor: int = BY_DEFAULT,
        overrides: Mapping[str, str] | None = None,
        may_collide: bool = False,
        dry_run: bool = False,
    ) -> Topic:
        """Create a topic; it is usable when this returns.

        `may_collide` is for names that are not the user's choice, as that of a dead-letter topic.
        """
        async with self._change():
            topic = created(
                self.image,
                name,
                topic_id=uuid4(),
                partitions=partitions,
                replication_factor=replication_factor,
                overrides=overrides or {},
                limits=self._limits,
                may_collide=may_collide,
            )
            if not dry_run:
                await self._create(topic)
            return topic

    @_uninterrupted
    async def get_or_create(self, name: str) -> Topic:
        """Return the topic of this name, created with the broker's defaults if it does not exist.

        Concurrent callers all get the topic that the first of them created.
        """
        async with self._change():
            if (topic := self.image.topics.get(TopicName(name))) is None:
                topic = created(
                    self.image,
                    name,
                    topic_id=uuid4(),
                    partitions=BY_DEFAULT,
                    replication_factor=BY_DEFAULT,
                    overrides={},
                    limits=self._limits,
                )
                await self._create(topic)
            return topic

    @_uninterrupted
    async def create_internal(
        self, name: TopicName, *, partitions: int, overrides: Mapping[str, str]
    ) -> None:
        """Create an internal topic, which no client may create, write to or delete."""
        if (complete := self._complete.get(name)) is not None:
            await complete.wait()
            if not self.partitions_of(name):
                raise PartitionNotReady(f"topic {name!r} has not been recovered")
            return  # without waiting for all other topics
        async with self._change():
            if name not in self.image.topics:
                await self._create(
                    Topic(name=name, id=uuid4(), partitions=partitions, overrides=dict(overrides))
                )

    @_uninterrupted
    async def delete(self, name: str) -> Topic:
        """Delete a topic and its files."""
        async with self._change():
            topic = self.image.topic(name)
            if topic.is_internal:
                raise PolicyViolation(f"topic {name!r} is internal and cannot be deleted")
            await self._metadata.write([topic_removal(topic.name)])
            partitions = self._partitions.pop(topic.name.encode(), [])
            self._partitions.pop(topic.id.bytes, None)
            for partition in partitions:
                partition.retire(UnknownTopic(f"topic {name!r} has been deleted"))
                await self._flushes.quiesce(partition)
                try:
                    await self._in_thread(partition.log.delete)
                except (AlpacaError, OSError) as error:
                    # The topic is deleted all the same; the next start reports the remaining files.
                    log.error("files_not_deleted", partition=str(partition.identity), reason=str(error))
            log.info("topic_deleted", topic=topic.name)
            # Before a topic of that name can be created: groups would start at the old one's offsets.
            for listener in self._listeners:
                await listener.topic_deleted(topic.name)
            return topic

    @_uninterrupted
    async def grow(self, name: str, partitions: int, *, dry_run: bool = False) -> Topic:
        """Add partitions so that there are `partitions` in total."""
        async with self._change():
            former = self.image.topic(name)
            if former.is_internal:
                # The number of partitions decides which state lives in which.
                raise PolicyViolation(f"topic {name!r} is internal and keeps its partitions")
            topic = grown(self.image, name, partitions, self._limits)
            if dry_run:
                return topic
            await self._metadata.write([topic_change(topic)])
            try:
                added = await self._open_all(topic, range(former.partitions, topic.partitions))
            except AlpacaError:
                await self._metadata.write([topic_change(former)])
                raise
            self._partitions[topic.name.encode()] += added
            log.info("partitions_added", topic=topic.name, partitions=topic.partitions)
            for listener in self._listeners:
                listener.topic_grown(topic.name)
            return topic

    @_uninterrupted
    async def configure(
        self, name: str, change: Callable[[Topic], Mapping[str, str]], *, dry_run: bool = False
    ) -> Topic:
        """Replace a topic's settings by those that `change` returns for it."""
        async with self._change():
            topic = configured(self.image, name, change(self.image.topic(name)))
            if dry_run:
                return topic
            await self._metadata.write([topic_change(topic)])
            config = self.config_of(topic)
            for partition in self.partitions_of(name):
                partition.configure(config)
            log.info("topic_configured", topic=topic.name, settings=dict(topic.overrides))
            return topic

    @_uninterrupted
    async def configure_broker(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, dry_run: bool = False
    ) -> None:
        """Replace the settings changed at run time, of this broker or of all, by those `change` returns.

        When this returns, every topic without an override uses them.
        """
        async with self._change():
            before = self.image.broker_overrides(name)
            overrides = change(before)
            check_overrides(self.image, name, overrides, self.defaults)
            if dry_run or overrides == before:
                return
            await self._metadata.write([broker_config_change(name, overrides)])
            self.defaults = topic_defaults(self.image, self._node_id, self._file_defaults)
            without_overrides = topic_config({}, self.defaults.merged)
            async for some in in_slices(list(self.image.topics.values()), CONFIGURED_AT_ONCE):
                for topic in some:
                    config = self.config_of(topic) if topic.overrides else without_overrides
                    for partition in self.partitions_of(topic.name):
                        partition.configure(config)
            log.info("broker_configured", broker=name or "all", settings=dict(overrides))

    def _report_unusable(self) -> None:
        for name in (str(self._node_id), ALL_BROKERS):
            overrides = self.image.broker_overrides(name)
            for setting in sorted(overrides.keys() - usable(overrides).keys()):
                log.warning("broker_setting_ignored", broker=name or "all", setting=setting)

    async def finish(self) -> None:
        """Return once no change is in progress."""
        while self._in_progress:
            await asyncio.wait(self._in_progress)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Exclude other changes; raises PartitionNotReady if the broker stops before all is recovered."""
        async with self._changing:
            if self._loading is not None:
                raise PartitionNotReady("the broker is stopping, and not all partitions have been recovered")
            yield

    async def _create(self, topic: Topic) -> None:
        await self._metadata.write([topic_change(topic)])
        try:
            partitions = await self._open_all(topic, range(topic.partitions))
        except AlpacaError:
            await self._metadata.write([topic_removal(topic.name)])
            raise
        self._admit(topic, partitions)
        log.info("topic_created", topic=topic.name, partitions=topic.partitions)

    def _admit(self, topic: Topic, partitions: list[Partition]) -> None:
        self._partitions[topic.name.encode()] = self._partitions[topic.id.bytes] = partitions

    def _begin_loading(
        self,
        progress: RecoveryProgress,
        start_number: int,
        ready: Callable[[Topic, list[Partition]], None],
    ) -> Loading:
        progress.expect(self.image.partition_count)
        configs = {topic.id: self.config_of(topic) for topic in self.image.topics.values()}

        def recover(topic: Topic, index: int) -> Partition:
            report = progress.opening(TopicPartition(topic.name, index))

            def scanned(scanned_bytes: int, total_bytes: int) -> None:
                loading.check_stopped()
                report(scanned_bytes, total_bytes)

            partition = self._recover(topic, index, configs[topic.id], scanned)
            partition.start_epoch(start_number)
            if self.power_lost:
                partition.cut_offset = partition.log.end_offset
            return partition

        loading = self._loading = Loading(recover, self._settle, ready)
        return loading

    def _admit_recovered(self, topic: Topic, partitions: list[Partition]) -> None:
        """Make partitions of a topic available; the last one completes the topic."""
        ready = self._recovered.setdefault(topic.name.encode(), {})
        self._recovered[topic.id.bytes] = ready
        ready.update((partition.identity.partition, partition) for partition in partitions)
        if len(ready) == topic.partitions:
            self._admit(topic, [ready[index] for index in range(topic.partitions)])
            del self._recovered[topic.name.encode()], self._recovered[topic.id.bytes]
            if (complete := self._complete.get(topic.name)) is not None:
                complete.set()

    def _recover(
        self, topic: Topic, index: int, config: TopicConfig, progress: ScanProgress | None = None
    ) -> Partition:
        """Open a partition, or create it if it does not exist. Blocking; not to be used before `_settle`."""
        identity = TopicPartition(topic.name, index)
        path = self._directory / directory_name(identity, topic.id)
        log = PartitionLog.recover(path, config, self._storage, progress=progress)
        partition = Partition(identity, topic.id, log, self._flushes)
        if self._tracing is not None and not topic.is_internal:
            partition.traces = self._tracing.of_partition(identity, topic.id, partition.config)
        return partition

    def _settle(self, partitions: list[Partition]) -> None:
        sync_recovered_logs(self._storage.disk, self._directory, [partition.log for partition in partitions])

    def _open(self, topic: Topic, indexes: range, config: TopicConfig) -> list[Partition]:
        partitions = [self._recover(topic, index, config) for index in indexes]
        self._settle(partitions)
        for partition in partitions:
            partition.start_epoch()  # a no-op unless an earlier attempt left files
        return partitions

    async def _open_all(self, topic: Topic, indexes: range) -> list[Partition]:
        """Create partitions in threads, a few slices at a time, to leave threads for others."""
        config = self.config_of(topic)
        free = asyncio.Semaphore(SLICES_AT_ONCE)

        async def open_slice(slice_of: range) -> list[Partition]:
            async with free:
                return await self._in_thread(partial(self._open, topic, slice_of, config))

        slices = [indexes[first : first + SLICE] for first in range(0, len(indexes), SLICE)]
        return [each for opened in await asyncio.gather(*map(open_slice, slices)) for each in opened]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
