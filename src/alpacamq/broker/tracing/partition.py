"""Records the traces of one partition's messages: produces, reads and commits.

The caller of an append gets a `ProduceTrace`, almost always None, and hands it to the partition with the
batch. It records the outcome when the batch is durable, just before readers see it.
"""

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple
from zlib import crc32

from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from alpacamq.model.compression import decompress_prefix
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicId, TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.model.record_index import IndexedBatch
from alpacamq.model.records import Header, NewRecord, Record
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

_HEADER_NAME = b"traceparent"
# Bytes of a compressed batch that are unpacked to read its first record.
_OPENING_BYTES = 4 << 10
_MAX_HEADERS = 32
# In a body up to this size the name of the header is searched for first.
_SEARCHED_BYTES = 1 << 10
# Per batch; further ones are not traced.
MAX_TRACED = 100


class Traced(NamedTuple):
    """A record by its index in a batch, the context its producer gave it, and its key."""

    delta: int
    context: TraceContext
    key: bytes | None


def begins_traced(data: Buffer, header: BatchHeader) -> bool:
    """Return whether the first record carries a sampled trace."""
    if header.attributes & COMPRESSION_MASK:
        packed = memoryview(data)[HEADER_BYTES:]
        value = _first_traceparent(decompress_prefix(header.codec, packed, _OPENING_BYTES), 0)
    else:
        value = _first_traceparent(data, HEADER_BYTES)
    if value is None:
        return False
    context = read_traceparent(value)
    return context is not None and context.is_sampled


def traced_records(data: Buffer, limit_bytes: int) -> list[Traced]:
    """Return the records of a batch that carry a sampled trace. Slow, except for small batches."""
    batch = IndexedBatch(data, limit_bytes)
    values = batch.header_values(_HEADER_NAME)
    found: list[Traced] = []
    for place, value in enumerate(values or ()):
        context = read_traceparent(value)
        if context is not None and context.is_sampled:
            delta = batch.offsets[place] - batch.header.base_offset
            found.append(Traced(delta, context, batch.record(place).key))
            if len(found) == MAX_TRACED:
                break
    return found


def _first_traceparent(body: Buffer, at: int) -> bytes | None:
    """Return the header of the record at `at`; None if it has none or is incomplete.

    Runs for every batch, and most have records without headers: so numbers are read in place until
    it is known whether there are any.
    """
    if len(body) <= _SEARCHED_BYTES and _HEADER_NAME not in bytes(body):
        return None
    try:
        while body[at] >= 0x80:  # the length of the record
            at += 1
        at += 2  # and one byte of attributes
        while body[at] >= 0x80:  # two deltas
            at += 1
        at += 1
        while body[at] >= 0x80:
            at += 1
        at += 1
        byte = body[at]  # the length of the key, often absent or short
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        byte = body[at]  # the length of the value
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        return _traceparent(body, at) if body[at] else None
    except IndexError:
        return None


def _traceparent(body: Buffer, at: int) -> bytes | None:
    """Return the header from the count of headers at `at` on; IndexError if they are incomplete."""
    count, at = _varint(body, at)
    for _ in range(min(count, _MAX_HEADERS)):
        length, at = _varint(body, at)
        is_it = length == len(_HEADER_NAME) and body[at : at + length] == _HEADER_NAME
        length, at = _varint(body, at + max(length, 0))
        if is_it:
            return bytes(body[at : at + length]) if 0 <= length <= len(body) - at else None
        at += max(length, 0)
    return None


def _varint(body: Buffer, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    result, shift = byte & 0x7F, 7
    while shift < 64:
        at += 1
        byte = body[at]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at + 1
        shift += 7
    raise IndexError("varint too long")


MAX_KEY_CHARS = 128


class ProduceTrace:
    """A produced batch whose messages may be sampled, which is decided when it has its offsets."""

    __slots__ = ("_api", "_client", "_flushed_us", "_in_sync", "_received_us", "_traces")

    def __init__(
        self, traces: "PartitionTraces", api: ClientApi, client: str | None, received_us: int | None = None
    ) -> None:
        self._traces = traces
        self._api = api
        self._client = client
        self._received_us = received_us or now_us()
        self._flushed_us = 0
        self._in_sync = ""

    def flushed(self) -> None:
        """Note that the batch is on the leader's disk, and waits for other replicas."""
        self._flushed_us = self._flushed_us or now_us()

    def replicated(self, in_sync: Iterable[int]) -> None:
        """Note that these replicas have the batch; `persisted` follows."""
        self._in_sync = ", ".join(map(str, sorted(in_sync)))

    def persisted(self, base_offset: int, next_offset: int) -> None:
        """Record a batch that is durable at these offsets; readers see it next."""
        if sampled := self._traces.offsets.sampled(base_offset, next_offset):
            self._record_sampled(sampled, now_us())

    def refused(self) -> None:
        """Record a batch that was refused or is a duplicate."""

    def _record_sampled(self, offsets: range, at_us: int) -> None:
        self._traces.count_skipped(max(len(offsets) - MAX_TRACED, 0))
        for offset in offsets[:MAX_TRACED]:
            if (context := self._traces.offsets.find(offset)) is not None:
                self._record_steps(context, "", offset, None, at_us)

    def _record_steps(
        self, context: TraceContext, parent_span_id: str, offset: int, key: bytes | None, at_us: int
    ) -> None:
        traces = self._traces
        received: dict[str, Attribute] = {"client": self._client} if self._client else {}
        if key is not None:
            received["key"] = shown_key(key)
        for step, when_us, attributes in (
            (Step.RECEIVED, self._received_us, received),
            (Step.PARTITIONED, self._received_us, {}),
            (Step.PERSISTED, self._flushed_us or at_us, {"topic_id": traces.topic_tag}),
        ):
            traces.record_produce(step, context, parent_span_id, offset, when_us, self._api, attributes)
        if self._in_sync:
            attributes = {"in_sync": self._in_sync}
            traces.record_produce(
                Step.REPLICATED, context, parent_span_id, offset, at_us, self._api, attributes
            )


class TracedProduce(ProduceTrace):
    """A produced batch with messages that carry traces; these are known, or a thread searches for them."""

    __slots__ = ("search", "traced")

    def __init__(
        self, traces: "PartitionTraces", api: ClientApi, client: str | None, received_us: int | None = None
    ) -> None:
        super().__init__(traces, api, client, received_us)
        self.traced: list[Traced] = []
        self.search: Future[list[Traced]] | None = None

    def persisted(self, base_offset: int, next_offset: int) -> None:
        at_us = now_us()
        # Carried traces first: sampling finds the same trace for these messages.
        for traced in self.traced:
            self._continue(traced, base_offset, at_us)
        carried = {base_offset + traced.delta for traced in self.traced}
        for offset in self._traces.offsets.sampled(base_offset, next_offset)[:MAX_TRACED]:
            if offset not in carried:
                self._record_sampled(range(offset, offset + 1), at_us)
        if self.search is not None:
            _then(self.search, lambda found: self._searched(found, base_offset, at_us))

    def refused(self) -> None:
        if self.search is not None:
            _then(self.search, lambda _found: self._traces.search_ended())

    def _searched(self, found: list[Traced], base_offset: int, at_us: int) -> None:
        for traced in found:
            context = self._continue(traced, base_offset, at_us)
            self._traces.found_late(context, base_offset + traced.delta)
        self._traces.search_ended()

    def _continue(self, traced: Traced, base_offset: int, at_us: int) -> TraceContext:
        offset = base_offset + traced.delta
        context = self._traces.offsets.remember(traced.context.trace_id, offset)
        self._record_steps(context, traced.context.span_id, offset, traced.key, at_us)
        return context


def shown_key(key: bytes) -> str:
    """Return a key as text, truncated."""
    return key[: 4 * MAX_KEY_CHARS].decode(errors="backslashreplace")[:MAX_KEY_CHARS]


def _then(search: Future[list[Traced]], act: Callable[[list[Traced]], None]) -> None:
    """Call `act` on the event loop with the result of a search."""

    def ended(found: "asyncio.Future[list[Traced]]") -> None:
        act([] if found.cancelled() else found.result())

    asyncio.wrap_future(search).add_done_callback(ended)


# Traces begun by producers, of all partitions together.
MAX_REMEMBERED = 20_000
_MAX_PERIOD = 2.0**62


class RememberedOffsets:
    """Bounds the remembered offsets of all partitions together; evicts the oldest."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._order: deque[tuple[TracedOffsets, int]] = deque()

    def add(self, offsets: "TracedOffsets", offset: int) -> None:
        self._order.append((offsets, offset))
        if len(self._order) > self._limit:
            oldest, evicted = self._order.popleft()
            oldest.forget(evicted)


class TracedOffsets:
    """The traced messages of one partition."""

    __slots__ = ("_identity", "_known", "_offsets", "_phase", "_remembered", "_source", "period")

    def __init__(self, identity: TopicPartition, topic_id: bytes, remembered: RememberedOffsets) -> None:
        self._identity = identity
        # The id, not the name: a topic created again under the same name has other traces.
        self._source = topic_id
        self._remembered = remembered
        self.period = 0  # of sampling; 0 disables it
        self._phase = 0
        self._known: dict[int, TraceContext] = {}
        self._offsets: list[int] = []

    def sample(self, rate: float) -> None:
        """Trace this fraction of all messages from now on."""
        self.period = round(min(1 / rate, _MAX_PERIOD)) if rate > 0 else 0
        # Partitions with equal traffic should not all be sampled at the same offsets.
        seed = crc32(self._source + str(self._identity.partition).encode())
        self._phase = seed % self.period if self.period else 0

    def sampled(self, first: int, end: int) -> range:
        """Return the sampled offsets in first..end-1."""
        if not self.period:
            return range(0)
        return range(first + (-(first + self._phase) % self.period), end, self.period)

    def known(self, first: int, end: int) -> list[int]:
        """Return the remembered offsets in first..end-1 with traces begun by producers."""
        if not self._offsets:
            return []
        return self._offsets[bisect_left(self._offsets, first) : bisect_left(self._offsets, end)]

    @property
    def has_known(self) -> bool:
        return bool(self._offsets)

    def between(self, first: int, end: int) -> list[int]:
        """Return the sampled and the remembered offsets in first..end-1."""
        known = self.known(first, end)
        return sorted({*known, *self.sampled(first, end)}) if self.period else known

    def find(self, offset: int) -> TraceContext | None:
        """Return the trace of a message and the span of its append at this offset."""
        context = self._known.get(offset)
        if context is None and self.period and not (offset + self._phase) % self.period:
            return self.arrived(derived_trace_id(self._source, self._identity.partition, offset), offset)
        return context

    def remembered(self, offset: int) -> TraceContext | None:
        """Return the trace of a message like `find`, without sampling."""
        return self._known.get(offset)

    def delayed(self, delayed_id: int) -> str | None:
        """Return the trace id of a sampled delayed message, which has no offset yet."""
        if not self.period or (delayed_id + self._phase) % self.period:
            return None
        return derived_trace_id(self._source, "delayed", self._identity.partition, delayed_id)

    def arrived(self, trace_id: str, offset: int) -> TraceContext:
        """Return the context for later steps of the message at an offset."""
        return TraceContext(trace_id, derived_span_id(trace_id, *self._identity, offset))

    def remember(self, trace_id: str, offset: int) -> TraceContext:
        """Remember that the message at an offset belongs to a trace that began elsewhere."""
        context = self.arrived(trace_id, offset)
        if offset not in self._known:
            insort(self._offsets, offset)
            self._remembered.add(self, offset)
        self._known[offset] = context
        return context

    def forget(self, offset: int) -> None:
        if self._known.pop(offset, None) is not None:
            del self._offsets[bisect_left(self._offsets, offset)]


# The headers that carry a trace: W3C's, and the SQS API's copy of AWSTraceHeader.
TRACEPARENT = "traceparent"
XRAY = "sqs-trace-header"

# Batches up to this size are searched at once.
_SMALL_RECORDS = 8
_SMALL_BYTES = 8 << 10
# Reads of batches that are still being searched, which are remembered until the search ends.
_MAX_EARLY_READS = 32
_MAX_SEARCHES = 64
_MAX_UNACKNOWLEDGED = 100
_SEARCH_LIMIT_BYTES = 16 << 20


class Origin(NamedTuple):
    """The client that produces or consumes messages."""

    api: ClientApi = ClientApi.BROKER
    client: str = ""
    group: str = ""


class TraceSink:
    """State that the traces of all partitions share."""

    def __init__(
        self,
        record: Callable[[TraceEvent], None],
        executor: Executor,
        knows: Callable[[str, str], bool] = lambda _trace_id, _topic: True,
    ) -> None:
        self.record = record
        # Whether a trace has recent events.
        self.knows = knows
        self.executor = executor
        self.remembered = RememberedOffsets()
        self.searches = 0  # batches being searched
        self.skipped = 0  # messages that should have been traced, but were too many at once


class PartitionTraces:
    """Finds and records the traced messages of one partition."""

    def __init__(
        self, identity: TopicPartition, topic_id: TopicId, config: TopicConfig, sink: TraceSink
    ) -> None:
        self._identity = identity
        self.topic_tag = topic_id.hex
        self._sink = sink
        self.offsets = TracedOffsets(identity, topic_id.bytes, sink.remembered)
        self._searches = 0
        self._early_reads: deque[tuple[int, int, int, Origin]] = deque(maxlen=_MAX_EARLY_READS)
        # Messages read from the log, and the groups that have committed past them since.
        self.unacknowledged: dict[int, list[str]] = {}
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Apply new settings."""
        self._is_on = config.trace_enable
        self._follows = config.trace_enable and config.trace_headers != "none"
        self._searches_all = self._follows and config.trace_headers == "all"
        self.offsets.sample(config.trace_sample if config.trace_enable else 0)

    def produce_trace(
        self, data: Buffer, header: BatchHeader, client: str | None, api: ClientApi = ClientApi.KAFKA
    ) -> ProduceTrace | None:
        """Return the trace of a batch; None if none of its messages is traced.

        Runs for every batch.
        """
        if not (self._follows and (self._searches_all or begins_traced(data, header))):
            return ProduceTrace(self, api, client) if self.offsets.period else None
        trace = TracedProduce(self, api, client)
        if header.record_count <= _SMALL_RECORDS and len(data) <= _SMALL_BYTES:
            trace.traced = _found(data)
        elif self._sink.searches < _MAX_SEARCHES:
            self._sink.searches += 1
            self._searches += 1
            # A copy: the buffer is reused after this turn of the event loop.
            trace.search = self._sink.executor.submit(_found, bytes(data))
        else:
            self._sink.skipped += 1
        return trace

    def search_ended(self) -> None:
        """Count the end of a batch's search."""
        self._sink.searches -= 1
        self._searches -= 1
        if not self._searches:
            self._early_reads.clear()

    def publish_trace(
        self, records: Iterable[NewRecord], origin: Origin, received_us: int
    ) -> ProduceTrace | None:
        """Return the trace of records like `produce_trace`."""
        traced = []
        for delta, (key, _, headers, _) in enumerate(records):
            if headers and (context := self.carried(headers)) is not None:
                traced.append(Traced(delta, context, key))
        if not traced and not self.offsets.period:
            return None
        trace = TracedProduce(self, origin.api, origin.client, received_us)
        trace.traced = traced
        return trace

    def carried(self, headers: Sequence[Header]) -> TraceContext | None:
        """Return the trace that a message carries, if the topic continues it."""
        if not headers or not self._follows:
            return None
        context = carried_context(headers)
        return context if context is not None and context.is_sampled else None

    def ids(self, first: int, end: int) -> dict[int, str]:
        """Return the trace ids of the messages first..end-1, by offset."""
        found = ((offset, self.offsets.find(offset)) for offset in self.offsets.between(first, end))
        return {offset: context.trace_id for offset, context in found if context is not None}

    def at(self, offset: int) -> TraceContext | None:
        """Return the trace of the message at an offset, as far as it is known without reading the message."""
        return self.offsets.find(offset) if self._is_on else None

    def find(self, record: Record) -> TraceContext | None:
        """Return the trace of a record."""
        if not self._is_on:
            return None
        if (context := self.offsets.remembered(record.offset)) is not None:
            return context
        if (carried := self.carried(record.headers)) is not None:
            return self.offsets.remember(carried.trace_id, record.offset)
        return self.offsets.find(record.offset)

    @property
    def has_offsets(self) -> bool:
        """Whether messages are sampled, or some are remembered."""
        offsets = self.offsets
        return offsets.period > 0 or offsets.has_known

    @property
    def may_be_read(self) -> bool:
        """Whether the partition has or may have traced messages."""
        return bool(self.offsets.period or self.offsets.has_known or self._searches)

    def fetched(self, first: int, end: int, origin: Origin) -> None:
        """Record a read of whole batches with the messages first..end-1, which were not unpacked."""
        at_us = now_us()
        if self._searches:
            self._early_reads.append((first, end, at_us, origin))
        found = self.offsets.between(first, end)
        self._sink.skipped += max(len(found) - MAX_TRACED, 0)
        for offset in found[:MAX_TRACED]:
            context = self.offsets.find(offset)
            # A sampled offset need not have a message: markers and gaps have offsets, too.
            if context is not None and self._sink.knows(context.trace_id, self._identity.topic):
                self._record_read(context, offset, at_us, origin)

    def read(self, records: Sequence[Record], origin: Origin) -> None:
        """Record a read of single messages. Those without a group are never acknowledged."""
        at_us = now_us()
        for record in records:
            if (context := self.find(record)) is None:
                continue
            if origin.group:
                self._record_read(context, record.offset, at_us, origin)
            else:
                self.record_step(Step.FETCHED, context, record.offset, at_us, origin)

    def committed(self, offset: int, origin: Origin) -> None:
        """Record that a group has committed past all messages before an offset."""
        at_us = now_us()
        for read, groups in self.unacknowledged.items():
            if read < offset and origin.group not in groups:
                groups.append(origin.group)
                if (context := self.offsets.find(read)) is not None:
                    self.record_step(Step.ACKED, context, read, at_us, origin)

    def found_late(self, context: TraceContext, offset: int) -> None:
        """Record reads of a message that happened before its trace was found."""
        for first, end, at_us, origin in self._early_reads:
            if first <= offset < end:
                self._record_read(context, offset, at_us, origin)

    def count_skipped(self, count: int) -> None:
        """Count messages that were too many to trace."""
        self._sink.skipped += count

    def _record_read(self, context: TraceContext, offset: int, at_us: int, origin: Origin) -> None:
        self.unacknowledged.pop(offset, None)
        if len(self.unacknowledged) >= _MAX_UNACKNOWLEDGED:
            del self.unacknowledged[next(iter(self.unacknowledged))]
        self.unacknowledged[offset] = []
        self.record_step(Step.FETCHED, context, offset, at_us, origin)

    def record_step(
        self,
        step: Step,
        context: TraceContext,
        offset: int,
        at_us: int,
        origin: Origin,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Record a step of the message at an offset, as a child span of its append."""
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
        """Record a step of a message's produce."""
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
    """Return the trace that a message carries, sampled or not."""
    for name, value in reversed(headers):
        if name == TRACEPARENT:
            return read_traceparent(value)
    for name, value in headers:
        if name == XRAY and value is not None:
            return read_xray(value.decode(errors="replace"))
    return None


def _found(data: Buffer) -> list[Traced]:
    try:
        return traced_records(data, _SEARCH_LIMIT_BYTES)
    except AlpacaError:
        return []  # its readers report the error
