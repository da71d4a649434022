"""A batch on its way into a partition, and what its traces are told once it is in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from alpacamq.telemetry.tracing import Attribute, Door, Step, TraceContext, now_us

from .batch_traces import MAX_TRACED, Traced

if TYPE_CHECKING:
    from .partition_traces import PartitionTraces

MAX_KEY_CHARS = 128


class Arrival:
    """A batch of which messages may be sampled: that is known when it has its offsets."""

    __slots__ = ("_client", "_door", "_received_us", "_traces")

    def __init__(
        self, traces: "PartitionTraces", door: Door, client: str | None, received_us: int | None = None
    ) -> None:
        self._traces = traces
        self._door = door
        self._client = client
        self._received_us = received_us or now_us()

    def persisted(self, base_offset: int, next_offset: int) -> None:
        """The batch is in the log at these offsets, and durable; readers see it next."""
        if sampled := self._traces.offsets.sampled(base_offset, next_offset):
            self._tell_sampled(sampled, now_us())

    def refused(self) -> None:
        """The batch is not in the log, or was there before."""

    def _tell_sampled(self, offsets: range, at_us: int) -> None:
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
            traces.tell_arrival(step, context, parent_span_id, offset, when_us, self._door, attributes)


class TracedArrival(Arrival):
    """A batch of which messages carry traces: those are known, or a thread is looking for them."""

    __slots__ = ("looking", "traced")

    def __init__(
        self, traces: "PartitionTraces", door: Door, client: str | None, received_us: int | None = None
    ) -> None:
        super().__init__(traces, door, client, received_us)
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
                self._tell_sampled(range(offset, offset + 1), at_us)
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
