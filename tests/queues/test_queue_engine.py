"""What the queue engine promises besides its stories: bounds, refusals, beginnings and ends of queues."""

from collections.abc import Mapping
from typing import Any

import pytest

from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    InvalidConfig,
    InvalidDelay,
    InvalidGroupId,
    InvalidRequest,
    InvalidTopicName,
    NotAcquired,
    StaleReceipt,
    TooManyGroups,
    TooManyWaiting,
    UnknownTopic,
)
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Outcome, Request
from alpacamq.queues.chunks import CHUNK_SIZE
from alpacamq.queues.engine import EngineLimits
from alpacamq.queues.messages import (
    Acquired,
    Action,
    ConfigureRequest,
    DeleteRequest,
    DescribeRequest,
    ListReply,
    ListRequest,
    Move,
    QueueId,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    ReleaseConsumerRequest,
    ResetRequest,
    Settlement,
    SettleReply,
    SettleRequest,
    Start,
    TopicDeleted,
)

from .fake_log import Entry, FakeLog, FakePartition
from .queue_host import QUEUE, QueueHost, contents

GREEDY = {"queue.max.in.flight": "1000000", "queue.max.in.flight.total": "10000000"}


def host(
    settings: Mapping[str, str] | None = None, *, partitions: int = 1, limits: EngineLimits | None = None
) -> QueueHost:
    log = FakeLog()
    log.add(QUEUE.topic, settings, partitions=partitions)
    return QueueHost(log, limits)


def offsets(messages: tuple[Acquired, ...]) -> list[int]:
    return [message.offset for message in messages]


def receive_request(**changes: object) -> ReceiveRequest:
    fields: dict[str, object] = {"queue": QUEUE, "consumer": "c1", "max_messages": 10}
    return ReceiveRequest(**(fields | changes))  # type: ignore[arg-type]


def test_acknowledging_a_hundred_thousand_messages_writes_a_few_hundred_records() -> None:
    queue = host(GREEDY)
    queue.publish(100_000)
    messages: tuple[Acquired, ...] = ()
    while len(messages) < 100_000:
        messages += queue.receive(10_000)
    queue.changes.clear()
    queue.ack(*messages)
    assert len(queue.changes) <= 100_000 // CHUNK_SIZE + 2
    assert contents(queue.engine.snapshot()).keys() == {change.key for change in queue.engine.snapshot()}
    assert sum(1 for _ in queue.engine.snapshot()) <= 3  # the queue, its head, and the chunk it begins in


def test_messages_done_behind_one_that_is_not_cost_a_bit_each() -> None:
    queue = host(GREEDY)
    queue.publish(100_000)
    (stuck,) = queue.receive(1, visibility_ms=3_600_000)
    while messages := queue.receive(5000):
        queue.ack(*messages)
    stored = [*queue.engine.snapshot()]
    assert len(stored) <= 100_000 // CHUNK_SIZE + 3
    assert sum(len(change.value or b"") for change in stored) < 100_000 // 8 * 2
    queue.restart()
    assert queue.receive() == ()
    assert queue.describe().partitions[0].ready == 0
    queue.ack(stuck)
    assert queue.describe().partitions[0].start_offset == 100_000


def test_what_lies_far_ahead_is_not_read_for_a_receive_at_the_front() -> None:
    queue = host(GREEDY)
    queue.publish(200_000)
    for _ in range(20):
        assert len(queue.receive(10)) == 10
    assert queue.log.outlines < 10


def test_an_urgent_message_is_found_behind_a_long_backlog() -> None:
    queue = host(GREEDY)
    queue.publish(100_000)
    urgent = queue.publish(1, Lane.CRITICAL)
    for _ in range(200):
        if offsets(queue.receive(1)) == [urgent]:
            return
        queue.advance(5)
    pytest.fail("nobody looked that far")


def test_no_more_runs_are_kept_in_memory_than_allowed() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic, GREEDY)
    queue = QueueHost(log, EngineLimits(max_indexed_runs=25))
    queue.append(*[Entry(Lane(at % 2)) for at in range(1000)])
    for _ in range(20):
        queue.receive(1)
        queue.advance(10)
    assert log.outlines <= 5
    # As messages leave, others are read.
    assert sum(len(queue.receive(100)) for _ in range(50)) == 980


def test_a_receive_finds_a_message_behind_much_that_is_none() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic)
    queue = QueueHost(log)
    ticket = queue.wait()
    queue.append(*[None] * 1000, Entry())
    assert queue.received(ticket) == [1000]
    assert queue.describe().partitions[0].start_offset == 1000


class SlowReads(QueueHost):
    """Reads that end when told to."""

    def __init__(self, log: FakeLog) -> None:
        self.reads: list[ReadBacklog] = []
        super().__init__(log)

    def take(self, outcome: Outcome) -> None:
        self.reads += outcome.reads
        outcome.reads = []
        super().take(outcome)

    def end_reads(self) -> None:
        reads, self.reads = self.reads, []
        super().take(Outcome(reads=reads))


def slow_reads(messages: int) -> SlowReads:
    log = FakeLog()
    log.add(QUEUE.topic).partitions[0].append(*[Entry()] * messages)
    return SlowReads(log)


def test_a_receive_that_does_not_wait_is_answered_when_the_log_was_read() -> None:
    queue = slow_reads(3)
    (found,) = queue.send(receive_request())
    assert queue.received(found) is None
    queue.end_reads()
    assert queue.received(found) == [0, 1, 2]
    queue.append(None)
    (nothing,) = queue.send(receive_request())
    queue.end_reads()
    assert queue.received(nothing) == []


def test_a_receive_that_does_not_wait_is_answered_although_a_read_does_not_end() -> None:
    queue = slow_reads(3)
    (ticket,) = queue.send(receive_request())
    queue.advance(1999)
    assert queue.received(ticket) is None
    queue.advance(1)
    assert queue.received(ticket) == []


def test_a_read_that_ends_after_a_reset_changes_nothing() -> None:
    queue = slow_reads(3)
    (ticket,) = queue.send(receive_request())
    queue.send(ResetRequest(queue=QUEUE, offsets={0: 2}))
    queue.end_reads()
    queue.end_reads()
    assert queue.received(ticket) == [2]


def test_describing_a_queue_changes_nothing() -> None:
    queue = host()
    queue.publish(5)
    queue.receive(2)
    queue.log.topics[QUEUE.topic].partitions[0].cut(1)
    before = [*queue.engine.snapshot()]
    written = len(queue.changes)
    (partition,) = queue.describe().partitions
    assert (partition.start_offset, partition.in_flight, partition.ready) == (1, 1, 3)
    assert [*queue.engine.snapshot()] == before
    assert len(queue.changes) == written


def test_reading_goes_on_for_everybody_who_waits() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic, partitions=2)
    queue = QueueHost(log)
    requests = [receive_request(partitions=(number,), wait_ms=5000) for number in range(2)]
    (first, second) = queue.send(*requests)
    queue.append(*[None] * 1000, Entry())
    assert queue.received(first) == [1000]
    assert queue.received(second) is None


@pytest.mark.parametrize("log_start", [0, CHUNK_SIZE - 3])
def test_what_is_done_stays_done_when_the_gap_before_it_is_read_again(log_start: int) -> None:
    queue = host()
    queue.log.topics[QUEUE.topic].partitions[0].start = log_start
    queue.receive()
    queue.append(None, Entry(), Entry(Lane.HIGH))
    messages = queue.receive()
    queue.restart()
    queue.ack(*messages)
    assert queue.receive() == ()
    assert queue.describe().partitions[0].start_offset == log_start + 3


def test_a_log_that_grew_without_a_word_is_noticed_by_the_next_receive() -> None:
    queue = host()
    assert queue.receive() == ()
    queue.log.topics[QUEUE.topic].partitions[0].append(Entry())
    assert offsets(queue.receive()) == [0]


def test_a_group_that_begins_at_the_end_gets_what_comes_later_also_in_new_partitions() -> None:
    queue = host(partitions=2)
    queue.publish(5)
    assert queue.receive(start=Start.LATEST) == ()
    queue.publish(1)
    queue.publish(1, partition=1)
    queue.log.topics[QUEUE.topic].partitions.append(FakePartition())
    queue.publish(1, partition=2)
    queue.restart()
    messages = queue.receive(start=Start.LATEST)
    assert {(message.partition, message.offset) for message in messages} == {(0, 5), (1, 0), (2, 0)}


def test_a_receive_that_waits_gets_messages_of_a_partition_that_is_added() -> None:
    queue = host()
    ticket = queue.wait()
    queue.log.topics[QUEUE.topic].partitions.append(FakePartition())
    queue.publish(1, partition=1)
    assert queue.received(ticket) == [0]


def test_partitions_take_turns() -> None:
    queue = host(partitions=3)
    for partition in range(3):
        queue.publish(4, partition=partition)
    assert [queue.receive(1)[0].partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [message.partition for message in queue.receive(2, partitions=(1,))] == [1, 1]


def test_a_receive_of_nothing_only_tells_that_there_is_something() -> None:
    queue = host()
    ticket = queue.wait(0)
    assert queue.received(ticket) is None
    queue.publish(1)
    assert queue.received(ticket) == []
    assert queue.received(queue.wait(0)) == []
    assert offsets(queue.receive()) == [0]
    assert queue.describe().received_total == 1


def test_whoever_is_gone_is_given_nothing() -> None:
    queue = host()
    gone, there = queue.wait(), queue.wait(consumer="c2")
    queue.engine.cancel(gone)
    queue.publish(1)
    assert queue.received(gone) is None
    assert queue.received(there) == [0]
    queue.engine.cancel(gone)
    queue.engine.cancel(there)


def test_those_who_wait_are_served_in_the_order_they_came() -> None:
    queue = host()
    tickets = [queue.wait(1, consumer=f"c{i}") for i in range(3)]
    queue.publish(2)
    late = queue.wait(1, consumer="late")
    assert [queue.received(ticket) for ticket in [*tickets, late]] == [[0], [1], None, None]
    queue.advance(20_000)
    assert [queue.received(ticket) for ticket in [*tickets, late]] == [[0], [1], [], []]


def test_consumers_without_a_name_are_held_to_the_limit_of_the_queue_only() -> None:
    queue = host({"queue.max.in.flight": "2", "queue.max.in.flight.total": "5"})
    queue.publish(9)
    assert len(queue.receive(consumer="named")) == 2
    assert len(queue.receive(consumer="")) == 3


def test_a_consumer_that_is_gone_gives_back_what_it_held_and_what_fails_so_too_often_is_dead() -> None:
    queue = host({"queue.max.deliveries": "2"})
    queue.publish(2)
    for _ in range(2):
        assert queue.moves == []
        assert offsets(queue.receive()) == [0, 1]
        assert queue.ask(ReleaseConsumerRequest(queue=QUEUE, consumer="c1")) == SettleReply()
    assert [(move.offset, move.reason) for move in queue.moves] == [
        (0, "its consumer is gone"),
        (1, "its consumer is gone"),
    ]
    assert queue.ask(ReleaseConsumerRequest(queue=QUEUE, consumer="stranger")) == SettleReply()


def test_dead_letters_stay_where_they_are_however_often_they_fail() -> None:
    dead = QueueId("workers", "orders.dlq")
    queue = host()
    queue.log.add(dead.topic, {"queue.max.deliveries": "1"})
    queue.append(Entry(), topic=dead.topic)
    for count in range(1, 7):
        (message,) = queue.receive(queue=dead)
        assert message.delivery_count == count
        action = Action.NACK if count % 2 else Action.REJECT
        settlement = Settlement(0, 0, action, message.delivery_count, message.generation)
        assert queue.ask(SettleRequest(queue=dead, settlements=(settlement,))) == SettleReply(results=(None,))
        queue.advance(60_000)
    assert queue.moves == []


def test_every_partition_moves_under_a_producer_id_of_its_own_that_survives() -> None:
    queue = host(partitions=2)
    for partition in range(2):
        queue.publish(2, partition=partition)
    messages = queue.receive()
    queue.settle(Action.REJECT, *messages, reason="broken")
    first = [(move.partition, move.sequence, move.producer_id) for move in queue.moves]
    assert sorted(first) == [(0, 0, 100), (0, 1, 100), (1, 0, 101), (1, 1, 101)]
    queue.restart()
    assert [(move.partition, move.sequence, move.producer_id) for move in queue.moves] == sorted(first)
    queue.carry_out()
    queue.restart()
    assert queue.moves == []


def test_word_of_a_move_that_is_not_known_changes_nothing() -> None:
    queue = host()
    queue.publish(1)
    (message,) = queue.receive()
    queue.settle(Action.REJECT, message)
    (move,) = queue.moves
    wrong: list[dict[str, object]] = [
        {"queue": QueueId("others", "orders")},
        {"partition": 7},
        {"offset": 8},
        {"producer_id": 7},
        {"sequence": 7},
    ]
    fields = {name: getattr(move, name) for name in move.__struct_fields__}
    for change in wrong:
        queue.moves = [Move(**{**fields, **change})]
        queue.carry_out()
    assert queue.describe().partitions[0].dead_lettering == 1
    queue.moves = [move, move]
    queue.carry_out()
    assert queue.describe().partitions[0].dead_lettering == 0


def test_a_message_that_cannot_be_moved_is_there_again_as_if_nobody_had_had_it() -> None:
    queue = host({"queue.ordering": "key"})
    queue.publish(2, key=b"k")
    (message,) = queue.receive(1)
    queue.settle(Action.MOVE, message, target="gone")
    assert queue.receive() == ()
    queue.give_back()
    (again,) = queue.receive()
    assert (again.offset, again.delivery_count) == (0, 1)
    queue.restart()
    assert queue.moves == []


def test_a_topic_that_is_deleted_takes_its_queues_with_it() -> None:
    queue = host()
    queue.publish(3)
    (message,) = queue.receive(1)
    queue.log.add("other")
    queue.receive(queue=QueueId("workers", "other"))
    del queue.log.topics[QUEUE.topic]
    queue.post(TopicDeleted(topic=QUEUE.topic))
    assert queue.ask(ListRequest()) == ListReply(queues=(QueueId("workers", "other"),))
    queue.check_changes()
    assert isinstance(queue.refusal(receive_request()), UnknownTopic)
    assert [type(result) for result in queue.settle(Action.ACK, message)] == [StaleReceipt]
    assert queue.engine.next_deadline_ms is None


def test_whoever_waits_on_a_topic_that_is_deleted_is_told() -> None:
    queue = host()
    ticket = queue.wait()
    del queue.log.topics[QUEUE.topic]
    queue.post(TopicDeleted(topic=QUEUE.topic))
    assert isinstance(queue.answers[ticket], UnknownTopic)


def test_a_queue_whose_topic_went_while_the_broker_was_down_is_forgotten() -> None:
    queue = host()
    queue.publish(3)
    queue.receive(2)
    del queue.log.topics[QUEUE.topic]
    queue.restart()
    assert queue.ask(ListRequest()) == ListReply(queues=())
    assert contents(queue.changes) == {}


def test_a_queue_that_is_deleted_begins_anew_and_takes_no_receipts_of_before() -> None:
    queue = host()
    queue.publish(3)
    messages = queue.receive()
    waiting = queue.wait()
    assert queue.ask(DeleteRequest(queue=QUEUE)) == SettleReply()
    assert isinstance(queue.answers[waiting], GroupIdNotFound)
    assert contents(queue.changes) == {}
    assert isinstance(queue.refusal(DeleteRequest(queue=QUEUE)), GroupIdNotFound)
    assert isinstance(queue.refusal(DescribeRequest(queue=QUEUE)), GroupIdNotFound)
    assert offsets(queue.receive()) == [0, 1, 2]
    assert {type(result) for result in queue.settle(Action.ACK, *messages)} == {StaleReceipt}
    queue.check_changes()


def test_what_happens_at_once_is_written_as_it_ended() -> None:
    queue = host()
    queue.publish(3)
    receive = receive_request()
    queue.send(
        receive, DeleteRequest(queue=QUEUE), receive, ResetRequest(queue=QUEUE, offsets={0: 1}), receive
    )
    assert queue.describe().partitions[0].in_flight == 2
    queue.restart()
    assert queue.describe().partitions[0].in_flight == 2
    queue.send(ResetRequest(queue=QUEUE, offsets={0: 3}), DeleteRequest(queue=QUEUE))
    assert contents(queue.changes) == {}


def test_a_settlement_by_consumer_is_for_what_that_consumer_holds() -> None:
    queue = host()
    queue.publish(2)
    queue.receive(1, consumer="c1")
    queue.receive(1, consumer="c2")
    results = queue.settle_all(
        Settlement(0, 0, Action.ACK, consumer="c1"),
        Settlement(0, 0, Action.ACK, consumer="c1"),
        Settlement(0, 1, Action.ACK, consumer="c1"),
        Settlement(0, 2, Action.ACK, consumer="c1"),
        Settlement(4, 0, Action.ACK, consumer="c1"),
    )
    assert [type(result) for result in results] == [type(None), *[NotAcquired] * 4]
    assert "orders-0" in str(results[2])
    assert "'c2'" in str(results[2])


@pytest.mark.parametrize(
    ("settlement", "error"),
    [
        pytest.param(
            Settlement(0, 0, Action.NACK, 1, delay_ms=-1), InvalidDelay, id="rest of less than nothing"
        ),
        pytest.param(Settlement(0, 0, Action.NACK, 1, delay_ms=1 << 60), InvalidDelay, id="rest for ever"),
        pytest.param(Settlement(0, 0, Action.EXTEND, 1, delay_ms=-1), InvalidDelay, id="into the past"),
        pytest.param(Settlement(0, 0, Action.EXTEND, 1, delay_ms=1 << 60), InvalidDelay, id="for ever"),
        pytest.param(Settlement(0, 0, Action.MOVE, 1), InvalidRequest, id="nowhere"),
        pytest.param(Settlement(0, 0, Action.MOVE, 1, target="a/b"), InvalidTopicName, id="to no name"),
        pytest.param(Settlement(0, 0, Action.ACK, 2), StaleReceipt, id="another delivery"),
        pytest.param(Settlement(0, 0, Action.ACK, 1, 7), StaleReceipt, id="another generation"),
        pytest.param(Settlement(0, -1, Action.NACK, 1), StaleReceipt, id="no offset"),
        pytest.param(Settlement(0, 1 << 62, Action.ACK, 1), StaleReceipt, id="far away"),
        pytest.param(Settlement(-1, 0, Action.ACK, 1), NotAcquired, id="no partition"),
    ],
)
def test_a_settlement_that_makes_no_sense_is_refused_and_changes_nothing(
    settlement: Settlement, error: type[AlpacaError]
) -> None:
    queue = host()
    queue.publish(1)
    queue.receive()
    (result,) = queue.settle_all(settlement)
    assert type(result) is error
    assert queue.describe().partitions[0].in_flight == 1
    assert queue.moves == []


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(receive_request(max_messages=-1), InvalidRequest, id="fewer than none"),
        pytest.param(receive_request(wait_ms=-1), InvalidRequest, id="wait backwards"),
        pytest.param(receive_request(visibility_ms=-1), InvalidRequest, id="lease backwards"),
        pytest.param(receive_request(visibility_ms=1 << 40), InvalidRequest, id="lease for ever"),
        pytest.param(receive_request(consumer="c" * 256), InvalidRequest, id="long consumer"),
        pytest.param(receive_request(consumer="\ud800"), InvalidRequest, id="consumer that is no text"),
        pytest.param(receive_request(partitions=(0, 1)), UnknownTopic, id="no such partition"),
        pytest.param(receive_request(partitions=(-1,)), UnknownTopic, id="partition below zero"),
        pytest.param(receive_request(queue=QueueId("g", "nowhere")), UnknownTopic, id="no such topic"),
        pytest.param(receive_request(queue=QueueId("", "orders")), InvalidGroupId, id="nobody"),
        pytest.param(receive_request(queue=QueueId("g" * 1025, "orders")), InvalidGroupId, id="long group"),
        pytest.param(receive_request(queue=QueueId("\ud800", "orders")), InvalidGroupId, id="group no text"),
        pytest.param(ResetRequest(queue=QUEUE, offsets={1: 0}), UnknownTopic, id="reset of no partition"),
        pytest.param(
            ConfigureRequest(queue=QUEUE, overrides={"retention.ms": "1"}), InvalidConfig, id="not a group's"
        ),
        pytest.param(
            ConfigureRequest(queue=QUEUE, overrides={"queue.orderign": "key"}), InvalidConfig, id="misspelt"
        ),
        pytest.param(
            ConfigureRequest(queue=QUEUE, overrides={"queue.ttl.ms": "soon"}), InvalidConfig, id="no number"
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_makes_no_queue(
    request_: Request[Any], error: type[AlpacaError]
) -> None:
    queue = host()
    assert type(queue.refusal(request_)) is error
    assert queue.ask(ListRequest()) == ListReply(queues=())
    assert queue.changes == []


def test_there_are_only_so_many_queues_and_so_many_who_wait() -> None:
    queue = host(limits=EngineLimits(max_queues=1, max_waiting_receives=2))
    tickets = [queue.wait(), queue.wait()]
    assert isinstance(queue.answers[queue.wait()], TooManyWaiting)
    queue.engine.cancel(tickets[0])
    assert queue.received(queue.wait()) is None
    assert isinstance(queue.refusal(receive_request(queue=QueueId("others", "orders"))), TooManyGroups)


def test_a_reset_beyond_the_log_is_one_to_its_ends() -> None:
    queue = host()
    queue.publish(5)
    queue.log.topics[QUEUE.topic].partitions[0].cut(2)
    assert queue.ask(ResetRequest(queue=QUEUE, offsets={0: 99})) == SettleReply()
    assert queue.receive() == ()
    assert queue.ask(ResetRequest(queue=QUEUE, offsets={0: -5})) == SettleReply()
    assert offsets(queue.receive()) == [2, 3, 4]


def test_settings_of_the_group_go_before_those_of_the_topic_and_can_be_taken_back() -> None:
    queue = host({"queue.visibility.timeout.ms": "7000"})
    queue.publish(1)
    overrides: dict[str, str | None] = {"queue.visibility.timeout.ms": "3000"}
    reply = queue.ask(ConfigureRequest(queue=QUEUE, overrides=overrides))
    assert reply == queue.describe()
    assert queue.describe().overrides == overrides
    queue.restart()
    (message,) = queue.receive()
    assert message.deadline_ms == queue.now_ms + 3000
    queue.settle(Action.RELEASE, message)
    queue.ask(ConfigureRequest(queue=QUEUE, overrides={"queue.visibility.timeout.ms": None}))
    (message,) = queue.receive()
    assert message.deadline_ms == queue.now_ms + 7000
    assert queue.describe().overrides == {}


def test_a_lease_that_is_over_is_over_before_anybody_has_seen_to_it() -> None:
    queue = host(GREEDY)
    queue.publish(3000)
    messages = [queue.receive(1, consumer=f"c{at}")[0] for at in range(3000)]
    queue.now_ms += 30_000
    (late,) = queue.settle(Action.EXTEND, messages[-1], delay_ms=60_000)
    assert isinstance(late, StaleReceipt)
    queue.ack(*messages)


def test_a_lease_without_length_ends_at_once() -> None:
    queue = host({"queue.max.deliveries": "2"})
    queue.publish(1)
    for count in (1, 2):
        (message,) = queue.receive(visibility_ms=0)
        assert message.delivery_count == count
    queue.advance(0)
    assert [move.offset for move in queue.moves] == [0]


def test_figures_tell_lanes_apart_and_count_what_is_new() -> None:
    queue = host(GREEDY)
    queue.publish(5)
    messages = queue.receive(2)
    queue.settle(Action.NACK, messages[0])
    queue.publish(3, Lane.HIGH)
    reply = queue.describe()
    (stats,) = reply.partitions
    # What was not read yet is taken for normal.
    assert (stats.ready, stats.in_flight, stats.resting) == (6, 1, 1)
    assert stats.lanes["normal"].ready == 6
    queue.receive(4)
    (stats,) = queue.describe().partitions
    normal, high = stats.lanes["normal"], stats.lanes["high"]
    assert (high.ready, high.in_flight, high.enqueued_total, high.delivered_total) == (0, 3, 3, 3)
    assert (normal.ready, normal.in_flight, normal.resting, normal.delivered_total) == (2, 2, 1, 3)
    assert (stats.oldest_offset, stats.end_offset) == (0, 8)
    assert (reply.nacked_total, queue.describe().received_total) == (1, 6)


def test_a_queue_that_was_only_configured_shows_all_there_is_as_ready() -> None:
    queue = host()
    queue.publish(5)
    queue.ask(ConfigureRequest(queue=QUEUE, overrides={}))
    (stats,) = queue.describe().partitions
    assert (stats.start_offset, stats.ready, stats.oldest_offset) == (0, 5, 0)
    assert queue.receive(start=Start.LATEST) == ()


def test_many_requests_at_once_are_answered_in_order_and_written_together() -> None:
    queue = host(GREEDY)
    queue.publish(100)
    queue.receive(1)
    queue.changes.clear()
    tickets = queue.send(*[receive_request(max_messages=9, consumer=f"c{at}") for at in range(10)])
    replies = [queue.answers[ticket] for ticket in tickets]
    assert [len(reply.messages) for reply in replies if isinstance(reply, ReceiveReply)] == [9] * 10
    assert len(queue.changes) == 1
