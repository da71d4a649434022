"""The audit log: what is recorded, where to, and what happens if it cannot be written."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alpacamq.broker import audit as auditing
from alpacamq.broker.access import Caller, SecuritySettings
from alpacamq.broker.audit import MAX_QUEUED, AuditFile, AuditSettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.delegation_tokens import DelegationSettings
from alpacamq.cluster.commands import AlterTenant
from alpacamq.model.errors import ClusterNotAuthorized, DiskFull
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import AUDIT_TOPIC
from alpacamq.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from alpacamq.security.audit import AuditEvent, AuditKind
from alpacamq.security.principals import user
from alpacamq.security.quotas import EntityPart, QuotaEdit, QuotaOp
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from alpacamq.security.tenants import TenantLimits, TenantStatus
from tests.broker.open_brokers import stored

ALICE = Caller(user("alice"), "10.0.0.7")
ADMIN = Caller(user("admin"), "10.0.0.1")
TOPIC = ResourceType.TOPIC
WAIT_S = 20.0


@asynccontextmanager
async def opened(directory: Path, **settings: Any) -> AsyncIterator[Broker]:
    broker = Broker(
        BrokerSettings(
            node_id=BrokerId(3),
            data_directory=directory / "data",
            security=SecuritySettings(
                acls=True,
                super_users=(user("admin"),),
                delegation=DelegationSettings(secret=b"a secret of tests"),
            ),
            audit=AuditSettings(**{"file": directory / "audit.log", **settings}),
        )
    )
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        yield broker
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


def read(path: Path) -> list[AuditEvent]:
    # The last line may be half written.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=AuditEvent) for line in lines]


async def written(path: Path, count: int) -> list[AuditEvent]:
    events: list[AuditEvent] = await until(lambda: found if len(found := read(path)) >= count else None)
    return events


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while (found := look()) is None:  # noqa: ASYNC110 - looks at files
            await asyncio.sleep(0.01)
    return found


async def test_denied_requests_and_administrative_ones_are_recorded(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker:
        access = broker.access
        access.may(ALICE, Operation.READ, TOPIC, "orders")
        access.may(ADMIN, Operation.READ, TOPIC, "orders")
        access.may(ADMIN, Operation.DELETE, TOPIC, "orders")
        access.sees(ALICE, Operation.DESCRIBE, TOPIC, "left out of a list")
        first, second = await written(tmp_path / "audit.log", 2)
    assert (first.principal, first.address, first.operation, first.resource_type, first.resource) == (
        "User:alice",
        "10.0.0.7",
        "READ",
        "topic",
        "orders",
    )
    assert (first.node, first.kind, first.allowed) == (3, AuditKind.AUTHORIZATION, False)
    assert (second.principal, second.operation, second.allowed) == ("User:admin", "DELETE", True)


async def test_reads_and_writes_are_recorded_on_request_and_combined(tmp_path: Path) -> None:
    async with opened(tmp_path, reads_and_writes=True) as broker:
        for _ in range(1000):
            broker.access.may(ADMIN, Operation.WRITE, TOPIC, "orders")
        await written(tmp_path / "audit.log", 1)
    events = read(tmp_path / "audit.log")  # the broker has been closed, which ends the window
    assert [(each.operation, each.count) for each in events] == [("WRITE", 1), ("WRITE", 999)]


async def test_the_same_events_are_in_the_topic(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker:
        broker.access.may(ALICE, Operation.READ, TOPIC, "orders")
        await written(tmp_path / "audit.log", 1)
        partition = await until(lambda: broker.topics.find(AUDIT_TOPIC.encode(), 0))
        await until(lambda: partition.high_watermark or None)
        values = [record.value for record in stored(broker, AUDIT_TOPIC)]
        assert broker.topics.image.topic(AUDIT_TOPIC).is_internal
    assert values == (tmp_path / "audit.log").read_bytes().splitlines()


async def test_changes_of_users_rules_and_keys_are_recorded_without_secrets(tmp_path: Path) -> None:
    rule = Acl(TOPIC, "orders", PatternType.LITERAL, "User:bob", "*", Operation.READ, Permission.ALLOW)
    async with opened(tmp_path) as broker:
        access = broker.access
        assert broker.audit is not None
        broker.audit.enter("kafka", "AlterUserScramCredentials", "tool", 17, ADMIN)
        await access.set_password("bob", "very-secret", [Mechanism.SHA_256], DEFAULT_ITERATIONS)
        await access.create_acls([rule])
        key, text = await access.create_api_key("bob", expires_ms=None, scopes=(), description="")
        await access.delete_api_key(key.id)
        events = await written(tmp_path / "audit.log", 4)
    assert {each.kind for each in events} == {AuditKind.CHANGE}
    assert [(each.operation, each.resource_type, each.resource) for each in events] == [
        ("ALTER", "user", "bob"),
        ("CREATE", "acl", "orders"),
        ("CREATE", "key", key.id),
        ("DELETE", "key", key.id),
    ]
    assert {(each.principal, each.request, each.client_id, each.request_id) for each in events} == {
        ("User:admin", "AlterUserScramCredentials", "tool", "17")
    }
    content = (tmp_path / "audit.log").read_text()
    # The secret may have underscores of its own.
    for secret in ("very-secret", text, text.split("_", 2)[2], key.aws_secret):
        assert secret not in content


async def test_changes_of_tenants_members_quotas_and_tokens_are_recorded(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker:
        access = broker.access
        assert broker.audit is not None
        broker.audit.enter("http", "PUT …", "tool", 18, ADMIN)
        await access.create_tenant("acme", description="", limits=TenantLimits(topics=5))
        await access.alter_tenant(AlterTenant(id="acme", status=TenantStatus.DISABLED))
        await access.add_member("acme", "User:bob", is_admin=True)
        await access.remove_member("acme", "User:bob")
        await access.delete_tenant("acme")
        edit = QuotaEdit((EntityPart("user", "bob"),), (QuotaOp("producer_byte_rate", 1024.0),))
        await broker.quotas.alter([edit], dry_run=True)
        await broker.quotas.alter([edit])
        tokens = access.delegation_tokens
        token = await tokens.create(user("admin"), user("admin"), (), -1)
        await tokens.renew(tokens.hmac(token), user("admin"), -1)
        await tokens.expire(tokens.hmac(token), user("admin"), -1)
        events = await written(tmp_path / "audit.log", 9)
    assert [(each.operation, each.resource_type, each.resource, each.detail) for each in events] == [
        ("CREATE", "tenant", "acme", "limits: topics=5"),
        ("ALTER", "tenant", "acme", "status=disabled"),
        ("CREATE", "member", "User:bob", "administrator of acme"),
        ("DELETE", "member", "User:bob", "of acme"),
        ("DELETE", "tenant", "acme", ""),
        ("ALTER_CONFIGS", "quota", "user=bob", "producer_byte_rate=1024.0"),
        ("CREATE", "token", token.id, "of User:admin, created"),
        ("ALTER", "token", token.id, "of User:admin, renewed"),
        ("DELETE", "token", token.id, "of User:admin, deleted"),
    ]
    assert {(each.kind, each.principal, each.request_id) for each in events} == {
        (AuditKind.CHANGE, "User:admin", "18")
    }


async def test_administrative_operations_are_recorded_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker:
        assert broker.audit is not None
        for number, request in enumerate(("POST /cluster/upgrade", "POST /cluster/elections")):
            broker.audit.enter("http", request, "tool", number, ADMIN)
            broker.access.check_cluster(ADMIN, Operation.ALTER)
        events = await written(tmp_path / "audit.log", 2)
    assert [(each.request, each.operation, each.count) for each in events] == [
        ("POST /cluster/upgrade", "ALTER", 1),
        ("POST /cluster/elections", "ALTER", 1),
    ]


async def test_members_that_change_or_may_not_change_the_rules_of_their_tenant_are_recorded(
    tmp_path: Path,
) -> None:
    bob = Caller(user("bob"), "10.0.0.8")
    async with opened(tmp_path) as broker:
        access = broker.access
        await access.create_tenant("acme", description="", limits=TenantLimits())
        await access.add_member("acme", "User:alice", is_admin=True)
        await access.add_member("acme", "User:bob", is_admin=False)
        assert access.check_whole(ALICE, Operation.ALTER) == "acme"
        with pytest.raises(ClusterNotAuthorized):
            access.check_whole(bob, Operation.ALTER)
        events = await written(tmp_path / "audit.log", 5)
    assert [(each.principal, each.operation, each.resource_type, each.allowed) for each in events[3:]] == [
        ("User:alice", "ALTER", "cluster", True),
        ("User:bob", "ALTER", "cluster", False),
    ]


async def test_names_of_any_length_take_little_memory(tmp_path: Path) -> None:
    """Names are checked for rights before it is known that they are too long."""
    async with opened(tmp_path, topic=False) as broker:
        name_bytes = 32_767
        tracemalloc.start()
        try:
            for number in range(500):
                assert not broker.access.may_topic(ALICE, Operation.DESCRIBE, f"{number:0{name_bytes}}")
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held_bytes < 500 * name_bytes / 10


async def test_a_decision_is_not_attributed_to_the_request_of_another_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker:
        assert broker.audit is not None
        broker.audit.enter("kafka", "Produce", "tool", 1, ADMIN)
        broker.access.may(ALICE, Operation.READ, TOPIC, "orders")  # a fetch that was woken by it
        (event,) = await written(tmp_path / "audit.log", 1)
    assert (event.principal, event.request) == ("User:alice", "")


async def test_events_that_cannot_be_written_are_counted_and_requests_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "RETRY_SECONDS", 0.0)
    async with opened(tmp_path, topic=False, file=tmp_path / "missing" / "audit.log") as broker:
        assert broker.audit is not None
        for number in range(5):
            assert not broker.access.may(ALICE, Operation.READ, TOPIC, f"orders-{number}")
        await until(lambda: broker.audit.dropped == 5 or None)  # type: ignore[union-attr]
        (tmp_path / "missing").mkdir()
        broker.access.may(ALICE, Operation.READ, TOPIC, "later")
        (event,) = await written(tmp_path / "missing" / "audit.log", 1)
    assert event.resource == "later"


async def test_a_topic_that_cannot_be_written_does_not_hold_up_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_arguments: object, **_options: object) -> list[object]:
        raise DiskFull("no room")

    async with opened(tmp_path) as broker:
        monkeypatch.setattr(broker.publisher, "append", refuse)
        broker.access.may(ALICE, Operation.READ, TOPIC, "orders")
        await written(tmp_path / "audit.log", 1)
        await until(lambda: broker.audit.dropped or None)  # type: ignore[union-attr]


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path, topic=False) as broker:
        audit = broker.audit
        assert audit is not None
        extra = 50
        for number in range(MAX_QUEUED + extra):  # without a pause, in which some could be written
            audit.decided(ALICE, Operation.READ, TOPIC, str(number), allowed=False)
        assert audit.dropped == extra
        assert len(await written(tmp_path / "audit.log", MAX_QUEUED)) == MAX_QUEUED


def test_a_file_is_renamed_at_its_size_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, max_bytes=10, max_files=3)
    for number in range(5):
        file.write([b"event %d...." % number])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log.1", "audit.log.2"]
    assert (tmp_path / "audit.log.1").read_bytes() == b"event 4....\n"
    assert (tmp_path / "audit.log.2").read_bytes() == b"event 3....\n"
    file.write([b"short"])
    assert path.stat().st_mode & 0o777 == 0o600
