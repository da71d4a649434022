"""The rights of every route: unauthenticated, denied, and allowed with exactly the rights of the table."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest.app import Endpoint, RestApi
from alpacamq.api.rest.rights import IN_HANDLERS, OPEN, RIGHTS, Right, key_of
from alpacamq.api.rest.route import Call
from alpacamq.api.rest.router import Router
from alpacamq.api.rest.table import ROUTES
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.model.ids import BrokerId
from alpacamq.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from alpacamq.security.principals import user
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from alpacamq.telemetry.metrics import Metrics

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
PRODUCER = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
OFFSET = {"topic": "orders", "partition": 0, "offset": 0}
# A request of every route whose rights are in the table: path, query, body.
SAMPLES: dict[str, tuple[str, str, Any]] = {
    "POST /topics": ("/topics", "", {"name": "new"}),
    "GET /topics/{topic}": ("/topics/orders", "", None),
    "DELETE /topics/{topic}": ("/topics/missing", "", None),
    "GET /topics/{topic}/partitions": ("/topics/orders/partitions", "", None),
    "PATCH /topics/{topic}/settings": (
        "/topics/orders/settings",
        "",
        {"settings": {"retention.ms": "86400000"}},
    ),
    "POST /admin/topics/{topic}/partitions": ("/admin/topics/orders/partitions", "", {"partitions": 3}),
    "POST /admin/topics/{topic}/compact": ("/admin/topics/orders/compact", "", None),
    "POST /topics/{topic}/messages": ("/topics/created/messages", "", {"value": "v"}),
    "GET /topics/{topic}/messages": ("/topics/orders/messages", "", None),
    "GET /topics/{topic}/partitions/{partition}/messages": ("/topics/orders/partitions/0/messages", "", None),
    "GET /topics/{topic}/messages/find": ("/topics/orders/messages/find", "key=k", None),
    "GET /topics/{topic}/delayed": ("/topics/orders/delayed", "", None),
    "GET /topics/{topic}/delayed/{id}": ("/topics/orders/delayed/1", "", None),
    "DELETE /topics/{topic}/delayed/{partition}/{offset}": ("/topics/orders/delayed/0/1", "", None),
    "GET /delay/stats": ("/delay/stats", "", None),
    "GET /groups/{group}": ("/groups/team", "", None),
    "GET /groups/{group}/rebalances": ("/groups/team/rebalances", "", None),
    "DELETE /groups/{group}": ("/groups/team", "", None),
    "POST /groups/{group}/join": ("/groups/members/join", "", {"topics": ["orders"]}),
    "POST /groups/{group}/heartbeat": ("/groups/team/heartbeat", "", {"member_id": "m", "member_epoch": 1}),
    "POST /groups/{group}/leave": ("/groups/team/leave", "", {"member_id": "m"}),
    "GET /groups/{group}/poll": ("/groups/team/poll", "topic=orders&wait_ms=0", None),
    "POST /groups/{group}/poll": ("/groups/team/poll", "topic=orders&wait_ms=0", None),
    "GET /groups/{group}/offsets": ("/groups/team/offsets", "", None),
    "POST /groups/{group}/offsets": ("/groups/others/offsets", "", {"offsets": [OFFSET]}),
    "GET /groups/{group}/queues/{topic}": ("/groups/team/queues/orders", "", None),
    "PUT /groups/{group}/queues/{topic}": ("/groups/team/queues/orders", "", {"settings": {}}),
    "DELETE /groups/{group}/queues/{topic}": ("/groups/absent/queues/orders", "", None),
    "POST /groups/{group}/queues/{topic}/reset": (
        "/groups/team/queues/orders/reset",
        "",
        {"to": "earliest"},
    ),
    "POST /groups/{group}/queues/{topic}/purge": ("/groups/team/queues/orders/purge", "", None),
    "GET /groups/{group}/queues/{topic}/messages": ("/groups/team/queues/orders/messages", "", None),
    "POST /topics/{topic}/dead-letters/redrive": (
        "/topics/orders.dlq/dead-letters/redrive",
        "",
        {"target": "orders"},
    ),
    "POST /producers/init": ("/producers/init", "", {"transactional_id": "x"}),
    "POST /transactions/begin": ("/transactions/begin", "", PRODUCER),
    "POST /transactions/publish": (
        "/transactions/publish",
        "",
        {**PRODUCER, "topic": "orders", "messages": [{"value": "v"}]},
    ),
    "POST /transactions/add-partition": (
        "/transactions/add-partition",
        "",
        {**PRODUCER, "topic": "orders", "partition": 0},
    ),
    "POST /transactions/offsets": (
        "/transactions/offsets",
        "",
        {**PRODUCER, "group": "team", "offsets": [OFFSET]},
    ),
    "POST /transactions/commit": ("/transactions/commit", "", PRODUCER),
    "POST /transactions/abort": ("/transactions/abort", "", PRODUCER),
    "GET /transactions/stats": ("/transactions/stats", "", None),
    "GET /traces/stats": ("/traces/stats", "", None),
    "GET /pipelines": ("/pipelines", "", None),
    "GET /stats": ("/stats", "", None),
    "GET /cluster": ("/cluster", "", None),
    "GET /metrics": ("/metrics", "", None),
    "GET /cluster/status": ("/cluster/status", "", None),
    "GET /cluster/partitions": ("/cluster/partitions", "", None),
    "POST /cluster/nodes/{node}/drain": ("/cluster/nodes/9/drain", "", {}),
    "DELETE /cluster/nodes/{node}/drain": ("/cluster/nodes/9/drain", "", None),
    "DELETE /cluster/nodes/{node}": ("/cluster/nodes/9", "", None),
    "POST /cluster/reassignments": (
        "/cluster/reassignments",
        "",
        {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]},
    ),
    "PUT /cluster/throttle": ("/cluster/throttle", "", {"bytes_per_second": None}),
    "POST /cluster/upgrade": ("/cluster/upgrade", "", {"dry_run": True}),
    "POST /cluster/elections": ("/cluster/elections", "", {"kind": "preferred"}),
    "GET /users": ("/users", "", None),
    "POST /users": ("/users", "", {"name": "carol", "password": "long enough"}),
    "PUT /users/{user}/password": ("/users/carol/password", "", {"password": "another one"}),
    "DELETE /users/{user}": ("/users/carol", "", None),
    "GET /acls": ("/acls", "", None),
    "POST /acls": (
        "/acls",
        "",
        {"resource": "topic", "name": "orders", "principal": "User:carol", "operation": "read"},
    ),
    "DELETE /acls/{id}": ("/acls/missing", "", None),
    "GET /quotas": ("/quotas", "", None),
    "PATCH /quotas": ("/quotas", "", {"user": "carol", "values": {"producer_byte_rate": 1000}}),
    "GET /admin/tenants": ("/admin/tenants", "", None),
    "POST /admin/tenants": ("/admin/tenants", "", {"id": "shop"}),
    "GET /admin/tenants/{tenant}": ("/admin/tenants/shop", "", None),
    "PATCH /admin/tenants/{tenant}": ("/admin/tenants/shop", "", {"description": "d"}),
    "POST /admin/tenants/{tenant}/suspend": ("/admin/tenants/shop/suspend", "", {"reason": "r"}),
    "POST /admin/tenants/{tenant}/disable": ("/admin/tenants/shop/disable", "", {}),
    "POST /admin/tenants/{tenant}/activate": ("/admin/tenants/shop/activate", "", None),
    "GET /admin/tenants/{tenant}/topics": ("/admin/tenants/shop/topics", "", None),
    "GET /admin/tenants/{tenant}/usage": ("/admin/tenants/shop/usage", "", None),
    "GET /admin/tenants/{tenant}/stats": ("/admin/tenants/shop/stats", "", None),
    "PUT /admin/tenants/{tenant}/principals/{principal}": (
        "/admin/tenants/shop/principals/User:eve",
        "",
        {"admin": True},
    ),
    "DELETE /admin/tenants/{tenant}/principals/{principal}": (
        "/admin/tenants/shop/principals/User:eve",
        "",
        None,
    ),
    "DELETE /admin/tenants/{tenant}": ("/admin/tenants/shop", "", None),
}
BOB = "Basic " + b64encode(b"bob:secret").decode()
ADMIN = "Basic " + b64encode(b"admin:secret").decode()


class Api:
    """The HTTP API of a broker with access rules, without a listener."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.rest = RestApi(broker, {})

    async def ask(
        self, method: str, path: str, query: str = "", body: Any = None, authorization: str | None = BOB
    ) -> Response:
        headers = {} if authorization is None else {"authorization": authorization}
        content = b"" if body is None else json.dumps(body).encode()
        answer = self.rest(Request(method, path, query, headers, content, "127.0.0.1:1"))
        return answer if isinstance(answer, Response) else await answer

    async def grant(self, *rights: tuple[Operation, ResourceType, str], to: str = "User:bob") -> None:
        rules = [
            Acl(kind, name, PatternType.LITERAL, to, "*", operation, Permission.ALLOW)
            for operation, kind, name in rights
        ]
        assert not any((await self.broker.access.create_acls(rules)).failures)

    async def revoke(self) -> None:
        await self.broker.access.delete_acls([AclFilter(principal="User:bob")])


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    settings = BrokerSettings(
        node_id=BrokerId(1),
        data_directory=tmp_path,
        security=SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),)),
    )
    broker = Broker(settings, metrics=Metrics())
    broker.open()
    running = asyncio.create_task(broker.run())
    api = Api(broker)
    try:
        for name in ("bob", "admin"):
            await broker.access.set_password(name, "secret", tuple(Mechanism), DEFAULT_ITERATIONS)
        for topic in ("orders", "orders.dlq"):
            created = await api.ask("POST", "/topics", body={"name": topic}, authorization=ADMIN)
            assert created.status == 201
        yield api
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


def names(api: Api, right: Right, method: str, path: str, query: str, body: Any) -> Iterable[str]:
    endpoint, in_path = Router(map(Endpoint, ROUTES)).match(method, path)
    request = Request(method, path, query, {}, b"" if body is None else json.dumps(body).encode(), "")
    parameters = endpoint.arguments.parameters(in_path, request)
    call: Call[Any, Any] = Call(api.rest._backend, request, parameters, endpoint.arguments.body(request))
    return list(right.names(call))


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert {key_of(route) for route in ROUTES} == RIGHTS.keys()
    assert IN_HANDLERS.keys() <= RIGHTS.keys()
    assert {key for key, rights in RIGHTS.items() if rights} == SAMPLES.keys()


async def test_every_row(api: Api) -> None:
    for key, (path, query, body) in SAMPLES.items():
        method = key.partition(" ")[0]
        refused = await api.ask(method, path, query, body, authorization=None)
        assert refused.status == 401, (key, refused)
        denied = await api.ask(method, path, query, body)
        assert denied.status == 403, (key, denied)
        needed = [
            (right.operation, right.kind, name)
            for right in RIGHTS[key]
            for name in names(api, right, method, path, query, body)
        ]
        for left_out in needed:
            await api.grant(*(each for each in needed if each != left_out))
            denied = await api.ask(method, path, query, body)
            assert denied.status == 403, (key, left_out, denied)
            await api.revoke()
        await api.grant(*needed)
        allowed = await api.ask(method, path, query, body)
        assert allowed.status not in {401, 403}, (key, needed, allowed)
        await api.revoke()


@pytest.mark.parametrize("key", sorted(RIGHTS.keys() - SAMPLES.keys()))
async def test_other_routes_need_authentication_or_are_open(api: Api, key: str) -> None:
    method, _, path = key.partition(" ")
    path = path.replace("{id}", "1").replace("{trace_id}", "0" * 32)
    answer = await api.ask(method, path, authorization=None)
    assert (answer.status == 401) is (key not in OPEN), answer


async def test_a_forbidden_topic_cannot_be_told_from_a_missing_one(api: Api) -> None:
    answers = {(await api.ask("GET", f"/topics/{name}")).status for name in ("orders", "missing")}
    assert answers == {403}


async def body_of(api: Api, path: str, query: str = "") -> Any:
    answer = await api.ask("GET", path, query)
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def test_lists_show_what_may_be_described(api: Api) -> None:
    assert (await body_of(api, "/topics"))["topics"] == []
    assert (await body_of(api, "/stats/topics"))["topics"] == []
    await api.grant((Operation.DESCRIBE, TOPIC, "orders"))
    assert [each["name"] for each in (await body_of(api, "/topics"))["topics"]] == ["orders"]
    assert [each["topic"] for each in (await body_of(api, "/stats/topics"))["topics"]] == ["orders"]


async def received(api: Api) -> str:
    """Return the receipt of a message that the administrator received."""
    await api.ask("POST", "/topics/orders/messages", body={"value": "v"}, authorization=ADMIN)
    answer = await api.ask("GET", "/groups/team/poll", "topic=orders&wait_ms=5000", authorization=ADMIN)
    receipt: str = json.loads(answer.body)["messages"][0]["receipt"]
    return receipt


async def test_groups_and_queues_are_listed_if_they_may_be_described(api: Api) -> None:
    await received(api)
    assert (await body_of(api, "/groups"))["groups"] == []
    assert (await body_of(api, "/reliability/stats"))["queues"] == []
    await api.grant((Operation.DESCRIBE, GROUP, "team"), (Operation.DESCRIBE, TOPIC, "orders"))
    assert [each["group"] for each in (await body_of(api, "/groups"))["groups"]] == ["team"]
    assert len((await body_of(api, "/reliability/stats"))["queues"]) == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "visibility", "reject"])
async def test_receipts_need_the_rights_of_their_queue(api: Api, verb: str) -> None:
    body: dict[str, Any] = {"receipt": await received(api)}
    if verb == "visibility":
        body["timeout_ms"] = 1000
    assert (await api.ask("POST", f"/messages/{verb}", body=body)).status == 403
    await api.grant((Operation.READ, TOPIC, "orders"))
    assert (await api.ask("POST", f"/messages/{verb}", body=body)).status == 403
    await api.grant((Operation.READ, GROUP, "team"))
    if verb == "reject":
        assert (await api.ask("POST", f"/messages/{verb}", body=body)).status == 403
        await api.grant((Operation.WRITE, TOPIC, "orders.dlq"))
    assert (await api.ask("POST", f"/messages/{verb}", body=body)).status == 200


async def test_one_receipt_without_rights_does_not_keep_others_from_being_settled(api: Api) -> None:
    receipt = await received(api)
    await api.ask("POST", "/topics", body={"name": "mine"}, authorization=ADMIN)
    await api.grant(
        (Operation.READ, TOPIC, "mine"), (Operation.READ, GROUP, "team"), (Operation.WRITE, TOPIC, "mine")
    )
    await api.ask("POST", "/topics/mine/messages", body={"value": "v"})
    polled = await body_of(api, "/groups/team/poll", "topic=mine&wait_ms=5000")
    receipts = [receipt, polled["messages"][0]["receipt"]]
    answer = json.loads((await api.ask("POST", "/messages/ack", body={"receipts": receipts})).body)
    assert answer["errors"] == 1
    assert answer["results"][0]["error"]["status"] == 403
    query = "topic=mine&wait_ms=0"
    polled = await api.ask("POST", "/groups/team/poll", query, body={"receipts": receipts})
    assert [each["error"]["status"] for each in json.loads(polled.body)["refused"]] == [403]


async def test_a_right_that_is_withdrawn_ends_a_long_poll_without_a_message(api: Api) -> None:
    await api.grant((Operation.READ, TOPIC, "orders"), (Operation.READ, GROUP, "team"))
    polls = [
        asyncio.ensure_future(api.ask("GET", "/groups/team/poll", "topic=orders&wait_ms=20000")),
        asyncio.ensure_future(api.ask("GET", "/topics/orders/messages", "wait_ms=20000")),
    ]
    await asyncio.sleep(0.2)
    await api.revoke()
    await api.ask("POST", "/topics/orders/messages", body={"value": "v"}, authorization=ADMIN)
    assert [(await each).status for each in polls] == [403, 403]
    # Its lease was released: another consumer gets the message at once.
    answer = await api.ask("GET", "/groups/team/poll", "topic=orders&wait_ms=5000", authorization=ADMIN)
    assert len(json.loads(answer.body)["messages"]) == 1


async def test_redriving_to_original_topics_is_for_administrators(api: Api) -> None:
    await api.grant((Operation.READ, TOPIC, "orders.dlq"))
    answer = await api.ask("POST", "/topics/orders.dlq/dead-letters/redrive", body={})
    assert answer.status == 403
    await api.grant((Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
    assert (await api.ask("POST", "/topics/orders.dlq/dead-letters/redrive", body={})).status != 403


async def test_history_needs_the_right_to_its_topic_or_to_the_cluster(api: Api) -> None:
    assert (await api.ask("GET", "/history", "topic=orders")).status == 403
    assert (await api.ask("GET", "/history")).status == 403
    await api.grant((Operation.DESCRIBE, TOPIC, "orders"))
    assert (await api.ask("GET", "/history", "topic=orders")).status == 200
    assert (await api.ask("GET", "/history")).status == 403


async def test_a_plain_producer_id_needs_a_topic_to_write(api: Api) -> None:
    assert (await api.ask("POST", "/producers/init", body={})).status == 403
    await api.grant((Operation.WRITE, TOPIC, "orders"))
    assert (await api.ask("POST", "/producers/init", body={})).status == 200


async def test_traces_of_topics_that_may_not_be_read_are_not_shown(api: Api) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    await api.ask(
        "POST", "/topics/orders/messages", body={"value": "v", "headers": headers}, authorization=ADMIN
    )
    assert (await api.ask("GET", f"/traces/{trace_id}", authorization=ADMIN)).status == 200
    assert (await api.ask("GET", f"/traces/{trace_id}")).status == 403
    assert (await body_of(api, "/traces"))["traces"] == []
    await api.grant((Operation.READ, TOPIC, "orders"))
    assert (await api.ask("GET", f"/traces/{trace_id}")).status == 200
    assert len((await body_of(api, "/traces"))["traces"]) == 1


async def test_keys_are_created_by_their_owners_and_act_for_them(api: Api) -> None:
    assert (await api.ask("POST", "/keys", body={"owner": "admin"})).status == 403
    created = json.loads((await api.ask("POST", "/keys", body={"description": "reports"})).body)
    key = f"Bearer {created['key']}"
    assert (await api.ask("GET", "/topics/orders", authorization=key)).status == 403
    await api.grant((Operation.READ, TOPIC, "orders"))
    assert (await api.ask("GET", "/topics/orders", authorization=key)).status == 200
    listed = (await body_of(api, "/keys"))["keys"]
    assert [(each["id"], each["owner"], each["description"]) for each in listed] == [
        (created["id"], "bob", "reports")
    ]
    assert created["key"] not in json.dumps(listed)
    assert listed[0]["last_used"] is not None
    assert (await api.ask("DELETE", f"/keys/{created['id']}")).status == 204
    assert (await api.ask("GET", "/topics/orders", authorization=key)).status == 401


async def test_a_limited_key_cannot_create_an_unlimited_one(api: Api) -> None:
    created = json.loads((await api.ask("POST", "/keys", body={"scopes": ["read"]})).body)
    key = f"Bearer {created['key']}"
    await api.grant((Operation.READ, TOPIC, "orders"), (Operation.WRITE, TOPIC, "orders"))
    assert (await api.ask("GET", "/topics/orders/messages", authorization=key)).status == 200
    written = await api.ask("POST", "/topics/orders/messages", body={"value": "v"}, authorization=key)
    assert written.status == 403
    assert (await api.ask("POST", "/keys", body={}, authorization=key)).status == 403


async def test_a_key_that_ends_cannot_create_one_that_lasts_longer(api: Api) -> None:
    created = json.loads((await api.ask("POST", "/keys", body={"expires_in_ms": 60_000})).body)
    key = f"Bearer {created['key']}"
    for longer in ({}, {"expires_in_ms": 90_000}):
        assert (await api.ask("POST", "/keys", body=longer, authorization=key)).status == 403
    assert (await api.ask("POST", "/keys", body={"expires_in_ms": 1000}, authorization=key)).status == 201


async def test_a_limited_key_can_delete_itself_but_no_other(api: Api) -> None:
    other = json.loads((await api.ask("POST", "/keys", body={})).body)
    limited = json.loads((await api.ask("POST", "/keys", body={"scopes": ["read"]})).body)
    key = f"Bearer {limited['key']}"
    assert (await api.ask("DELETE", f"/keys/{other['id']}", authorization=key)).status == 403
    assert (await api.ask("DELETE", f"/keys/{limited['id']}", authorization=key)).status == 204


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        ("Basic !", "Base64"),
        ("Basic " + b64encode(b"bob").decode(), "Base64"),
        ("Basic " + b64encode(b"bob:wrong").decode(), "wrong user name or password"),
        ("Basic " + b64encode(b"nobody:wrong").decode(), "wrong user name or password"),
        ("Bearer amq_x_y", "unknown API key"),
        ("Digest x", "must be Basic or Bearer"),
        ("Basic " + "A" * 17_000, "longer than"),
    ],
)
async def test_wrong_credentials_are_refused_with_a_challenge(
    api: Api, authorization: str, reason: str
) -> None:
    answer = await api.ask("GET", "/livez", authorization=authorization)
    assert answer.status == 401
    assert reason in json.loads(answer.body)["detail"]
    assert answer.headers[0][0] == "WWW-Authenticate"


async def test_failed_logins_and_what_protects_the_cluster_are_metrics(api: Api) -> None:
    await api.ask("GET", "/topics", authorization="Basic " + b64encode(b"bob:wrong").decode())
    await api.grant((Operation.READ, TOPIC, "orders"))
    text = (await api.ask("GET", "/metrics", authorization=ADMIN)).body.decode()
    for line in ("alpacamq_failed_logins_total 1", "alpacamq_users 2", "alpacamq_acls 1"):
        assert f"\n{line}\n" in text
