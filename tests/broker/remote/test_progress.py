"""How far a producer has come in a partition, asked of its leader, in a cluster of three."""

import asyncio
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.appends import Acks, Append
from alpacamq.broker.remote import progress
from alpacamq.broker.remote.progress import ProducerSequences
from alpacamq.broker.remote.routing import RETRY_MS, LeaderCalls
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.batch import BROKER_EPOCH, read_header
from alpacamq.model.errors import RequestTimedOut, UnknownTopicId
from alpacamq.model.ids import TopicId
from alpacamq.model.records import Record, write_batch

from .three_brokers import three_brokers

PRODUCER = 77


def batch(sequence: int, count: int) -> bytearray:
    records = [Record(delta, 1, None, b"v", ()) for delta in range(count)]
    return write_batch(records, producer_id=PRODUCER, producer_epoch=BROKER_EPOCH, base_sequence=sequence)


def progress_of(broker: Broker, retry_ms: int = RETRY_MS) -> ProducerSequences:
    assert broker.member is not None
    calls = LeaderCalls(broker.topics, broker.settings.node_id, broker.member.peers, retry_ms)
    return ProducerSequences(calls)


async def test_any_broker_learns_how_far_a_producer_has_come(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        place = PartitionId(topic.id, 0)
        asked = {number: progress_of(broker) for number, broker in cluster.brokers.items()}
        for each in asked.values():
            assert await each.last_sequence(place, PRODUCER) is None
        await cluster[1].appends.append(topic.id, 0, batch(0, 5))
        for each in asked.values():
            assert await each.last_sequence(place, PRODUCER) == 4
            assert await each.last_sequence(place, PRODUCER, is_on_disk=True) == 4
        await cluster.kill(cluster.leader_id("orders"))
        await cluster.led("orders")
        number = next(number for number in cluster.brokers if number != cluster.leader_id("orders"))
        assert await asked[number].last_sequence(place, PRODUCER) == 4
        with pytest.raises(UnknownTopicId):
            await asked[number].last_sequence(PartitionId(TopicId(int=1), 0), PRODUCER)


async def test_what_is_not_committed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader may not have it: a delivery that was taken for done would be lost."""
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        leader = cluster.leader_id("orders")
        for other in set(cluster.brokers) - {leader}:
            await cluster.kill(other)
        partition = await cluster.led("orders")
        data = batch(0, 3)
        written = asyncio.Event()
        partition.stage(Append(data, read_header(data), written.set, None, Acks.LEADER))
        partition.commit()
        await written.wait()
        asked = progress_of(cluster[leader], retry_ms=0)
        monkeypatch.setattr(progress, "TIMEOUT_MS", 200)
        with pytest.raises(RequestTimedOut):
            await asked.last_sequence(PartitionId(topic.id, 0), PRODUCER)
