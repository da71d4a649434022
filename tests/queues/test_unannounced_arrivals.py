"""Queues without waiting receives get no arrival events: the engine checks whether a log has grown."""

from alpacamq.model.lanes import Lane
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import Acquired, QueueId, ReceiveReply, ReceiveRequest

from .fake_log import Entry, FakeLog

ORDERS = QueueId("workers", "orders")


def receive(log: FakeLog, engine: QueueEngine, now_ms: int) -> tuple[Acquired, ...]:
    outcome = log.handle(
        engine, [(ReceiveRequest(queue=ORDERS, consumer="", max_messages=10), "handle")], now_ms
    )
    (reply,) = outcome.replies
    assert isinstance(reply.answer, ReceiveReply)
    return reply.answer.messages


def test_an_urgent_arrival_is_delivered_before_the_ready_messages_are_done() -> None:
    log = FakeLog()
    (partition,) = log.add("orders").partitions
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    partition.append(*[Entry()] * 1000)
    for now_ms in range(0, 100, 10):
        assert len(receive(log, engine, now_ms)) == 10
    urgent = partition.append(Entry(Lane.CRITICAL))
    assert urgent in [message.offset for message in receive(log, engine, 100)]


def test_a_partition_that_grows_later_is_served_in_turn() -> None:
    log = FakeLog()
    first, second = log.add("orders", partitions=2).partitions
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    first.append(*[Entry()] * 1000)
    for now_ms in range(0, 100, 10):
        assert len(receive(log, engine, now_ms)) == 10
    second.append(*[Entry()] * 5)
    received = receive(log, engine, 100) + receive(log, engine, 110)
    assert sum(message.partition for message in received) == 5
