"""Batches of transactions that end, or are not the client's, while the batches are on their way."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.kafka import produce as produce_module
from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.partition.validation import unpacked
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity, VerifyPartitions
from alpacamq.model.batch import TRANSACTIONAL
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.open_brokers import running
from tests.broker.transactions import begun, end
from tests.waiting import soon

from .served import served
from .wire import Wire

TOPIC = "orders"
# The last version whose clients announce partitions, and the first that adds them by writing.
CLASSIC, BY_WRITING = 11, 12
Sender = tuple[int, int, int]  # producer id, epoch and sequence


async def produce(
    wire: Wire, transactional_id: str | None, batches: Mapping[int, Sender], version: int = CLASSIC
) -> list[int]:
    """Produce one record to each partition; the error of each."""
    data = []
    for index, (producer_id, epoch, sequence) in batches.items():
        batch = write_batch(
            [Record(0, int(time.time() * 1000), b"k", b"v")],
            attributes=0 if transactional_id is None else TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        data.append(PartitionProduceData(index=index, records=bytes(batch)))
    asked = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )
    (answered,) = (await asyncio.to_thread(wire.ask, asked, version)).responses
    return [each.error_code for each in answered.partition_responses]


async def announce(broker: Broker, producer: TransactionalProducer, *partitions: int) -> None:
    places = tuple(TopicPartition(TopicName(TOPIC), index) for index in partitions)
    identity = ProducerIdentity(producer.producer_id, producer.producer_epoch)
    request = AddPartitions(transactional_id=producer.transactional_id, producer=identity, partitions=places)
    assert await broker.transactions.add_partitions(request) == {}


async def ended(partition: Partition, producer: TransactionalProducer) -> None:
    await soon(lambda: partition.open_transaction(producer.producer_id) is None)


@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (CLASSIC, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_a_batch_whose_transaction_ends_while_it_is_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, code: ErrorCode
) -> None:
    begins, may_end = threading.Event(), threading.Event()

    def unpacked_slowly(*given: Any) -> Any:
        begins.set()
        assert may_end.wait(20)
        return unpacked(*given)

    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=1, overrides={"compression.type": "gzip"})
        partition = broker.topics.partition(TOPIC, 0)
        producer = await begun(broker, "till")
        await announce(broker, producer, 0)
        assert await produce(wire, "till", {0: (producer.producer_id, 0, 0)}, version) == [0]
        monkeypatch.setattr(produce_module, "unpacked", unpacked_slowly)
        late = asyncio.create_task(produce(wire, "till", {0: (producer.producer_id, 0, 1)}, version))
        await soon(begins.is_set)
        await end(broker, producer, committed=False)
        await ended(partition, producer)
        may_end.set()
        assert await late == [code]
        assert partition.open_transaction(producer.producer_id) is None
        assert partition.last_stable_offset == partition.end_offset == 2


async def test_a_batch_of_an_open_transaction_waits_for_the_coordinator_with_those_that_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=2, overrides={"compression.type": "gzip"})
        first, second = broker.topics.partitions_of(TOPIC)
        producer = await begun(broker, "till")
        await announce(broker, producer, 0)
        assert await produce(wire, "till", {0: (producer.producer_id, 0, 0)}) == [0]
        ask = broker.transactions.ask

        async def end_meanwhile(request: Any) -> Any:
            if isinstance(request, VerifyPartitions) and first.open_transaction(producer.producer_id) == 0:
                await end(broker, producer, committed=True)
                await ended(first, producer)
                await announce(broker, producer, 1)  # the next transaction
            return await ask(request)

        monkeypatch.setattr(broker.transactions, "ask", end_meanwhile)
        both = {0: (producer.producer_id, 0, 1), 1: (producer.producer_id, 0, 0)}
        assert await produce(wire, "till", both) == [ErrorCode.TRANSACTION_ABORTABLE, 0]
        assert first.open_transaction(producer.producer_id) is None
        assert second.open_transaction(producer.producer_id) == 0


@pytest.mark.parametrize("version", [CLASSIC, BY_WRITING])
async def test_markers_of_other_producers_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=1)
        producer, other = await begun(broker, "till"), await begun(broker, "other")
        await announce(broker, producer, 0)
        asked = _writing_markers(broker, other.producer_id, monkeypatch)
        assert await produce(wire, "till", {0: (producer.producer_id, 0, 0)}, version) == [0]
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("version", "code"),
    [(CLASSIC, ErrorCode.NOT_ENOUGH_REPLICAS), (BY_WRITING, ErrorCode.CONCURRENT_TRANSACTIONS)],
)
async def test_a_client_gets_an_error_that_it_expects_if_its_transactions_keep_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, code: ErrorCode
) -> None:
    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=1)
        producer = await begun(broker, "till")
        await announce(broker, producer, 0)
        asked = _writing_markers(broker, producer.producer_id, monkeypatch)
        assert await produce(wire, "till", {0: (producer.producer_id, 0, 0)}, version) == [code]
        assert len(asked) == 3


async def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=1)
        partition = broker.topics.partition(TOPIC, 0)
        producer, other = await begun(broker, "till"), await begun(broker, "other")
        producer_id = producer.producer_id
        await announce(broker, producer, 0)
        await announce(broker, other, 0)
        assert await produce(wire, "till", {0: (producer_id, 0, 0)}) == [0]
        later = {0: (producer_id, 1, 0)}
        assert await produce(wire, None, later) == [ErrorCode.INVALID_TXN_STATE]
        assert await produce(wire, None, {0: (producer_id, 0, 1)}) == [ErrorCode.INVALID_TXN_STATE]
        for version in CLASSIC, BY_WRITING:
            refused = await produce(wire, "till", later, version)
            assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
            refused = await produce(wire, "other", later, version)
            assert refused == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        await end(broker, producer, committed=True)
        await ended(partition, producer)
        assert partition.last_stable_offset == partition.end_offset == 2


@pytest.mark.parametrize("version", [CLASSIC, BY_WRITING])
async def test_of_the_batches_of_two_transactional_producers_only_those_of_the_first_are_appended(
    tmp_path: Path, version: int
) -> None:
    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create(TOPIC, partitions=2)
        second = broker.topics.partition(TOPIC, 1)
        producer, other = await begun(broker, "till"), await begun(broker, "other")
        await announce(broker, producer, 0, 1)
        batches = {0: (producer.producer_id, 0, 0), 1: (other.producer_id, 0, 0)}
        results = await produce(wire, "till", batches, version)
        assert results == [0, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert second.open_transaction(other.producer_id) is None
        assert second.end_offset == 0


def _writing_markers(broker: Broker, producer_id: int, monkeypatch: pytest.MonkeyPatch) -> Sequence[object]:
    """Write a marker whenever the coordinator is asked about partitions; return the requests."""
    ask = broker.transactions.ask
    asked: list[object] = []

    async def write_marker_meanwhile(request: Any) -> Any:
        if isinstance(request, AddPartitions | VerifyPartitions):
            asked.append(request)
            place = TopicPartition(TopicName(TOPIC), 0)
            await broker.transactions.write_marker(place, producer_id, 0, committed=True)
        return await ask(request)

    monkeypatch.setattr(broker.transactions, "ask", write_marker_meanwhile)
    return asked
