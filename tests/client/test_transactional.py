"""Transactions with the low-level client: fencing, visibility and idempotent requests."""

from collections.abc import Iterator

import pytest

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import ErrorCode, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.client.kafka.topics import create_topic
from alpacamq.client.kafka.transactional import (
    ProducerIdentity,
    add_partitions,
    claim,
    end_transaction,
    send_batches,
)
from alpacamq.client.kafka.transactions import list_transactions, transaction
from alpacamq.model.batch import TRANSACTIONAL
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record, read_records, write_batch
from tests.conftest import NewBroker

PLACE = TopicPartition(TopicName("orders"), 0)


@pytest.fixture
def cluster(new_broker: NewBroker) -> Iterator[Cluster]:
    broker = new_broker().start()
    with Cluster(parse_address(broker.address)) as cluster:
        create_topic(cluster, "orders", partitions=1, replicas=1, settings={})
        yield cluster


def write(cluster: Cluster, producer: ProducerIdentity, value: bytes, sequence: int = 0) -> None:
    batch = write_batch(
        [Record(0, 1, None, value)],
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    send_batches(cluster, producer, {PLACE: batch})


def seen(cluster: Cluster, isolation: Isolation) -> list[bytes | None]:
    fetched = PartitionFetcher(cluster, PLACE, isolation).fetch(0)
    return [
        record.value for batch in fetched.batches if batch.is_visible for record in read_records(batch.data)
    ]


def test_writes_become_visible_once_on_commit(cluster: Cluster) -> None:
    producer = claim(cluster, "mine", 60_000)
    add_partitions(cluster, producer, [PLACE])
    for _ in range(2):  # the first acknowledgement might have been lost
        write(cluster, producer, b"a")
    write(cluster, producer, b"b", sequence=1)
    assert seen(cluster, Isolation.COMMITTED) == []
    assert seen(cluster, Isolation.UNCOMMITTED) == [b"a", b"b"]
    for _ in range(2):
        end_transaction(cluster, producer, committed=True)
    assert seen(cluster, Isolation.COMMITTED) == [b"a", b"b"]
    with pytest.raises(Refused) as refused:
        end_transaction(cluster, producer, committed=False)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_claiming_an_id_fences_the_previous_producer_and_aborts_its_transaction(cluster: Cluster) -> None:
    first = claim(cluster, "mine", 60_000)
    add_partitions(cluster, first, [PLACE])
    write(cluster, first, b"a")
    assert [each.id for each in list_transactions(cluster, "Ongoing")] == ["mine"]
    second = claim(cluster, "mine", 60_000)
    assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
    with pytest.raises(Refused, match="PRODUCER_FENCED"):
        end_transaction(cluster, first, committed=True)
    assert list_transactions(cluster, "Ongoing") == []
    assert seen(cluster, Isolation.COMMITTED) == []


def test_an_unclaimed_transactional_id_is_unknown(cluster: Cluster) -> None:
    assert transaction(cluster, "mine") is None
    producer = claim(cluster, "mine", 60_000)
    known = transaction(cluster, "mine")
    assert known is not None
    assert (known.state, known.producer_id, known.timeout_ms) == ("Empty", producer.producer_id, 60_000)
