"""The last word of every pipeline, read from the topic where they tell it and read on at each look."""

import asyncio

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.ids import TopicId
from alpacamq.model.pipelines import MAX_NAME_LENGTH, PIPELINES_TOPIC, PipelineProgress
from alpacamq.model.records import Record
from alpacamq.model.topics import INT64_MAX

MAX_PIPELINES = 1000
# What one look reads at most; the next goes on from there.
_PAGES = 64
_LIMITS = Limits(records=1000, size_bytes=1 << 20, before_offset=INT64_MAX)


class PipelineReports:
    """Progress by name. Anybody may write to the topic: what is no progress is passed over."""

    def __init__(self, broker: Broker, records: RecordReader) -> None:
        self._broker = broker
        self._records = records
        self._reading = asyncio.Lock()
        self._latest: dict[bytes, PipelineProgress] = {}
        self._topic_id: TopicId | None = None
        self._next_offsets: dict[int, int] = {}

    async def latest(self) -> list[PipelineProgress]:
        """By name; nothing while there is no such topic."""
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
            offset = max(self._next_offsets.get(index, 0), partition.log.start_offset)
            try:
                page = await self._records.read(partition, offset, _LIMITS, committed=True)
            except OffsetOutOfRange:
                self._next_offsets[index] = 0  # deleted under our hands; the next look begins anew
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
        # Taken out and put in again: the order is that of the last word.
        self._latest.pop(key, None)
        if record.value is None:
            return
        try:
            self._latest[key] = msgspec.json.decode(record.value, type=PipelineProgress)
        except msgspec.MsgspecError:
            return
        if len(self._latest) > MAX_PIPELINES:
            del self._latest[next(iter(self._latest))]
