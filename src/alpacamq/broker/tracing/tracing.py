"""Tracing as the broker knows it: where events go, and the traces of every partition."""

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

# The events that tell where a message came to lie.
_ARRIVALS = frozenset({Step.PERSISTED, Step.DEAD_LETTERED, Step.REDRIVEN})


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of traces, and where else they go."""

    log_bytes: int = 100 << 20  # 0: in memory only
    retention_ms: int = 7 * DAY_MS
    export: ExportSettings | None = None


class Tracing:
    """Everything that is traced on this broker."""

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
        self._asking = asyncio.Lock()
        self._restored: list[TraceEvent] = []
        self.stats = self._recorder.stats

    @property
    def record(self) -> Callable[[TraceEvent], None]:
        return self._recorder.record

    @property
    def store(self) -> TraceStore:
        """Finds traces; takes its time where it has to read the log."""
        return self._recorder.store

    async def ask(self, question: Callable[[TraceStore], T]) -> T:
        """What the store of traces answers, found in a thread."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, question, self.store)

    @property
    def passed_over(self) -> int:
        """Messages that were not traced although they should have been: they were too many at once."""
        return self._sink.passed_over

    def open(self) -> None:
        """Begin with what was recorded last. Blocking."""
        self._restored = self._recorder.open()

    def close(self) -> None:
        """Write and send what is left. Blocking."""
        self._recorder.close()

    def of_partition(
        self, identity: TopicPartition, topic_id: TopicId, config: TopicConfig
    ) -> PartitionTraces:
        """The traces of a partition that is opened."""
        return PartitionTraces(identity, topic_id, config, self._sink)

    def topic_deleted(self, topic: str) -> None:
        """What waits for a topic that is gone will never be delivered."""
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
        """Have partitions remember the traced messages that the last life of the broker recorded."""
        by_identity = {tuple(identity): traces for identity, traces in partitions if traces is not None}
        restored, self._restored = self._restored, []
        for event in restored:
            if event.name not in _ARRIVALS or not event.has_place:
                continue
            traces = by_identity.get((event.topic, event.partition))
            # A topic made anew under the name of another has none of its messages.
            if traces is not None and event.attributes.get("topic_id") == traces.topic_tag:
                context = traces.offsets.find(event.offset)
                if context is None or context.trace_id != event.trace_id:
                    traces.offsets.remember(event.trace_id, event.offset)
