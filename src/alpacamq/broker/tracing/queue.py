"""Records the traces of messages that queues deliver: leases, settlements, expired leases and moves.

Each delivery is a span of its own, a child of the message's append. Its id is derived from group, position
and delivery count, so that the settlement finds it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.queue.deliveries import EXPIRED, LeasedRecord
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import AlpacaError
from alpacamq.model.records import Header, Record
from alpacamq.queues.messages import Acquired, Action, EndedLease, Move, QueueId, Settlement
from alpacamq.telemetry.tracing import Attribute, ClientApi, Step, TraceContext, TraceEvent, now_us

from .partition import TRACEPARENT, Origin, PartitionTraces, carried_context, shown_key
from .tracing import Tracing

MAX_IN_FLIGHT = 10_000

_STEPS: Mapping[Action, Step] = {
    Action.ACK: Step.ACKED,
    Action.NACK: Step.NACKED,
    Action.RELEASE: Step.NACKED,
    Action.REJECT: Step.REJECTED,
    Action.EXTEND: Step.EXTENDED,
    Action.DISCARD: Step.EXPIRED,
}


class _InFlight(NamedTuple):
    """A delivery that has not ended, and its consumer."""

    delivery_count: int
    consumer: str
    api: ClientApi


class Moved(NamedTuple):
    """A message on its way to another topic, and the span that caused the move."""

    context: TraceContext
    parent_span_id: str


class QueueTraces:
    """Records the steps of traced messages in queues."""

    def __init__(self, tracing: Tracing, topics: Topics) -> None:
        self._record = tracing.record
        self._topics = topics
        # Deliveries in flight, since their end does not always carry these values.
        self._in_flight: OrderedDict[tuple[str, str, int, int], _InFlight] = OrderedDict()

    def delivered(self, queue: QueueId, leased: Iterable[LeasedRecord], origin: Origin) -> None:
        """Record messages that were leased and delivered to a consumer."""
        at_us = now_us()
        index, traces, has_offsets = -1, None, False
        for lease, record in leased:
            if lease[0] != index:
                index = lease[0]
                traces = self._traces(queue.topic, index)
                has_offsets = traces is not None and traces.has_offsets
            if traces is None or not (has_offsets or record[4]):
                continue
            if (context := traces.find(record)) is not None:
                attributes: dict[str, Attribute] = {"lane": lease.lane.text, "deadline_ms": lease.deadline_ms}
                if record.key is not None:
                    attributes["key"] = shown_key(record.key)
                place = (lease.partition, record.offset)
                self._leased(queue, place, lease.delivery_count, context, origin, at_us, attributes)

    def acquired(self, queue: QueueId, leases: Sequence[Acquired], origin: Origin) -> None:
        """Record messages of one partition that were leased, in ascending order, and sent as batches."""
        if not leases or (traces := self._traces(queue.topic, leases[0].partition)) is None:
            return
        traced = set(traces.offsets.between(leases[0].offset, leases[-1].offset + 1))
        at_us = now_us()
        for lease in leases if traced else ():
            if lease.offset in traced and (context := traces.at(lease.offset)) is not None:
                attributes: dict[str, Attribute] = {"lane": lease.lane.text, "deadline_ms": lease.deadline_ms}
                place = (lease.partition, lease.offset)
                self._leased(queue, place, lease.delivery_count, context, origin, at_us, attributes)

    def settled(
        self,
        queue: QueueId,
        settlements: Iterable[Settlement],
        results: Iterable[AlpacaError | None],
        origin: Origin,
    ) -> None:
        """Record settlements whose result is None."""
        at_us = now_us()
        index, traces = -1, None
        for settlement, error in zip(settlements, results, strict=True):
            if settlement[0] != index:
                index = settlement[0]
                traces = self._traces(queue.topic, index)
            if (
                traces is None
                or not traces.has_offsets
                or error is not None
                or settlement.action not in _STEPS
            ):
                continue
            if (context := traces.at(settlement.offset)) is not None:
                self._record_settled(queue, settlement, context, origin, at_us)

    def ended(self, leases: Iterable[EndedLease]) -> None:
        """Record leases that expired or ended with their consumer."""
        at_us = now_us()
        for lease in leases:
            if (traces := self._traces(lease.queue.topic, lease.partition)) is None:
                continue
            end = lease.first_offset + lease.mask.bit_length()
            for offset in traces.offsets.between(lease.first_offset, end):
                is_held = lease.mask >> (offset - lease.first_offset) & 1
                if is_held and (context := traces.at(offset)) is not None:
                    self._record_ended(lease, (lease.partition, offset), context, at_us)

    def expired(
        self, queue: QueueId, settlements: Iterable[Settlement], records: Mapping[tuple[int, int], Record]
    ) -> None:
        """Record messages that were discarded because of their time to live."""
        at_us = now_us()
        for settlement in settlements:
            place = (settlement.partition, settlement.offset)
            record, traces = records.get(place), self._traces(queue.topic, settlement.partition)
            if settlement.action is not Action.DISCARD or record is None or traces is None:
                continue
            if (context := traces.find(record)) is not None:
                origin = Origin(ClientApi.BROKER)
                count = settlement.delivery_count or 0
                self._record_step(
                    Step.EXPIRED, queue, place, count, context, origin, at_us, {"reason": "queue.ttl.ms"}
                )

    def moving(self, move: Move, record: Record) -> Moved | None:
        """Return the trace of a message that is about to be moved, if it has one."""
        traces = self._traces(move.queue.topic, move.partition)
        if traces is None or (context := traces.find(record)) is None:
            return None
        if move.target or move.reason == EXPIRED:  # it was not delivered
            return Moved(context, context.span_id)
        place = (move.partition, move.offset)
        return Moved(context, _delivery_span(context, move.queue, *place, move.delivery_count))

    def moved(self, move: Move, moved: Moved, target: Partition, offset: int) -> None:
        """Record a message that was moved to an offset of another topic."""
        if target.traces is None:
            return
        step = Step.REDRIVEN if move.target else Step.DEAD_LETTERED
        source = f"{move.queue.topic}/{move.partition}/{move.offset}"
        attributes: dict[str, Attribute] = {"from": source, "topic_id": target.traces.topic_tag}
        if not move.target:
            attributes |= {"reason": move.reason, "delivery_count": move.delivery_count}
        context = target.traces.offsets.remember(moved.context.trace_id, offset)
        topic, partition = target.identity
        self._record(
            TraceEvent(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_span_id=moved.parent_span_id,
                at_us=now_us(),
                name=step.value,
                topic=topic,
                partition=partition,
                offset=offset,
                group="" if move.target else move.queue.group,
                attributes=attributes,
            )
        )

    def _leased(
        self,
        queue: QueueId,
        place: tuple[int, int],
        count: int,
        context: TraceContext,
        origin: Origin,
        at_us: int,
        attributes: Mapping[str, Attribute],
    ) -> None:
        key = (queue.group, queue.topic, *place)
        self._in_flight[key] = _InFlight(count, origin.client, origin.api)
        if len(self._in_flight) > MAX_IN_FLIGHT:
            self._in_flight.popitem(last=False)
        self._record_step(Step.FETCHED, queue, place, count, context, origin, at_us, attributes)

    def _record_settled(
        self, queue: QueueId, settlement: Settlement, context: TraceContext, origin: Origin, at_us: int
    ) -> None:
        place = (settlement.partition, settlement.offset)
        action, step = settlement.action, _STEPS[settlement.action]
        attributes: dict[str, Attribute] = {}
        if settlement.reason:
            attributes["reason"] = settlement.reason
        if settlement.delay_ms is not None:
            attributes["delay_ms"] = settlement.delay_ms
        if action is Action.EXTEND and settlement.delay_ms == 0:
            step, attributes = Step.NACKED, {"reason": "given back"}
        elif action is Action.RELEASE:
            attributes["reason"] = settlement.reason or "released"
        known = (
            self._in_flight.get((queue.group, queue.topic, *place))
            if step is Step.EXTENDED
            else self._take(queue, place)
        )
        count = settlement.delivery_count
        if count is None:
            count = 0 if known is None else known.delivery_count
        consumer = origin.client or settlement.consumer or ("" if known is None else known.consumer)
        self._record_step(step, queue, place, count, context, Origin(origin.api, consumer), at_us, attributes)

    def _record_ended(
        self, lease: EndedLease, place: tuple[int, int], context: TraceContext, at_us: int
    ) -> None:
        known = self._take(lease.queue, place)
        origin = Origin(ClientApi.BROKER, lease.consumer or ("" if known is None else known.consumer))
        step = Step.TIMED_OUT if lease.is_expired else Step.NACKED
        reason: dict[str, Attribute] = {} if lease.is_expired else {"reason": "the consumer is gone"}
        self._record_step(step, lease.queue, place, lease.delivery_count, context, origin, at_us, reason)

    def _take(self, queue: QueueId, place: tuple[int, int]) -> _InFlight | None:
        return self._in_flight.pop((queue.group, queue.topic, *place), None)

    def _record_step(
        self,
        step: Step,
        queue: QueueId,
        place: tuple[int, int],
        count: int,
        context: TraceContext,
        origin: Origin,
        at_us: int,
        attributes: Mapping[str, Attribute],
    ) -> None:
        partition, offset = place
        self._record(
            TraceEvent(
                trace_id=context.trace_id,
                span_id=_delivery_span(context, queue, partition, offset, count),
                parent_span_id=context.span_id,
                at_us=at_us,
                name=step.value,
                topic=queue.topic,
                partition=partition,
                offset=offset,
                group=queue.group,
                consumer=origin.client,
                api=origin.api.value,
                attributes={"delivery_count": count, **attributes},
            )
        )

    def _traces(self, topic: str, partition: int) -> PartitionTraces | None:
        found = self._topics.find(topic.encode(), partition)
        return None if found is None else found.traces


def with_trace(record: Record, moved: Moved) -> Record:
    """Return the record with a header for its trace, unless it carries the trace already."""
    carried = carried_context(record.headers)
    if carried is not None and carried.trace_id == moved.context.trace_id:
        return record
    others = tuple(header for header in record.headers if header.key != TRACEPARENT)
    context = TraceContext(moved.context.trace_id, moved.parent_span_id)
    return record._replace(headers=(*others, Header(TRACEPARENT, context.traceparent)))


def _delivery_span(context: TraceContext, queue: QueueId, partition: int, offset: int, count: int) -> str:
    return context.child(queue.group, queue.topic, partition, offset, count).span_id
