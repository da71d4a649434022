"""The traces of one partition's messages: how they arrive, and who reads them from the log.

Whoever appends asks for an `Arrival`, which is almost always None, and gives it to the partition with
the batch. It is told when the batch is as durable as its topic promises, just before others see it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicId, TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import TopicConfig
from alpacamq.telemetry.tracing import (
    Attribute,
    Door,
    Step,
    TraceContext,
    TraceEvent,
    now_us,
    read_traceparent,
    read_xray,
)

from .batch_traces import MAX_TRACED, Traced, begins_traced, traced_records
from .traced_arrival import Arrival, TracedArrival
from .traced_offsets import Remembered, TracedOffsets

# The headers that carry a trace: W3C's, and what the SQS door makes of AWSTraceHeader.
TRACEPARENT = "traceparent"
XRAY = "sqs-trace-header"

# A batch that is no larger is looked through at once.
_SMALL_RECORDS = 8
_SMALL_BYTES = 8 << 10
# Reads that came while batches were looked through: so many are remembered until that is done.
_MAX_EARLY_READS = 32
_MAX_LOOKED_AT_ONCE = 64
_MAX_UNACKNOWLEDGED = 100
_LOOK_LIMIT_BYTES = 16 << 20


class Origin(NamedTuple):
    """Who brings or takes messages."""

    door: Door = Door.BROKER
    client: str = ""
    group: str = ""


class TraceDesk:
    """What the traces of all partitions share."""

    def __init__(
        self,
        record: Callable[[TraceEvent], None],
        executor: Executor,
        knows: Callable[[str], bool] = lambda _trace_id: True,
    ) -> None:
        self.record = record
        # Whether anything has been told of a trace of late.
        self.knows = knows
        self.executor = executor
        self.remembered = Remembered()
        self.looking = 0  # batches that are being looked through
        self.passed_over = 0  # messages not traced although they should be: too many at once


class PartitionTraces:
    """Finds and tells what is traced in one partition."""

    def __init__(
        self, identity: TopicPartition, topic_id: TopicId, config: TopicConfig, desk: TraceDesk
    ) -> None:
        self._identity = identity
        self.topic_tag = topic_id.hex
        self._desk = desk
        self.offsets = TracedOffsets(identity, topic_id.bytes, desk.remembered)
        self._looking = 0
        self._early_reads: deque[tuple[int, int, int, Origin]] = deque(maxlen=_MAX_EARLY_READS)
        # Messages that were read from the log, and the groups that have come past them since.
        self.unacknowledged: dict[int, list[str]] = {}
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Take new settings."""
        self._is_on = config.trace_enable
        self._follows = config.trace_enable and config.trace_headers != "none"
        self._looks_at_all = self._follows and config.trace_headers == "all"
        self.offsets.sample(config.trace_sample if config.trace_enable else 0)

    def arrival(self, data: Buffer, header: BatchHeader, client: str | None) -> Arrival | None:
        """What is to be told when this batch of a Kafka client is in; None if nothing is.

        Every batch comes by here.
        """
        if not (self._follows and (self._looks_at_all or begins_traced(data, header))):
            return Arrival(self, Door.KAFKA, client) if self.offsets.period else None
        arrival = TracedArrival(self, Door.KAFKA, client)
        if header.record_count <= _SMALL_RECORDS and len(data) <= _SMALL_BYTES:
            arrival.traced = _found(data)
        elif self._desk.looking < _MAX_LOOKED_AT_ONCE:
            self._desk.looking += 1
            self._looking += 1
            # A copy: the bytes are gone when the turn ends.
            arrival.looking = self._desk.executor.submit(_found, bytes(data))
        else:
            self._desk.passed_over += 1
        return arrival

    def looked(self) -> None:
        """A batch has been looked through."""
        self._desk.looking -= 1
        self._looking -= 1
        if not self._looking:
            self._early_reads.clear()

    def publishing(self, records: Iterable[Record], origin: Origin, received_us: int) -> Arrival | None:
        """As `arrival`, for messages that are at hand."""
        traced = []
        for delta, record in enumerate(records):
            if record.headers and (context := self.carried(record.headers)) is not None:
                traced.append(Traced(delta, context, record.key))
        if not traced and not self.offsets.period:
            return None
        arrival = TracedArrival(self, origin.door, origin.client, received_us)
        arrival.traced = traced
        return arrival

    def carried(self, headers: Sequence[Header]) -> TraceContext | None:
        """The trace that a message carries, if it is to be continued here."""
        if not headers or not self._follows:
            return None
        context = carried_context(headers)
        return context if context is not None and context.is_sampled else None

    def ids(self, first: int, end: int) -> dict[int, str]:
        """The ids of the traces of the messages first..end-1, by offset."""
        found = ((offset, self.offsets.find(offset)) for offset in self.offsets.between(first, end))
        return {offset: context.trace_id for offset, context in found if context is not None}

    def at(self, offset: int) -> TraceContext | None:
        """The trace of the message at an offset, as far as that can be told without looking at it."""
        return self.offsets.find(offset) if self._is_on else None

    def find(self, record: Record) -> TraceContext | None:
        """The trace of a message that is at hand."""
        if not self._is_on:
            return None
        if (context := self.offsets.remembered(record.offset)) is not None:
            return context
        if (carried := self.carried(record.headers)) is not None:
            return self.offsets.remember(carried.trace_id, record.offset)
        return self.offsets.find(record.offset)

    @property
    def may_be_read(self) -> bool:
        """Whether anything in the partition is known to be traced, or may turn out to be."""
        return bool(self.offsets.period or self.offsets.has_known or self._looking)

    def fetched(self, first: int, end: int, origin: Origin) -> None:
        """Whole batches were read from the log: the messages first..end-1, and nobody has looked at them."""
        at_us = now_us()
        if self._looking:
            self._early_reads.append((first, end, at_us, origin))
        found = self.offsets.between(first, end)
        self._desk.passed_over += max(len(found) - MAX_TRACED, 0)
        for offset in found[:MAX_TRACED]:
            context = self.offsets.find(offset)
            # There need not be a message at an offset that is sampled: markers and gaps have offsets, too.
            if context is not None and self._desk.knows(context.trace_id):
                self._tell_read(context, offset, at_us, origin)

    def read(self, records: Sequence[Record], origin: Origin) -> None:
        """Messages were read from the log one by one."""
        at_us = now_us()
        for record in records:
            if (context := self.find(record)) is not None:
                self._tell_read(context, record.offset, at_us, origin)

    def committed(self, offset: int, origin: Origin) -> None:
        """A group has come past all messages before an offset."""
        at_us = now_us()
        for read, groups in self.unacknowledged.items():
            if read < offset and origin.group not in groups:
                groups.append(origin.group)
                if (context := self.offsets.find(read)) is not None:
                    self.tell(Step.ACKED, context, read, at_us, origin)

    def found_late(self, context: TraceContext, offset: int) -> None:
        """A message is traced, and some may have read it before that was known."""
        for first, end, at_us, origin in self._early_reads:
            if first <= offset < end:
                self._tell_read(context, offset, at_us, origin)

    def passed_over(self, count: int) -> None:
        """So many were too many."""
        self._desk.passed_over += count

    def _tell_read(self, context: TraceContext, offset: int, at_us: int, origin: Origin) -> None:
        self.unacknowledged.pop(offset, None)
        if len(self.unacknowledged) >= _MAX_UNACKNOWLEDGED:
            del self.unacknowledged[next(iter(self.unacknowledged))]
        self.unacknowledged[offset] = []
        self.tell(Step.FETCHED, context, offset, at_us, origin)

    def tell(
        self,
        step: Step,
        context: TraceContext,
        offset: int,
        at_us: int,
        origin: Origin,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Record something that is done with a message at an offset, as a span below that of its arrival."""
        topic, partition = self._identity
        self._desk.record(
            TraceEvent(
                trace_id=context.trace_id,
                span_id=context.child(step, origin.group, origin.client, at_us).span_id,
                parent_span_id=context.span_id,
                at_us=at_us,
                name=step.value,
                topic=topic,
                partition=partition,
                offset=offset,
                group=origin.group,
                consumer=origin.client,
                door=origin.door.value,
                attributes=attributes or {},
            )
        )

    def tell_arrival(
        self,
        step: Step,
        context: TraceContext,
        parent_span_id: str,
        offset: int,
        at_us: int,
        door: Door,
        attributes: Mapping[str, Attribute],
    ) -> None:
        """Record a part of a message's arrival."""
        topic, partition = self._identity
        self._desk.record(
            TraceEvent(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_span_id=parent_span_id,
                at_us=at_us,
                name=step.value,
                topic=topic,
                partition=partition,
                offset=offset,
                door=door.value,
                attributes=attributes,
            )
        )


def carried_context(headers: Sequence[Header]) -> TraceContext | None:
    """The trace that a message carries, to be continued or not."""
    for name, value in reversed(headers):
        if name == TRACEPARENT:
            return read_traceparent(value)
    for name, value in headers:
        if name == XRAY and value is not None:
            return read_xray(value.decode(errors="replace"))
    return None


def _found(data: Buffer) -> list[Traced]:
    try:
        return traced_records(data, _LOOK_LIMIT_BYTES)
    except AlpacaError:
        return []  # what is wrong with it, its readers will say
