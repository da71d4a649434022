"""Idempotent producers: repeats are recognised, gaps refused, older instances fenced."""

import msgspec
import pytest

from alpacamq.log.producer_state import (
    IDLE_LIMIT_MS,
    WINDOW,
    LastMarker,
    ProducerEntry,
    ProducerTable,
    SentBatch,
    decode_entries,
    encode_entries,
)
from alpacamq.log.sealed_file import Unreadable
from alpacamq.model.batch import BROKER_EPOCH, CONTROL, BatchHeader, read_header
from alpacamq.model.errors import AlpacaError, FencedProducer, OutOfOrderSequence
from alpacamq.model.records import Record, write_batch

from .logs import a_batch

LAST = 2**31 - 1


def sent(sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(a_batch(count, producer=(producer, epoch, sequence)))


class Partition:
    """Admits batches and gives them offsets, as a log does."""

    def __init__(self, limit: int = 100) -> None:
        self.states = ProducerTable(limit=limit)
        self.end_offset = 0
        self.now_ms = 0

    def send(self, header: BatchHeader) -> SentBatch | AlpacaError | None:
        verdict = self.states.admit(header, self.end_offset, self.now_ms)
        if verdict is None:
            self.states.commit()
            self.end_offset += header.record_count
        return verdict


def test_batches_in_sequence_are_taken() -> None:
    partition = Partition()
    assert partition.send(sent(0, 3)) is None
    assert partition.send(sent(3, 1)) is None
    assert partition.send(sent(4, 2)) is None


def test_the_last_five_batches_are_recognised_with_their_offsets() -> None:
    partition = Partition()
    for number in range(8):
        assert partition.send(sent(2 * number, 2)) is None
    for number in range(8 - WINDOW, 8):
        repeated = partition.send(sent(2 * number, 2))
        assert isinstance(repeated, SentBatch)
        assert (repeated.base_offset, repeated.next_offset) == (2 * number, 2 * number + 2)
    assert isinstance(partition.send(sent(2 * (8 - WINDOW - 1), 2)), OutOfOrderSequence)


@pytest.mark.parametrize(
    ("sequence", "count"),
    [
        pytest.param(6, 1, id="a gap"),
        pytest.param(3, 2, id="the start of a batch, but longer"),
        pytest.param(4, 1, id="inside a batch"),
        pytest.param(0, 5, id="two batches at once"),
    ],
)
def test_a_sequence_neither_next_nor_duplicate_is_refused(sequence: int, count: int) -> None:
    partition = Partition()
    partition.send(sent(0, 3))
    partition.send(sent(3, 2)) if count != 2 else partition.send(sent(3, 1))
    refusal = partition.send(sent(sequence, count))
    assert isinstance(refusal, OutOfOrderSequence)
    assert f"producer 1 sent sequence {sequence} where" in str(refusal)


def test_an_older_epoch_is_fenced() -> None:
    partition = Partition()
    partition.send(sent(0, epoch=3))
    refusal = partition.send(sent(1, epoch=2))
    assert isinstance(refusal, FencedProducer)
    assert str(refusal) == "producer 1 has epoch 3 now, epoch 2 is fenced"


def test_a_new_epoch_begins_with_sequence_0_and_forgets_the_old_batches() -> None:
    partition = Partition()
    partition.send(sent(0))
    partition.send(sent(1))
    assert isinstance(partition.send(sent(2, epoch=1)), OutOfOrderSequence)
    assert partition.send(sent(0, epoch=1)) is None
    assert partition.send(sent(1, epoch=1)) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """Its state may have expired."""
    partition = Partition()
    assert partition.send(sent(77, epoch=4)) is None
    assert partition.send(sent(78, epoch=4)) is None


def test_sequences_wrap_to_0() -> None:
    partition = Partition()
    assert partition.send(sent(LAST - 1, 2)) is None
    assert partition.send(sent(0, 2)) is None
    partition = Partition()
    assert partition.send(sent(LAST - 1, 4)) is None
    assert partition.send(sent(2, 1)) is None
    repeated = partition.send(sent(LAST - 1, 4))
    assert isinstance(repeated, SentBatch)
    assert (repeated.base_offset, repeated.next_offset) == (0, 4)


def test_producers_do_not_disturb_each_other() -> None:
    partition = Partition()
    assert partition.send(sent(0, producer=1)) is None
    assert partition.send(sent(5, producer=2)) is None
    assert partition.send(sent(1, producer=1)) is None
    assert partition.send(sent(6, producer=2)) is None


def test_a_control_batch_has_an_epoch_but_no_sequence() -> None:
    partition = Partition()
    partition.send(sent(0, epoch=1))
    marker = read_header(
        write_batch(
            [Record(0, 0, b"", b"")], attributes=CONTROL, producer_id=1, producer_epoch=1, base_sequence=-1
        )
    )
    assert partition.send(marker) is None
    assert partition.send(sent(1, epoch=1)) is None
    fence = marker._replace(producer_epoch=2)
    assert partition.send(fence) is None
    assert isinstance(partition.send(sent(2, epoch=1)), FencedProducer)
    assert isinstance(partition.send(sent(2, epoch=2)), OutOfOrderSequence)
    assert partition.send(sent(0, epoch=2)) is None


def test_admitted_batches_can_be_rolled_back() -> None:
    partition = Partition()
    partition.send(sent(0))
    before = partition.states.copy()
    partition.states.admit(sent(1), 1, 5)
    partition.states.admit(sent(2), 2, 5)
    partition.states.admit(sent(0, producer=9), 3, 5)
    partition.states.rollback()
    assert partition.states.copy() == before
    assert partition.send(sent(1)) is None


def test_an_idle_producer_is_forgotten_after_a_day() -> None:
    partition = Partition()
    partition.send(sent(0, producer=1))
    partition.now_ms = 10
    partition.send(sent(0, producer=2))
    partition.states.expire(IDLE_LIMIT_MS)
    assert len(partition.states) == 2
    partition.states.expire(IDLE_LIMIT_MS + 1)
    assert (partition.states.get(1), len(partition.states)) == (None, 1)


def test_the_least_recently_active_producers_are_evicted() -> None:
    partition = Partition(limit=3)
    for producer in (1, 2, 3):
        partition.send(sent(0, producer=producer))
    partition.send(sent(1, producer=1))
    partition.send(sent(0, producer=4))
    assert set(partition.states.copy()) == {3, 1, 4}


def test_replaying_the_log_gives_the_same_states() -> None:
    partition = Partition()
    replayed = ProducerTable()
    for number in range(10):
        header = sent(3 * number, 3, epoch=1)
        replayed.replay(header._replace(base_offset=partition.end_offset), 0)
        partition.send(header)
    assert replayed.copy() == partition.states.copy()


def test_states_are_read_back_from_a_snapshot() -> None:
    states = {
        7: ProducerEntry(1, (SentBatch(0, 2, 40), SentBatch(3, 3, 43)), 99),
        2**62: ProducerEntry(0, (), 5, LastMarker(3, 17, 80)),
    }
    assert decode_entries(encode_entries(states)) == states
    assert list(decode_entries(encode_entries(states))) == list(states)


def test_a_snapshot_of_a_version_without_markers_is_read() -> None:
    body = msgspec.msgpack.encode(((7, (1, ((0, 2, 40),), 99)),))
    assert decode_entries(body) == {7: ProducerEntry(1, (SentBatch(0, 2, 40),), 99)}


@pytest.mark.parametrize("body", [b"", b"\x91", b"\x91\x91\x01", b'{"a":1}', b"\xdd\xff\xff\xff\xff"])
def test_a_snapshot_of_something_else_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_entries(body)


def test_a_producer_inside_the_broker_may_leave_gaps_but_not_go_back() -> None:
    partition = Partition()
    for sequence in (3, 4, 9):
        assert partition.send(sent(sequence, epoch=BROKER_EPOCH)) is None
    assert partition.states.last_sequence(1) == 9
    assert partition.send(sent(9, epoch=BROKER_EPOCH)) == SentBatch(9, 9, 2)
    assert isinstance(partition.send(sent(2, epoch=BROKER_EPOCH)), OutOfOrderSequence)
    for sequence in (2**30, LAST, 5):  # starting over
        assert partition.send(sent(sequence, epoch=BROKER_EPOCH)) is None


def test_the_next_sequence_follows_the_last_batch_of_the_same_epoch() -> None:
    partition = Partition()
    assert partition.states.next_sequence(1, 0) == 0
    partition.send(sent(0, 5))
    assert partition.states.next_sequence(1, 0) == 5
    assert partition.states.next_sequence(1, 1) == 0
