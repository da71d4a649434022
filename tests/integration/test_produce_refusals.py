"""Invalid Produce requests that no client library sends, and their exact answers."""

from collections.abc import Iterator

import pytest

from alpacamq.model.batch import CRC_AT, check_batch, checksum
from alpacamq.model.records import Record, write_batch
from tests.brokers import Broker
from tests.compat.confluent import Confluent

from .raw import Produced, RawConnection, connected, produce_request

NONE = 0
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_REQUIRED_ACKS = 21
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
UNSUPPORTED_COMPRESSION = 76
INVALID_RECORD = 87

NOW_MS = 1_760_000_000_000
ATTRIBUTES_AT = 21


def batch(
    count: int = 1, *, producer: int = -1, epoch: int = -1, sequence: int = -1, key: bytes | None = b"k"
) -> bytearray:
    records = [Record(offset, NOW_MS, key, b"value %d" % offset) for offset in range(count)]
    return write_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def resealed(data: bytearray) -> bytearray:
    """Recompute the checksum of a changed batch."""
    data[CRC_AT : CRC_AT + 4] = checksum(data).to_bytes(4, "big")
    return data


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = "[topics]\nauto_create = false\n"
    broker = Broker(tmp_path_factory.mktemp("refusals") / "data", config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def connection(broker: Broker, topic: str) -> Iterator[RawConnection]:
    Confluent(broker.address).create_topic(topic, settings={"max.message.bytes": "1000"})
    with connected(broker.host_and_port) as connection:
        yield connection


@pytest.fixture
def nothing_is_written(broker: Broker, topic: str) -> Iterator[None]:
    """Check that refused batches leave the log unchanged."""
    yield
    assert Confluent(broker.address).ends(topic) == (0, 0)


@pytest.mark.usefixtures("nothing_is_written")
class TestRefused:
    """Batches that are invalid in themselves."""

    def test_a_flipped_bit(self, connection: RawConnection, topic: str) -> None:
        data = batch()
        data[-3] ^= 4

        assert connection.produce(topic, data).error == CORRUPT_MESSAGE

    def test_a_batch_that_ends_early(self, connection: RawConnection, topic: str) -> None:
        assert connection.produce(topic, batch()[:-5]).error == CORRUPT_MESSAGE

    def test_no_batch_at_all(self, connection: RawConnection, topic: str) -> None:
        assert connection.produce(topic, b"not a batch").error == CORRUPT_MESSAGE

    def test_a_batch_larger_than_the_topic_allows(self, connection: RawConnection, topic: str) -> None:
        assert connection.produce(topic, batch(100)).error == MESSAGE_TOO_LARGE

    def test_an_unknown_compression(self, connection: RawConnection, topic: str) -> None:
        data = batch()
        data[ATTRIBUTES_AT + 1] |= 0x07

        assert connection.produce(topic, resealed(data)).error == UNSUPPORTED_COMPRESSION

    def test_a_record_count_that_does_not_fit(self, connection: RawConnection, topic: str) -> None:
        data = batch(3)
        data[57:61] = (2).to_bytes(4, "big")

        assert connection.produce(topic, resealed(data)).error in (CORRUPT_MESSAGE, INVALID_RECORD)

    def test_an_unknown_partition(self, connection: RawConnection, topic: str) -> None:
        assert connection.produce(topic, batch(), partition=7).error == UNKNOWN_TOPIC_OR_PARTITION
        assert connection.produce(topic, batch(), partition=-1).error == UNKNOWN_TOPIC_OR_PARTITION

    def test_an_invalid_acks_value(self, connection: RawConnection, topic: str) -> None:
        assert connection.produce(topic, batch(), acks=2).error == INVALID_REQUIRED_ACKS


def test_a_timestamp_too_far_ahead_is_refused(connection: RawConnection, broker: Broker, topic: str) -> None:
    ahead = write_batch([Record(0, 10**14, None, b"from the future")])

    assert connection.produce(topic, ahead).error == INVALID_TIMESTAMP
    assert Confluent(broker.address).ends(topic) == (0, 0)


def test_a_compacted_topic_refuses_records_without_a_key(broker: Broker, topic: str) -> None:
    Confluent(broker.address).create_topic(topic, settings={"cleanup.policy": "compact"})
    with connected(broker.host_and_port) as connection:
        assert connection.produce(topic, batch(key=None)).error == INVALID_RECORD
        assert connection.produce(topic, batch()) == Produced(NONE, 0)


def test_a_duplicate_batch_gets_the_answer_of_the_first(connection: RawConnection, topic: str) -> None:
    for number in range(5):
        sent = batch(2, producer=900, epoch=0, sequence=number * 2)
        assert connection.produce(topic, sent) == Produced(NONE, number * 2)

    # Five batches are remembered, so each of these is a known duplicate.
    for number in range(5):
        sent = batch(2, producer=900, epoch=0, sequence=number * 2)
        assert connection.produce(topic, sent) == Produced(NONE, number * 2)

    assert connection.produce(topic, batch(1, producer=900, epoch=0, sequence=10)) == Produced(NONE, 10)


def test_a_gap_in_the_sequence_is_refused(connection: RawConnection, topic: str) -> None:
    assert connection.produce(topic, batch(2, producer=901, epoch=0, sequence=0)) == Produced(NONE, 0)

    missing = batch(1, producer=901, epoch=0, sequence=3)
    assert connection.produce(topic, missing).error == OUT_OF_ORDER_SEQUENCE

    assert connection.produce(topic, batch(1, producer=901, epoch=0, sequence=2)) == Produced(NONE, 2)


def test_an_older_epoch_is_fenced(connection: RawConnection, topic: str) -> None:
    assert connection.produce(topic, batch(1, producer=902, epoch=1, sequence=0)) == Produced(NONE, 0)

    zombie = batch(1, producer=902, epoch=0, sequence=1)
    assert connection.produce(topic, zombie).error == INVALID_PRODUCER_EPOCH

    assert connection.produce(topic, batch(1, producer=902, epoch=1, sequence=1)) == Produced(NONE, 1)


def test_a_new_producer_epoch_starts_at_sequence_zero(connection: RawConnection, topic: str) -> None:
    assert connection.produce(topic, batch(1, producer=903, epoch=0, sequence=0)) == Produced(NONE, 0)

    late = batch(1, producer=903, epoch=1, sequence=5)
    assert connection.produce(topic, late).error == OUT_OF_ORDER_SEQUENCE

    assert connection.produce(topic, batch(1, producer=903, epoch=1, sequence=0)) == Produced(NONE, 1)


def test_duplicates_are_recognised_across_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker = Broker(tmp_path_factory.mktemp("duplicates") / "data").start()
    try:
        Confluent(broker.address).create_topic("t")
        sent = [batch(3, producer=904, epoch=0, sequence=number * 3) for number in range(4)]
        with connected(broker.host_and_port) as connection:
            first = [connection.produce("t", data) for data in sent]
        broker.kill()
        broker.start()

        with connected(broker.host_and_port) as connection:
            assert [connection.produce("t", data) for data in sent] == first
            gap = batch(1, producer=904, epoch=0, sequence=13)
            assert connection.produce("t", gap).error == OUT_OF_ORDER_SEQUENCE
        assert Confluent(broker.address).ends("t") == (0, 12)
    finally:
        broker.end()


def test_a_refusal_does_not_affect_batches_accepted_in_the_same_packet(broker: Broker, topic: str) -> None:
    """Without acknowledgements a refusal closes the connection; earlier batches are written first."""
    Confluent(broker.address).create_topic(topic)
    accepted = produce_request(topic, batch(3), acks=0)
    refused = produce_request("no-such-topic", batch(), acks=0)
    with connected(broker.host_and_port) as hasty:
        hasty.send(accepted + refused)
        assert hasty.is_closed()
    with connected(broker.host_and_port) as other:
        other.api_versions()
        (fetched,) = other.fetch(topic, [(0, 0)])
    assert fetched.high_watermark == 3
    check_batch(fetched.records)
