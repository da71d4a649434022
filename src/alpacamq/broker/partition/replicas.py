"""The partitions of which this broker has a replica: opens and deletes them, and finds those it leads.

Opening reads the disk, in threads. Which replicas there are, and which of them lead, is decided by the image;
see broker/topics.py.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

from alpacamq.broker.tracing.tracing import Tracing
from alpacamq.cluster.image import ClusterImage
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.disk import remove_tree
from alpacamq.log.partition_log import PartitionLog, ScanProgress, mark_deleted, sync_recovered_logs
from alpacamq.log.storage import Storage
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.topics import Topic, TopicConfig
from alpacamq.telemetry.logs import get_logger

from .group_commit import GroupCommit
from .leader import Partition, ReplicationHost
from .loading import Loading, RecoveryProgress

log = get_logger(__name__)
T = TypeVar("T")

MAX_NAME_IN_PATH = 180
_DIRECTORY = re.compile(r"(.+)-(\d{1,10})\.([0-9a-f]{12})")
# New partitions are created in slices, a few slices in parallel.
SLICE = 32
SLICES_AT_ONCE = 3


def directory_name(identity: TopicPartition, topic_id: TopicId) -> str:
    """Return the directory of a partition. The id separates a topic from the data of a deleted namesake.

    A long name is cut: file names are limited to 255 bytes, and the id distinguishes such topics.
    """
    return f"{identity.topic[:MAX_NAME_IN_PATH]}-{identity.partition}.{topic_id.hex[:12]}"


def is_stray(name: str, image: ClusterImage, node_id: BrokerId) -> bool:
    """Return whether a directory holds a partition of a deleted topic, or one moved to other brokers.

    The image must be newer than the registration of this broker: an older one may not know the topic yet.
    """
    if (parts := _DIRECTORY.fullmatch(name)) is None:
        return False
    stem, index, id_prefix = parts.groups()
    for topic in image.topics.values():
        if topic.id.hex.startswith(id_prefix) and topic.name[:MAX_NAME_IN_PATH] == stem:
            state = image.partition(PartitionId(topic.id, int(index)))
            return state is not None and node_id not in state.replicas
    return True


class Replicas:
    """Every open partition of this broker, by topic, and those that it leads by the keys of requests."""

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        flushes: GroupCommit,
        executor: Executor,
        *,
        replication: ReplicationHost | None = None,
        tracing: Tracing | None = None,
        power_lost: bool = False,
    ) -> None:
        self._directory = directory
        self._storage = storage
        self._flushes = flushes
        self._executor = executor
        self._replication = replication
        self._tracing = tracing
        self._power_lost = power_lost
        self._open: dict[TopicId, dict[int, Partition]] = {}
        # Requests carry a name or an id as bytes: a lookup by bytes saves decoding them.
        self._led: dict[bytes, dict[int, Partition]] = {}

    def led(self, key: bytes, index: int) -> Partition | None:
        """Return the partition `index` of the topic with this name or id, if this broker leads it."""
        return None if (led := self._led.get(key)) is None else led.get(index)

    def led_of(self, key: bytes) -> Mapping[int, Partition]:
        """Return the partitions of a topic that this broker leads, by index."""
        return self._led.get(key, {})

    def of_topic(self, topic_id: TopicId) -> Mapping[int, Partition]:
        """Return the open partitions of a topic, by index."""
        return self._open.get(topic_id, {})

    def __iter__(self) -> Iterator[Partition]:
        """Yield every open partition."""
        for partitions in list(self._open.values()):
            yield from list(partitions.values())

    def damaged(self) -> tuple[PartitionId, ...]:
        """Return the replicas that may lack records which they had acknowledged, and those being rebuilt."""
        return tuple(
            PartitionId(partition.topic_id, partition.identity.partition)
            for partition in self
            if partition.log.has_lost_data
            or (partition.following is not None and partition.following.is_rebuilding)
        )

    def admit(self, partitions: Sequence[Partition]) -> None:
        """Add partitions that have been opened."""
        for partition in partitions:
            self._open.setdefault(partition.topic_id, {})[partition.identity.partition] = partition

    def set_led(self, partition: Partition) -> None:
        """Let requests find a partition that this broker leads."""
        name, index = partition.identity
        by_id = self._led.setdefault(partition.topic_id.bytes, {})
        by_id[index] = partition
        self._led[name.encode()] = by_id

    def set_not_led(self, partition: Partition) -> None:
        """Hide a partition from requests, because this broker does not lead it any more."""
        name, index = partition.identity
        by_id = self._led.get(partition.topic_id.bytes)
        if by_id is not None:
            by_id.pop(index, None)
            if not by_id:
                del self._led[partition.topic_id.bytes]
                # The name may belong to another topic by now.
                if self._led.get(name.encode()) is by_id:
                    del self._led[name.encode()]

    def remove(self, topic_id: TopicId, index: int) -> Partition | None:
        """Remove a partition, hidden first; its files are left to `delete`."""
        partitions = self._open.get(topic_id, {})
        if (partition := partitions.pop(index, None)) is not None:
            if not partitions:
                del self._open[topic_id]
            self.set_not_led(partition)
        return partition

    async def delete(self, partition: Partition) -> None:
        """Delete the files of a removed partition."""
        async with partition.files:
            await self._flushes.quiesce(partition)
            try:
                await self._in_thread(partition.log.delete)
            except (AlpacaError, OSError) as error:
                # The partition is gone all the same; the next start reports the remaining files.
                log.error("files_not_deleted", partition=str(partition.identity), reason=str(error))

    async def delete_strays(self, names: Sequence[str], image: ClusterImage, node_id: BrokerId) -> None:
        """Delete those of some directories whose partitions are not on this broker, as the image says now."""
        disk = self._storage.disk
        for name in names:
            # Checked and renamed in one turn: the image may give the partition back to this broker later.
            if not is_stray(name, image, node_id):
                continue
            try:
                doomed = mark_deleted(disk, self._directory / name)
                await self._in_thread(partial(remove_tree, disk, doomed))
            except (AlpacaError, OSError) as error:
                log.error("files_not_deleted", name=name, reason=str(error))
            else:
                log.info("stray_partition_directory_deleted", name=name)

    async def open(self, topic: Topic, indexes: Sequence[int], config: TopicConfig) -> list[Partition]:
        """Open or create partitions in threads, a few slices at a time, to leave threads for others."""
        free = asyncio.Semaphore(SLICES_AT_ONCE)

        async def open_slice(some: Sequence[int]) -> list[Partition]:
            async with free:
                return await self._in_thread(partial(self._open_now, topic, some, config))

        slices = [indexes[first : first + SLICE] for first in range(0, len(indexes), SLICE)]
        return [each for opened in await asyncio.gather(*map(open_slice, slices)) for each in opened]

    def loading(
        self,
        progress: RecoveryProgress,
        configs: Mapping[TopicId, TopicConfig],
        ready: Callable[[Topic, list[Partition]], None],
    ) -> Loading:
        """Return the loading of many partitions at the start of the broker."""

        def recover(topic: Topic, index: int) -> Partition:
            report = progress.opening(TopicPartition(topic.name, index))

            def scanned(scanned_bytes: int, total_bytes: int) -> None:
                loading.check_stopped()
                report(scanned_bytes, total_bytes)

            partition = self._recover(topic, index, configs[topic.id], scanned)
            if self._power_lost:
                partition.cut_offset = partition.log.end_offset
            return partition

        loading = Loading(recover, self._settle, ready)
        return loading

    def _open_now(self, topic: Topic, indexes: Sequence[int], config: TopicConfig) -> list[Partition]:
        partitions = [self._recover(topic, index, config) for index in indexes]
        self._settle(partitions)
        return partitions

    def _recover(
        self, topic: Topic, index: int, config: TopicConfig, progress: ScanProgress | None = None
    ) -> Partition:
        """Open a partition, or create it if it does not exist. Blocking; not to be used before `_settle`."""
        identity = TopicPartition(TopicName(topic.name), index)
        path = self._directory / directory_name(identity, topic.id)
        opened = PartitionLog.recover(path, config, self._storage, progress=progress)
        partition = Partition(identity, topic.id, opened, self._flushes, self._replication)
        if self._tracing is not None and not topic.is_internal:
            partition.traces = self._tracing.of_partition(identity, topic.id, partition.config)
        return partition

    def _settle(self, partitions: list[Partition]) -> None:
        sync_recovered_logs(self._storage.disk, self._directory, [partition.log for partition in partitions])

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
