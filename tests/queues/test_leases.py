"""Leases that end at the same time, and leases after the clock was set back."""

from typing import Any

from alpacamq.model.errors import StaleReceipt
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import DAY_MS, topic_config
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import (
    Action,
    Move,
    QueueId,
    ReceiveReply,
    ReceiveRequest,
    Settlement,
    SettleReply,
    SettleRequest,
)

from .fake_log import Entry, FakeLog
from .queue_host import moves_of

ORDERS = QueueId("workers", "orders")


def test_many_leases_that_end_at_the_same_time_end_in_several_ticks() -> None:
    log = FakeLog()
    topic = log.add("orders")
    topic.config = topic_config({"queue.max.deliveries": "1"})
    topic.partitions[0].append(*[Entry()] * 10_000)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    log.handle(
        engine, [(ReceiveRequest(queue=ORDERS, consumer="", max_messages=10_000, visibility_ms=10), 1)], 0
    )
    moves: list[Move] = []
    while engine.next_deadline_ms is not None:
        assert engine.next_deadline_ms <= 10
        outcome = engine.tick(10)
        assert 0 < len(moves_of(outcome)) <= 2500
        moves += moves_of(outcome)
    assert [move.offset for move in moves] == [*range(10_000)]
    assert [move.sequence for move in moves] == [*range(10_000)]


def test_the_receipt_of_a_message_lost_in_a_crash_does_not_settle_the_message_that_reuses_its_offset() -> (
    None
):
    log = FakeLog()
    (partition,) = log.add("orders").partitions
    partition.append(Entry(), Entry())
    receive = ReceiveRequest(queue=ORDERS, consumer="", max_messages=2)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    outcome = log.handle(engine, [(receive, "handle")], 0)
    (reply,) = outcome.replies
    assert isinstance(reply.answer, ReceiveReply)
    _, lost = reply.answer.messages
    partition.truncate(1)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    for key, value in outcome.changes:
        engine.replay(key, value)
    engine.loaded(0)
    partition.append(Entry())
    ack = Settlement(0, lost.offset, Action.ACK, 1, lost.generation)
    settle = SettleRequest(queue=ORDERS, settlements=(ack,))
    log.handle(engine, [(receive, "handle")], 0)
    (answered,) = log.handle(engine, [(settle, "handle")], 0).replies
    assert isinstance(answered.answer, SettleReply)
    assert isinstance(answered.answer.results[0], StaleReceipt)


def test_leases_and_backoffs_keep_their_length_when_the_clock_is_set_back() -> None:
    log = FakeLog()
    log.add("orders").partitions[0].append(Entry(), Entry())
    stored: dict[bytes, bytes | None] = {}

    def performed(engine: QueueEngine, request: Request[Any], now_ms: int) -> Any:
        outcome = log.handle(engine, [(request, "handle")], now_ms)
        stored.update(outcome.changes)
        return outcome.replies[-1].answer

    year_ms = 365 * DAY_MS
    receive = ReceiveRequest(queue=ORDERS, consumer="", max_messages=2, visibility_ms=30_000)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    first, _second = performed(engine, receive, 2 * year_ms).messages
    nack = Settlement(0, first.offset, Action.NACK, 1, first.generation, delay_ms=10_000)
    performed(engine, SettleRequest(queue=ORDERS, settlements=(nack,)), 2 * year_ms)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    for key, value in stored.items():
        engine.replay(key, value)
    stored.update(engine.loaded(year_ms).changes)
    assert performed(engine, receive, year_ms + 9_999).messages == ()
    assert [message.offset for message in performed(engine, receive, year_ms + 10_000).messages] == [0]
    assert performed(engine, receive, year_ms + 29_999).messages == ()
    assert [message.offset for message in performed(engine, receive, year_ms + 30_000).messages] == [1]
