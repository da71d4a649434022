"""Which messages of a partition are traced: by sampling, and those whose producers began a trace.

Sampling is by offset: with a rate of a thousandth, every thousandth offset of a partition is traced, and its
trace id follows from the offset. So a batch costs one comparison, and a delivery or an acknowledgement, even
after a restart, finds what the publishing found without anything having been kept.
"""

from bisect import bisect_left, insort
from collections import deque
from zlib import crc32

from alpacamq.model.ids import TopicPartition
from alpacamq.telemetry.tracing import TraceContext, derived_span_id, derived_trace_id

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
