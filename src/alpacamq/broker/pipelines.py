"""The progress of data pipelines, read from the topic that they report to."""

import asyncio

import msgspec

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.ids import TopicId, TopicName
from alpacamq.model.pipelines import MAX_NAME_LENGTH, PIPELINES_TOPIC, PipelineProgress, PipelineState
from alpacamq.model.records import Record
from alpacamq.model.topics import INT64_MAX

from .broker import Broker
from .read.record_reader import Limits

MAX_PIPELINES = 1000
# Pages read per call; the next call continues there.
_PAGES = 64
_LIMITS = Limits(records=1000, size_bytes=1 << 20, before_offset=INT64_MAX)


# A running pipeline reports every ten seconds.
SILENT_AFTER_MS = 60_000


def is_silent(progress: PipelineProgress, now_ms: int) -> bool:
    """Return whether a pipeline was running and has not reported for a minute."""
    return progress.state is PipelineState.RUNNING and progress.updated < now_ms - SILENT_AFTER_MS


class PipelineReports:
    """Progress by pipeline name. Any client may write to the topic: invalid records are ignored."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reading = asyncio.Lock()
        self._latest: dict[bytes, PipelineProgress] = {}
        self._topic_id: TopicId | None = None
        self._next_offsets: dict[int, int] = {}

    @property
    def is_here(self) -> bool:
        """Whether this broker leads the topic, or its first partition."""
        return self._broker.topics.find(PIPELINES_TOPIC.encode(), 0) is not None

    async def latest(self) -> list[PipelineProgress]:
        """Return the progress of all pipelines by name. Raises why the topic cannot be read."""
        async with self._reading:
            topics = self._broker.topics
            topic = topics.image.topics.get(TopicName(PIPELINES_TOPIC))
            topic_id = None if topic is None else topic.id
            if topic_id != self._topic_id:
                self._forget(topic_id)
            for place in [] if topic is None else topics.places_of(topic.name):
                await self._read_on(place)
            return sorted(self._latest.values(), key=lambda each: each.name)

    def _forget(self, topic_id: TopicId | None) -> None:
        self._topic_id = topic_id
        self._latest.clear()
        self._next_offsets.clear()

    async def _read_on(self, place: PartitionId) -> None:
        index = place.partition
        if (offset := self._next_offsets.get(index)) is None:
            offset = (await self._broker.reads.bounds_at(place)).start_offset
        for _ in range(_PAGES):
            try:
                page, _ = await self._broker.reads.read_page(place, offset, _LIMITS, committed=True)
            except OffsetOutOfRange:
                self._next_offsets.pop(index, None)  # deleted by retention meanwhile; start over next time
                return
            for record in page.records:
                self._take(record)
            self._next_offsets[index] = page.next_offset
            if page.next_offset == offset:
                return
            offset = page.next_offset

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
