"""Who may write, read and administer: access rules, tenants and quotas."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from alpacamq.api.grpc.dispatch import RIGHTS
from alpacamq.broker.access import Access
from alpacamq.broker.publishing import Message
from alpacamq.broker.quotas import Limit
from alpacamq.model.names import id_of, topic_of
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.quotas import EntityPart, QuotaEdit, QuotaKey, QuotaOp
from alpacamq.security.tenants import TenantLimits
from alpacamq.v1 import admin_pb2, log_pb2, producer_pb2
from alpacamq.v1 import log_pb2 as pb
from tests.secured import ADMIN, ALICE

from .client import Client, connected, refusal
from .serving import GrpcBroker, Metadata, served
from .streams import NOW, Produce, Subscription, read, read_some, record

READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
DENIED = grpc.StatusCode.PERMISSION_DENIED.value[0]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[GrpcBroker]:
    async with served(tmp_path / "data") as broker:
        await broker.publish("orders", ["a", "b", "c"])
        yield broker


@pytest.fixture
async def client(broker: GrpcBroker) -> AsyncIterator[Client]:
    async with connected(broker.address) as client:
        yield client


async def _list_topics(client: Client, metadata: Metadata) -> list[str]:
    call = client.unary(
        "/alpacamq.v1.Admin/ListTopics", admin_pb2.ListTopicsRequest, admin_pb2.ListTopicsResponse
    )
    response = await call(admin_pb2.ListTopicsRequest(), metadata=metadata, timeout=60)
    return [each.name for each in response.topics]


async def _describe(client: Client, topic: str, metadata: Metadata) -> Any:
    call = client.unary(
        "/alpacamq.v1.Admin/DescribeTopic", admin_pb2.DescribeTopicRequest, admin_pb2.TopicDescription
    )
    return await call(admin_pb2.DescribeTopicRequest(topic=topic), metadata=metadata, timeout=60)


def test_the_table_of_rights_has_the_methods_of_producer_and_log() -> None:
    for module, service in ((producer_pb2, "Producer"), (log_pb2, "Log")):
        for method in module.DESCRIPTOR.services_by_name[service].methods:
            assert f"alpacamq.v1.{service}/{method.name}" in RIGHTS


async def test_every_request_of_a_stream_needs_the_right_to_write(broker: GrpcBroker, client: Client) -> None:
    stream = Produce(client, await broker.key_of(ALICE))
    await stream.write(1, "orders", record(b"x"))
    response = await stream.response()
    assert (response.error.code, response.result.offsets) == (DENIED, [])
    await broker.allow(WRITE, TOPIC, "orders")
    await stream.write(2, "orders", record(b"x"))
    assert list((await stream.response()).result.offsets) == [3]
    await broker.revoke()
    await stream.write(3, "orders", record(b"x"))
    assert (await stream.response()).error.code == DENIED
    await stream.end()


async def test_writing_to_a_new_topic_needs_the_right_to_create_it(
    broker: GrpcBroker, client: Client
) -> None:
    await broker.allow(WRITE, TOPIC, "fresh")
    stream = Produce(client, await broker.key_of(ALICE))
    await stream.write(1, "fresh", record(b"x"))
    assert (await stream.response()).error.code == DENIED
    await broker.allow(CREATE, TOPIC, "fresh")
    await stream.write(2, "fresh", record(b"x"))
    assert list((await stream.response()).result.offsets) == [0]
    await stream.end()


async def test_transactional_ids_need_the_right_to_write(broker: GrpcBroker, client: Client) -> None:
    await broker.allow(WRITE, TOPIC, "orders")
    stream = Produce(client, await broker.key_of(ALICE))
    state = producer_pb2.ProducerState(producer_id=1, transactional_id="tx")
    await stream.write(1, "orders", record(b"x"), producer=state)
    response = await stream.response()
    assert response.error.code == DENIED
    assert b"TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in response.error.SerializeToString()
    await stream.end()


async def test_a_read_ends_with_the_right_to_read(broker: GrpcBroker, client: Client) -> None:
    key = await broker.key_of(ALICE)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read(client, "orders", key).read()
    assert refusal(raised.value).reason == "TOPIC_AUTHORIZATION_FAILED"
    await broker.allow(READ, TOPIC, "orders")
    stream = read(client, "orders", key)
    assert len(await read_some(stream, 3)) == 3
    await broker.revoke()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.read()
    assert refusal(raised.value).reason == "TOPIC_AUTHORIZATION_FAILED"


async def test_a_subscription_needs_the_rights_to_group_and_topic(broker: GrpcBroker, client: Client) -> None:
    key = await broker.key_of(ALICE)
    opened = pb.SubscribeOpen(group="g", topics=["orders"])
    for reason, granted in (
        ("GROUP_AUTHORIZATION_FAILED", (GROUP, "g")),
        ("TOPIC_AUTHORIZATION_FAILED", (TOPIC, "orders")),
    ):
        member = Subscription(client, key)
        await member.send(open=opened)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await member.stream.read()
        assert refusal(raised.value).reason == reason
        await broker.allow(READ, *granted)
    member = Subscription(client, key)
    await member.send(open=opened)
    assert len(await member.records(3)) == 3
    # The member leaves with its rights.
    await broker.revoke()
    with pytest.raises(grpc.aio.AioRpcError):
        await member.next("lost")
    admin = Subscription(client, await broker.key_of(ADMIN))
    await admin.send(open=opened)
    assert len(await admin.assigned(1)) == 1
    await admin.end()


async def test_transcoded_methods_have_the_rights_of_their_routes(broker: GrpcBroker, client: Client) -> None:
    key = await broker.key_of(ALICE)
    assert await _list_topics(client, key) == []
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _describe(client, "orders", key)
    assert refusal(raised.value).reason == "TOPIC_AUTHORIZATION_FAILED"
    await broker.allow(Operation.DESCRIBE, TOPIC, "orders")
    assert await _list_topics(client, key) == ["orders"]
    assert (await _describe(client, "orders", key)).name == "orders"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _list_topics(client, ())
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tenants_have_names_of_their_own(broker: GrpcBroker, client: Client) -> None:
    access = broker.broker.access
    keys = {}
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        await access.create_tenant(tenant, description="", limits=TenantLimits())
        await access.add_member(tenant, f"User:{name}", is_admin=True)
        keys[name] = await broker.key_of(name)
        stream = Produce(client, keys[name])
        await stream.write(1, "orders", record(name.encode()))
        assert list((await stream.response()).result.offsets) == [0]
        await stream.end()
        assert topic_of(tenant, "orders") in broker.broker.topics.image.topics
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        found = [each async for each in read(client, "orders", keys[name], until=NOW)]
        assert [each.value for response in found for each in response.records] == [name.encode()]
        member = Subscription(client, keys[name])
        await member.send(open=pb.SubscribeOpen(group="g", pattern="ord.*"))
        (place,) = {place for place in await member.assigned(3) if place[1] == 0}
        assert place == ("orders", 0)
        assert [each.value for each in await member.records(1)] == [name.encode()]
        result = await member.commit()
        assert {(each.topic, each.error.code) for each in result.offsets} == {("orders", 0)}
        assert id_of(tenant, "g") in await broker.broker.groups.group_ids()
        await member.end()
        assert await _list_topics(client, keys[name]) == ["orders"]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read(client, "missing", keys[name]).read()
        assert tenant not in (raised.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _describe(client, "missing", keys[name])
        assert tenant not in (raised.value.details() or "")


async def test_a_producer_beyond_its_quota_is_slowed_down_not_refused(
    broker: GrpcBroker, client: Client
) -> None:
    """What it sends too much of is written; the stream reads on later."""
    entity = (EntityPart("user", ALICE),)
    edit = QuotaEdit(entity=entity, ops=(QuotaOp(key=QuotaKey.PRODUCE, value=20_000.0),))
    results = await broker.broker.quotas.alter([edit])
    assert not any(results.failures)
    await broker.allow(WRITE, TOPIC, "orders")
    stream = Produce(client, await broker.key_of(ALICE))
    for number in range(3):
        await stream.write(number, "orders", record(b"x" * 30_000))
    offsets = [list((await stream.response()).result.offsets) for _ in range(3)]
    assert offsets == [[3], [4], [5]]
    await stream.end()


@pytest.mark.parametrize("key", [QuotaKey.PRODUCE, QuotaKey.FETCH])
async def test_other_streams_go_on_while_that_of_one_client_is_throttled(
    broker: GrpcBroker, client: Client, key: QuotaKey
) -> None:
    """Neither its quota nor its stream, which has the same connection, keeps others waiting."""
    await broker.publish("large", ["x" * 50_000] * 20)
    results = await broker.broker.quotas.alter(
        [QuotaEdit(entity=(EntityPart("user", ALICE),), ops=(QuotaOp(key=key, value=100.0),))]
    )
    assert not any(results.failures)
    for operation in (READ, WRITE):
        await broker.allow(operation, TOPIC, "large")
    alice, admin = await broker.key_of(ALICE), await broker.key_of(ADMIN)
    writing, reading = Produce(client, alice), read(client, "large", alice, max_bytes=1 << 16)
    if key is QuotaKey.PRODUCE:
        await writing.write(1, "large", record(b"of alice" + b"x" * 50_000))
        assert list((await writing.response()).result.offsets) == [20]
        await writing.write(2, "large", record(b"late"))
        ends = 21
    else:
        await read_some(reading, 1)
        ends = 20
    other = Produce(client, admin)
    for number in range(20):
        await other.write(number, "large", record(b"of admin" + b"x" * 50_000))
        assert list((await other.response()).result.offsets) == [ends + number]
    assert await other.end() == []
    found = [each async for each in read(client, "large", admin, until=NOW)]
    assert sum(len(response.records) for response in found) == ends + 20
    # That of the throttled client goes no further, for many seconds.
    (end,) = [each.next_offset for each in found[-1].positions]
    assert end == ends + 20
    writing.stream.cancel()
    reading.cancel()


@pytest.mark.parametrize("method", ["Produce", "Read", "Subscribe", "Work"])
async def test_the_time_of_a_stream_is_charged_while_it_is_open(
    broker: GrpcBroker, client: Client, method: str
) -> None:
    key = await broker.key_of(ADMIN)
    stream: Any
    next_one: Callable[[], Awaitable[Any]]
    if method == "Produce":
        stream = Produce(client, key)
        await stream.write(1, "orders", record(b"x"))
        await stream.response()
        next_one = stream.response
    elif method == "Read":
        stream = read(client, "orders", key)
        await read_some(stream, 3)
        next_one = partial(read_some, stream, 1)
    elif method == "Subscribe":
        stream = Subscription(client, key)
        await stream.send(open=pb.SubscribeOpen(group="g", topics=["orders"]))
        await stream.records(3)
        next_one = partial(stream.records, 1)
    else:
        stream = await client.work("orders", metadata=key)
        await stream.messages(3)
        next_one = partial(stream.messages, 1)
    # A millionth of the time: whatever the stream does from now on is too much.
    await _limit_time(broker, 0.0001)
    if method == "Produce":
        await stream.write(2, "orders", record(b"x"))
    else:
        await broker.broker.publisher.publish("orders", [Message(value=b"x")])
    assert await next_one()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _list_topics(client, key)
    assert refusal(raised.value).reason == "THROTTLING_QUOTA_EXCEEDED"
    # Another client is not affected.
    await _list_topics(client, await broker.key_of(ALICE))


async def _limit_time(broker: GrpcBroker, percentage: float) -> None:
    """Give the administrator a quota of request time."""
    ops = (QuotaOp(key=QuotaKey.REQUEST, value=percentage),)
    results = await broker.broker.quotas.alter([QuotaEdit(entity=(EntityPart("user", ADMIN),), ops=ops)])
    assert not any(results.failures)


async def test_a_transcoded_call_logs_in_and_is_charged_once(
    broker: GrpcBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins: list[tuple[Any, ...]] = []
    charges: list[float] = []
    audit_login, charge = Access.audit_login, Limit.charge

    def noted(access: Access, *arguments: Any, **more: Any) -> None:
        logins.append(arguments)
        audit_login(access, *arguments, **more)

    def counted(limit: Limit, amount: float) -> int:
        charges.append(amount)
        return charge(limit, amount)

    monkeypatch.setattr(Access, "audit_login", noted)
    monkeypatch.setattr(Limit, "charge", counted)
    await _limit_time(broker, 100.0)
    await _list_topics(client, await broker.key_of(ADMIN))
    assert [(name, how) for name, _, how, *_ in logins] == [(ADMIN, "API key")]
    assert len(charges) == 1


def _name(task: "asyncio.Task[Any]") -> str:
    return str(getattr(task.get_coro(), "__qualname__", ""))


async def test_no_task_is_left_after_streams(broker: GrpcBroker) -> None:
    await asyncio.sleep(0)
    async with connected(broker.address) as client:
        key = await broker.key_of(ADMIN)
        await _list_topics(client, key)
        before = {_name(task) for task in asyncio.all_tasks()}
        stream = Produce(client, key)
        await stream.write(1, "orders", record(b"x"))
        await stream.response()
        reading = read(client, "orders", key)
        await read_some(reading, 4)
        member = Subscription(client, key)
        await member.send(open=pb.SubscribeOpen(group="g", topics=["orders"]))
        await member.records(4)
        await stream.end()
        reading.cancel()
        await member.end()
        ours = "ProduceStream", "Subscription", "LogService", "RecordWriter"
        async with asyncio.timeout(20):
            while left := [task for task in asyncio.all_tasks() if _name(task).startswith(ours)]:
                await asyncio.wait(left)
    assert not any(name.startswith(ours) for name in before)
