"""The traces of one partition's messages: how they arrive, and who reads them from the log.

Whoever appends asks for an `Arrival`, which is almost always None, and gives it to the partition with
the batch. It is told when the batch is as durable as its topic promises, just before others see it.
"""

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple
from zlib import crc32

from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicId, TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import TopicConfig
from alpacamq.telemetry.tracing import (
    Attribute,
    ClientApi,
    Step,
    TraceContext,
    TraceEvent,
    derived_span_id,
    derived_trace_id,
    now_us,
    read_traceparent,
    read_xray,
)

from .batches import MAX_TRACED, Traced, begins_traced, traced_records

MAX_KEY_CHARS = 128


class ProduceTrace:
    """A batch of which messages may be sampled: that is known when it has its offsets."""

    __slots__ = ("_api", "_client", "_received_us", "_traces")

    def __init__(
        self, traces: "PartitionTraces", api: ClientApi, client: str | None, received_us: int | None = None
    ) -> None:
        self._traces = traces
        self._api = api
        self._client = client
        self._received_us = received_us or now_us()

    def persisted(self, base_offset: int, next_offset: int) -> None:
        """The batch is in the log at these offsets, and durable; readers see it next."""
        if sampled := self._traces.offsets.sampled(base_offset, next_offset):
            self._record_sampled(sampled, now_us())

    def refused(self) -> None:
        """The batch is not in the log, or was there before."""

    def _record_sampled(self, offsets: range, at_us: int) -> None:
        self._traces.passed_over(max(len(offsets) - MAX_TRACED, 0))
        for offset in offsets[:MAX_TRACED]:
            if (context := self._traces.offsets.find(offset)) is not None:
                self._tell(context, "", offset, None, at_us)

    def _tell(
        self, context: TraceContext, parent_span_id: str, offset: int, key: bytes | None, at_us: int
    ) -> None:
        traces = self._traces
        received: dict[str, Attribute] = {"client": self._client} if self._client else {}
        if key is not None:
            received["key"] = shown_key(key)
        for step, when_us, attributes in (
            (Step.RECEIVED, self._received_us, received),
            (Step.PARTITIONED, self._received_us, {}),
            (Step.PERSISTED, at_us, {"topic_id": traces.topic_tag}),
        ):
            traces.record_produce(step, context, parent_span_id, offset, when_us, self._api, attributes)


class TracedProduce(ProduceTrace):
    """A batch of which messages carry traces: those are known, or a thread is looking for them."""

    __slots__ = ("looking", "traced")

    def __init__(
        self, traces: "PartitionTraces", api: ClientApi, client: str | None, received_us: int | None = None
    ) -> None:
        super().__init__(traces, api, client, received_us)
        self.traced: list[Traced] = []
        self.looking: Future[list[Traced]] | None = None

    def persisted(self, base_offset: int, next_offset: int) -> None:
        at_us = now_us()
        # First those that carry one: of these, sampling finds the same trace.
        for traced in self.traced:
            self._continue(traced, base_offset, at_us)
        carried = {base_offset + traced.delta for traced in self.traced}
        for offset in self._traces.offsets.sampled(base_offset, next_offset)[:MAX_TRACED]:
            if offset not in carried:
                self._record_sampled(range(offset, offset + 1), at_us)
        if self.looking is not None:
            _then(self.looking, lambda found: self._looked(found, base_offset, at_us))

    def refused(self) -> None:
        if self.looking is not None:
            _then(self.looking, lambda _found: self._traces.looked())

    def _looked(self, found: list[Traced], base_offset: int, at_us: int) -> None:
        for traced in found:
            context = self._continue(traced, base_offset, at_us)
            self._traces.found_late(context, base_offset + traced.delta)
        self._traces.looked()

    def _continue(self, traced: Traced, base_offset: int, at_us: int) -> TraceContext:
        offset = base_offset + traced.delta
        context = self._traces.offsets.remember(traced.context.trace_id, offset)
        self._tell(context, traced.context.span_id, offset, traced.key, at_us)
        return context


def shown_key(key: bytes) -> str:
    """A key as text, cut where it is long."""
    return key[: 4 * MAX_KEY_CHARS].decode(errors="backslashreplace")[:MAX_KEY_CHARS]


def _then(looking: Future[list[Traced]], act: Callable[[list[Traced]], None]) -> None:
    """Have `act` called on the event loop with what was found."""

    def ended(found: "asyncio.Future[list[Traced]]") -> None:
        act([] if found.cancelled() else found.result())

    asyncio.wrap_future(looking).add_done_callback(ended)


# Of all partitions together: those whose traces their producers began.
MAX_REMEMBERED = 20_000
_MAX_PERIOD = 2.0**62


class Remembered:
    """Bounds what all partitions together remember: the oldest is forgotten first."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._order: deque[tuple[TracedOffsets, int]] = deque()

    def note(self, offsets: "TracedOffsets", offset: int) -> None:
        self._order.append((offsets, offset))
        if len(self._order) > self._limit:
            oldest, gone = self._order.popleft()
            oldest.forget(gone)


class TracedOffsets:
    """The traced messages of one partition."""

    __slots__ = ("_identity", "_known", "_offsets", "_phase", "_remembered", "_source", "period")

    def __init__(self, identity: TopicPartition, topic_id: bytes, remembered: Remembered) -> None:
        self._identity = identity
        # Not the name: a topic made anew under it has other traces.
        self._source = topic_id
        self._remembered = remembered
        self.period = 0  # of sampling; 0 is none
        self._phase = 0
        self._known: dict[int, TraceContext] = {}
        self._offsets: list[int] = []

    def sample(self, rate: float) -> None:
        """Trace this share of all messages from now on."""
        self.period = round(min(1 / rate, _MAX_PERIOD)) if rate > 0 else 0
        # Partitions that are written to in step should not all be sampled at once.
        seed = crc32(self._source + str(self._identity.partition).encode())
        self._phase = seed % self.period if self.period else 0

    def sampled(self, first: int, end: int) -> range:
        """The offsets of first..end-1 that are sampled."""
        if not self.period:
            return range(0)
        return range(first + (-(first + self._phase) % self.period), end, self.period)

    def known(self, first: int, end: int) -> list[int]:
        """The offsets of first..end-1 whose producers began a trace, as far as they are remembered."""
        if not self._offsets:
            return []
        return self._offsets[bisect_left(self._offsets, first) : bisect_left(self._offsets, end)]

    @property
    def has_known(self) -> bool:
        return bool(self._offsets)

    def between(self, first: int, end: int) -> list[int]:
        """Both."""
        known = self.known(first, end)
        return sorted({*known, *self.sampled(first, end)}) if self.period else known

    def find(self, offset: int) -> TraceContext | None:
        """The trace of a message, and the span of its arrival at this offset."""
        context = self._known.get(offset)
        if context is None and self.period and not (offset + self._phase) % self.period:
            return self.arrived(derived_trace_id(self._source, self._identity.partition, offset), offset)
        return context

    def remembered(self, offset: int) -> TraceContext | None:
        """As `find`, without those that are sampled."""
        return self._known.get(offset)

    def delayed(self, delayed_id: int) -> str | None:
        """The trace of a message that is sampled while it waits for its time, when it has no offset."""
        if not self.period or (delayed_id + self._phase) % self.period:
            return None
        return derived_trace_id(self._source, "delayed", self._identity.partition, delayed_id)

    def arrived(self, trace_id: str, offset: int) -> TraceContext:
        """The context of whatever becomes of the message at an offset."""
        return TraceContext(trace_id, derived_span_id(trace_id, *self._identity, offset))

    def remember(self, trace_id: str, offset: int) -> TraceContext:
        """The message at an offset belongs to a trace that began elsewhere."""
        context = self.arrived(trace_id, offset)
        if offset not in self._known:
            insort(self._offsets, offset)
            self._remembered.note(self, offset)
        self._known[offset] = context
        return context

    def forget(self, offset: int) -> None:
        if self._known.pop(offset, None) is not None:
            del self._offsets[bisect_left(self._offsets, offset)]


# The headers that carry a trace: W3C's, and what the SQS API makes of AWSTraceHeader.
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

    api: ClientApi = ClientApi.BROKER
    client: str = ""
    group: str = ""


class TraceSink:
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
        self, identity: TopicPartition, topic_id: TopicId, config: TopicConfig, desk: TraceSink
    ) -> None:
        self._identity = identity
        self.topic_tag = topic_id.hex
        self._sink = desk
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

    def arrival(self, data: Buffer, header: BatchHeader, client: str | None) -> ProduceTrace | None:
        """What is to be told when this batch of a Kafka client is in; None if nothing is.

        Every batch comes by here.
        """
        if not (self._follows and (self._looks_at_all or begins_traced(data, header))):
            return ProduceTrace(self, ClientApi.KAFKA, client) if self.offsets.period else None
        arrival = TracedProduce(self, ClientApi.KAFKA, client)
        if header.record_count <= _SMALL_RECORDS and len(data) <= _SMALL_BYTES:
            arrival.traced = _found(data)
        elif self._sink.looking < _MAX_LOOKED_AT_ONCE:
            self._sink.looking += 1
            self._looking += 1
            # A copy: the bytes are gone when the turn ends.
            arrival.looking = self._sink.executor.submit(_found, bytes(data))
        else:
            self._sink.passed_over += 1
        return arrival

    def looked(self) -> None:
        """A batch has been looked through."""
        self._sink.looking -= 1
        self._looking -= 1
        if not self._looking:
            self._early_reads.clear()

    def publishing(self, records: Iterable[Record], origin: Origin, received_us: int) -> ProduceTrace | None:
        """As `arrival`, for messages that are at hand."""
        traced = []
        for delta, record in enumerate(records):
            if record.headers and (context := self.carried(record.headers)) is not None:
                traced.append(Traced(delta, context, record.key))
        if not traced and not self.offsets.period:
            return None
        arrival = TracedProduce(self, origin.api, origin.client, received_us)
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
        self._sink.passed_over += max(len(found) - MAX_TRACED, 0)
        for offset in found[:MAX_TRACED]:
            context = self.offsets.find(offset)
            # There need not be a message at an offset that is sampled: markers and gaps have offsets, too.
            if context is not None and self._sink.knows(context.trace_id):
                self._record_read(context, offset, at_us, origin)

    def read(self, records: Sequence[Record], origin: Origin) -> None:
        """Messages were read from the log one by one."""
        at_us = now_us()
        for record in records:
            if (context := self.find(record)) is not None:
                self._record_read(context, record.offset, at_us, origin)

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
                self._record_read(context, offset, at_us, origin)

    def passed_over(self, count: int) -> None:
        """So many were too many."""
        self._sink.passed_over += count

    def _record_read(self, context: TraceContext, offset: int, at_us: int, origin: Origin) -> None:
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
        self._sink.record(
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
                api=origin.api.value,
                attributes=attributes or {},
            )
        )

    def record_produce(
        self,
        step: Step,
        context: TraceContext,
        parent_span_id: str,
        offset: int,
        at_us: int,
        api: ClientApi,
        attributes: Mapping[str, Attribute],
    ) -> None:
        """Record a part of a message's arrival."""
        topic, partition = self._identity
        self._sink.record(
            TraceEvent(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_span_id=parent_span_id,
                at_us=at_us,
                name=step.value,
                topic=topic,
                partition=partition,
                offset=offset,
                api=api.value,
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
