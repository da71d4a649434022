"""Batches of Kafka clients that contain delayed records."""

from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay import service
from alpacamq.broker.delay.split import may_hold_delays, split_delayed
from alpacamq.broker.partition.leader import append
from alpacamq.cluster.image import ClusterImage
from alpacamq.cluster.tenants import tenant_of
from alpacamq.model.batch import TRANSACTIONAL, Codec, read_header
from alpacamq.model.errors import InvalidDelay, InvalidRecord, InvalidTransactionState, OutOfOrderSequence
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Header, Record, read_records, write_batch
from alpacamq.security.tenants import Tenant, TenantLimits
from tests.waiting import soon

from .open_brokers import running, stored

NOW_MS = 1_790_000_000_000


def record(offset: int, due_ms: int | None, timestamp_ms: int = NOW_MS) -> Record:
    headers = () if due_ms is None else (Header("a", None), Header(DELIVER_AT, str(due_ms).encode()))
    return Record(offset, timestamp_ms + offset, b"k", f"{offset}".encode(), headers)


@pytest.mark.parametrize("codec", Codec)
def test_immediate_records_keep_their_offsets_and_sequences(codec: Codec) -> None:
    records = [record(0, None), record(1, NOW_MS + 5), record(2, NOW_MS - 5), record(3, NOW_MS + 9)]
    batch = write_batch(records, codec=codec, producer_id=9, producer_epoch=0, base_sequence=100)
    assert may_hold_delays(memoryview(batch), read_header(batch))
    split = split_delayed(batch, read_header(batch), NOW_MS, 1 << 20)
    assert split is not None
    assert split.delayed == [(NOW_MS + 5, records[1]), (NOW_MS + 9, records[3])]
    left, header = split.immediate
    assert list(read_records(left)) == [records[0], records[2]]
    assert (header.last_offset_delta, header.record_count, header.codec) == (3, 2, codec)
    assert (header.producer_id, header.base_sequence) == (9, 100)


def test_a_fully_delayed_batch_leaves_a_placeholder() -> None:
    batch = write_batch([record(0, NOW_MS + 5), record(1, NOW_MS + 5)], codec=Codec.ZSTD)
    split = split_delayed(batch, read_header(batch), NOW_MS, 1 << 20)
    assert split is not None
    _, header = split.immediate
    assert header.is_control
    assert header.last_offset_delta == 1


def test_a_batch_without_delays_is_not_split() -> None:
    batch = write_batch([record(0, None), record(1, NOW_MS)])
    assert split_delayed(batch, read_header(batch), NOW_MS, 1 << 20) is None
    plain = write_batch([record(0, None)])
    assert not may_hold_delays(memoryview(plain), read_header(plain))


@pytest.mark.parametrize("value", [b"", b"soon", b"-5", b"1e9", b" 17", b"9" * 30, None])
def test_an_invalid_due_time_is_refused(value: bytes | None) -> None:
    batch = write_batch([Record(0, NOW_MS, None, None, (Header(DELIVER_AT, value),))])
    with pytest.raises(InvalidDelay, match="record 0 of the batch: alpacamq-deliver-at="):
        split_delayed(batch, read_header(batch), NOW_MS, 1 << 20)


def test_delayed_records_in_a_transaction_are_refused() -> None:
    batch = write_batch(
        [record(0, NOW_MS + 5)], attributes=TRANSACTIONAL, producer_id=9, producer_epoch=0, base_sequence=0
    )
    with pytest.raises(InvalidRecord, match="cannot be part of a transaction"):
        split_delayed(batch, read_header(batch), NOW_MS, 1 << 20)


def batch_of(broker: Broker, delays_ms: list[int | None], sequence: int) -> bytearray:
    now_ms = broker.clock.now_ms()
    records = [
        record(offset, None if delay_ms is None else now_ms + delay_ms, now_ms)
        for offset, delay_ms in enumerate(delays_ms)
    ]
    return write_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)


async def test_a_batch_retried_after_a_crash_half_way_is_not_duplicated(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        partition = broker.topics.partition("orders", 0)
        batch = batch_of(broker, [None, 80, 60_000], 0)
        await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        # The crash happens here: the immediate records are not in the partition.
    async with running(tmp_path) as broker:
        partition = broker.topics.partition("orders", 0)

        async def one_is_delivered() -> bool:
            return [record.value for record in stored(broker, "orders")] == [b"1"]

        await soon(one_is_delivered)
        data, _ = await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        await append(partition, bytearray(data))
        assert [record.value for record in stored(broker, "orders")] == [b"1", b"0"]
        assert (await broker.delays.stats()).pending == 1
        # Once more, when the whole batch is known.
        data, _ = await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        assert (await append(partition, bytearray(data))).duplicate
        assert (await broker.delays.stats()).pending == 1


async def test_the_limit_of_the_tenant_is_looked_up_once_for_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    def counted(image: ClusterImage, topic: str) -> Tenant | None:
        looked_up.append(topic)
        return tenant_of(image, topic)

    async with running(tmp_path) as broker:
        await broker.access.create_tenant("acme", description="", limits=TenantLimits(delay_ms=60_000))
        await broker.topics.create("acme:orders", partitions=1)
        partition = broker.topics.partition("acme:orders", 0)
        monkeypatch.setattr(service, "tenant_of", counted)
        batch = batch_of(broker, [30_000] * 50, 0)
        await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        assert looked_up == ["acme:orders"]
        batch = batch_of(broker, [30_000, 90_000], 50)
        with pytest.raises(InvalidDelay, match="longer than the limit of the tenant, 60000 ms"):
            await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))


async def test_a_batch_outside_the_open_transaction_of_its_producer_schedules_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        partition = broker.topics.partition("orders", 0)
        in_transaction = write_batch(
            [record(0, None)], attributes=TRANSACTIONAL, producer_id=9, producer_epoch=0, base_sequence=0
        )
        await append(partition, in_transaction)
        batch = batch_of(broker, [60_000], 1)
        with pytest.raises(InvalidTransactionState):
            await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        assert (await broker.delays.stats()).pending == 0


async def test_a_batch_that_the_partition_would_refuse_schedules_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        partition = broker.topics.partition("orders", 0)
        await append(partition, batch_of(broker, [None], 0))
        batch = batch_of(broker, [60_000], 7)
        with pytest.raises(OutOfOrderSequence):
            await broker.delayed_batches.without_delayed(partition, batch, read_header(batch))
        assert (await broker.delays.stats()).pending == 0
