"""The order of batches in a partition: numbers, gaps, deadlines, and what cannot be known."""

from random import Random

import pytest

from alpacamq.client.aio.batching import Batch, Identity, Partitioner, PartitionQueue, State
from alpacamq.client.errors import DeliveryTimedOut, SequenceLost
from alpacamq.model.batch import Codec, check_batch
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.murmur2 import partition_for_key

PLACE = TopicPartition(TopicName("orders"), 0)
FIRST, SECOND = Identity(7, 0), Identity(8, 0)
DEADLINE = 100.0
REFUSED = SequenceLost("writing", 45)


def new_queue(*, idempotent: bool = True) -> PartitionQueue:
    return PartitionQueue(PLACE, idempotent=idempotent, most_in_flight=5)


def add(queue: PartitionQueue, count: int, *, deadline: float = DEADLINE) -> Batch:
    batch = Batch(PLACE, urgent_at=0.0, deadline=deadline)
    batch.records = [(None, b"%d" % number, (), 1000 + number) for number in range(count)]
    queue.queued.append(batch)
    return batch


def send(queue: PartitionQueue, identity: Identity | None = FIRST, now: float = 1.0) -> Batch | None:
    return queue.next_to_send(now, identity, Codec.NONE, is_ready=True)


def sent(queue: PartitionQueue, identity: Identity | None = FIRST) -> Batch:
    batch = send(queue, identity)
    assert batch is not None
    return batch


def numbers(batch: Batch) -> tuple[int, int, int]:
    """Return what the encoded batch says: producer id, sequence and count."""
    assert batch.data is not None
    header = check_batch(batch.data)
    return header.producer_id, header.base_sequence, header.record_count


def test_batches_are_numbered_by_their_records() -> None:
    queue = new_queue()
    for count in (3, 4, 5):
        add(queue, count)
    assert [numbers(sent(queue)) for _ in range(3)] == [(7, 0, 3), (7, 3, 4), (7, 7, 5)]


def test_no_more_than_five_batches_are_in_flight() -> None:
    queue = new_queue()
    for _ in range(6):
        add(queue, 1)
    first = [sent(queue) for _ in range(5)]
    assert send(queue) is None
    queue.acknowledge(first[0], 0, -1)
    assert sent(queue).sequence == 5


def test_numbers_wrap_around() -> None:
    queue = new_queue()
    add(queue, 1)
    queue.acknowledge(sent(queue), 0, -1)
    queue._next_sequence = 2**31 - 1
    add(queue, 2)
    add(queue, 1)
    assert [sent(queue).sequence for _ in range(2)] == [2**31 - 1, 1]


def test_a_batch_whose_outcome_is_unknown_is_sent_again_with_its_number() -> None:
    queue = new_queue()
    add(queue, 3)
    add(queue, 3)
    first, second = sent(queue), sent(queue)
    before = numbers(first)
    queue.retry(first, 0.0, in_doubt=True)
    queue.retry(second, 0.0, in_doubt=True)
    assert sent(queue) is first
    assert numbers(first) == before
    assert sent(queue) is second


def test_later_batches_wait_for_one_that_is_to_be_sent_again_later() -> None:
    queue = new_queue()
    add(queue, 1)
    queue.retry(sent(queue), 5.0, in_doubt=False)
    add(queue, 1)
    assert send(queue, now=4.9) is None
    assert queue.due_at() == 5.0
    assert send(queue, now=5.0) is not None


def test_a_batch_after_one_that_is_missing_is_sent_again() -> None:
    queue = new_queue()
    add(queue, 1)
    add(queue, 1)
    first, second = sent(queue), sent(queue)
    queue.retry(first, 0.0, in_doubt=True)
    queue.lose_sequence(second, REFUSED)
    assert not second.is_done
    assert [sent(queue), sent(queue)] == [first, second]
    assert not queue.is_resetting


def test_after_a_rejected_batch_the_later_ones_get_numbers_of_another_producer() -> None:
    queue = new_queue()
    for count in (3, 4, 5):
        add(queue, count)
    first, second, third = (sent(queue) for _ in range(3))
    queue.reject(first, ValueError("too large"))
    queue.lose_sequence(second, REFUSED)
    assert send(queue, SECOND) is None, "the third is still in flight"
    queue.lose_sequence(third, REFUSED)
    assert send(queue, FIRST) is None
    assert queue.needs_identity(FIRST)
    assert not queue.needs_identity(SECOND)
    assert sent(queue, SECOND) is second
    assert sent(queue, SECOND) is third
    assert [numbers(second), numbers(third)] == [(8, 0, 4), (8, 4, 5)]


def test_a_rejected_batch_that_nothing_follows_leaves_no_gap() -> None:
    queue = new_queue()
    add(queue, 3)
    queue.reject(sent(queue), ValueError("too large"))
    add(queue, 2)
    assert numbers(sent(queue)) == (7, 0, 2)


def test_a_rejected_batch_that_may_have_been_written_keeps_its_number() -> None:
    queue = new_queue()
    add(queue, 3)
    batch = sent(queue)
    queue.retry(batch, 0.0, in_doubt=True)
    queue.reject(sent(queue), ValueError("not authorized"))
    add(queue, 3)
    assert send(queue, FIRST) is None, "with the same number the broker would take it for the first"
    assert numbers(sent(queue, SECOND)) == (8, 0, 3)


def test_a_batch_is_not_sent_as_another_producer_if_it_may_have_been_written() -> None:
    queue = new_queue()
    add(queue, 1)
    batch = sent(queue)
    queue.retry(batch, 0.0, in_doubt=True)
    queue.lose_sequence(sent(queue), REFUSED)
    assert batch.error is REFUSED


def test_a_producer_that_the_broker_has_forgotten_starts_again() -> None:
    queue = new_queue()
    add(queue, 1)
    queue.acknowledge(sent(queue), 0, -1)
    add(queue, 1)
    batch = sent(queue)
    queue.lose_sequence(batch, REFUSED)
    assert send(queue, FIRST) is None
    assert sent(queue, SECOND) is batch
    assert numbers(batch) == (8, 0, 1)


def test_a_batch_that_was_never_sent_expires_as_not_written() -> None:
    queue = new_queue()
    batch = add(queue, 1)
    queue.expire(DEADLINE)
    assert isinstance(batch.error, DeliveryTimedOut)
    assert not batch.error.is_sent
    assert batch.error.retriable
    assert queue.is_empty


def test_a_batch_that_was_sent_expires_as_perhaps_written_and_keeps_the_order() -> None:
    queue = new_queue()
    first = add(queue, 3)
    add(queue, 4, deadline=DEADLINE + 10)
    batch, second = sent(queue), sent(queue)
    queue.expire(DEADLINE)
    assert isinstance(first.error, DeliveryTimedOut)
    assert first.error.is_sent
    queue.retry(batch, 0.0, in_doubt=True)
    queue.lose_sequence(second, REFUSED)
    assert sent(queue) is first, "the second needs its number to be written"
    queue.acknowledge(first, 0, -1)
    assert sent(queue) is second


def test_a_batch_that_waits_and_is_sent_on_for_the_sake_of_later_ones_expires_as_perhaps_written() -> None:
    queue = new_queue()
    first = add(queue, 3)
    add(queue, 4, deadline=DEADLINE + 10)
    for batch in (sent(queue), sent(queue)):
        queue.retry(batch, DEADLINE + 1, in_doubt=False)
    queue.expire(DEADLINE)
    assert isinstance(first.error, DeliveryTimedOut)
    assert first.error.is_sent
    assert not first.error.retriable
    assert send(queue, now=DEADLINE + 1) is first


def test_when_all_that_was_sent_has_expired_the_next_starts_as_another_producer() -> None:
    queue = new_queue()
    add(queue, 3)
    queue.retry(sent(queue), 0.0, in_doubt=True)
    queue.expire(DEADLINE)
    add(queue, 1, deadline=DEADLINE * 2)
    assert send(queue, FIRST, now=DEADLINE) is None
    assert queue.needs_identity(FIRST)
    assert numbers(sent(queue, SECOND)) == (8, 0, 1)


def test_without_idempotence_one_batch_is_in_flight() -> None:
    queue = new_queue(idempotent=False)
    add(queue, 1)
    add(queue, 1)
    assert numbers(sent(queue, None)) == (-1, -1, 1)
    assert send(queue, None) is None


def test_a_record_that_is_taken_back_is_not_in_the_batch() -> None:
    queue = new_queue()
    batch = add(queue, 4)
    assert batch.cancel(1)
    assert not batch.cancel(1)
    assert numbers(sent(queue)) == (7, 0, 3)
    assert not batch.cancel(2), "it has been sent"
    queue.acknowledge(batch, 10, -1)
    assert [batch.offset_of(index) for index in (0, 2, 3)] == [10, 11, 12]
    assert [batch.timestamp_of(index) for index in (0, 2, 3)] == [1000, 1002, 1003]


def test_a_batch_whose_records_were_all_taken_back_is_not_sent() -> None:
    queue = new_queue()
    batch = add(queue, 1)
    assert batch.cancel(0)
    assert send(queue) is None
    assert batch.state is State.DONE


def test_keys_have_the_partition_of_every_kafka_client() -> None:
    partitioner = Partitioner(7, Random(1))
    keys = [b"%d" % number for number in range(100)]
    assert [partitioner.of_key(key) for key in keys] == [partition_for_key(key, 7) for key in keys]
    partitioner.grow(9)
    assert [partitioner.of_key(key) for key in keys] == [partition_for_key(key, 9) for key in keys]


@pytest.mark.parametrize("available", [[0, 1, 2], [1], [0, 2]])
def test_records_without_a_key_move_to_another_partition_that_has_a_leader(available: list[int]) -> None:
    partitioner = Partitioner(3, Random(1))
    seen = []
    for _ in range(50):
        before = partitioner.sticky
        seen.append(partitioner.next_sticky(available))
        assert len(available) == 1 or seen[-1] != before
    assert set(seen) == set(available)
