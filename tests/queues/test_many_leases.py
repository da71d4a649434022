"""Very many leases that end at the same moment."""

from alpacamq.model.topics import topic_config
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import Move, QueueId, ReceiveRequest

from .fake_log import Entry, FakeLog

ORDERS = QueueId("workers", "orders")


def test_leases_that_end_together_end_some_at_a_time_and_none_is_left() -> None:
    log = FakeLog()
    topic = log.add("orders")
    topic.config = topic_config({"queue.max.deliveries": "1"})
    topic.partitions[0].append(*[Entry()] * 10_000)
    engine = QueueEngine(log, lambda: 1, EngineLimits())
    engine.perform([(ReceiveRequest(queue=ORDERS, consumer="", max_messages=10_000, visibility_ms=10), 1)], 0)
    moves: list[Move] = []
    while engine.next_deadline_ms is not None:
        assert engine.next_deadline_ms <= 10
        outcome = engine.tick(10)
        assert 0 < len(outcome.moves) <= 2500
        moves += outcome.moves
    assert [move.offset for move in moves] == [*range(10_000)]
    assert [move.sequence for move in moves] == [*range(10_000)]
