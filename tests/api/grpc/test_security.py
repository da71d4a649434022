"""Who may call: authentication, access rules, quotas, tenants, and the end of open streams."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from grpclib.health.v1 import health_pb2

from alpacamq.api.grpc.dispatch import OPEN, RIGHTS
from alpacamq.api.grpc.services import handlers
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.bearer_tokens import KeySource, TokenSettings
from alpacamq.model.names import id_of, topic_of
from alpacamq.node.security import read_users
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.oauth import TokenRules
from alpacamq.security.principals import user
from alpacamq.security.quotas import EntityPart, QuotaEdit, QuotaKey, QuotaOp
from alpacamq.security.tenants import TenantLimits
from alpacamq.v1 import (
    acls_pb2,
    admin_pb2,
    cluster_pb2,
    keys_pb2,
    queue_pb2,
    quotas_pb2,
    tenants_pb2,
    users_pb2,
)
from tests import tokens
from tests.secured import ADMIN, ALICE

from .client import TIMEOUT_S, Client, connected, refusal
from .serving import GrpcBroker, Metadata, basic, served

PASSWORD = "a password of this test"  # noqa: S105
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ = Operation.READ
WORD = "long enough"
DENIED, UNAUTHENTICATED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[GrpcBroker]:
    users = tmp_path / "users"
    users.write_text(f"{ALICE}:{PASSWORD}\n")
    users.chmod(0o600)
    keys = tmp_path / "keys.json"
    keys.write_bytes(tokens.jwks())
    security = SecuritySettings(
        authentication=True,
        acls=True,
        super_users=(user(ADMIN),),
        users=read_users(users),
        tokens=TokenSettings(
            rules=TokenRules(issuer=tokens.ISSUER, audience=tokens.AUDIENCE, principal_claim="sub"),
            keys=KeySource(file=keys, url="", refresh_ms=3_600_000),
        ),
    )
    async with served(tmp_path / "data", security) as broker:
        await broker.publish("orders", ["a", "b", "c"])
        yield broker


@pytest.fixture
async def client(broker: GrpcBroker) -> AsyncIterator[Client]:
    async with connected(broker.address) as client:
        yield client


async def code_of(call: Any) -> tuple[Any, str]:
    """Return the code of a call, and the reason if it failed."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), refusal(error).reason
    return grpc.StatusCode.OK, ""


async def endpoints(client: Client, metadata: Metadata) -> tuple[Any, str]:
    request = cluster_pb2.EndpointsRequest()
    return await code_of(client.endpoints(request, metadata=metadata, timeout=TIMEOUT_S))


async def test_clients_authenticate_by_password_key_or_token(broker: GrpcBroker, client: Client) -> None:
    for good in (
        basic(ALICE, PASSWORD),
        await broker.key_of(ALICE),
        (("authorization", f"Bearer {tokens.token(ALICE)}"),),
    ):
        assert await endpoints(client, good) == (grpc.StatusCode.OK, "")


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        basic(ALICE, "wrong"),
        (("authorization", "Bearer amq_1_nonsense"),),
        (("authorization", f"Bearer {tokens.token(ALICE, exp=1)}"),),
        (("authorization", "Digest x"),),
    ],
)
async def test_others_are_not_served(client: Client, metadata: Metadata) -> None:
    assert await endpoints(client, metadata) == (UNAUTHENTICATED, "SASL_AUTHENTICATION_FAILED")


async def test_health_is_for_everyone(client: Client) -> None:
    for service in ("", "alpacamq.v1.Queue"):
        reply = await client.check_health(health_pb2.HealthCheckRequest(service=service))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_failed_and_denied_calls_are_limited(broker: GrpcBroker, client: Client) -> None:
    wrong = (("authorization", "Bearer amq_1_nonsense"),)
    codes = [(await endpoints(client, wrong))[0] for _ in range(30)]
    assert codes[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_table_of_rights_has_every_method_of_these_services() -> None:
    class Nothing:
        pass

    paths = {path[1:] for path in handlers(Nothing())}  # type: ignore[arg-type]
    ours = {path for path in paths if path.startswith(("alpacamq.v1.Queue", "alpacamq.v1.Cluster", "grpc."))}
    assert ours <= RIGHTS.keys()
    assert RIGHTS.keys() >= OPEN


async def receive(client: Client, metadata: Metadata) -> tuple[Any, str]:
    request = queue_pb2.ReceiveRequest(topic="orders", group="g")
    return await code_of(client.receive(request, metadata=metadata, timeout=TIMEOUT_S))


async def work(client: Client, metadata: Metadata) -> tuple[Any, str]:
    stream = await client.work("orders", "g", metadata=metadata)
    found = await code_of(stream.response())
    stream.stream.cancel()
    return found


@pytest.mark.parametrize("call", [receive, work])
async def test_receiving_needs_the_right_to_group_and_topic(
    broker: GrpcBroker, client: Client, call: Any
) -> None:
    alice = await broker.key_of(ALICE)
    assert await call(client, alice) == (DENIED, "GROUP_AUTHORIZATION_FAILED")
    await broker.allow(READ, TOPIC, "orders")
    assert await call(client, alice) == (DENIED, "GROUP_AUTHORIZATION_FAILED")
    await broker.revoke()
    await broker.allow(READ, GROUP, "g")
    assert await call(client, alice) == (DENIED, "TOPIC_AUTHORIZATION_FAILED")
    await broker.allow(READ, TOPIC, "orders")
    assert await call(client, alice) == (grpc.StatusCode.OK, "")


async def test_settling_needs_the_rights_of_receiving(broker: GrpcBroker, client: Client) -> None:
    admin, alice = await broker.key_of(ADMIN), await broker.key_of(ALICE)
    reply = await client.receive(
        queue_pb2.ReceiveRequest(topic="orders", group="g", wait_ms=5000), metadata=admin
    )
    kind = queue_pb2.Settlement

    async def settle(message: Any, action: Any) -> str:
        settlement = kind(receipt=message.receipt, action=action)
        found = await client.settle(queue_pb2.SettleRequest(settlements=[settlement]), metadata=alice)
        (result,) = found.results
        return str(grpc.StatusCode.OK if result.code == 0 else result.message)

    first, second, third = reply.messages
    assert "READ" in await settle(first, kind.ACTION_ACK)
    await broker.allow(READ, GROUP, "g")
    await broker.allow(READ, TOPIC, "orders")
    assert await settle(first, kind.ACTION_ACK) == str(grpc.StatusCode.OK)
    assert "WRITE" in await settle(second, kind.ACTION_REJECT)
    await broker.allow(Operation.WRITE, TOPIC, "orders.g.dlq")
    found = await client.settle(
        queue_pb2.SettleRequest(settlements=[kind(receipt=third.receipt, action=kind.ACTION_NACK)]),
        metadata=alice,
    )
    assert [each.code for each in found.results] == [0]


async def test_rejecting_on_a_stream_needs_the_right_to_the_dead_letter_topic(
    broker: GrpcBroker, client: Client
) -> None:
    alice = await broker.key_of(ALICE)
    await broker.allow(READ, GROUP, "g")
    await broker.allow(READ, TOPIC, "orders")
    stream = await client.work("orders", "g", metadata=alice)
    first, second, _ = await stream.messages(3)
    reject = queue_pb2.Reject(delivery_id=first.delivery_id, reason="broken")
    await stream.send(reject=[reject], ack=[second.delivery_id])
    settled, errors = await stream.results(2)
    assert settled == [second.delivery_id]
    assert errors[first.delivery_id].code == DENIED.value[0]


@pytest.mark.parametrize("how", ["rule removed", "key deleted"])
async def test_a_stream_ends_with_the_rights_of_its_client(
    broker: GrpcBroker, client: Client, how: str
) -> None:
    key, text = await broker.broker.access.create_api_key(ALICE, expires_ms=None, scopes=(), description="")
    await broker.allow(READ, GROUP, "g")
    await broker.allow(READ, TOPIC, "orders")
    stream = await client.work("orders", "g", metadata=(("authorization", f"Bearer {text}"),))
    await stream.messages(3)
    if how == "rule removed":
        await broker.revoke()
    else:
        await broker.broker.access.delete_api_key(key.id)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stream.results(1)
    assert failed.value.code() is (DENIED if how == "rule removed" else UNAUTHENTICATED)
    # Its leases are available again.
    admin = await broker.key_of(ADMIN)
    other = await client.work("orders", "g", metadata=admin)
    assert [each.delivery_count for each in await other.messages(3)] == [2, 2, 2]


async def test_a_stream_ends_when_its_token_expires(broker: GrpcBroker, client: Client) -> None:
    await broker.allow(READ, GROUP, "g")
    await broker.allow(READ, TOPIC, "orders")
    token = tokens.token(ALICE, exp=int(time.time()) + 3)
    stream = await client.work("orders", "g", metadata=(("authorization", f"Bearer {token}"),))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stream.results(1)
    assert failed.value.code() is UNAUTHENTICATED


async def test_a_client_beyond_its_quota_is_told_when_to_try_again(
    broker: GrpcBroker, client: Client
) -> None:
    await broker.publish("large", ["v" * 100_000] * 5)
    edit = QuotaEdit(entity=(EntityPart("user", ADMIN),), ops=(QuotaOp(key=QuotaKey.FETCH, value=1000.0),))
    results = await broker.broker.quotas.alter([edit])
    assert not any(results.failures)
    admin = await broker.key_of(ADMIN)
    request = queue_pb2.ReceiveRequest(topic="large", group="g", wait_ms=5000)
    assert len((await client.receive(request, metadata=admin, timeout=TIMEOUT_S)).messages) == 5
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.receive(request, metadata=admin, timeout=TIMEOUT_S)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = refusal(failed.value)
    assert (found.reason, (found.retry_ms or 0) > 0) == ("THROTTLING_QUOTA_EXCEEDED", True)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Keys/Create", keys_pb2.CreateKeyRequest(owner=ADMIN)),
        ("Keys/Rotate", keys_pb2.RotateKeyRequest(id="unknown")),
        ("Keys/Delete", keys_pb2.DeleteKeyRequest(id="unknown")),
        ("Users/List", users_pb2.ListUsersRequest()),
        ("Users/Create", users_pb2.CreateUserRequest(name="mine", password=WORD)),
        ("Users/ChangePassword", users_pb2.ChangePasswordRequest(user=ADMIN, password=WORD)),
        ("Users/Delete", users_pb2.DeleteUserRequest(user=ADMIN)),
        ("Acls/List", acls_pb2.ListAclsRequest()),
        (
            "Acls/Create",
            acls_pb2.CreateAclRequest(resource="cluster", principal="User:alice", operation="all"),
        ),
        ("Acls/Delete", acls_pb2.DeleteAclRequest(id="unknown")),
        ("Quotas/List", quotas_pb2.ListQuotasRequest()),
        (
            "Quotas/Alter",
            quotas_pb2.AlterQuotasRequest(values=quotas_pb2.QuotaValues(connection_count=1)),
        ),
        ("Tenants/List", tenants_pb2.ListTenantsRequest()),
        ("Tenants/Create", tenants_pb2.CreateTenantRequest(id="mine")),
        ("Tenants/Suspend", tenants_pb2.StopTenantRequest(tenant="other")),
        (
            "Tenants/SetPrincipal",
            tenants_pb2.SetTenantPrincipalRequest(tenant="other", principal="User:alice"),
        ),
        ("Admin/DrainNode", admin_pb2.DrainNodeRequest(node=1)),
        ("Admin/CancelDrain", admin_pb2.CancelDrainRequest(node=1)),
        ("Admin/RemoveNode", admin_pb2.RemoveNodeRequest(node=1)),
        (
            "Admin/ReassignPartitions",
            admin_pb2.ReassignPartitionsRequest(
                partitions=[admin_pb2.WantedReplicas(topic="orders", partition=0, replicas=[1])]
            ),
        ),
        ("Admin/SetReassignmentThrottle", admin_pb2.ReassignmentThrottle(bytes_per_second=1)),
        ("Admin/ElectLeaders", admin_pb2.ElectLeadersRequest()),
        ("Admin/UpgradeCluster", admin_pb2.UpgradeClusterRequest(dry_run=True)),
        ("Admin/History", admin_pb2.HistoryRequest()),
        ("Admin/FindMessages", admin_pb2.FindMessagesRequest(topic="orders", key=b"k")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_administration_needs_the_rights_of_the_http_api(
    broker: GrpcBroker, client: Client, method: str, request_: Any
) -> None:
    call = client.unary(f"/alpacamq.v1.{method}", type(request_), empty_pb2.Empty)
    assert (await code_of(call(request_, timeout=TIMEOUT_S)))[0] is UNAUTHENTICATED
    alice = await broker.key_of(ALICE)
    assert (await code_of(call(request_, metadata=alice, timeout=TIMEOUT_S)))[0] is DENIED


async def test_tenants_have_names_of_their_own(broker: GrpcBroker, client: Client) -> None:
    access = broker.broker.access
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        await access.create_tenant(tenant, description="", limits=TenantLimits())
        await access.add_member(tenant, f"User:{name}", is_admin=True)
        await broker.publish(topic_of(tenant, "orders"), [f"of {name}"])
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        key = await broker.key_of(name)
        stream = await client.work("orders", "g", metadata=key)
        (message,) = await stream.messages(1)
        assert message.record.value == f"of {name}".encode()
        await stream.send(ack=[message.delivery_id])
        assert await stream.results(1) == ([1], {})
        queues = await broker.broker.queues.queues()
        assert (id_of(tenant, "g"), topic_of(tenant, "orders")) in queues
        missing = await client.work("missing", "g", metadata=key)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await missing.response()
        assert tenant not in (failed.value.details() or "")


async def test_no_task_is_left_after_streams(broker: GrpcBroker) -> None:
    admin = await broker.key_of(ADMIN)
    async with connected(broker.address) as client:
        await client.check_health(health_pb2.HealthCheckRequest())

    for _ in range(3):
        async with connected(broker.address) as client:
            streams = [await client.work("orders", "g", metadata=admin) for _ in range(10)]
            await streams[0].messages(1)
    left = [task for task in asyncio.all_tasks() if "alpacamq/api/grpc" in repr(task)]
    # The listener goes on.
    ended = {task for task in left if "GrpcListener" not in repr(task)}
    if ended:
        _, late = await asyncio.wait(ended, timeout=TIMEOUT_S)
        assert not late
