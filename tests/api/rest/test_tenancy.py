"""Tenants over HTTP: names in every value are translated, and nothing of one tenant is visible to another."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from alpacamq.api.http.messages import Response
from alpacamq.api.rest.rights import RIGHTS
from alpacamq.api.rest.table import ROUTES
from alpacamq.api.rest.tenancy import kind_of
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.publishing import Message, Published
from alpacamq.coordinator.messages import JoinRequest, Protocol
from alpacamq.coordinator.share.config import ConfigureGroupRequest
from alpacamq.model.errors import CoordinatorUnavailable, GroupNotAuthorized
from alpacamq.model.ids import BrokerId
from alpacamq.model.names import id_of
from alpacamq.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from alpacamq.security.principals import user
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from alpacamq.security.tenants import TenantLimits
from alpacamq.telemetry.metrics import Metrics
from tests.executed_lines import ExecutedLines
from tests.waiting import soon

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
    "token", "tenant", "host", "resource", "operation", "permission",
    # Matched against the names of topics in the tenant.
    "pattern",
}  # fmt: skip
NOT_NAMES_OF_TYPES = {
    ("AclsQuery", "name"),  # rules of a tenant name resources as its members do
    ("NewAcl", "name"),
    ("AclDescription", "name"),
    ("DelayedQuery", "after"),  # a number
    ("DelayedMessages", "next"),
    ("HistoryQuery", "after"),  # a timestamp
    ("KeyQuery", "filter"),  # an expression over messages
    ("MessageSchema", "subject"),  # translated where it is looked up, as the text of the error
    ("DecodedContent", "error"),
    ("TraceStep", "name"),  # of the step
    ("TracesQuery", "cursor"),
    ("TraceSearch", "cursor"),
    ("TraceList", "cursor"),
}
ANNA, BORIS, ADMIN, CARL = (
    "Basic " + b64encode(f"{name}:secret".encode()).decode() for name in ("anna", "boris", "admin", "carl")
)
RED, BLUE = "crimson", "azure"
# Only the first has it, in names of every kind.
SECRET = "zebra"  # noqa: S105 - a name
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def for_operators(key: str) -> bool:
    return any(
        right.kind.name == "CLUSTER" and not right.or_on_cluster and not right.or_on_tenant
        for right in RIGHTS[key]
    )


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
        if for_operators(key):
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

    async def is_dead_letter() -> bool:
        events = (await ask(api, who, f"GET /traces/{TRACE}"))["events"]
        return any(each["name"] == "dlq.routed" for each in events)

    is_moved: bool = await soon(is_dead_letter)
    assert is_moved
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
    """Names of the other tenant are as unknown as any, and are looked up on the same path."""
    path, query, body = SAMPLES[key]
    method = key.partition(" ")[0]
    executed: dict[str, list[tuple[str, int]]] = {}

    def renamed(topic: str) -> tuple[str, str, Any]:
        text = json.dumps([path, query, body]).replace("orders", topic)
        for name in ("team", "new", "created"):
            text = text.replace(f"/{name}", f"/{topic}-{name}").replace(f'"{name}"', f'"{topic}-{name}"')
        found: tuple[str, str, Any] = tuple(json.loads(text))
        return found

    async def sent(topic: str) -> Response:
        at, asked, content = renamed(topic)
        recorder = ExecutedLines()
        answer = await recorder.awaiting(api.ask(method, at, asked, content, authorization=BORIS))
        executed[topic] = recorder.lines
        return answer

    await populate(api, ANNA, SECRET, f"{SECRET}-team", "x")
    await sent("third")  # what is made once is there
    found, unknown = await sent(SECRET), await sent("other")
    assert found.status == unknown.status, (found, unknown)
    assert executed[SECRET]
    if found.status >= 400 or method == "GET":
        assert executed[SECRET] == executed["other"]
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


async def test_a_trace_id_that_two_tenants_use_is_a_trace_of_each(api: Api) -> None:
    """Clients choose trace ids: using one of another tenant neither shows nor hides its trace."""
    for who, name in ((ANNA, SECRET), (BORIS, "orders")):
        await populate(api, who, name, f"{name}-team", f"{name}-tx")
    for who, name, other in ((ANNA, SECRET, "orders"), (BORIS, "orders", SECRET)):
        alone = await ask(api, who, f"GET /traces/{TRACE}")
        assert {each["topic"] for each in alone["events"]} <= {name, f"{name}.dlq"}
        for request, query in (
            ("/traces", ""),
            ("/traces", f"topic={name}"),
            ("/traces/search", f"trace_id={TRACE}"),
            ("/traces/search", f"topic={name}&partition=0&offset=0"),
        ):
            traces = (await ask(api, who, f"GET {request}", query))["traces"]
            (found,) = [each for each in traces if each["trace_id"] == TRACE]
            assert found["topic"] == name, (request, query)
            assert found["events"] == len(alone["events"]), (request, query)
            assert other not in str(traces)
            assert RED not in str(traces)
        page = await ask(api, who, "GET /traces", "limit=1")
        assert page["traces"][0]["topic"] == name
        # Not even a cursor tells of traces of others.
        ids = {each["trace_id"] for each in (await ask(api, who, "GET /traces"))["traces"]}
        assert page["cursor"] is None or page["cursor"].rpartition(".")[2] in {"", *ids}
        assert (await ask(api, who, "GET /traces", f"topic={other}"))["traces"] == []
        assert (await ask(api, who, "GET /traces/search", f"topic={other}"))["traces"] == []


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


async def test_a_group_created_while_its_tenant_is_deleted_does_not_survive_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request passes the checks of the API before the deletion, and reaches its coordinator during it."""
    broker = api.broker
    late = JoinRequest(
        group=id_of(RED, "team"),
        protocol_type="consumer",
        protocols=(Protocol(name="range", metadata=b""),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )
    joined: list[BaseException] = []
    names_in_use = broker.groups.names_in_use

    async def and_then_join(applied: int) -> set[str]:
        found = await names_in_use(applied)
        if applied:  # the last look before the deletion
            with pytest.raises(GroupNotAuthorized) as refused:
                await broker.groups.ask(late)
            joined.append(refused.value)
        return found

    monkeypatch.setattr(broker.groups, "names_in_use", and_then_join)
    await ask(api, ADMIN, f"DELETE /admin/tenants/{RED}", status=204)
    assert [str(each) for each in joined] == ["the tenant is disabled: it is being deleted"]
    with pytest.raises(GroupNotAuthorized, match="deleted"):
        await broker.groups.ask(late)
    await ask(api, ADMIN, "POST /admin/tenants", body={"id": RED}, status=201)
    usage = await ask(api, ADMIN, f"GET /admin/tenants/{RED}/usage")
    assert usage["groups"] == 0


async def test_a_group_created_just_before_the_deletion_keeps_its_tenant(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = api.broker
    names_in_use = broker.groups.names_in_use

    async def create_then_look(applied: int) -> set[str]:
        found = await names_in_use(applied)
        if not applied:
            configured = ConfigureGroupRequest(
                group=id_of(RED, "team"), overrides={"share.auto.offset.reset": "earliest"}
            )
            await broker.groups.ask(configured)
        return found

    monkeypatch.setattr(broker.groups, "names_in_use", create_then_look)
    refused = await ask(api, ADMIN, f"DELETE /admin/tenants/{RED}", status=403)
    assert "'team'" in refused["detail"]
    tenant = await ask(api, ADMIN, f"GET /admin/tenants/{RED}")
    assert (tenant["status"], tenant["reason"]) == ("active", "")


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


OF_TENANTS = re.compile(
    r"alpacamq_(topics?|partitions|groups?|queues?|priority|metrics_series_dropped"
    r"|delayed_messages|transactional_ids|oldest_transaction)(_|\b)"
)


async def metrics(api: Api, who: str) -> str:
    answer = await api.ask("GET", "/metrics", authorization=who)
    assert answer.status == 200, answer
    return answer.body.decode()


async def test_metrics_are_those_of_the_tenant_under_its_names(api: Api) -> None:
    await populate(api, ANNA, SECRET, f"{SECRET}-team", f"{SECRET}-tx")
    await populate(api, BORIS, "orders", "team", "tx")
    await ask(api, ADMIN, "POST /topics", body={"name": "plain"}, status=201)
    shown = await metrics(api, BORIS)
    assert 'alpacamq_topic_messages{topic="orders"} 2' in shown
    assert 'alpacamq_group_lag{group="team-3",topic="orders"} 1' in shown
    assert 'alpacamq_queue_dead_lettered_total{group="team",topic="orders"} 1' in shown
    assert "alpacamq_topics 2\n" in shown
    assert 'alpacamq_transactional_ids{state="empty"} 1\n' in shown
    assert "alpacamq_delayed_messages 1\n" in shown
    for foreign in (SECRET, RED, BLUE, "plain", "__", "\x1f"):
        assert foreign not in shown, foreign
    names = {re.split(r"[ {]", line)[0] for line in shown.splitlines() if not line.startswith("#")}
    assert names
    assert [name for name in names if not OF_TENANTS.match(name)] == []
    of_all = await metrics(api, ADMIN)
    assert f'{{topic="{RED}:{SECRET}"}}' in of_all
    assert 'alpacamq_tenants{status="active"} 2' in of_all


async def test_stats_of_a_tenant_are_about_nothing_else(api: Api) -> None:
    await populate(api, ANNA, "orders", "team", "tx")
    before = await ask(api, ADMIN, f"GET /admin/tenants/{RED}/stats")
    for who in (BORIS, ADMIN):
        await populate(api, who, "orders", "team", "tx")
    stats = await ask(api, ADMIN, f"GET /admin/tenants/{RED}/stats")
    assert stats == before
    assert (stats["delayed"], stats["transactional_ids"], stats["transactions"]) == (1, 1, 0)
    usage = await ask(api, ADMIN, f"GET /admin/tenants/{RED}/usage")
    assert {name: stats[name] for name in ("messages", "storage_bytes", "groups")} == {
        name: usage[name] for name in ("messages", "storage_bytes", "groups")
    }
    assert stats["written_total"] >= stats["messages"] > 0
    assert stats["written_bytes_total"] > 0
    await ask(api, ANNA, f"GET /admin/tenants/{RED}/stats", status=403)
    await ask(api, ADMIN, "GET /admin/tenants/nobody/stats", status=404)


async def test_metrics_of_a_tenant_need_a_right_in_its_rules(api: Api) -> None:
    await api.broker.access.set_password("carl", "secret", (Mechanism.SHA_256,), DEFAULT_ITERATIONS)
    await api.broker.access.add_member(RED, "User:carl", is_admin=False)
    refused = await ask(api, CARL, "GET /metrics", status=403)
    assert refused["detail"] == "DESCRIBE is not allowed on the tenant"
    rule = Acl(
        ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:carl", "*", Operation.DESCRIBE,
        Permission.ALLOW, RED,
    )  # fmt: skip
    await api.broker.access.create_acls([rule])
    await metrics(api, CARL)
    await ask(api, ADMIN, f"POST /admin/tenants/{RED}/suspend", body={"reason": "invoice 17"})
    for request in ("GET /metrics", "GET /topics", "GET /traces"):
        assert "invoice 17" in (await ask(api, CARL, request, status=403))["detail"]


async def test_health_is_shown_to_tenants_without_the_names_of_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = await ask(api, ANNA, "GET /healthz")
    assert healthy["status"] == (await ask(api, ADMIN, "GET /healthz"))["status"] == "ok"
    await ask(api, BORIS, "POST /topics", body={"name": "orders", "partitions": 1}, status=201)
    (partition,) = api.broker.topics.ready_partitions_of(f"{BLUE}:orders").values()
    monkeypatch.setattr(partition.log._health, "in_doubt", f"{BLUE}:orders-0 failed")
    for path in ("/healthz", "/readyz?needs=writes"):
        path, _, query = path.partition("?")
        failing = {who: await ask(api, who, f"GET {path}", query, status=503) for who in (ANNA, BORIS, ADMIN)}
        assert f"{BLUE}:orders" in str(failing[ADMIN])
        assert BLUE not in str(failing[ANNA])
        assert failing[ANNA] == failing[BORIS]
        assert failing[ANNA]["checks"].keys() == failing[ADMIN]["checks"].keys()
        assert failing[ANNA]["checks"]["disk"] == {"status": "failing"}


@pytest.mark.parametrize("direction", ["produce", "fetch"])
@pytest.mark.parametrize("unit", ["messages", "bytes"])
async def test_clients_of_a_tenant_share_its_rates(
    api: Api, direction: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1.0]
    monkeypatch.setattr(api.broker.quotas, "now", lambda: clock[0])
    await api.broker.access.set_password("carl", "secret", (Mechanism.SHA_256,), DEFAULT_ITERATIONS)
    await api.broker.access.add_member(RED, "User:carl", is_admin=True)
    for who in (ANNA, BORIS):
        await ask(api, who, "POST /topics", body={"name": "orders", "partitions": 1}, status=201)
        await ask(api, who, "POST /topics/orders/messages", body={"messages": [{"value": "v"}] * 9})
    rate = {"messages": 36, "bytes": 4}[unit]
    limits = {f"{direction}_{unit}_per_second": rate}
    changed = await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": limits})
    assert changed["limits"] == limits

    async def use(who: str) -> Response:
        if direction == "fetch":
            return await api.ask("GET", "/topics/orders/messages", "limit=9", authorization=who)
        body = {"messages": [{"value": "v"}] * 9}
        return await api.ask("POST", "/topics/orders/messages", body=body, authorization=who)

    # The burst, a quarter of a second, is spent by the first or second; members pay for each other.
    assert (await use(ANNA)).status == 200
    if unit == "messages":
        assert (await use(CARL)).status == 200
    refused = await use(ANNA)
    assert (refused.status, (await use(CARL)).status) == (429, 429)
    assert "Retry-After" in dict(refused.headers)
    assert RED not in refused.body.decode()
    for _ in range(3):
        assert (await use(BORIS)).status == 200
    if direction == "produce":
        assert (await api.ask("GET", "/topics/orders/messages", authorization=ANNA)).status == 200
    clock[0] += 1000
    assert (await use(ANNA)).status == 200
    await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": dict.fromkeys(limits)})
    assert [(await use(CARL)).status for _ in range(3)] == [200] * 3
    assert not api.broker.quotas.is_active


async def test_a_group_of_a_tenant_has_as_many_members_as_its_limit_says(api: Api) -> None:
    for who in (ANNA, BORIS):
        await ask(api, who, "POST /topics", body={"name": "orders", "partitions": 2}, status=201)
    await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": {"group_members": 1}})
    body = {"topics": ["orders"]}
    await ask(api, ANNA, "POST /groups/team/join", body=body)
    refused = await ask(api, ANNA, "POST /groups/team/join", body=body, status=429)
    assert refused["detail"] == "too many members in group 'team': the limit is 1"
    await ask(api, ANNA, "POST /groups/other/join", body=body)
    for _ in range(2):
        await ask(api, BORIS, "POST /groups/team/join", body=body)


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


async def test_the_limit_of_groups_holds_while_groups_cannot_be_counted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(api, ANNA, "POST /topics", body={"name": "orders"}, status=201)
    await ask(api, ANNA, "POST /groups/team/join", body={"topics": ["orders"]})
    await ask(api, ADMIN, f"PATCH /admin/tenants/{RED}", body={"limits": {"groups": 1}})
    usage = api.broker.tenant_usage
    await usage.measure()

    async def no_answer() -> list[str]:
        await ask(api, ANNA, "POST /groups/other/join", body={"topics": ["orders"]}, status=422)
        raise CoordinatorUnavailable("the coordinator has failed")

    monkeypatch.setattr(api.broker.groups, "group_ids", no_answer)
    with pytest.raises(CoordinatorUnavailable):
        await usage.measure()
    await ask(api, ANNA, "POST /groups/other/join", body={"topics": ["orders"]}, status=422)


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
