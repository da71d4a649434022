"""Transactions against a real broker: commit, abort, offsets, fencing."""

import asyncio
import signal

import pytest

from alpacamq.client.aio.cluster import Cluster, Isolation
from alpacamq.client.aio.consumer import Consumer
from alpacamq.client.aio.producer import Producer, ProducerSettings
from alpacamq.client.aio.reader import FetchSettings, Reader
from alpacamq.client.aio.transactions import State, TransactionalProducer
from alpacamq.client.errors import ProducerFenced, RecordRejected, TransactionAborted
from alpacamq.model.ids import TopicName, TopicPartition
from tests.brokers import Broker
from tests.waiting import soon


async def committed(cluster: Cluster, topic: str) -> list[bytes]:
    async with Reader(cluster, topic, until="now") as reader:
        return sorted([record.value or b"" async for record in reader])


async def test_a_transaction_is_seen_when_it_is_committed(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        async with producer.transaction() as transaction:
            for number in range(10):
                await transaction.put(topic, b"%d" % number)
            await producer.producer.flush()
            assert await committed(cluster, topic) == []
        assert transaction.state is State.COMMITTED
        assert await committed(cluster, topic) == [b"%d" % number for number in range(10)]


async def test_an_exception_aborts_and_the_next_transaction_goes_on(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        for word in (b"one", b"two", b"three"):
            try:
                async with producer.transaction() as transaction:
                    delivery = await transaction.put(topic, word)
                    if word == b"two":
                        await delivery
                        await transaction.put(topic, b"not even sent")
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert transaction.state is State.ABORTED
    assert await committed(cluster, topic) == [b"one", b"three"]


async def test_an_empty_transaction_can_be_committed_and_aborted(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        async with producer.transaction():
            pass
        await producer.transaction().abort()
        async with producer.transaction() as transaction:
            await transaction.put(topic, b"tea")
    assert await committed(cluster, topic) == [b"tea"]


async def test_offsets_are_committed_with_the_transaction(cluster: Cluster, topic: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    async with Producer(cluster) as writer:
        for number in range(20):
            await writer.put(source, b"%02d" % number, partition=0)
    place = TopicPartition(TopicName(source), 0)
    async with TransactionalProducer(cluster, topic) as producer:
        for should_commit in (False, True):
            async with Consumer(cluster, topic, topics=[source]) as consumer:
                transaction = producer.transaction()
                for _ in range(10):
                    record = await anext(consumer)
                    await transaction.put(target, record.value)
                await transaction.send_offsets(consumer)
                await (transaction.commit() if should_commit else transaction.abort())
                expected = {place: 10 if should_commit else None}
                assert await consumer.committed([place]) == expected
    assert await committed(cluster, target) == [b"%02d" % number for number in range(10)]


async def test_a_producer_with_the_same_id_fences_the_earlier_one(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as first:
        stale = first.transaction()
        await (await stale.put(topic, b"zombie"))
        async with TransactionalProducer(cluster, topic) as second:
            async with second.transaction() as transaction:
                await transaction.put(topic, b"alive")
            await stale.put(topic, b"zombie again")
            with pytest.raises((ProducerFenced, TransactionAborted)) as fenced:
                await stale.commit()
            cause = fenced.value.__cause__ or fenced.value
            assert isinstance(cause, ProducerFenced)
            assert not cause.retriable
            with pytest.raises(ProducerFenced):
                first.transaction()
    assert await committed(cluster, topic) == [b"alive"]


async def test_a_transaction_with_a_rejected_record_cannot_be_committed(cluster: Cluster, topic: str) -> None:
    settings = ProducerSettings(max_request_bytes=4 << 20)
    async with TransactionalProducer(cluster, topic, settings=settings) as producer:
        transaction = producer.transaction()
        await transaction.put(topic, b"small")
        large = await transaction.put(topic, bytes(2 << 20))
        with pytest.raises(RecordRejected):
            await large
        with pytest.raises(TransactionAborted):
            await transaction.put(topic, b"more")
        await transaction.abort()
        async with producer.transaction() as following:
            await following.put(topic, b"next")
    assert await committed(cluster, topic) == [b"next"]


async def test_a_commit_after_a_rejected_record_aborts(cluster: Cluster, topic: str) -> None:
    settings = ProducerSettings(max_request_bytes=4 << 20)
    async with TransactionalProducer(cluster, topic, settings=settings) as producer:
        transaction = producer.transaction()
        await transaction.put(topic, b"small")
        await transaction.put(topic, bytes(2 << 20))
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE"):
            await transaction.commit()
        assert transaction.state is State.ABORTED
    assert await committed(cluster, topic) == []


async def test_a_failed_transaction_that_is_left_without_an_error_is_aborted(
    cluster: Cluster, topic: str
) -> None:
    settings = ProducerSettings(max_request_bytes=4 << 20)

    async def ignore_the_failure(producer: TransactionalProducer) -> None:
        async with producer.transaction() as transaction:
            await transaction.put(topic, b"small")
            large = await transaction.put(topic, bytes(2 << 20))
            with pytest.raises(RecordRejected):
                await large

    async with TransactionalProducer(cluster, topic, settings=settings) as producer:
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE"):
            await ignore_the_failure(producer)
        async with producer.transaction() as transaction:
            await transaction.put(topic, b"next")
    assert await committed(cluster, topic) == [b"next"]


async def test_a_cancelled_task_aborts_its_transaction(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        started = asyncio.Event()

        async def work() -> None:
            async with producer.transaction() as transaction:
                await (await transaction.put(topic, b"tea"))
                started.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction() as transaction:
            await transaction.put(topic, b"coffee")
    assert await committed(cluster, topic) == [b"coffee"]
    settings = FetchSettings(isolation=Isolation.UNCOMMITTED)
    async with Reader(cluster, topic, until="now", settings=settings) as reader:
        assert sorted([record.value or b"" async for record in reader]) == [b"coffee", b"tea"]


async def test_an_error_of_an_aborted_transaction_is_not_raised_in_the_next(
    cluster: Cluster, topic: str
) -> None:
    settings = ProducerSettings(max_request_bytes=4 << 20)
    async with TransactionalProducer(cluster, topic, settings=settings) as producer:
        transaction = producer.transaction()
        await transaction.put(topic, bytes(2 << 20))
        await soon(lambda: transaction.state is State.FAILED)
        with pytest.raises(TransactionAborted, match="MESSAGE_TOO_LARGE"):
            await transaction.commit()
        async with producer.transaction() as following:
            await following.put(topic, b"next")
    assert await committed(cluster, topic) == [b"next"]


async def test_a_transaction_that_is_cancelled_while_it_commits_is_aborted(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        transaction = producer.transaction()
        await (await transaction.put(topic, b"tea", partition=0))
        broker.process.send_signal(signal.SIGSTOP)
        try:
            await transaction.put(topic, b"more tea", partition=0)
            committing = asyncio.ensure_future(transaction.commit())
            await asyncio.sleep(0)
            committing.cancel()
        finally:
            broker.process.send_signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert transaction.state is State.ABORTED
        async with producer.transaction() as following:
            await following.put(topic, b"coffee")
    assert await committed(cluster, topic) == [b"coffee"]


async def test_one_transaction_at_a_time(cluster: Cluster, topic: str) -> None:
    async with TransactionalProducer(cluster, topic) as producer:
        async with producer.transaction():
            with pytest.raises(RuntimeError, match="is open"):
                producer.transaction()
        transaction = producer.transaction()
        await transaction.commit()
        with pytest.raises(RuntimeError, match="has ended"):
            await transaction.commit()
