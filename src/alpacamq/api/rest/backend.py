"""The shared arguments of the handlers of the HTTP API."""

import asyncio
from collections.abc import Mapping

import msgspec

from alpacamq.api.metrics.collector import Collector
from alpacamq.api.metrics.requests import Traffic
from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.model.address import Address
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.ids import TopicId
from alpacamq.model.pipelines import MAX_NAME_LENGTH, PIPELINES_TOPIC, PipelineProgress
from alpacamq.model.records import Record
from alpacamq.model.topics import INT64_MAX

MAX_PIPELINES = 1000
# Pages read per call; the next call continues there.
_PAGES = 64
_LIMITS = Limits(records=1000, size_bytes=1 << 20, before_offset=INT64_MAX)


class PipelineReports:
    """Progress by pipeline name. Any client may write to the topic: invalid records are ignored."""

    def __init__(self, broker: Broker, records: RecordReader) -> None:
        self._broker = broker
        self._records = records
        self._reading = asyncio.Lock()
        self._latest: dict[bytes, PipelineProgress] = {}
        self._topic_id: TopicId | None = None
        self._next_offsets: dict[int, int] = {}

    async def latest(self) -> list[PipelineProgress]:
        """Return the progress of all pipelines by name."""
        async with self._reading:
            partitions = self._broker.topics.partitions_of(PIPELINES_TOPIC)
            topic_id = partitions[0].topic_id if partitions else None
            if topic_id != self._topic_id:
                self._forget(topic_id)
            for partition in partitions:
                await self._read_on(partition)
            return sorted(self._latest.values(), key=lambda each: each.name)

    def _forget(self, topic_id: TopicId | None) -> None:
        self._topic_id = topic_id
        self._latest.clear()
        self._next_offsets.clear()

    async def _read_on(self, partition: Partition) -> None:
        index = partition.identity.partition
        for _ in range(_PAGES):
            offset = max(self._next_offsets.get(index, 0), partition.start_offset)
            try:
                page = await self._records.read(partition, offset, _LIMITS, committed=True)
            except OffsetOutOfRange:
                self._next_offsets[index] = 0  # deleted by retention meanwhile; start over next time
                return
            self._next_offsets[index] = page.next_offset
            for record in page.records:
                self._take(record)
            if page.next_offset == offset:
                return

    def _take(self, record: Record) -> None:
        key = record.key
        if not key or len(key) > 4 * MAX_NAME_LENGTH:
            return
        # Reinserted: ordered by the latest report.
        self._latest.pop(key, None)
        if record.value is None:
            return
        try:
            self._latest[key] = msgspec.json.decode(record.value, type=PipelineProgress)
        except msgspec.MsgspecError:
            return
        if len(self._latest) > MAX_PIPELINES:
            del self._latest[next(iter(self._latest))]


class Backend:
    """The broker, the addresses of its APIs by name, and helpers that handlers share."""

    __slots__ = (
        "addresses",
        "broker",
        "collector",
        "pipelines",
        "records",
        "started_ms",
        "traffic",
    )

    def __init__(self, broker: Broker, addresses: Mapping[str, Address]) -> None:
        self.broker = broker
        self.addresses = addresses
        self.records = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)
        self.traffic = Traffic()
        # None if metrics are disabled.
        self.collector = None if broker.metrics is None else Collector(broker, broker.metrics, self.traffic)
        self.pipelines = PipelineReports(broker, self.records)
        self.started_ms = broker.clock.now_ms()
