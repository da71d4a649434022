"""Records the traces of delayed messages.

A delayed message has no offset yet, so it is sampled by its delayed id. When it is appended to its
partition, a header carries the trace.
"""

from collections.abc import Mapping
from typing import NamedTuple

from alpacamq.broker.partition.leader import Partition
from alpacamq.model.records import Header, Record
from alpacamq.telemetry.tracing import (
    Attribute,
    ClientApi,
    Step,
    TraceContext,
    TraceEvent,
    derived_span_id,
    now_us,
)

from .partition import TRACEPARENT, Origin, PartitionTraces, shown_key
from .tracing import Tracing


class _Delay(NamedTuple):
    """The span of a message's delay, and that of its producer."""

    context: TraceContext
    parent_span_id: str


class DelayTraces:
    """Records the steps of traced delayed messages."""

    def __init__(self, tracing: Tracing) -> None:
        self._record = tracing.record

    def scheduled(
        self,
        partition: Partition,
        delayed_id: int,
        record: Record,
        due_ms: int,
        received_us: int,
        origin: Origin,
    ) -> None:
        """Record a message that was scheduled durably."""
        if (delay := _delay(partition, delayed_id, record.headers)) is None:
            return
        client: dict[str, Attribute] = {"client": origin.client} if origin.client else {}
        if record.key is not None:
            client["key"] = shown_key(record.key)
        schedule: dict[str, Attribute] = {"delayed_id": delayed_id, "deliver_at_ms": due_ms}
        self._record_step(Step.RECEIVED, partition, delay, received_us, origin.api, client)
        self._record_step(Step.PARTITIONED, partition, delay, received_us, origin.api, {})
        self._record_step(Step.SCHEDULED, partition, delay, now_us(), origin.api, schedule)

    def cancelled(
        self, partition: Partition, delayed_id: int, headers: tuple[Header, ...], api: ClientApi
    ) -> None:
        """Record a message that was cancelled."""
        if (delay := _delay(partition, delayed_id, headers)) is not None:
            self._record_step(Step.CANCELLED, partition, delay, now_us(), api, {"delayed_id": delayed_id})

    def labelled(self, partition: Partition, delayed_id: int, record: Record) -> Record:
        """Return the record as it is appended: a sampled one gets a header with its trace."""
        traces = partition.traces
        if traces is None or traces.carried(record.headers) is not None:
            return record
        if (delay := _delay(partition, delayed_id, record.headers)) is None:
            return record
        others = tuple(header for header in record.headers if header.key != TRACEPARENT)
        return record._replace(headers=(*others, Header(TRACEPARENT, delay.context.traceparent)))

    def fired(self, partition: Partition, delayed_id: int, headers: tuple[Header, ...], offset: int) -> None:
        """Record a due message that was appended to its partition; its leader records how."""
        traces = partition.traces
        if traces is None or (delay := _delay(partition, delayed_id, headers)) is None:
            return
        at_us = now_us()
        self._record_step(Step.READY, partition, delay, at_us, ClientApi.BROKER, {"delayed_id": delayed_id})
        if not partition.is_leading:
            return
        context = traces.offsets.remember(delay.context.trace_id, offset)
        parent = delay.context.span_id
        tag: dict[str, Attribute] = {"topic_id": traces.topic_tag}
        traces.record_produce(Step.PERSISTED, context, parent, offset, at_us, ClientApi.BROKER, tag)

    def _record_step(
        self,
        step: Step,
        partition: Partition,
        delay: _Delay,
        at_us: int,
        api: ClientApi,
        attributes: Mapping[str, Attribute],
    ) -> None:
        topic, index = partition.identity
        self._record(
            TraceEvent(
                trace_id=delay.context.trace_id,
                span_id=delay.context.span_id,
                parent_span_id=delay.parent_span_id,
                at_us=at_us,
                name=step.value,
                topic=topic,
                partition=index,
                api=api.value,
                attributes=attributes,
            )
        )


def trace_of_delayed(partition: Partition, delayed_id: int, headers: tuple[Header, ...]) -> str | None:
    """Return the trace id of a delayed message, if it has one."""
    delay = _delay(partition, delayed_id, headers)
    return None if delay is None else delay.context.trace_id


def _delay(partition: Partition, delayed_id: int, headers: tuple[Header, ...]) -> _Delay | None:
    traces = partition.traces
    if traces is None:
        return None
    trace_id, parent_span_id = _trace(traces, delayed_id, headers)
    if trace_id is None:
        return None
    span_id = derived_span_id(trace_id, "delay", *partition.identity, delayed_id)
    # A sampled message carries the span of its own delay when it is appended.
    return _Delay(TraceContext(trace_id, span_id), "" if parent_span_id == span_id else parent_span_id)


def _trace(traces: PartitionTraces, delayed_id: int, headers: tuple[Header, ...]) -> tuple[str | None, str]:
    if (carried := traces.carried(headers)) is not None:
        return carried.trace_id, carried.span_id
    return traces.offsets.delayed(delayed_id), ""
