"""Who never waits is not told of arrivals: the engine looks by itself whether a log has grown."""

from alpacamq.model.lanes import Lane
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import Acquired, QueueId, ReceiveReply, ReceiveRequest

from .fake_log import Entry, FakeLog

ORDERS = QueueId("workers", "orders")


def receive(log: FakeLog, engine: QueueEngine, now_ms: int) -> tuple[Acquired, ...]:
    outcome = log.handle(
        engine, [(ReceiveRequest(queue=ORDERS, consumer="", max_messages=10), "ticket")], now_ms
    )
    (reply,) = outcome.replies
    assert isinstance(reply.answer, ReceiveReply)
    return reply.answer.messages


def test_an_urgent_message_that_comes_while_others_are_ready_is_not_left_until_they_are_done() -> None:
    log = FakeLog()
    (partition,) = log.add("orders").partitions
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    partition.append(*[Entry()] * 1000)
    for now_ms in range(0, 100, 10):
        assert len(receive(log, engine, now_ms)) == 10
    urgent = partition.append(Entry(Lane.CRITICAL))
    assert urgent in [message.offset for message in receive(log, engine, 100)]


def test_a_partition_that_gets_its_messages_later_has_its_turns_all_the_same() -> None:
    log = FakeLog()
    first, second = log.add("orders", partitions=2).partitions
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    first.append(*[Entry()] * 1000)
    for now_ms in range(0, 100, 10):
        assert len(receive(log, engine, now_ms)) == 10
    second.append(*[Entry()] * 5)
    received = receive(log, engine, 100) + receive(log, engine, 110)
    assert sum(message.partition for message in received) == 5
