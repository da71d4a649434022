"""Traces of messages in a running broker, and across its restarts."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import append
from alpacamq.broker.publishing import Message, Published
from alpacamq.broker.queue.service import Delivery, Receipted
from alpacamq.broker.tracing.partition import Origin, PartitionTraces, Traced, TraceSink, traced_records
from alpacamq.model.batch import read_header
from alpacamq.model.control import marker_batch
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import topic_config
from alpacamq.queues.messages import Action, QueueId
from alpacamq.telemetry.tracing import ClientApi, Status, Step, TraceEvent, TraceFilter
from tests.waiting import soon

from .open_brokers import SettableClock, running, stored

ORDERS = QueueId("kitchen", "orders")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = Header("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
PUBLISHED = ["publish.received", "publish.partitioned", "publish.persisted"]


async def published(broker: Broker, *messages: Message, **options: Any) -> list[Published]:
    results = await broker.publisher.publish("orders", messages, **options)
    return [result for result in results if isinstance(result, Published)]


def events(broker: Broker, trace_id: str = TRACE) -> list[TraceEvent]:
    assert broker.tracing is not None
    return broker.tracing.store.events(trace_id)


def names(broker: Broker, trace_id: str = TRACE) -> list[str]:
    return [event.name for event in events(broker, trace_id)]


def status(broker: Broker, trace_id: str = TRACE) -> Status:
    assert broker.tracing is not None
    (found,) = broker.tracing.store.find(TraceFilter(trace_id=trace_id), 10).traces
    return found.status


async def settle(broker: Broker, action: Action, deliveries: Sequence[Delivery], **fields: Any) -> None:
    settlements = [Receipted(receipt=each.receipt, action=action, **fields) for each in deliveries]
    assert await broker.queues.settle(settlements, api=ClientApi.HTTP) == [None] * len(deliveries)


async def test_a_trace_is_continued_from_the_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        origin = Origin(ClientApi.HTTP, "10.0.0.1:5")
        (result,) = await published(
            broker, Message(value=b"tea", key=b"alice", headers=(TRACEPARENT,)), origin=origin
        )
        assert result.trace_id == TRACE
        assert names(broker) == PUBLISHED
        received, _, persisted = events(broker)
        assert received.parent_span_id == SPAN
        assert received.attributes == {"client": "10.0.0.1:5", "key": "alice"}
        assert (persisted.topic, persisted.partition, persisted.offset) == ("orders", result.partition, 0)
        assert {event.api for event in events(broker)} == {"http"}
        assert len({event.span_id for event in events(broker)}) == 1


async def test_the_trace_of_a_call_applies_to_messages_without_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        other = Header("traceparent", f"00-{'1' * 32}-{SPAN}-01".encode())
        results = await published(
            broker, Message(value=b"a"), Message(value=b"b", headers=(other,)), traceparent=TRACEPARENT.value
        )
        assert [result.trace_id for result in results] == [TRACE, "1" * 32]
        headers = [
            record.headers for result in results for record in stored(broker, "orders", result.partition)
        ]
        assert (TRACEPARENT,) in headers
        assert (other,) in headers


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ((), {}),
        ((Header("traceparent", f"00-{TRACE}-{SPAN}-00".encode()),), {}),
        ((Header("traceparent", b"tea"),), {}),
        ((TRACEPARENT,), {"trace.enable": "false"}),
        ((TRACEPARENT,), {"trace.headers": "none"}),
    ],
    ids=[
        "nothing to follow",
        "the producer says no",
        "not a context",
        "switched off",
        "headers do not count",
    ],
)
async def test_unsampled_and_disabled_messages_are_not_traced(
    tmp_path: Path, headers: tuple[Header, ...], settings: dict[str, str]
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=settings)
        (result,) = await published(broker, Message(value=b"tea", headers=headers))
        assert result.trace_id is None
        await settle(broker, Action.ACK, await broker.queues.receive(ORDERS))
        assert broker.tracing is not None
        assert broker.tracing.stats().events_total == 0


async def test_tracing_can_be_disabled_for_the_broker(tmp_path: Path) -> None:
    async with running(tmp_path, tracing=None) as broker:
        (result,) = await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        await settle(broker, Action.ACK, await broker.queues.receive(ORDERS))
        assert (result.trace_id, broker.tracing) == (None, None)


async def test_a_fraction_of_all_messages_is_sampled(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"trace.sample": "0.1"})
        results = await published(broker, *[Message(value=b"tea")] * 100)
        traced = [result.trace_id for result in results if result.trace_id is not None]
        assert len(traced) == 10
        assert names(broker, traced[0]) == PUBLISHED
        deliveries = await broker.queues.receive(ORDERS, max_messages=100)
        await settle(broker, Action.ACK, deliveries)
        for each in traced:
            assert names(broker, each) == [*PUBLISHED, "consume.fetched", "consume.acked"]
            assert status(broker, each) is Status.ACKED
        # Sampling does not change the records.
        assert all(not record.headers for record in stored(broker, "orders"))


async def test_new_settings_apply_from_the_next_message_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        (before,) = await published(broker, Message(value=b"tea"))
        await broker.topics.configure("orders", lambda _topic: {"trace.sample": "1"})
        (after,) = await published(broker, Message(value=b"tea"))
        assert before.trace_id is None
        assert after.trace_id is not None


@pytest.mark.parametrize(
    ("action", "fields", "step", "where"),
    [
        (Action.ACK, {}, "consume.acked", Status.ACKED),
        (Action.NACK, {"reason": "no milk", "delay_ms": 5}, "consume.nacked", Status.PUBLISHED),
        (Action.EXTEND, {"delay_ms": 60_000}, "visibility.extended", Status.IN_FLIGHT),
        (Action.EXTEND, {"delay_ms": 0}, "consume.nacked", Status.PUBLISHED),
    ],
)
async def test_settlements_are_recorded(
    tmp_path: Path, action: Action, fields: dict[str, Any], step: str, where: Status
) -> None:
    async with running(tmp_path) as broker:
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        deliveries = await broker.queues.receive(ORDERS, consumer="bob", api=ClientApi.SQS)
        await settle(broker, action, deliveries, **fields)
        *_, fetched, settled = events(broker)
        assert (fetched.name, settled.name) == ("consume.fetched", step)
        assert (fetched.api, settled.api) == ("sqs", "http")
        assert fetched.group == settled.group == "kitchen"
        assert fetched.consumer == settled.consumer == "bob"
        assert fetched.span_id == settled.span_id
        assert fetched.attributes["delivery_count"] == 1
        assert status(broker) is where


async def test_an_expired_lease_is_recorded_and_the_redelivery_is_a_new_span(tmp_path: Path) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        await broker.queues.receive(ORDERS, visibility_ms=1000, consumer="bob")
        clock.ahead_ms = 1001
        await broker.queues.receive(ORDERS)
        assert names(broker)[3:] == ["consume.fetched", "visibility.timeout", "consume.fetched"]
        first, timeout, second = events(broker)[3:]
        assert first.span_id == timeout.span_id != second.span_id
        assert timeout.consumer == "bob"
        assert second.attributes["delivery_count"] == 2


async def test_a_rejected_message_keeps_its_trace_through_dead_letters_and_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"trace.sample": "1"})
        (result,) = await published(broker, Message(value=b"tea"))
        assert result.trace_id is not None
        trace_id = result.trace_id
        await settle(broker, Action.REJECT, await broker.queues.receive(ORDERS), reason="cold")
        await soon(lambda: _has(broker, trace_id, "dlq.routed"))
        assert status(broker, trace_id) is Status.DEAD_LETTERED
        (letter,) = stored(broker, "orders.dlq")
        assert any(
            name == "traceparent" and trace_id.encode() in (value or b"") for name, value in letter.headers
        )
        await broker.queues.start_redrive("orders.dlq")
        await soon(lambda: _has(broker, trace_id, "dlq.redriven"))
        await settle(broker, Action.ACK, await broker.queues.receive(ORDERS, wait_ms=5000))
        assert names(broker, trace_id) == [
            *PUBLISHED,
            "consume.fetched",
            "consume.rejected",
            "dlq.routed",
            "dlq.redriven",
            "consume.fetched",
            "consume.acked",
        ]
        assert [event.topic for event in events(broker, trace_id)][5:7] == ["orders.dlq", "orders"]
        assert status(broker, trace_id) is Status.ACKED


async def test_the_producers_header_is_moved_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        await settle(broker, Action.REJECT, await broker.queues.receive(ORDERS))
        await soon(lambda: _has(broker, TRACE, "dlq.routed"))
        (letter,) = stored(broker, "orders.dlq")
        assert [header for header in letter.headers if header.key == "traceparent"] == [TRACEPARENT]


@pytest.mark.parametrize("action", ["drop", "dead-letter"])
async def test_the_expiry_of_a_message_is_recorded(tmp_path: Path, action: str) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        settings = {"queue.ttl.ms": "1000", "queue.ttl.action": action}
        await broker.topics.create("orders", partitions=1, overrides=settings)
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        clock.ahead_ms = 5000
        assert await broker.queues.receive(ORDERS) == []
        last = "consume.expired" if action == "drop" else "dlq.routed"
        await soon(lambda: _has(broker, TRACE, last))
        expected = Status.EXPIRED if action == "drop" else Status.DEAD_LETTERED
        assert status(broker) is expected


async def test_a_delayed_message_is_traced_while_it_is_pending(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        due_ms = broker.clock.now_ms() + 150
        (result,) = await published(
            broker, Message(value=b"tea", headers=(TRACEPARENT,), deliver_at_ms=due_ms)
        )
        assert (result.trace_id, result.offset) == (TRACE, None)
        await soon(lambda: _has(broker, TRACE, "publish.persisted"))
        assert names(broker) == [
            "publish.received", "publish.partitioned", "delay.scheduled", "delay.ready", "publish.persisted",
        ]  # fmt: skip
        assert events(broker)[-1].offset == 0
        await settle(broker, Action.ACK, await broker.queues.receive(ORDERS))
        assert names(broker)[-2:] == ["consume.fetched", "consume.acked"]


async def test_a_sampled_delayed_message_keeps_its_trace_when_delivered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"trace.sample": "1"})
        (result,) = await published(broker, Message(value=b"tea", deliver_at_ms=broker.clock.now_ms() + 150))
        assert result.trace_id is not None
        trace_id = result.trace_id
        await soon(lambda: _has(broker, trace_id, "publish.persisted"))
        (delivery,) = await broker.queues.receive(ORDERS)
        assert names(broker, trace_id)[-1] == "consume.fetched"
        assert trace_id.encode() in (dict(delivery.record.headers)["traceparent"] or b"")


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_the_end_of_an_undelivered_delayed_message_is_recorded(tmp_path: Path, end: str) -> None:
    async with running(tmp_path) as broker:
        due_ms = broker.clock.now_ms() + 3_600_000
        (result,) = await published(
            broker, Message(value=b"tea", headers=(TRACEPARENT,), deliver_at_ms=due_ms)
        )
        assert status(broker) is Status.DELAYED
        if end == "cancelled":
            assert result.delayed_id is not None
            await broker.delays.cancel("orders", result.partition, result.delayed_id, ClientApi.HTTP)
        else:
            await broker.topics.delete("orders")
        assert names(broker)[-1] == f"delay.{end}"
        assert status(broker) is Status(end)


async def test_after_a_restart_deliveries_continue_the_same_trace(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"trace.sample": "0.5"})
        results = await published(broker, *[Message(value=b"tea")] * 4)
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        deliveries = await broker.queues.receive(ORDERS, visibility_ms=600_000)
        sampled = next(result.trace_id for result in results if result.trace_id)
    async with running(tmp_path) as broker:
        await settle(broker, Action.ACK, deliveries)
        for trace_id in (TRACE, sampled):
            assert names(broker, trace_id) == [*PUBLISHED, "consume.fetched", "consume.acked"]
            assert status(broker, trace_id) is Status.ACKED


async def test_a_recreated_topic_has_no_traces_of_the_deleted_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        await broker.topics.delete("orders")
        await broker.topics.create("orders", partitions=1)
        await published(broker, Message(value=b"coffee"))
    async with running(tmp_path) as broker:
        await settle(broker, Action.ACK, await broker.queues.receive(ORDERS))
        assert names(broker) == PUBLISHED


async def test_a_batch_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"max.message.bytes": "200"})
        assert await published(broker, Message(value=b"v" * 500, headers=(TRACEPARENT,))) == []
        assert names(broker) == []


async def test_persisted_is_recorded_when_the_flush_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"flush.messages": "1"})
        sending = asyncio.create_task(published(broker, Message(value=b"tea", headers=(TRACEPARENT,))))
        await asyncio.sleep(0)
        assert Step.PERSISTED.value not in names(broker)
        await sending
        assert names(broker) == PUBLISHED


async def test_a_read_before_the_end_of_the_search_is_recorded() -> None:
    told: list[TraceEvent] = []
    looking: Future[list[Traced]] = Future()

    class Slow(Executor):
        def submit(self, *_: Any, **__: Any) -> Any:
            return looking

    config = topic_config({})
    identity = TopicPartition(TopicName("orders"), 0)
    traces = PartitionTraces(identity, uuid4(), config, TraceSink(told.append, Slow()))
    batch = write_batch([Record(offset, 1, b"k", b"v", (TRACEPARENT,)) for offset in range(50)])
    trace = traces.produce_trace(batch, read_header(batch), "shop")
    assert trace is not None
    trace.persisted(100, 150)
    assert traces.may_be_read
    traces.fetched(100, 150, Origin(ClientApi.KAFKA, "bob"))
    assert told == []
    looking.set_result(traced_records(batch, 1 << 20)[:1])

    async def is_recorded() -> bool:
        return len(told) == 4

    await soon(is_recorded)
    assert [event.name for event in told] == [*PUBLISHED, "consume.fetched"]
    assert (told[-1].offset, told[-1].consumer) == (100, "bob")
    assert told[-1].at_us >= told[2].at_us
    traces.fetched(0, 100, Origin(ClientApi.KAFKA, "bob"))
    assert len(told) == 4


async def test_a_sampled_offset_without_a_message_is_not_recorded_as_fetched(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"trace.sample": "1"})
        partition = broker.topics.partition("orders", 0)
        await append(partition, marker_batch(1, 0, True, 0, 1000))
        await published(broker, Message(value=b"tea"))
        assert partition.traces is not None
        partition.traces.fetched(0, 2, Origin(ClientApi.KAFKA, "bob"))
        assert broker.tracing is not None
        (only,) = broker.tracing.store.find(TraceFilter(topic="orders"), 10).traces
        assert (only.events, only.place) == (4, ("orders", 0, 1))


async def test_disabling_tracing_stops_recording_of_deliveries_in_flight(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await published(broker, Message(value=b"tea", headers=(TRACEPARENT,)))
        deliveries = await broker.queues.receive(ORDERS)
        await broker.topics.configure("orders", lambda _topic: {"trace.enable": "false"})
        await settle(broker, Action.ACK, deliveries)
        assert names(broker) == [*PUBLISHED, "consume.fetched"]


async def _has(broker: Broker, trace_id: str, step: str) -> bool:
    return step in names(broker, trace_id)
