"""Topics of the asyncio client: sending, reading, groups, transactions, codecs, delays."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import alpacamq
from alpacamq import aio
from tests.brokers import Broker
from tests.certificates import Authority, tls_section
from tests.conftest import NewBroker
from tests.integration.nodes import Nodes


@dataclass
class Order:
    id: int
    item: str = "tea"


async def values(reader: aio.TopicReader[Any]) -> list[Any]:
    return [message.value async for message in reader]


async def test_messages_come_back_as_they_were_sent(mq: aio.Client, topic: str) -> None:
    orders = mq.topic(topic, value=Order, key=str)
    written = await orders.send(Order(1), key="ann", headers={"source": "shop", "none": None})
    assert (written.topic, written.offset) == (topic, 0)
    async for message in orders.read():
        assert (message.value, message.key) == (Order(1), "ann")
        assert message.headers == {"source": b"shop", "none": None}
        assert (message.partition, message.offset) == (written.partition, written.offset)
        break


async def test_concurrent_sends_keep_their_order_within_a_partition(mq: aio.Client, topic: str) -> None:
    orders = mq.topic(topic, value=Order)
    await asyncio.gather(*(orders.send(Order(number), partition=0) for number in range(200)))
    async with orders.producer(compression="zstd") as producer:
        for number in range(200, 400):
            producer.send(Order(number), partition=0)
    assert [each.id for each in await values(orders.read(until="latest"))] == list(range(400))


async def test_an_invalid_value_is_not_sent(mq: aio.Client, topic: str) -> None:
    orders = mq.topic(topic, value=str)
    with pytest.raises(alpacamq.InvalidValue):
        await orders.send(b"bytes")  # type: ignore[arg-type]
    await orders.send("text")
    assert await values(orders.read(until="latest")) == ["text"]


async def test_none_is_a_tombstone(mq: aio.Client, topic: str) -> None:
    orders = mq.topic(topic, value=Order)
    await orders.send(None, key="ann")
    async for message in orders.read():
        assert message.is_tombstone
        break


@pytest.mark.parametrize("start", ["-1h", datetime.now(UTC) - timedelta(hours=1)])
async def test_reading_begins_at_a_time(mq: aio.Client, topic: str, start: str | datetime) -> None:
    messages = mq.topic(topic, value=str)
    await messages.send("now")
    assert await values(messages.read(start=start, until="latest")) == ["now"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await values(messages.read(start=later, until="latest")) == []


async def test_a_group_continues_where_it_committed(mq: aio.Client, topic: str) -> None:
    messages = mq.topic(topic, value=str)
    for number in range(4):
        await messages.send(f"m{number}", partition=0)
    async with asyncio.timeout(60):
        async with messages.subscribe("billing") as consumer:
            first = await anext(consumer)
            second = await anext(consumer)
            assert (first.value, second.value) == ("m0", "m1")
            assert consumer.assignment >= {0}
            await consumer.commit(first)
        async with messages.subscribe("billing") as consumer:
            assert (await anext(consumer)).value == "m1"


async def test_a_transaction_moves_messages_and_offsets_together(mq: aio.Client, topic: str) -> None:
    source, target = mq.topic(topic, value=str), mq.topic(f"{topic}-out", value=str)
    for number in range(3):
        await source.send(f"m{number}", partition=0)
    async with asyncio.timeout(90):
        async with source.subscribe("copier") as consumer:
            with suppress(KeyError):
                async with mq.transaction(topic) as tx:
                    message = await anext(consumer)
                    await tx.send(target, f"{message.value} lost")
                    tx.commit_offsets(consumer)
                    raise KeyError
            async with mq.transaction(topic) as tx:
                message = await anext(consumer)
                await tx.send(target, message.value)
                tx.commit_offsets(consumer)
        assert await values(target.read(until="latest")) == ["m1"]
        async with source.subscribe("copier") as consumer:
            assert (await anext(consumer)).value == "m2"


async def test_a_transactional_id_can_be_taken_back_from_another_client(
    mq: aio.Client, url: str, topic: str
) -> None:
    messages = mq.topic(topic, value=str)
    async with aio.connect(url) as other:
        async with mq.transaction(topic) as tx:
            await tx.send(messages, "one")
        async with other.transaction(topic) as tx:
            await tx.send(other.topic(topic, value=str), "two")
        with pytest.raises(alpacamq.AlpacaError):
            async with mq.transaction(topic) as tx:
                await tx.send(messages, "fenced")
        async with mq.transaction(topic) as tx:
            await tx.send(messages, "three")
    assert sorted(await values(messages.read(until="latest"))) == ["one", "three", "two"]


@pytest.mark.parametrize("setting", ["true", "false"], ids=["over Kafka", "over gRPC"])
async def test_a_delayed_message_arrives_later(
    mq: aio.Client, broker: Broker, topic: str, setting: str
) -> None:
    async with httpx.AsyncClient(base_url=f"http://{broker.http_address}") as http:
        body = {"name": topic, "partitions": 1, "settings": {"message.delays": setting}}
        (await http.post("/topics", json=body)).raise_for_status()
    messages = mq.topic(topic, value=str)
    delayed = await messages.send("later", delay="200ms", headers={"a": "b"}, priority="high")
    assert delayed.offset == -1
    await messages.send("now")
    async with messages.queue("workers").receive(credit=1) as jobs:
        for expected in ("now", "later"):
            async with await asyncio.wait_for(jobs.next(), 60) as job:
                assert job.value == expected
        assert job.priority == "high"
        assert job.headers["a"] == b"b"


async def test_a_delay_and_a_time_exclude_each_other(mq: aio.Client, topic: str) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        await mq.topic(topic).send(b"", delay="1s", deliver_at=datetime.now(UTC))


SCHEMA = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"item","type":"string"}]}'
)
PROTOBUF_SCHEMA = 'syntax = "proto3"; message Order { int32 id = 1; string item = 2; }'
JSON_SCHEMA = '{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'


@pytest.mark.parametrize(
    ("codec", "kind", "schema"),
    [
        (alpacamq.avro, "AVRO", SCHEMA),
        (alpacamq.json_schema, "JSON", JSON_SCHEMA),
        (alpacamq.protobuf, "PROTOBUF", PROTOBUF_SCHEMA),
    ],
    ids=["avro", "json schema", "protobuf"],
)
async def test_values_with_a_schema_of_the_registry(
    mq: aio.Client, broker: Broker, topic: str, codec: Any, kind: str, schema: str
) -> None:
    async with httpx.AsyncClient(base_url=f"http://{broker.registry_address}") as http:
        body = {"schema": schema, "schemaType": kind}
        (await http.post(f"/subjects/{topic}-value/versions", json=body)).raise_for_status()
    orders = mq.topic(topic, value=codec(f"{topic}-value", Order))
    await orders.send(Order(1, "espresso"))
    async with orders.producer() as producer:
        producer.send(Order(2, "tea"))
    with pytest.raises(alpacamq.InvalidValue, match="does not match the schema"):
        await orders.send({"id": "not a number"})
    # A client that has not written anything knows no schema yet.
    async with aio.connect(f"alpaca://{broker.grpc_address}") as other:
        read = other.topic(topic, value=codec(f"{topic}-value", Order))
        found = await values(read.read(until="latest"))
        assert sorted(found, key=lambda each: each.id) == [Order(1, "espresso"), Order(2, "tea")]
        async with read.queue("workers").receive() as jobs:
            assert (await jobs.next()).value in found
        other_topic = other.topic(topic)
        written = await other_topic.send(b"no schema", partition=0)
        async for message in read.read(start={0: written.offset}, partitions=[0]):
            with pytest.raises(alpacamq.InvalidValue, match="does not begin with the id of a schema"):
                _ = message.value
            break


async def test_an_unreachable_cluster_says_what_it_tried() -> None:
    with pytest.raises(alpacamq.Unreachable, match=r"127\.0\.0\.1:1") as error:
        async with aio.connect("alpaca://127.0.0.1:1", timeout="200ms"):
            pass
    assert error.value.retriable


async def test_a_closed_client_refuses_work(url: str, topic: str) -> None:
    async with aio.connect(url) as mq:
        messages = mq.topic(topic)
    with pytest.raises(alpacamq.Closed):
        await messages.send(b"late")


async def test_a_client_of_three_nodes_survives_the_loss_of_one(nodes: Nodes, topic: str) -> None:
    listed = ",".join(node.grpc for node in nodes)
    async with aio.connect(f"alpaca://127.0.0.1:1,{listed}") as mq:
        messages = mq.topic(topic, value=str)
        acknowledged = []
        for number in range(60):
            if number == 20:
                next(iter(nodes)).kill()
            await messages.send(f"m{number}")
            acknowledged.append(f"m{number}")
        found = await values(messages.read(until="latest"))
        assert set(acknowledged) <= set(found)
        assert len(found) == len(set(found))


async def test_users_passwords_and_api_keys(new_broker: NewBroker, tmp_path: Path, topic: str) -> None:
    users = tmp_path / "users"
    users.write_text("admin:secret\nalice:secret\n")
    users.chmod(0o600)
    broker = new_broker(
        config=f"[security]\nusers_file = '{users}'\nallow_anonymous = false\nsuper_users = ['User:admin']\n"
    )
    broker.start()
    address = broker.grpc_address
    with pytest.raises(alpacamq.LoginRefused) as refused:
        async with aio.connect(f"alpaca://admin:wrong@{address}"):
            pass
    assert not refused.value.retriable
    async with aio.connect(f"alpaca://admin:secret@{address}") as mq:
        await mq.topic(topic).send(b"by password")
    async with httpx.AsyncClient(base_url=f"http://{broker.http_address}", auth=("admin", "secret")) as http:
        answer = await http.post("/keys", json={})
        answer.raise_for_status()
    async with aio.connect(f"alpaca://{address}", token=answer.json()["key"]) as mq:
        messages = mq.topic(topic)
        assert await values(messages.read(until="latest")) == [b"by password"]
        async with messages.queue("workers").receive() as jobs:
            assert (await asyncio.wait_for(jobs.next(), 30)).value == b"by password"


async def test_tls_with_a_client_certificate(new_broker: NewBroker, tmp_path: Path, topic: str) -> None:
    authority = Authority(tmp_path / "certificates")
    server, client = authority.server(), authority.client()
    listener = "tls = true\nclient_certificates = 'required'\n"
    broker = new_broker(config=f"{tls_section(authority, server)}[grpc]\n{listener}[kafka]\n{listener}")
    broker.start()
    url = f"alpacas://{broker.grpc_address}"
    with pytest.raises(alpacamq.ClientError):
        async with aio.connect(url, timeout="2s"):
            pass  # the authority is not known
    files = {"certificate": str(client.certificate), "key": str(client.key)}
    async with aio.connect(url, ca=str(authority.ca), **files) as mq:
        await mq.topic(topic).send(b"encrypted")
        async with mq.topic(topic).queue("workers").receive() as jobs:
            job = await asyncio.wait_for(jobs.next(), 30)
            assert job.value == b"encrypted"
