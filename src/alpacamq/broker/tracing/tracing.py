"""Owns the trace recorder and creates the traces of every partition."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import msgspec

from alpacamq.model.ids import TopicId, TopicPartition
from alpacamq.model.topics import DAY_MS, TopicConfig
from alpacamq.telemetry.tracing import (
    ClientApi,
    ExportSettings,
    Recorder,
    RecorderSettings,
    Step,
    TraceEvent,
    TraceStore,
    now_us,
)

from .partition import PartitionTraces, TraceSink

T = TypeVar("T")

# Steps that record the position of a message.
_POSITION_STEPS = frozenset({Step.PERSISTED, Step.DEAD_LETTERED, Step.REDRIVEN})


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much of traces is kept, and where they are exported."""

    log_bytes: int = 100 << 20  # 0: in memory only
    retention_ms: int = 7 * DAY_MS
    export: ExportSettings | None = None


class Tracing:
    """The traces of this broker."""

    def __init__(self, settings: TracingSettings, directory: Path, executor: Executor) -> None:
        self._recorder = Recorder(
            RecorderSettings(
                directory=directory,
                log_bytes=settings.log_bytes,
                retention_ms=settings.retention_ms,
                export=settings.export,
            )
        )
        self._executor = executor
        self._sink = TraceSink(self._recorder.record, executor, self._recorder.knows)
        # One question at a time: some read much of the log, and others have work to do meanwhile.
        self._query_lock = asyncio.Lock()
        self._restored: list[TraceEvent] = []
        self.stats = self._recorder.stats

    @property
    def record(self) -> Callable[[TraceEvent], None]:
        return self._recorder.record

    @property
    def store(self) -> TraceStore:
        """The store of traces; blocking where it has to read the log."""
        return self._recorder.store

    async def ask(self, query: Callable[[TraceStore], T]) -> T:
        """Run a query on the trace store in a thread."""
        async with self._query_lock:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, query, self.store)

    @property
    def skipped(self) -> int:
        """Messages that should have been traced, but were too many at once."""
        return self._sink.skipped

    def open(self) -> None:
        """Load the traces recorded before the restart. Blocking."""
        self._restored = self._recorder.open()

    def close(self) -> None:
        """Write and export the remaining events. Blocking."""
        self._recorder.close()

    def of_partition(
        self, identity: TopicPartition, topic_id: TopicId, config: TopicConfig
    ) -> PartitionTraces:
        """Return the traces of a partition that is being opened."""
        return PartitionTraces(identity, topic_id, config, self._sink)

    def topic_deleted(self, topic: str) -> None:
        """Record that delayed messages for a deleted topic will not be delivered."""
        for event in self._recorder.waiting(topic):
            self.record(
                msgspec.structs.replace(
                    event,
                    at_us=now_us(),
                    name=Step.DELAY_EXPIRED.value,
                    api=ClientApi.BROKER.value,
                    attributes={"reason": "the topic was deleted"},
                )
            )

    def restore(self, partitions: Iterable[tuple[TopicPartition, PartitionTraces | None]]) -> None:
        """Make partitions remember the traced messages recorded before the restart."""
        by_identity = {tuple(identity): traces for identity, traces in partitions if traces is not None}
        restored, self._restored = self._restored, []
        for event in restored:
            if event.name not in _POSITION_STEPS or not event.has_place:
                continue
            traces = by_identity.get((event.topic, event.partition))
            # A topic created again under the same name has none of the old messages.
            if traces is not None and event.attributes.get("topic_id") == traces.topic_tag:
                context = traces.offsets.find(event.offset)
                if context is None or context.trace_id != event.trace_id:
                    traces.offsets.remember(event.trace_id, event.offset)
