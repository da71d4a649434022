"""The order of deliveries: the message that has been ready for the longest time is first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.errors import StaleReceipt
from alpacamq.model.lanes import WEIGHTS, Lane
from alpacamq.queues.messages import Acquired, Action, ReceiveRequest, ShareTerms

from .fake_log import Entry, FakeLog
from .queue_host import QUEUE, QueueHost

IN_KEY_ORDER = {"queue.ordering": "key"}
UNLIMITED = {"queue.max.deliveries": "0"}


def host(settings: dict[str, str] | None = None, partitions: int = 1) -> QueueHost:
    log = FakeLog()
    log.add(QUEUE.topic, settings, partitions=partitions)
    return QueueHost(log)


def send(queue: QueueHost, partition: int, key: bytes | None = None, count: int = 1) -> None:
    """Publish a batch a millisecond after the last one."""
    queue.now_ms += 1
    queue.publish(count, key=key, partition=partition)


def places(messages: tuple[Acquired, ...]) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]


@pytest.mark.parametrize("max_messages", [1, 4, 10])
def test_messages_arrive_in_the_order_in_which_they_were_sent_whatever_their_partitions(
    max_messages: int,
) -> None:
    queue = host(partitions=3)
    for number in range(30):
        send(queue, (number * 7 + number // 3) % 3)
    sent = [
        (number, offset)
        for _, number, offset in sorted(
            (time_ms, number, offset)
            for number, partition in enumerate(queue.log.topics[QUEUE.topic].partitions)
            for offset, time_ms in partition.times
        )
    ]
    received: list[tuple[int, int]] = []
    while len(received) < 30:
        received += places(queue.receive(max_messages))
    assert received == sent


def test_keys_arrive_in_the_order_in_which_their_messages_were_sent() -> None:
    queue = host(IN_KEY_ORDER, partitions=3)
    for number in range(12):
        send(queue, (0, 2, 1, 1, 0, 2)[number % 6], key=b"key %d" % number)
    received = [queue.receive(1)[0] for _ in range(12)]
    assert [message.partition for message in received] == [0, 2, 1, 1, 0, 2] * 2


def test_a_batch_is_delivered_as_a_whole_before_younger_batches() -> None:
    queue = host(partitions=2)
    send(queue, 0, count=5)
    send(queue, 1, count=5)
    send(queue, 0, count=5)
    expected = [(0, at) for at in range(5)] + [(1, at) for at in range(5)] + [(0, at) for at in range(5, 10)]
    assert places(queue.receive(15)) == expected


def test_partitions_with_batches_of_the_same_time_take_turns() -> None:
    queue = host(partitions=3)
    for _ in range(4):
        for partition in range(3):
            queue.publish(1, partition=partition)
    assert [message.partition for message in queue.receive(12)] == [0, 1, 2] * 4


def test_a_receive_of_some_partitions_gets_the_oldest_of_these() -> None:
    queue = host(partitions=3)
    for partition in (0, 2, 1, 2, 1, 0):
        send(queue, partition)
    assert places(queue.receive(3, partitions=(1, 2))) == [(2, 0), (1, 0), (2, 1)]


def test_a_timestamp_in_the_future_does_not_hold_messages_back() -> None:
    queue = host(partitions=2)
    queue.now_ms += 10**12
    queue.publish(1, partition=1)
    queue.now_ms -= 10**12
    send(queue, 0)
    assert [message.partition for message in queue.receive(1)] == [0]
    queue.now_ms += 1000
    send(queue, 0)
    assert [message.partition for message in queue.receive(1)] == [1]


def test_an_expired_message_is_delivered_before_younger_ones() -> None:
    queue = host(partitions=2)
    for partition in (0, 1, 0, 1):
        send(queue, partition)
    (first,) = queue.receive(1)
    queue.advance(30_000)
    assert places(queue.receive(4)) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert first.offset == 0


@pytest.mark.parametrize(
    ("action", "delay_ms"),
    [(Action.EXTEND, 0), (Action.NACK, 0), (Action.NACK, 1), (Action.RELEASE, None)],
    ids=["visibility 0", "nack at once", "nack with a short backoff", "release"],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_released_message_goes_behind_what_is_ready(
    action: Action, delay_ms: int | None, partitions: int
) -> None:
    queue = host(UNLIMITED, partitions)
    for number in range(13):
        send(queue, number % partitions)
    seen = []
    for _ in range(13):
        (message,) = queue.receive(1)
        if (message.partition, message.offset) == (0, 0):
            assert queue.settle(action, message, delay_ms=delay_ms) == [None]
            queue.advance(1)
        else:
            queue.ack(message)
        seen.append((message.partition, message.offset))
    assert len(set(seen)) == 13
    assert places(queue.receive(1)) == [(0, 0)]


def test_a_message_that_expires_again_and_again_goes_behind_what_is_ready() -> None:
    queue = host(UNLIMITED)
    for _ in range(4):
        send(queue, 0)
    seen = []
    for _ in range(5):
        (message,) = queue.receive(1)
        seen.append(message.offset)
        if message.offset:
            queue.ack(message)
        else:
            queue.advance(30_000)
    assert seen == [0, 0, 1, 2, 3]


def test_a_released_message_of_a_key_goes_behind_other_keys_but_not_behind_its_own() -> None:
    queue = host(IN_KEY_ORDER | UNLIMITED)
    for key in (b"a", b"a", b"b", b"c"):
        send(queue, 0, key)
    (first,) = queue.receive(1)
    queue.settle(Action.EXTEND, first, delay_ms=0)
    assert [message.offset for message in queue.receive(10)] == [2, 3, 0]
    assert queue.receive(10) == ()


def test_the_first_message_of_a_key_is_delivered_after_its_own_timeout() -> None:
    queue = host(IN_KEY_ORDER)
    for _ in range(3):
        send(queue, 0, b"a")
    messages = queue.receive(3, key_runs=True)
    assert queue.settle(Action.EXTEND, messages[1], delay_ms=90_000) == [None]
    queue.advance(30_000)
    assert places(queue.receive(10, key_runs=True)) == [(0, 0)]
    queue.advance(60_000)
    assert places(queue.receive(10, key_runs=True)) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("settings", [UNLIMITED, UNLIMITED | IN_KEY_ORDER])
def test_a_lease_is_extended_after_its_end_while_no_consumer_holds_the_message(
    settings: dict[str, str],
) -> None:
    queue = host(settings)
    send(queue, 0, b"a")
    send(queue, 0, b"b")
    first = queue.receive(1)[0]
    queue.advance(30_000)
    again = queue.receive(1)[0]
    assert again.offset == first.offset
    (held,) = queue.settle(Action.EXTEND, first, delay_ms=60_000)
    assert type(held) is StaleReceipt
    queue.advance(30_000)
    assert queue.settle(Action.EXTEND, first, delay_ms=60_000) == [None]
    assert queue.settle(Action.EXTEND, again, delay_ms=60_000) == [None]
    assert places(queue.receive(10)) == [(0, 1)]
    assert queue.describe().partitions[0].in_flight == 2
    queue.advance(60_000)
    assert queue.settle(Action.EXTEND, again, delay_ms=0) == [None]
    assert (0, 0) in places(queue.receive(10))


def test_the_lease_of_a_message_that_is_done_is_not_extended() -> None:
    queue = host()
    send(queue, 0)
    (message,) = queue.receive(1)
    queue.ack(message)
    (error,) = queue.settle(Action.EXTEND, message, delay_ms=1000)
    assert isinstance(error, StaleReceipt)
    assert error.is_done


@pytest.mark.parametrize("max_messages", [1, 7, 10, 100])
@pytest.mark.parametrize("partitions", [1, 3])
def test_lanes_get_their_shares_from_the_first_messages_on(partitions: int, max_messages: int) -> None:
    queue = host({"queue.max.in.flight": "100000", "queue.max.in.flight.total": "100000"}, partitions)
    for number in range(300):
        for lane in Lane:
            queue.now_ms += 1
            queue.publish(5, lane=lane, partition=number % partitions)
    counts = dict.fromkeys(Lane, 0)
    total = 0
    while total < 500:
        for message in queue.receive(max_messages):
            counts[message.lane] += 1
            total += 1
    shares = {lane: 100 * counts[lane] / total for lane in Lane}
    assert all(abs(shares[lane] - WEIGHTS[lane]) <= 2 for lane in Lane), shares


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 3)), max_size=12
    ),
    st.integers(1, 5),
)
def test_every_message_is_delivered_once_and_in_order_of_its_key(
    batches: list[tuple[int, bytes, int]], max_messages: int
) -> None:
    queue = host(IN_KEY_ORDER, partitions=3)
    for partition, key, count in batches:
        send(queue, partition, key, count)
    received: list[tuple[int, int]] = []
    while messages := queue.receive(max_messages):
        received += places(messages)
        queue.ack(*messages)
    assert len(received) == len(set(received)) == sum(count for *_, count in batches)
    keys = {
        (number, offset): entry.key
        for number, partition in enumerate(queue.log.topics[QUEUE.topic].partitions)
        for offset, entry in enumerate(partition.entries)
        if entry is not None
    }
    for key in (b"a", b"b", b"c"):
        for partition in range(3):
            of_key = [at for at in received if keys[at] == key and at[0] == partition]
            assert of_key == sorted(of_key)


def busy(queue: QueueHost, partition: int, rounds: int) -> list[int]:
    """Return the partitions of messages, received while this partition always has more."""
    received = []
    for _ in range(rounds):
        send(queue, partition)
        (message,) = queue.receive(1)
        queue.ack(message)
        received.append(message.partition)
    return received


@pytest.mark.parametrize("behind_ms", [600_000, 1 << 40], ids=["a slow clock", "no timestamps"])
def test_a_producer_whose_clock_is_behind_does_not_hold_up_other_partitions(behind_ms: int) -> None:
    queue = host(partitions=2)
    queue.publish(1, partition=1)
    slow = queue.log.topics[QUEUE.topic].partitions[0]
    seen = []
    for _ in range(1100):
        slow.append(Entry(), time_ms=max(queue.now_ms - behind_ms, -1))
        queue.now_ms += 1
        (message,) = queue.receive(1)
        queue.ack(message)
        seen.append(message.partition)
    assert 1 in seen


def test_a_released_message_is_delivered_although_the_clock_was_set_back() -> None:
    queue = host(UNLIMITED, partitions=2)
    send(queue, 1)
    (message,) = queue.receive(1)
    queue.settle(Action.RELEASE, message)
    queue.now_ms -= 900_000
    assert 1 in busy(queue, 0, 1100)


def test_the_first_message_of_a_key_stays_deliverable_when_a_later_one_is_leased_again() -> None:
    queue = host(IN_KEY_ORDER)
    send(queue, 0, b"a", count=2)
    messages = queue.receive(2, key_runs=True)
    queue.advance(30_000)
    assert queue.settle(Action.EXTEND, messages[1], delay_ms=3_600_000) == [None]
    queue.restart()
    assert places(queue.receive(10)) == [(0, 0)]


def test_releasing_and_leasing_a_message_again_and_again_takes_no_memory() -> None:
    queue = host(UNLIMITED)
    send(queue, 0, count=2)
    (message,) = queue.receive(1)
    for _ in range(1000):
        for delay_ms in (0, 1000):
            assert queue.settle(Action.EXTEND, message, delay_ms=delay_ms) == [None]
    lane = next(iter(queue.engine._queues)).partitions[0].backlog.lanes[Lane.NORMAL]
    assert len(lane._singles) < 200


def test_a_lease_is_not_extended_twelve_hours_after_the_delivery() -> None:
    queue = host(UNLIMITED)
    send(queue, 0)
    (message,) = queue.receive(1)
    queue.advance(13 * 3_600_000)
    (error,) = queue.settle(Action.EXTEND, message, delay_ms=60_000)
    assert isinstance(error, StaleReceipt)
    assert places(queue.receive(1)) == [(0, 0)]


def test_the_limit_of_a_share_group_survives_a_restart() -> None:
    queue = host({"queue.max.deliveries": "2"})
    send(queue, 0)
    terms = ShareTerms(max_deliveries=4)
    for _ in range(3):
        queue.ask(ReceiveRequest(queue=QUEUE, consumer="c1", max_messages=1, share=terms))
        queue.advance(30_000)
    queue.restart()
    queue.receive(1)
    assert queue.moves == []
    queue.advance(30_000)
    assert len(queue.moves) == 1
