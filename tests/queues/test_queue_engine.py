"""The queue engine beyond its transcripts: limits, invalid requests, creation and deletion of queues."""

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
    PartitionNotReady,
    StaleReceipt,
    TooManyGroups,
    TooManyWaiting,
    UnknownTopic,
)
from alpacamq.model.ids import NO_TOPIC_ID
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change, Outcome, Request
from alpacamq.queues.chunks import CHUNK_SIZE
from alpacamq.queues.engine import EngineLimits
from alpacamq.queues.messages import (
    Acquired,
    Action,
    BacklogRead,
    ConfigureRequest,
    DeleteRequest,
    DescribeRequest,
    ListReply,
    ListRequest,
    Move,
    OffsetRange,
    Outline,
    QueueId,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    ReleaseConsumerRequest,
    ResetRequest,
    Settlement,
    SettleReply,
    SettleRequest,
    ShareTerms,
    Start,
    TopicsChanged,
)
from alpacamq.queues.records import queue_key

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


def test_done_messages_behind_an_unfinished_one_take_a_bit_each() -> None:
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


def test_a_receive_at_the_front_does_not_read_far_ahead() -> None:
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
    pytest.fail("the urgent message was not found")


def test_the_number_of_indexed_runs_is_limited() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic, GREEDY)
    queue = QueueHost(log, EngineLimits(max_indexed_runs=25))
    queue.append(*[Entry(Lane(at % 2)) for at in range(1000)])
    for _ in range(20):
        queue.receive(1)
        queue.advance(10)
    assert log.outlines <= 5
    # As messages are delivered, others are read.
    assert sum(len(queue.receive(100)) for _ in range(50)) == 980


def test_a_receive_finds_a_message_behind_many_offsets_without_messages() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic)
    queue = QueueHost(log)
    handle = queue.wait()
    queue.append(*[None] * 1000, Entry())
    assert queue.received(handle) == [1000]
    assert queue.describe().partitions[0].start_offset == 1000


class SlowReads(QueueHost):
    """A host whose reads complete on request."""

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


def test_a_read_for_a_deleted_queue_is_not_for_its_successor() -> None:
    queue = slow_reads(1)
    queue.send(receive_request())
    (stale,) = queue.reads
    queue.post(TopicsChanged())
    queue.log.add(QUEUE.topic).partitions[0].append(*[Entry()] * 4)
    queue.advance(1)
    (ticket,) = queue.send(receive_request())
    queue.post(BacklogRead(read=stale, outline=Outline((OffsetRange(0, 0, Lane.NORMAL),), 1)))
    assert queue.received(ticket) is None
    queue.end_reads()
    assert queue.received(ticket) == [0, 1, 2, 3]


def test_ready_messages_wait_only_briefly_for_a_slow_read() -> None:
    log = FakeLog()
    first, second = log.add(QUEUE.topic, partitions=2).partitions
    first.append(*[Entry()] * 20)
    queue = SlowReads(log)
    queue.send(receive_request(max_messages=1))
    queue.end_reads()
    second.append(Entry())
    queue.advance(100)
    (ticket,) = queue.send(receive_request(max_messages=1, wait_ms=20_000))
    assert queue.reads
    queue.advance(20)
    assert queue.received(ticket) == [1]


def test_the_first_receive_waits_until_the_lanes_are_known() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic).partitions[0].append(*[Entry()] * 30, Entry(Lane.CRITICAL))
    queue = SlowReads(log)
    first = queue.send(receive_request(max_messages=1))[0]
    for _ in range(4):
        assert queue.received(first) is None
        queue.end_reads()
    assert queue.received(first) == [30]


def test_the_first_receive_waits_for_a_quarter_of_a_second_at_most() -> None:
    queue = SlowReads(FakeLog(slab=10))
    queue.log.add(QUEUE.topic).partitions[0].append(*[Entry()] * 30)
    first = queue.send(receive_request(max_messages=1))[0]
    queue.end_reads()
    queue.advance(249)
    assert queue.received(first) is None
    queue.advance(1)
    assert queue.received(first) == [0]


def test_a_wait_that_ends_while_its_topic_is_deleted_is_answered() -> None:
    queue = host()
    ticket = queue.wait(wait_ms=1000)
    queue.publish(1)
    (message,) = queue.answers[ticket].messages  # type: ignore[attr-defined]
    ticket = queue.wait(wait_ms=1000)
    del queue.log.topics[QUEUE.topic]  # and the event comes later
    queue.advance(1000)
    assert isinstance(queue.answers[ticket], UnknownTopic)
    queue.advance(message.deadline_ms)  # its lease expires, too


def test_a_wait_that_ends_while_its_topic_cannot_be_read_is_answered() -> None:
    queue = host()
    queue.publish(2)
    (message,) = queue.receive(1)
    ticket = queue.wait(max_messages=0, wait_ms=1000)
    queue.advance(2000)
    ticket = queue.wait(consumer="c2", wait_ms=1000)
    queue.log.topics[QUEUE.topic].is_readable = False
    queue.advance(1000)
    queue.advance(message.deadline_ms)  # its lease expires, too
    assert ticket in queue.answers
    queue.log.topics[QUEUE.topic].is_readable = True
    assert offsets(queue.receive()) == [0, 1]


def test_in_key_order_what_retention_leaves_is_received() -> None:
    log = FakeLog()
    topic = log.add(QUEUE.topic, {"queue.ordering": "key"})
    topic.partitions[0].append(*[Entry(key=b"%d" % (n % 3)) for n in range(20)])
    queue = QueueHost(log)
    queue.receive(1)
    topic.partitions[0].cut(5)
    assert offsets(queue.receive(1)) == [5]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_consumer_at_its_limit_is_served_when_retention_deletes_what_it_leases(ordering: str) -> None:
    queue = host({"queue.max.in.flight": "2", "queue.ordering": ordering})
    for key in (b"a", b"b", b"c", b"d"):
        queue.publish(1, key=key)
    assert offsets(queue.receive(2)) == [0, 1]
    waiting = queue.wait()
    assert queue.received(waiting) is None
    queue.log.topics[QUEUE.topic].partitions[0].cut(2)
    queue.post(RecordsArrived(topic=QUEUE.topic, partition=0))
    assert queue.received(waiting) == [2, 3]
    queue.log.topics[QUEUE.topic].partitions[0].cut(4)
    assert queue.receive() == ()  # not TooManyInFlight


def test_a_stale_entry_of_the_index_does_not_hide_an_arrival() -> None:
    queue = host()
    queue.publish(1)
    (message,) = queue.receive()
    queue.settle(Action.NACK, message, delay_ms=0)
    queue.ack(message)
    queue.log.topics[QUEUE.topic].partitions[0].append(Entry())
    assert queue.received(queue.wait()) == [1]


def test_a_poll_gets_its_reply_when_the_log_was_read() -> None:
    queue = slow_reads(3)
    (found,) = queue.send(receive_request())
    assert queue.received(found) is None
    queue.end_reads()
    assert queue.received(found) == [0, 1, 2]
    queue.append(None)
    (nothing,) = queue.send(receive_request())
    queue.end_reads()
    assert queue.received(nothing) == []


def test_a_poll_gets_a_reply_although_a_read_does_not_complete() -> None:
    queue = slow_reads(3)
    (handle,) = queue.send(receive_request())
    queue.advance(1999)
    assert queue.received(handle) is None
    queue.advance(1)
    assert queue.received(handle) == []


def test_a_read_that_completes_after_a_reset_changes_nothing() -> None:
    queue = slow_reads(3)
    (handle,) = queue.send(receive_request())
    queue.send(ResetRequest(queue=QUEUE, offsets={0: 2}))
    queue.end_reads()
    queue.end_reads()
    assert queue.received(handle) == [2]


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


def test_reads_continue_for_all_waiting_receives() -> None:
    log = FakeLog(slab=10)
    log.add(QUEUE.topic, partitions=2)
    queue = QueueHost(log)
    requests = [receive_request(partitions=(number,), wait_ms=5000) for number in range(2)]
    (first, second) = queue.send(*requests)
    queue.append(*[None] * 1000, Entry())
    assert queue.received(first) == [1000]
    assert queue.received(second) is None


@pytest.mark.parametrize("log_start", [0, CHUNK_SIZE - 3])
def test_done_messages_stay_done_when_the_gap_before_them_is_read_again(log_start: int) -> None:
    queue = host()
    queue.log.topics[QUEUE.topic].partitions[0].start = log_start
    queue.receive()
    queue.append(None, Entry(), Entry(Lane.HIGH))
    messages = queue.receive()
    queue.restart()
    queue.ack(*messages)
    assert queue.receive() == ()
    assert queue.describe().partitions[0].start_offset == log_start + 3


@pytest.mark.parametrize("ordering", ["none", "key"])
@pytest.mark.parametrize("is_first_kept", [False, True])
def test_leased_messages_that_compaction_has_removed_are_done(ordering: str, is_first_kept: bool) -> None:
    queue = host({"queue.ordering": ordering})
    for at in range(300):
        queue.publish(1, key=b"%d" % at)
    leased = queue.receive(3, visibility_ms=60_000)
    queue.settle(Action.NACK, leased[2], delay_ms=70_000)
    (partition,) = queue.log.topics[QUEUE.topic].partitions
    partition.entries[is_first_kept:290] = [None] * (290 - is_first_kept)
    queue.restart()
    assert offsets(queue.receive(1)) == [290]
    stats = queue.describe().partitions[0]
    assert (stats.in_flight, stats.backoff) == (1 + is_first_kept, 0)
    queue.ack(leased[0])
    assert queue.describe().partitions[0].start_offset == 290
    queue.check_changes()
    queue.ask(DeleteRequest(queue=QUEUE))
    queue.advance(80_000)


def test_retention_empties_other_lanes_during_a_receive_of_some_partitions() -> None:
    queue = host(partitions=3)
    for lane, partition, count in [
        (Lane.HIGH, 0, 1), (Lane.CRITICAL, 1, 60), (Lane.CRITICAL, 0, 10), (Lane.HIGH, 1, 5),
        (Lane.CRITICAL, 1, 20), (Lane.CRITICAL, 2, 9), (Lane.HIGH, 2, 9),
    ]:  # fmt: skip
        queue.now_ms += 1
        queue.publish(count, lane, partition=partition)
    queue.receive(1, partitions=(2,))
    queue.now_ms += 1000
    queue.log.topics[QUEUE.topic].partitions[0].cut(11)
    received = queue.receive(80, partitions=(0, 1))
    assert {message.partition for message in received} == {1}
    assert len(received) == 80


def test_the_next_receive_notices_growth_without_an_event() -> None:
    queue = host()
    assert queue.receive() == ()
    queue.log.topics[QUEUE.topic].partitions[0].append(Entry())
    assert offsets(queue.receive()) == [0]


def test_a_group_that_starts_at_the_end_gets_later_messages_also_in_new_partitions() -> None:
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


def test_a_waiting_receive_gets_messages_of_an_added_partition() -> None:
    queue = host()
    handle = queue.wait()
    queue.log.topics[QUEUE.topic].partitions.append(FakePartition())
    queue.publish(1, partition=1)
    assert queue.received(handle) == [0]


def test_a_receive_of_zero_messages_reports_availability_without_leasing() -> None:
    queue = host()
    handle = queue.wait(0)
    assert queue.received(handle) is None
    queue.publish(1)
    assert queue.received(handle) == []
    assert queue.received(queue.wait(0)) == []
    assert offsets(queue.receive()) == [0]
    assert queue.describe().received_total == 1


def test_a_cancelled_receive_leases_nothing() -> None:
    queue = host()
    cancelled, waiting = queue.wait(), queue.wait(consumer="c2")
    queue.engine.cancel(cancelled)
    queue.publish(1)
    assert queue.received(cancelled) is None
    assert queue.received(waiting) == [0]
    queue.engine.cancel(cancelled)
    queue.engine.cancel(waiting)


def test_waiting_receives_are_served_in_order_of_arrival() -> None:
    queue = host()
    handles = [queue.wait(1, consumer=f"c{i}") for i in range(3)]
    queue.publish(2)
    late = queue.wait(1, consumer="late")
    assert [queue.received(handle) for handle in [*handles, late]] == [[0], [1], None, None]
    queue.advance(20_000)
    assert [queue.received(handle) for handle in [*handles, late]] == [[0], [1], [], []]


def test_consumers_without_a_name_have_only_the_limit_of_the_queue() -> None:
    queue = host({"queue.max.in.flight": "2", "queue.max.in.flight.total": "5"})
    queue.publish(9)
    assert len(queue.receive(consumer="named")) == 2
    assert len(queue.receive(consumer="")) == 3


def test_releasing_a_consumer_ends_its_leases_and_dead_letters_spent_messages() -> None:
    queue = host({"queue.max.deliveries": "2"})
    queue.publish(2)
    for _ in range(2):
        assert queue.moves == []
        assert offsets(queue.receive()) == [0, 1]
        assert queue.ask(ReleaseConsumerRequest(queue=QUEUE, consumer="c1")) == SettleReply()
    assert [(move.offset, move.reason) for move in queue.moves] == [
        (0, "consumer disconnected"),
        (1, "consumer disconnected"),
    ]
    assert queue.ask(ReleaseConsumerRequest(queue=QUEUE, consumer="stranger")) == SettleReply()


def test_dead_letters_are_not_dead_lettered_again() -> None:
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


def test_every_partition_moves_with_its_own_producer_id_also_after_a_restart() -> None:
    queue = host(partitions=2)
    for partition in range(2):
        queue.publish(2, partition=partition)
    messages = queue.receive()
    queue.settle(Action.REJECT, *messages, reason="broken")
    first = [(move.partition, move.sequence, move.producer_id) for move in queue.moves]
    assert sorted(first) == [(0, 0, 100), (0, 1, 100), (1, 0, 101), (1, 1, 101)]
    queue.restart()
    assert [(move.partition, move.sequence, move.producer_id) for move in queue.moves] == sorted(first)
    queue.perform_moves()
    queue.restart()
    assert queue.moves == []


def test_completion_of_an_unknown_move_changes_nothing() -> None:
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
        queue.perform_moves()
    assert queue.describe().partitions[0].dead_lettering == 1
    queue.moves = [move, move]
    queue.perform_moves()
    assert queue.describe().partitions[0].dead_lettering == 0


def test_a_message_that_cannot_be_moved_is_available_again_and_the_delivery_does_not_count() -> None:
    queue = host({"queue.ordering": "key"})
    queue.publish(2, key=b"k")
    (message,) = queue.receive(1)
    queue.settle(Action.MOVE, message, target="gone")
    assert queue.receive() == ()
    queue.return_moves()
    (again,) = queue.receive()
    assert (again.offset, again.delivery_count) == (0, 1)
    queue.restart()
    assert queue.moves == []


def test_deleting_a_topic_deletes_its_queues() -> None:
    queue = host()
    queue.publish(3)
    (message,) = queue.receive(1)
    queue.log.add("other")
    queue.receive(queue=QueueId("workers", "other"))
    del queue.log.topics[QUEUE.topic]
    queue.post(TopicsChanged())
    assert queue.ask(ListRequest()) == ListReply(queues=((QueueId("workers", "other"), {}),))
    queue.check_changes()
    assert isinstance(queue.error_of(receive_request()), UnknownTopic)
    assert [type(result) for result in queue.settle(Action.ACK, message)] == [StaleReceipt]
    assert queue.engine.next_deadline_ms is None


def test_waiting_receives_of_a_deleted_topic_get_an_error() -> None:
    queue = host()
    handle = queue.wait()
    del queue.log.topics[QUEUE.topic]
    queue.post(TopicsChanged())
    assert isinstance(queue.answers[handle], UnknownTopic)


def test_a_queue_whose_topic_was_deleted_during_downtime_is_deleted() -> None:
    queue = host()
    queue.publish(3)
    queue.receive(2)
    del queue.log.topics[QUEUE.topic]
    queue.restart()
    assert queue.ask(ListRequest()) == ListReply(queues=())
    assert contents(queue.changes) == {}


def recreate(queue: QueueHost, messages: int) -> None:
    """Delete the topic and create it again, with messages."""
    del queue.log.topics[QUEUE.topic]
    queue.log.add(QUEUE.topic).partitions[0].append(*[Entry()] * messages)


@pytest.mark.parametrize("is_down", [False, True], ids=["unnoticed", "during downtime"])
def test_a_topic_starts_without_the_queue_of_a_deleted_one_of_its_name(is_down: bool) -> None:
    """The engine did not hear of the deletion."""
    queue = host({"queue.max.deliveries": "1"})
    queue.publish(6)
    done, dead, leased, *_ = queue.receive(4)
    queue.ack(done)
    queue.settle(Action.REJECT, dead)
    recreate(queue, 5)
    if is_down:
        queue.restart()
    assert [type(result) for result in queue.settle(Action.ACK, leased)] == [StaleReceipt]
    assert offsets(queue.receive()) == [0, 1, 2, 3, 4]
    queue.perform_moves()
    assert queue.describe().partitions[0].in_flight == 5
    queue.restart()
    assert queue.moves == []
    assert queue.describe().partitions[0].in_flight == 5


def test_a_waiting_receive_does_not_get_messages_of_the_next_topic_of_that_name() -> None:
    queue = host()
    handle = queue.wait()
    recreate(queue, 1)
    queue.post(RecordsArrived(topic=QUEUE.topic, partition=0))
    assert isinstance(queue.answers[handle], UnknownTopic)


def test_a_queue_that_is_loaded_while_its_partition_cannot_be_read_keeps_its_state() -> None:
    queue = host()
    queue.publish(3)
    (first, _) = queue.receive(2)
    queue.ack(first)
    topic = queue.log.topics[QUEUE.topic]
    topic.is_readable = False
    queue.engine.check_loadable(lambda _topic: NO_TOPIC_ID)
    queue.restart()
    assert queue.describe().partitions[0].in_flight == 1
    assert queue.receive() == ()
    topic.is_readable = True
    assert offsets(queue.receive()) == [2]


def test_a_queue_is_not_loaded_before_a_partition_that_is_led_here_is_open() -> None:
    """Its end says whether messages were lost."""

    class OpeningLog(FakeLog):
        def leader_end(self, topic: str, partition: int) -> int | None:
            raise PartitionNotReady("being opened")

    log = OpeningLog()
    log.add(QUEUE.topic).partitions[0].append(Entry())
    queue = QueueHost(log)
    queue.receive()
    with pytest.raises(PartitionNotReady):
        queue.engine.check_loadable(lambda _topic: NO_TOPIC_ID)


class PartlyUnreadable(FakeLog):
    """Some partitions cannot be read now."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[int] = set()

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        if partition in self.unreadable:
            raise PartitionNotReady("its leader cannot be reached")
        return super().bounds(topic, partition, is_committed=is_committed)


def test_a_new_queue_opens_the_partitions_that_can_be_read_and_the_others_later() -> None:
    log = PartlyUnreadable()
    log.add(QUEUE.topic, partitions=2)
    for partition in log.topics[QUEUE.topic].partitions:
        partition.append(*[Entry()] * 2)
    queue = QueueHost(log)
    log.unreadable = {1}
    assert [each[:2] for each in queue.receive()] == [(0, 0), (0, 1)]
    assert isinstance(queue.error_of(ResetRequest(queue=QUEUE, offsets={1: 0})), PartitionNotReady)
    assert [each.end_offset for each in queue.describe().partitions] == [2, 0]
    log.unreadable = set()
    assert [each[:2] for each in queue.receive()] == [(1, 0), (1, 1)]


def test_a_new_queue_starts_at_the_end_of_all_partitions_or_of_none() -> None:
    log = PartlyUnreadable()
    log.add(QUEUE.topic, partitions=2)
    for partition in log.topics[QUEUE.topic].partitions:
        partition.append(*[Entry()] * 2)
    queue = QueueHost(log)
    log.unreadable = {1}
    latest = ReceiveRequest(queue=QUEUE, consumer="", max_messages=10, start=Start.LATEST)
    assert isinstance(queue.error_of(latest), PartitionNotReady)
    log.unreadable = set()
    assert queue.ask(latest) == ReceiveReply()
    for partition in log.topics[QUEUE.topic].partitions:
        partition.append(Entry())
    assert sorted(each[:2] for each in queue.receive()) == [(0, 2), (1, 2)]


def test_on_a_replica_that_lags_behind_nothing_is_received_twice() -> None:
    queue = host()
    queue.publish(4)
    queue.ack(*queue.receive(3))
    lagging = queue.log.topics[QUEUE.topic].partitions[0]
    lagging.open = 2
    queue.restart()
    assert queue.receive() == ()
    assert queue.describe().partitions[0].ready == 0
    lagging.open = 0
    assert offsets(queue.receive()) == [3]


def test_state_is_not_cut_if_the_end_of_the_leader_is_unknown() -> None:
    """As on a replica that lags behind."""

    class LaggingLog(FakeLog):
        def leader_end(self, topic: str, partition: int) -> int | None:
            return None

    log = LaggingLog()
    log.add(QUEUE.topic).partitions[0].append(*[Entry()] * 5)
    queue = QueueHost(log)
    queue.ack(*queue.receive(4))
    log.topics[QUEUE.topic].partitions[0].truncate(2)
    queue.restart()
    log.topics[QUEUE.topic].partitions[0].append(*[Entry()] * 3)
    assert offsets(queue.receive()) == [4]


def test_a_queue_stored_without_a_topic_id_belongs_to_the_topic_of_its_first_load() -> None:
    """Version 0.1 stored a version, the generation, and overrides."""
    queue = host()
    queue.publish(3)
    queue.ack(*queue.receive(2))
    (change,) = (change for change in queue.engine.snapshot() if change.key == queue_key(QUEUE))
    assert change.value is not None
    former = b"\0" + change.value[1:9] + change.value[25:]
    queue.engine = queue._rebuilt([*queue.changes, Change(change.key, former)])
    topic_id = queue.log.topics[QUEUE.topic].id
    queue.engine.check_loadable(lambda _topic: topic_id)
    queue.take(queue.engine.loaded(queue.now_ms))
    assert offsets(queue.receive()) == [2]
    recreate(queue, 1)
    queue.restart()
    assert offsets(queue.receive()) == [0]


def test_a_recreated_queue_rejects_receipts_of_the_deleted_one() -> None:
    queue = host()
    queue.publish(3)
    messages = queue.receive()
    waiting = queue.wait()
    assert queue.ask(DeleteRequest(queue=QUEUE)) == SettleReply()
    assert isinstance(queue.answers[waiting], GroupIdNotFound)
    assert contents(queue.changes) == {}
    assert isinstance(queue.error_of(DeleteRequest(queue=QUEUE)), GroupIdNotFound)
    assert isinstance(queue.error_of(DescribeRequest(queue=QUEUE)), GroupIdNotFound)
    assert offsets(queue.receive()) == [0, 1, 2]
    assert {type(result) for result in queue.settle(Action.ACK, *messages)} == {StaleReceipt}
    queue.check_changes()


def test_a_batch_of_requests_writes_only_the_final_state() -> None:
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


def test_a_settlement_by_consumer_requires_its_lease() -> None:
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
def test_an_invalid_settlement_fails_and_changes_nothing(
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
        pytest.param(receive_request(queue=QueueId("", "orders")), InvalidGroupId, id="empty group"),
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
def test_an_invalid_request_fails_and_creates_no_queue(
    request_: Request[Any], error: type[AlpacaError]
) -> None:
    queue = host()
    assert type(queue.error_of(request_)) is error
    assert queue.ask(ListRequest()) == ListReply(queues=())
    assert queue.changes == []


def test_the_numbers_of_queues_and_of_waiting_receives_are_limited() -> None:
    queue = host(limits=EngineLimits(max_queues=1, max_waiting_receives=2))
    handles = [queue.wait(), queue.wait()]
    assert isinstance(queue.answers[queue.wait()], TooManyWaiting)
    queue.engine.cancel(handles[0])
    assert queue.received(queue.wait()) is None
    assert isinstance(queue.error_of(receive_request(queue=QueueId("others", "orders"))), TooManyGroups)


def test_a_reset_to_before_the_log_starts_with_its_first_message() -> None:
    queue = host()
    queue.publish(5)
    queue.log.topics[QUEUE.topic].partitions[0].cut(2)
    assert queue.ask(ResetRequest(queue=QUEUE, offsets={0: -5})) == SettleReply()
    assert offsets(queue.receive()) == [2, 3, 4]


def test_group_settings_override_topic_settings_and_can_be_removed() -> None:
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


def test_leases_of_uncommitted_messages_survive_a_restart() -> None:
    queue = host()
    queue.log.topics[QUEUE.topic].partitions[0].open = 2
    queue.publish(2)
    assert queue.receive() == ()
    reply = queue.ask(receive_request(share=ShareTerms(is_committed=False)))
    assert isinstance(reply, ReceiveReply)
    assert offsets(reply.messages) == [0, 1]
    queue.restart()
    assert queue.receive() == ()
    queue.ack(*reply.messages)
    assert queue.describe().overrides == {}


def test_an_expired_lease_is_extended_even_before_it_was_ended() -> None:
    queue = host(GREEDY)
    queue.publish(3000)
    # More than end in one event.
    messages = [message for at in range(300) for message in queue.receive(10, consumer=f"c{at}")]
    queue.now_ms += 30_000
    assert queue.settle(Action.EXTEND, messages[-1], delay_ms=60_000) == [None]
    queue.ack(*messages)


def test_a_lease_of_zero_length_ends_at_once() -> None:
    queue = host({"queue.max.deliveries": "2"})
    queue.publish(1)
    for count in (1, 2):
        (message,) = queue.receive(visibility_ms=0)
        assert message.delivery_count == count
    queue.advance(0)
    assert [move.offset for move in queue.moves] == [0]


def test_stats_count_by_lane_and_count_new_messages() -> None:
    queue = host(GREEDY)
    queue.publish(5)
    messages = queue.receive(2)
    queue.settle(Action.NACK, messages[0])
    queue.publish(3, Lane.HIGH)
    reply = queue.describe()
    (stats,) = reply.partitions
    # Unread messages count as normal.
    assert (stats.ready, stats.in_flight, stats.backoff) == (6, 1, 1)
    assert stats.lanes["normal"].ready == 6
    queue.receive(4)
    (stats,) = queue.describe().partitions
    normal, high = stats.lanes["normal"], stats.lanes["high"]
    assert (high.ready, high.in_flight, high.enqueued_total, high.delivered_total) == (0, 3, 3, 3)
    assert (normal.ready, normal.in_flight, normal.backoff, normal.delivered_total) == (2, 2, 1, 3)
    assert (stats.oldest_offset, stats.end_offset) == (0, 8)
    assert (reply.nacked_total, queue.describe().received_total) == (1, 6)


def test_a_queue_without_receives_counts_all_messages_as_ready() -> None:
    queue = host()
    queue.publish(5)
    queue.ask(ConfigureRequest(queue=QUEUE, overrides={}))
    (stats,) = queue.describe().partitions
    assert (stats.start_offset, stats.ready, stats.oldest_offset) == (0, 5, 0)
    assert queue.receive(start=Start.LATEST) == ()


def test_a_batch_of_requests_gets_replies_in_order_and_one_write() -> None:
    queue = host(GREEDY)
    queue.publish(100)
    queue.receive(1)
    queue.changes.clear()
    handles = queue.send(*[receive_request(max_messages=9, consumer=f"c{at}") for at in range(10)])
    replies = [queue.answers[handle] for handle in handles]
    assert [len(reply.messages) for reply in replies if isinstance(reply, ReceiveReply)] == [9] * 10
    assert len(queue.changes) == 1


def test_queues_are_described_in_steps_between_which_they_change() -> None:
    queue = host(partitions=3)
    queue.publish(5, partition=2)
    queue.send(receive_request(max_messages=0))
    assert queue.engine.queue_count == 1
    steps = list(queue.engine.stats())
    assert steps[:3] == [None] * 3
    assert [each.queue for each in steps[3:] if each is not None] == [QUEUE]
    described = queue.engine.stats()
    assert next(described) is None
    queue.publish(1, partition=1)
    next(described), next(described)
    found = next(described)
    assert found is not None
    assert [each.ready for each in found.partitions] == [0, 1, 5]
    described = queue.engine.stats()
    next(described)
    queue.send(DeleteRequest(queue=QUEUE))
    assert [each for each in described if each is not None] == []
    assert queue.engine.queue_count == 0
