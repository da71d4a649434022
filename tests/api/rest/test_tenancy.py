"""Tenants over HTTP: names in every value are translated, and nothing of one tenant is visible to another."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from alpacamq.api.http.messages import Response
from alpacamq.api.rest.rights import NOT_FOR_TENANTS, RIGHTS
from alpacamq.api.rest.table import ROUTES
from alpacamq.api.rest.tenancy import kind_of
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.publishing import Message, Published
from alpacamq.model.ids import BrokerId
from alpacamq.security.principals import user
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from alpacamq.security.tenants import TenantLimits
from alpacamq.telemetry.metrics import Metrics

from .test_rights import SAMPLES, Api

# Texts that name no resource of a tenant, or name it as the tenant does.
NOT_NAMES = {
    "id", "topic_id", "settings", "overrides", "state", "type", "status", "kind", "version", "cluster_id",
    "trace_id", "value", "key", "headers", "delay", "title", "field", "receipt", "receipts", "reason",
    "metadata", "member_id", "instance_id", "client_id", "client_host", "process_id", "consumer", "member",
    "members", "assignor", "cause", "active_tasks", "standby_tasks", "lanes", "by_state", "offsets",
    "next_offsets", "end_offsets", "started_at", "ended_at", "at", "span_id", "parent_span_id", "door",
    "api", "since", "until", "checks", "reads", "writes", "owner", "scopes", "description",
    "aws_secret_access_key", "last_error", "user", "key_id", "password", "csrf_token", "principal",
    "token", "tenant",
    # Matched against the names of topics in the tenant.
    "pattern",
}  # fmt: skip
NOT_NAMES_OF_TYPES = {
    ("DelayedQuery", "after"),  # a number
    ("DelayedMessages", "next"),
    ("HistoryQuery", "after"),  # a timestamp
    ("TraceStep", "name"),  # of the step
    ("TracesQuery", "cursor"),
    ("TraceSearch", "cursor"),
    ("TraceList", "cursor"),
}
ANNA, BORIS, ADMIN = (
    "Basic " + b64encode(f"{name}:secret".encode()).decode() for name in ("anna", "boris", "admin")
)
RED, BLUE = "crimson", "azure"
# Only the first has it, in names of every kind.
SECRET = "zebra"  # noqa: S105 - a name
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def for_operators(key: str) -> bool:
    return any(right.kind.name == "CLUSTER" and not right.or_on_cluster for right in RIGHTS[key])


def texts_of(described: inspect.Type, owner: tuple[type, str] | None) -> Iterator[tuple[type, str]]:
    if isinstance(described, inspect.Metadata):
        yield from texts_of(described.type, owner)
    elif isinstance(described, inspect.StructType):
        for field in described.fields:
            yield from texts_of(field.type, (described.cls, field.name))
    elif isinstance(described, inspect.UnionType):
        for each in described.types:
            yield from texts_of(each, owner)
    elif isinstance(described, inspect.ListType | inspect.VarTupleType):
        yield from texts_of(described.item_type, owner)
    elif isinstance(described, inspect.DictType):
        yield from texts_of(described.key_type, owner)
        yield from texts_of(described.value_type, owner)
    elif isinstance(described, inspect.StrType) and owner is not None:
        yield owner


def test_every_text_of_a_route_is_a_name_that_is_translated_or_known_not_to_be_one() -> None:
    for route in ROUTES:
        key = f"{route.method} {route.path}"
        if for_operators(key) or key in NOT_FOR_TENANTS:
            continue
        for kind in (route.parameters, *(route.body_shapes or (route.body,)), *route.answers):
            for owner, field in texts_of(inspect.type_info(kind), None):
                is_known = (
                    kind_of(owner, field) is not None
                    or field in NOT_NAMES
                    or (owner.__name__, field) in NOT_NAMES_OF_TYPES
                )
                assert is_known, f"{key}: {owner.__name__}.{field} may be a name: add it to the tables"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The HTTP API of a broker with the tenants crimson, of anna, and azure, of boris."""
    settings = BrokerSettings(
        node_id=BrokerId(1),
        data_directory=tmp_path,
        security=SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),)),
    )
    broker = Broker(settings, metrics=Metrics())
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        for name, tenant in (("anna", RED), ("boris", BLUE), ("admin", None)):
            await broker.access.set_password(name, "secret", (Mechanism.SHA_256,), DEFAULT_ITERATIONS)
            if tenant is not None:
                await broker.access.create_tenant(tenant, description="", limits=TenantLimits())
                await broker.access.add_member(tenant, f"User:{name}", is_admin=True)
        yield Api(broker)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


async def ask(api: Api, who: str, request: str, query: str = "", body: Any = None, status: int = 200) -> Any:
    method, _, path = request.partition(" ")
    answer = await api.ask(method, path, query, body, authorization=who)
    assert answer.status == status, (request, answer)
    return json.loads(answer.body) if answer.body else None


async def populate(api: Api, who: str, topic: str, group: str, transactional_id: str) -> None:
    """Create a topic with a message, a delayed one, a dead letter, groups and a transaction."""
    await ask(api, who, "POST /topics", body={"name": topic, "partitions": 1}, status=201)
    await ask(api, who, "POST /topics", body={"name": f"{topic}.dlq", "partitions": 1}, status=201)
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    for message in ({"value": topic, "headers": headers}, {"value": "more"}, {"value": "x", "delay": "1h"}):
        answer = await api.ask("POST", f"/topics/{topic}/messages", body=message, authorization=who)
        assert answer.status < 300, answer
    polled = await ask(api, who, f"GET /groups/{group}/poll", f"topic={topic}&wait_ms=5000&max=1")
    await ask(
        api, who, "POST /messages/reject", body={"receipt": polled["messages"][0]["receipt"], "reason": "r"}
    )
    await ask(api, who, f"POST /groups/{group}-2/join", body={"topics": [topic]})
    body = {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    await ask(api, who, f"POST /groups/{group}-3/offsets", body=body)
    await ask(api, who, "POST /producers/init", body={"transactional_id": transactional_id})


LISTS = (
    "/topics", "/groups", "/delay/topics", "/reliability/stats", "/priority/stats", "/redrives",
    "/transactions", "/traces", "/traces/search", "/stats/topics", "/stats/groups", "/keys", "/version",
)  # fmt: skip


async def test_lists_show_the_resources_of_the_tenant_under_their_own_names(api: Api) -> None:
    await populate(api, ANNA, SECRET, f"{SECRET}-team", f"{SECRET}-tx")
    await populate(api, BORIS, "orders", "team", "tx")
    for path in LISTS:
        shown = json.dumps(await ask(api, BORIS, f"GET {path}"))
        assert SECRET not in shown, path
        assert RED not in shown, path
        assert BLUE not in shown, path
    topics = (await ask(api, ANNA, "GET /topics"))["topics"]
    assert [each["name"] for each in topics] == [SECRET, f"{SECRET}.dlq"]
    groups = (await ask(api, BORIS, "GET /groups"))["groups"]
    assert {each["group"] for each in groups} == {"team", "team-2", "team-3"}
    assert [
        each["transactional_id"] for each in (await ask(api, BORIS, "GET /transactions"))["transactions"]
    ] == ["tx"]


@pytest.mark.parametrize("key", SAMPLES)
async def test_every_route_answers_as_if_the_other_tenant_did_not_exist(api: Api, key: str) -> None:
    """Names of the other tenant are as unknown as any."""
    path, query, body = SAMPLES[key]
    method = key.partition(" ")[0]

    def renamed(topic: str) -> tuple[str, str, Any]:
        text = json.dumps([path, query, body]).replace("orders", topic)
        for name in ("team", "new", "created"):
            text = text.replace(f"/{name}", f"/{topic}-{name}").replace(f'"{name}"', f'"{topic}-{name}"')
        found: tuple[str, str, Any] = tuple(json.loads(text))
        return found

    async def sent(topic: str) -> Response:
        at, asked, content = renamed(topic)
        return await api.ask(method, at, asked, content, authorization=BORIS)

    await populate(api, ANNA, SECRET, f"{SECRET}-team", "x")
    found, unknown = await sent(SECRET), await sent("other")
    assert found.status == unknown.status, (found, unknown)
    if found.status >= 400:
        assert found.body.decode().replace(SECRET, "other") == unknown.body.decode()
    for answer in (found, unknown):
        assert RED not in answer.body.decode(), answer
        assert BLUE not in answer.body.decode(), answer
    assert (found.status == 403) is for_operators(key), found


async def test_two_tenants_use_the_same_names_at_once(api: Api) -> None:
    for who in (ANNA, BORIS):
        await populate(api, who, "orders", "team", "tx")
    for who, name in ((ANNA, "anna"), (BORIS, "boris")):
        await ask(api, who, "POST /topics/orders/messages", body={"value": name})
    for who, name in ((ANNA, "anna"), (BORIS, "boris")):
        answer = await ask(api, who, "GET /topics/orders/messages", "limit=10")
        assert answer["topic"] == "orders"
        assert [each["value"] for each in answer["messages"]] == ["orders", "more", name]
        dead = await ask(api, who, "GET /topics/orders.dlq/messages", "limit=10&wait_ms=5000")
        headers = dead["messages"][0]["headers"]
        assert "orders" in headers.values()
        assert RED not in str(headers)
        offsets = await ask(api, who, "GET /groups/team-3/offsets")
        assert [(each["topic"], each["offset"]) for each in offsets["offsets"]] == [("orders", 1)]
        trace = await ask(api, who, f"GET /traces/{TRACE}")
        assert {each["topic"] for each in trace["events"]} <= {"orders", "orders.dlq"}
        assert RED not in json.dumps(trace)
    await ask(api, ANNA, "DELETE /topics/orders", status=204)
    assert (await ask(api, BORIS, "GET /topics/orders"))["name"] == "orders"


async def test_a_member_continues_at_its_cursor(api: Api) -> None:
    await populate(api, ANNA, "orders", "team", "tx")
    joined = await ask(api, ANNA, "POST /groups/readers/join", body={"topics": ["orders"]})
    query = f"member={joined['member_id']}&wait_ms=5000&max=1"
    first = await ask(api, ANNA, "GET /groups/readers/poll", query)
    assert first["cursor"] == "orders:0@1"
    assert list(first["assignment"]) == ["orders"]
    second = await ask(api, ANNA, "GET /groups/readers/poll", f"{query}&cursor={first['cursor']}")
    assert [each["value"] for each in second["messages"]] == ["more"]


async def test_an_operator_names_topics_of_tenants_with_the_tenant(api: Api) -> None:
    await populate(api, ANNA, "orders", "team", "tx")
    assert (await ask(api, ADMIN, "GET /topics/crimson:orders"))["name"] == "crimson:orders"
    usage = await ask(api, ADMIN, "GET /admin/tenants/crimson/usage")
    assert (usage["topics"], usage["partitions"]) == (2, 2)
    assert usage["storage_bytes"] > 0
    topics = (await ask(api, ADMIN, "GET /admin/tenants/crimson/topics"))["topics"]
    assert topics[0] == {"name": "orders", "stored_name": "crimson:orders", "partitions": 1}
    await ask(api, ADMIN, "DELETE /admin/tenants/crimson", status=403)


async def test_a_suspended_tenant_is_told_why_and_a_disabled_one_cannot_log_in(api: Api) -> None:
    await populate(api, ANNA, "orders", "team", "tx")
    await ask(api, ADMIN, "POST /admin/tenants/crimson/suspend", body={"reason": "invoice 17"})
    refused = await ask(api, ANNA, "GET /topics/orders", status=403)
    assert refused["detail"] == "the tenant is suspended: invoice 17"
    await ask(api, ADMIN, "POST /admin/tenants/crimson/disable", body={"reason": "ended"})
    await ask(api, ANNA, "GET /topics/orders", status=401)
    await ask(api, ADMIN, "POST /admin/tenants/crimson/activate")
    await ask(api, ANNA, "GET /topics/orders")


async def test_a_long_poll_ends_when_the_tenant_is_suspended(api: Api) -> None:
    await ask(api, ANNA, "POST /topics", body={"name": "orders"}, status=201)
    poll = asyncio.ensure_future(
        api.ask("GET", "/groups/team/poll", "topic=orders&wait_ms=20000", authorization=ANNA)
    )
    await asyncio.sleep(0)
    await ask(api, ADMIN, "POST /admin/tenants/crimson/suspend", body={})
    await ask(api, ADMIN, "POST /topics/crimson:orders/messages", body={"value": "v"})
    assert (await poll).status == 403


async def test_limits_of_storage_and_delays(api: Api) -> None:
    await populate(api, ANNA, "orders", "team", "tx")
    before = await ask(api, ADMIN, f"GET /admin/tenants/{RED}/usage")
    limits = {"storage_bytes": before["storage_bytes"], "delay_ms": 60_000}
    changed = await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": limits})
    assert changed["limits"] == limits
    refused = await ask(
        api, ANNA, "POST /topics/orders/messages", body={"value": "v", "delay": "1h"}, status=422
    )
    assert "the limit of the tenant" in refused["detail"]
    await api.broker.tenant_usage.measure()
    refused = await ask(api, ANNA, "POST /topics/orders/messages", body={"value": "v"}, status=507)
    assert "bytes" in refused["detail"]
    assert (await ask(api, ANNA, "GET /topics/orders/messages"))["messages"]
    await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": {"storage_bytes": None}})
    await api.broker.tenant_usage.measure()
    await ask(api, ANNA, "POST /topics/orders/messages", body={"value": "v"})


async def test_usage_is_the_same_after_a_restart(tmp_path: Path) -> None:
    usages = []
    for is_first in (True, False):
        broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
        broker.open()
        running = asyncio.create_task(broker.run())
        if is_first:
            await broker.access.create_tenant(RED, description="", limits=TenantLimits())
            await broker.topics.create(f"{RED}:orders", partitions=2)
            messages = [Message(value=b"x" * 1000)] * 500
            assert all(
                isinstance(each, Published)
                for each in await broker.publisher.publish(f"{RED}:orders", messages)
            )
        usages.append(await broker.tenant_usage.of(RED))
        running.cancel()
        await asyncio.wait([running])
        await broker.close()
    assert usages[0] == usages[1]
    assert usages[0].messages == 500
    assert usages[0].storage_bytes > 500_000
