"""Checks of what is written to topics with schema validation, by brokers with a registry."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import append
from alpacamq.broker.publishing import Message, Published
from alpacamq.broker.queue.fifo import DeduplicationScope, FifoMessage
from alpacamq.broker.queue.service import FailureCause, RedriveTask
from alpacamq.broker.schemas import checks, workers
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.batch import Codec, read_header
from alpacamq.model.compression import TooMuchData
from alpacamq.model.errors import CoordinatorUnavailable, CorruptBatch, InvalidRecord, SchemasUnavailable
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.queues.messages import Action
from alpacamq.registry.framing import framed
from alpacamq.registry.messages import DeleteVersion, Draft, Register, SchemaVersion
from alpacamq.registry.schema import Reference, SchemaType
from alpacamq.security.tenants import TenantLimits
from alpacamq.telemetry.tracing import ClientApi
from tests.waiting import soon

from .open_brokers import running, sent, stored
from .queue_steps import ORDERS, settle

ORDER = json.dumps(
    {"type": "object", "title": "Order", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
)
ITEM = json.dumps({"type": "record", "name": "acme.Item", "fields": [{"name": "id", "type": "long"}]})
GOOD, BAD = b'{"amount": 1}', b'{"amount": "1"}'
FULL = {"schema.validation": "full"}


async def register(
    broker: Broker,
    subject: str,
    text: str = ORDER,
    schema_type: SchemaType = SchemaType.JSON,
    references: Sequence[Reference] = (),
) -> SchemaVersion:
    draft = Draft(text=text, schema_type=schema_type, references=tuple(references))
    return await broker.registry.register(Register(subject=subject, draft=draft))


async def orders(broker: Broker, settings: Mapping[str, str] = FULL) -> int:
    """Create the topic orders, register its schema, and return the id."""
    await broker.topics.create("orders", partitions=1, overrides=settings)
    return (await register(broker, "orders-value")).id


async def publish(broker: Broker, *values: bytes | None, topic: str = "orders", **fields: Any) -> list[Any]:
    """Return the error texts of messages; empty for those that were accepted."""
    results = await broker.publisher.publish(topic, [Message(value=value, **fields) for value in values])
    assert all(isinstance(each, Published | InvalidRecord) for each in results), results
    return [str(each) if isinstance(each, InvalidRecord) else "" for each in results]


async def check(broker: Broker, records: Sequence[Record], topic: str = "orders", **fields: Any) -> None:
    batch = write_batch(records, **fields)
    await broker.schema_checks.check_batch(broker.topics.partition(topic, 0), batch, read_header(batch))


def batch_of(schema_id: int, count: int, bad: Sequence[int] = ()) -> list[Record]:
    return [Record(at, 0, None, framed(schema_id, BAD if at in bad else GOOD)) for at in range(count)]


async def test_a_message_that_does_not_match_is_refused_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        values = (framed(known, GOOD), framed(known, BAD), None, GOOD, framed(77, GOOD))
        results = await publish(broker, *values)
        at = f"value does not match schema {known} of subject 'orders-value' at /amount"
        assert results == [
            "",
            f'record 1: {at}: "1" is not of type "number"',
            "",
            "record 3: value names no schema, neither before its data nor in a header __value_schema_id",
            "record 4: value names schema 77, which does not exist",
        ]
        assert [record.value for record in stored(broker, "orders")] == [framed(known, GOOD), None]
        counts = broker.schema_checks.topics["orders"]
        assert (counts.checked, counts.refused) == (5, 3)
        (single,) = await publish(broker, GOOD)
        assert single.startswith("value names no schema")


async def test_topics_without_validation_are_not_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await orders(broker, {"schema.validation.subject": "orders-value"})
        await sent(broker, "orders", b"anything", b"")
        assert broker.schema_checks.topics == {}


async def test_settings_take_effect_with_the_next_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker, {})
        for level, refused in (("none", 0), ("id", 1), ("full", 2), ("id", 1), ("none", 0)):
            settings = {"schema.validation": level}
            await broker.topics.configure("orders", lambda _, new=settings: new)  # type: ignore[misc]
            results = await publish(broker, framed(known, BAD), b"none")
            assert sum(map(bool, results)) == refused, level


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [10, 5000])
async def test_a_batch_is_refused_with_the_records_at_fault(tmp_path: Path, codec: Codec, count: int) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await check(broker, batch_of(known, count), codec=codec)
        with pytest.raises(
            InvalidRecord, match=r"record 3 of the batch: .* at /amount: .*, and 1 more"
        ) as found:
            await check(broker, batch_of(known, count, bad=(3, count - 1)), codec=codec)
        assert [each.place for each in found.value.record_errors] == [3, count - 1]
        assert bool(broker.schema_checks.workers.pids) is (count == 5000)


async def test_a_large_schema_is_checked_in_a_process(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=FULL)
        large = {"properties": {f"property{number}": {"type": "number"} for number in range(1000)}}
        known = (await register(broker, "orders-value", json.dumps(large))).id
        (reason,) = await publish(broker, framed(known, b'{"property999": ""}'))
        assert "at /property999: " in reason
        assert broker.schema_checks.workers.pids


async def test_large_batches_of_protobuf_are_checked_in_a_process(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("items", partitions=1, overrides=FULL)
        part = 'syntax = "proto3"; package acme; message Part { string name = 1; }'
        await register(broker, "part", part, SchemaType.PROTOBUF)
        whole = (
            'syntax = "proto3"; package acme; import "lib/part.proto"; import "google/protobuf/any.proto";'
            "message Item { int64 id = 1; message Line { Part part = 1; google.protobuf.Any any = 2; } }"
        )
        used = (Reference("lib/part.proto", "part", 1),)
        known = (await register(broker, "items-value", whole, SchemaType.PROTOBUF, used)).id
        item, line, bad = b"\0\x08\x01", b"\x04\0\0\x0a\x03\x0a\x01x", b"\x04\0\0\x0a\x03\x0a\x01\xff"
        values = [framed(known, item), framed(known, line)] * 500
        await check(broker, [Record(at, 0, None, value) for at, value in enumerate(values)], "items")
        assert broker.schema_checks.workers.pids
        values[700] = framed(known, bad)
        with pytest.raises(InvalidRecord, match=r"record 700 of the batch: .* at part.name: ") as found:
            await check(broker, [Record(at, 0, None, value) for at, value in enumerate(values)], "items")
        assert len(found.value.record_errors) == 1


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "items-value"),
        ("RecordNameStrategy", "acme.Item"),
        ("TopicRecordNameStrategy", "items-acme.Item"),
    ],
)
async def test_the_schema_is_a_version_of_the_subject_of_the_strategy(
    tmp_path: Path, strategy: str, subject: str
) -> None:
    async with running(tmp_path) as broker:
        settings = FULL | {"confluent.value.subject.name.strategy": strategy}
        await broker.topics.create("items", partitions=1, overrides=settings)
        version = await register(broker, "elsewhere", ITEM, SchemaType.AVRO)
        (reason,) = await publish(broker, framed(version.id, b"\x02"), topic="items")
        assert reason == f"value names schema {version.id}, which is not a version of subject {subject!r}"
        await register(broker, subject, ITEM, SchemaType.AVRO)

        async def is_accepted() -> bool:
            return await publish(broker, framed(version.id, b"\x02"), topic="items") == [""]

        await soon(is_accepted)
        header = Header("__value_schema_id", b"\x01" + UUID(version.guid).bytes)
        assert await publish(broker, b"\x02", topic="items", headers=(header,)) == [""]
        (reason,) = await publish(broker, b"\x80", topic="items", headers=(header,))
        assert reason.startswith(f"value does not match schema {version.guid} of subject {subject!r} at id:")
        large = [Record(at, 0, None, framed(version.id, b"\x02")) for at in range(2000)]
        await check(broker, large, "items")


async def test_keys_are_checked_like_values(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker, FULL | {"confluent.key.schema.validation": "true"})
        key_id = (await register(broker, "orders-key", '{"type": "string"}')).id
        value = framed(known, GOOD)
        assert await publish(broker, value, key=framed(key_id, b'"k"')) == [""]
        assert await publish(broker, value) == [""], "no key"
        (reason,) = await publish(broker, value, key=framed(known, b'"k"'))
        assert reason == f"key names schema {known}, which is not a version of subject 'orders-key'"
        (reason,) = await publish(broker, value, key=framed(key_id, b"1"))
        assert reason.startswith(f"key does not match schema {key_id} of subject 'orders-key'")


async def test_plain_json_is_checked_by_the_latest_version_of_a_subject(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await orders(broker, FULL | {"schema.validation.subject": "prices"})
        (reason,) = await publish(broker, GOOD)
        assert reason == "value names no schema, and subject 'prices' has no version"
        await register(broker, "prices")

        async def is_accepted() -> bool:
            return await publish(broker, GOOD) == [""]

        await soon(is_accepted)
        (reason,) = await publish(broker, BAD)
        assert reason.startswith("value does not match the latest version of subject 'prices' at /amount: ")


@pytest.mark.parametrize("strategy", ["TopicNameStrategy", "RecordNameStrategy"])
async def test_topics_of_a_tenant_use_its_own_subjects(tmp_path: Path, strategy: str) -> None:
    async with running(tmp_path) as broker:
        settings = FULL | {
            "schema.validation.subject": "prices",
            "confluent.value.subject.name.strategy": strategy,
        }
        await broker.access.create_tenant("acme", description="", limits=TenantLimits())
        await broker.topics.create("acme:orders", partitions=1, overrides=settings)
        subject = {"TopicNameStrategy": "orders-value", "RecordNameStrategy": "Order"}[strategy]
        await register(broker, subject)
        await register(broker, "prices")
        values = (framed(1, GOOD), GOOD)
        assert await publish(broker, *values, topic="acme:orders") == [
            "record 0: value names schema 1, which does not exist",
            "record 1: value names no schema, and subject 'prices' has no version",
        ]
        await register(broker, ":.@acme:other")
        await register(broker, ":.@acme:prices")

        async def first() -> str:
            refused = await publish(broker, *values, topic="acme:orders")
            return "" if refused[1] else refused[0]

        assert await soon(first) == (
            f"record 0: value names schema 1, which is not a version of subject {subject!r}"
        )
        await register(broker, f":.@acme:{subject}")

        async def is_accepted() -> bool:
            return await publish(broker, *values, topic="acme:orders") == ["", ""]

        await soon(is_accepted)


async def test_plain_values_need_a_json_schema(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await orders(broker, FULL | {"schema.validation.subject": "items"})
        await register(broker, "items", ITEM, SchemaType.AVRO)
        (reason,) = await publish(broker, b"\x02")
        assert reason == (
            "value names no schema, and the latest version of subject 'items' is not a JSON schema"
        )


async def test_a_deleted_version_is_refused_soon(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        assert await publish(broker, framed(known, GOOD)) == [""]
        await broker.registry.ask(DeleteVersion(subject="orders-value", version=1))

        async def refusal() -> str:
            (reason,) = await publish(broker, framed(known, GOOD))
            assert isinstance(reason, str)
            return reason

        assert await soon(refusal) == (
            f"value names schema {known}, which is not a version of subject 'orders-value'"
        )
        with pytest.raises(InvalidRecord, match="is not a version of subject"):
            await check(broker, batch_of(known, 5000))


async def test_what_is_known_of_schemas_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_KEPT", 10)
    async with running(tmp_path) as broker:
        known = await orders(broker)
        for number in range(100, 120):
            await publish(broker, framed(number, GOOD))
        assert len(broker.schema_checks._lookup._kept) == 10
        assert await publish(broker, framed(known, GOOD)) == [""]
        many = [Record(at, 0, None, framed(1000 + at, GOOD)) for at in range(3000)]
        with pytest.raises(InvalidRecord, match="record 0 of the batch: value names schema 1000, which"):
            await check(broker, many)


async def test_a_batch_cannot_use_too_many_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_SCHEMAS", 5)
    monkeypatch.setattr(checks, "MAX_RECENT", 0)
    async with running(tmp_path) as broker:
        known = await orders(broker)
        many = [*batch_of(known, 2), *(Record(at, 0, None, framed(99 + at, GOOD)) for at in range(2, 10))]
        with pytest.raises(InvalidRecord, match="more than 5 schemas"):
            await check(broker, many)


async def test_nothing_is_accepted_while_the_registry_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        assert await publish(broker, framed(known, GOOD)) == [""]
        monkeypatch.setattr(checks, "FRESH_SECONDS", 0.0)

        async def fails(_: object) -> None:
            raise CoordinatorUnavailable("no leader")

        with monkeypatch.context() as faults:
            faults.setattr(broker.registry, "ask", fails)
            (result,) = await broker.publisher.publish("orders", [Message(value=framed(known, GOOD))])
            assert isinstance(result, SchemasUnavailable)
            with pytest.raises(SchemasUnavailable, match="the schema registry does not answer: no leader"):
                await check(broker, batch_of(known, 5000))
        assert await publish(broker, framed(known, GOOD)) == [""]
        with monkeypatch.context() as faults:
            faults.setattr(checks, "ANSWER_SECONDS", 0.01)
            faults.setattr(broker.registry, "ask", lambda _: asyncio.Event().wait())
            with pytest.raises(SchemasUnavailable, match="in time"):
                await check(broker, batch_of(known, 1))
        assert len(stored(broker, "orders")) == 2


async def test_a_process_that_ends_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await check(broker, batch_of(known, 5000))
        (pid,) = broker.schema_checks.workers.pids
        os.kill(pid, signal.SIGKILL)
        await check(broker, batch_of(known, 5000))
        (other,) = broker.schema_checks.workers.pids
        assert other != pid
    assert not psutil.pid_exists(other)


async def test_a_check_that_takes_too_long_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await check(broker, batch_of(known, 5000))
        (pid,) = broker.schema_checks.workers.pids
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as faults:
            faults.setattr(workers, "CHECK_SECONDS", 0.01)
            with pytest.raises(SchemasUnavailable, match="takes too long"):
                await check(broker, batch_of(known, 5000))
        assert not psutil.pid_exists(pid)
        await check(broker, batch_of(known, 5000))


async def test_a_batch_is_not_refused_because_of_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_PROCESSES", 1)
    monkeypatch.setattr(workers, "ATTEMPTS", 1)
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await check(broker, batch_of(known, 5000))
        (process,) = broker.schema_checks.workers._running
        os.kill(process.pid, signal.SIGSTOP)
        first = asyncio.ensure_future(check(broker, batch_of(known, 5000)))
        second = asyncio.ensure_future(check(broker, batch_of(known, 5000)))

        async def both_are_sent() -> bool:
            return process.under_way == 2

        await soon(both_are_sent)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(InvalidRecord, match="the process that does it ended"):
            await first
        await second


async def test_batches_that_are_checked_at_once_share_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    async with running(tmp_path) as broker:
        known = await orders(broker)
        results = await asyncio.gather(
            *(check(broker, batch_of(known, 1000, bad=(number,))) for number in range(9)),
            return_exceptions=True,
        )
        places = [each.record_errors[0].place for each in results if isinstance(each, InvalidRecord)]
        assert places == list(range(9)), "each has its own reply"
        assert len(broker.schema_checks.workers.pids) == 2


async def test_a_client_that_leaves_does_not_disturb_the_process(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await check(broker, batch_of(known, 5000))
        pids = broker.schema_checks.workers.pids
        leaving = asyncio.ensure_future(check(broker, batch_of(known, 20_000, bad=(1,))))
        for _ in range(3):
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await check(broker, batch_of(known, 5000))
        assert broker.schema_checks.workers.pids == pids


async def test_others_are_served_while_a_large_batch_is_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        await broker.topics.create("other", partitions=1)
        await check(broker, batch_of(known, 1000))
        checking = asyncio.ensure_future(check(broker, batch_of(known, 40_000)))
        served = 0
        while not checking.done():
            await sent(broker, "other", b"x")
            served += 1
        await checking
        assert served > 10


async def test_hostile_batches_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, unpacked_limit_bytes=1 << 20) as broker:
        known = await orders(broker)
        deep = framed(known, b"[" * 100_000)
        with pytest.raises(InvalidRecord, match="nested more than 100"):
            await check(broker, [Record(0, 0, None, deep)])
        bomb = [Record(0, 0, None, bytes(10 << 20))]
        for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY):
            with pytest.raises(TooMuchData):
                await check(broker, bomb, codec=codec)
        for count in (10, 5000):
            batch = write_batch(batch_of(known, count))
            batch[-2:] = b"\xff\xff"
            with pytest.raises(CorruptBatch):
                await broker.schema_checks.check_batch(
                    broker.topics.partition("orders", 0), batch, read_header(batch)
                )
        await check(broker, batch_of(known, 5000))


async def test_a_batch_that_is_in_the_log_is_not_checked_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        partition = broker.topics.partition("orders", 0)
        fields: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
        batch = write_batch(batch_of(known, 3), **fields)
        await append(partition, batch)
        await broker.registry.ask(DeleteVersion(subject="orders-value", version=1))
        await check(broker, batch_of(known, 3), **fields)
        with pytest.raises(InvalidRecord):
            await check(broker, batch_of(known, 3), **fields | {"base_sequence": 3})


async def test_delayed_messages_are_checked_when_they_are_accepted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker)
        due_ms = broker.delays.now_ms() + 50
        results = await publish(broker, framed(known, BAD), framed(known, GOOD), deliver_at_ms=due_ms)
        assert [bool(each) for each in results] == [True, False]
        await broker.registry.ask(DeleteVersion(subject="orders-value", version=1))

        async def delivered() -> list[Record]:
            return stored(broker, "orders")

        (record,) = await soon(delivered)
        assert record.value == framed(known, GOOD)


async def test_messages_of_fifo_queues_are_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create(
            "orders.fifo", partitions=1, overrides=FULL | {"schema.validation.subject": "o"}
        )
        await register(broker, "o")

        async def send(value: bytes) -> object:
            message = FifoMessage(message=Message(value=value, key=b"g"), deduplication_id="d")
            (result,) = await broker.fifo.publish(
                broker.topics.image.topic("orders.fifo"),
                [message],
                scope=DeduplicationScope.QUEUE,
                origin=Origin(ClientApi.SQS, ""),
            )
            return result

        assert isinstance(await send(BAD), InvalidRecord)
        # The id was not used up.
        assert not isinstance(await send(GOOD), Exception)
        assert len(stored(broker, "orders.fifo")) == 1


async def test_a_redrive_leaves_messages_that_the_target_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        known = await orders(broker, {})
        await sent(broker, "orders", framed(known, BAD), framed(known, GOOD), b"plain")
        received = await broker.queues.receive(ORDERS, max_messages=3, wait_ms=5000)
        # Whatever a topic requires, its dead letters are kept.
        await broker.topics.configure("orders", lambda _: FULL)
        await broker.topics.create("orders.dlq", partitions=1, overrides=FULL)
        assert await settle(broker, Action.REJECT, *received) == [None] * 3

        async def moved() -> bool:
            return len(stored(broker, "orders.dlq")) == 3

        await soon(moved)
        task = await broker.queues.start_redrive("orders.dlq")

        async def ended() -> RedriveTask | None:
            (found,) = await broker.queues.redrives("orders.dlq")
            return found if found.id == task.id and found.state != "running" else None

        done = await soon(ended)
        assert (done.state, done.moved, done.cause) == ("failed", 1, FailureCause.NOT_ALLOWED)
        assert "2 messages were not moved: topic 'orders' refuses them: " in done.failure
        assert [record.value for record in stored(broker, "orders")[3:]] == [framed(known, GOOD)]
