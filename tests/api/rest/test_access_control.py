"""Users, access rules and quotas over HTTP, and what clients may do afterwards."""

import json
from base64 import b64encode
from typing import Any

import pytest

from alpacamq.security.acls import CLUSTER_NAME, Operation, ResourceType
from alpacamq.security.tenants import TenantLimits

from .test_rights import ADMIN, Api
from .test_rights import api as api

WORD, OTHER = "long enough", "longer than that"
RULE = {"resource": "topic", "name": "tea", "principal": "User:carol", "operation": "read"}


async def ask(
    api: Api, request: str, body: Any = None, *, query: str = "", who: str = ADMIN, status: int = 200
) -> Any:
    method, _, path = request.partition(" ")
    answer = await api.ask(method, path, query, body, authorization=who)
    assert answer.status == status, answer
    return json.loads(answer.body) if answer.body else None


def basic(name: str, word: str) -> str:
    return "Basic " + b64encode(f"{name}:{word}".encode()).decode()


async def may_log_in(api: Api, name: str, word: str) -> bool:
    return (await api.ask("GET", "/topics", authorization=basic(name, word))).status == 200


async def test_a_user_logs_in_until_its_password_is_changed_and_it_is_deleted(api: Api) -> None:
    created = await ask(api, "POST /users", {"name": "carol", "password": WORD}, status=201)
    iterations = [{"mechanism": f"SCRAM-SHA-{size}", "iterations": 4096} for size in (256, 512)]
    assert created == {"name": "carol", "credentials": iterations}
    assert await may_log_in(api, "carol", WORD)
    changed = await ask(api, "PUT /users/carol/password", {"password": OTHER, "iterations": 8192})
    assert {each["iterations"] for each in changed["credentials"]} == {8192}
    assert not await may_log_in(api, "carol", WORD)
    assert await may_log_in(api, "carol", OTHER)
    again = await ask(api, "PUT /users/carol/password", {"password": WORD})
    assert again == changed
    await ask(api, "DELETE /users/carol", status=204)
    assert not await may_log_in(api, "carol", WORD)
    for request in ("DELETE /users/carol", "PUT /users/carol/password"):
        body = {"password": WORD} if request.startswith("PUT") else None
        refused = await ask(api, request, body, status=404)
        assert refused["type"] == "urn:alpacamq:problem:unknown-user"


async def test_a_user_with_one_mechanism_gets_no_other_with_a_new_password(api: Api) -> None:
    body = {"name": "carol", "password": WORD, "mechanisms": ["SCRAM-SHA-512"]}
    created = await ask(api, "POST /users", body, status=201)
    changed = await ask(api, "PUT /users/carol/password", {"password": OTHER})
    assert changed == created
    assert [each["mechanism"] for each in changed["credentials"]] == ["SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("body", "status", "about"),
    [
        pytest.param({"name": "carol", "password": ""}, 400, "/password", id="empty"),
        pytest.param({"name": "carol"}, 400, "/password", id="missing"),
        pytest.param({"name": "carol", "password": "short"}, 422, "at least 8 characters", id="short"),
        pytest.param({"name": "caroline", "password": "CAROLINE"}, 422, "name of the user", id="name"),
        pytest.param({"name": "carol", "password": "é" * 1000}, 422, "1024 bytes", id="long"),
        pytest.param({"name": "ANONYMOUS", "password": WORD}, 422, "reserved", id="reserved"),
        pytest.param({"name": "a\nb", "password": WORD}, 422, "control characters", id="control"),
        pytest.param(
            {"name": "carol", "password": WORD, "mechanisms": ["PLAIN"]}, 400, "PLAIN", id="mechanism"
        ),
        pytest.param({"name": "carol", "password": WORD, "iterations": 1}, 400, "4096", id="iterations"),
        pytest.param({"name": "bob", "password": WORD}, 409, "'bob' exists", id="exists"),
    ],
)
async def test_a_user_that_cannot_be_created_is_refused(
    api: Api, body: dict[str, Any], status: int, about: str
) -> None:
    refused = await ask(api, "POST /users", body, status=status)
    assert about in refused["detail"]
    assert [each["name"] for each in (await ask(api, "GET /users"))["users"]] == ["admin", "bob"]


async def test_users_are_listed_page_by_page_and_by_prefix(api: Api) -> None:
    first = await ask(api, "GET /users", query="limit=1")
    assert ([each["name"] for each in first["users"]], first["next"]) == (["admin"], "admin")
    second = await ask(api, "GET /users", query="after=admin&limit=1")
    assert ([each["name"] for each in second["users"]], second["next"]) == (["bob"], None)
    assert [each["name"] for each in (await ask(api, "GET /users", query="prefix=b"))["users"]] == ["bob"]


async def test_a_rule_allows_its_operation_until_it_is_deleted(api: Api) -> None:
    who = basic("carol", WORD)
    await ask(api, "POST /users", {"name": "carol", "password": WORD}, status=201)
    await ask(api, "GET /topics/orders", who=who, status=403)
    rule = {**RULE, "name": "ord", "pattern": "prefixed", "operation": "describe"}
    created = await ask(api, "POST /acls", rule, status=201)
    assert created == {"id": created["id"], "host": "*", "permission": "allow", **rule}
    await ask(api, "GET /topics/orders", who=who)
    denied = await ask(api, "POST /acls", {**rule, "permission": "deny"}, status=201)
    await ask(api, "GET /topics/orders", who=who, status=403)
    await ask(api, f"DELETE /acls/{denied['id']}", status=204)
    await ask(api, "GET /topics/orders", who=who)
    await ask(api, f"DELETE /acls/{created['id']}", status=204)
    await ask(api, "GET /topics/orders", who=who, status=403)
    await ask(api, f"DELETE /acls/{created['id']}", status=404)


async def test_rules_are_listed_by_every_one_of_their_values(api: Api) -> None:
    rules = [
        await ask(api, "POST /acls", {**RULE, **other}, status=201)
        for other in (
            {},
            {"name": "*"},
            {"resource": "group"},
            {"resource": "cluster", "name": CLUSTER_NAME, "operation": "describe-configs"},
            {"pattern": "prefixed"},
            {"principal": "User:dave"},
            {"host": "10.0.0.1"},
            {"permission": "deny"},
        )
    ]
    listed = await ask(api, "GET /acls")
    assert listed["total"] == len(rules)
    assert {each["id"] for each in listed["rules"]} == {each["id"] for each in rules}
    for field in ("resource", "name", "pattern", "principal", "host", "operation", "permission"):
        for rule in rules:
            found = await ask(api, "GET /acls", query=f"{field}={rule[field]}")
            expected = [each["id"] for each in listed["rules"] if each[field] == rule[field]]
            assert [each["id"] for each in found["rules"]] == expected, field
    some = await ask(api, "GET /acls", query="limit=3")
    assert (some["rules"], some["total"]) == (listed["rules"][:3], len(rules))


async def test_names_in_rules_may_have_hyphens_or_underscores(api: Api) -> None:
    ids = set()
    for operation in ("describe-configs", "describe_configs"):
        created = await ask(api, "POST /acls", {**RULE, "operation": operation}, status=201)
        assert created["operation"] == "describe-configs"
        found = await ask(api, "GET /acls", query=f"operation={operation}")
        ids |= {created["id"], *(each["id"] for each in found["rules"])}
        await ask(api, f"DELETE /acls/{created['id']}", status=204)
    assert len(ids) == 1
    rule = {**RULE, "resource": "transactional_id", "operation": "write"}
    created = await ask(api, "POST /acls", rule, status=201)
    assert created["resource"] == "transactional-id"
    refused = await ask(api, "POST /acls", {**RULE, "operation": "describe_config"}, status=400)
    assert "/operation" in refused["detail"]


async def test_scopes_of_keys_may_have_hyphens_or_underscores(api: Api) -> None:
    scopes = ["describe_configs", "describe-configs", "two_phase_commit", "read"]
    created = await ask(api, "POST /keys", {"scopes": scopes}, status=201)
    assert created["scopes"] == ["describe-configs", "two-phase-commit", "read"]
    listed = await ask(api, "GET /keys")
    assert [each["scopes"] for each in listed["keys"]] == [created["scopes"]]
    refused = await ask(api, "POST /keys", {"scopes": ["describe_config"]}, status=422)
    assert "unknown operation 'describe-config'; there are alter, alter-configs" in refused["detail"]


@pytest.mark.parametrize(
    ("change", "status", "about"),
    [
        pytest.param({"operation": "reed"}, 400, "/operation", id="unknown operation"),
        pytest.param({"operation": "create-tokens"}, 422, "CREATE_TOKENS on TOPIC", id="wrong operation"),
        pytest.param({"resource": "queue"}, 400, "/resource", id="unknown resource"),
        pytest.param({"principal": "carol"}, 422, "User:alice", id="principal"),
        pytest.param({"resource": "cluster", "operation": "alter"}, 422, CLUSTER_NAME, id="name"),
        pytest.param({"name": None}, 400, "/name", id="null"),
        pytest.param({}, 409, "exists already", id="duplicate"),
    ],
)
async def test_a_rule_that_cannot_be_created_is_refused(
    api: Api, change: dict[str, Any], status: int, about: str
) -> None:
    await ask(api, "POST /acls", RULE, status=201)
    refused = await ask(api, "POST /acls", {**RULE, **change}, status=status)
    assert about in refused["detail"]
    assert (await ask(api, "GET /acls"))["total"] == 1


async def test_only_a_rule_of_the_cluster_needs_no_name(api: Api) -> None:
    cluster = {"resource": "cluster", "principal": "User:carol", "operation": "describe"}
    assert (await ask(api, "POST /acls", cluster, status=201))["name"] == CLUSTER_NAME
    refused = await ask(api, "POST /acls", {**cluster, "resource": "topic"}, status=422)
    assert "needs its name" in refused["detail"]


async def test_members_of_a_tenant_see_and_change_the_rules_of_their_tenant_only(api: Api) -> None:
    access = api.broker.access
    keepers = {}
    for tenant, name in (("red", "anna"), ("blue", "boris")):
        await ask(api, "POST /users", {"name": name, "password": WORD}, status=201)
        await access.create_tenant(tenant, description="", limits=TenantLimits())
        await access.add_member(tenant, f"User:{name}", is_admin=True)
        keepers[tenant] = basic(name, WORD)
    rule = await ask(api, "POST /acls", RULE, who=keepers["red"], status=201)
    assert (await ask(api, "GET /acls", who=keepers["red"]))["rules"] == [rule]
    assert (await ask(api, "GET /acls", who=keepers["blue"]))["rules"] == []
    assert (await ask(api, "GET /acls"))["rules"] == []
    await ask(api, f"DELETE /acls/{rule['id']}", who=keepers["blue"], status=404)
    await ask(api, "GET /users", who=keepers["red"], status=403)
    await ask(api, f"DELETE /acls/{rule['id']}", who=keepers["red"], status=204)


async def test_quotas_are_set_listed_and_removed(api: Api) -> None:
    values = {"producer_byte_rate": 1000, "connection_count": 7}
    assert await ask(api, "PATCH /quotas", {"user": "carol", "values": values}) == {
        "user": "carol", "client_id": None, "ip": None, "defaults": [], "values": values,
    }  # fmt: skip
    both = {"user": "carol", "defaults": ["client_id"], "values": {"request_percentage": 12.5}}
    await ask(api, "PATCH /quotas", both)
    await ask(api, "PATCH /quotas", {"defaults": ["ip"], "values": {"connection_creation_rate": 5}})
    listed = await ask(api, "GET /quotas")
    assert listed["total"] == 3
    assert [(each["user"], each["defaults"]) for each in listed["quotas"]] == [
        (None, ["ip"]), ("carol", []), ("carol", ["client_id"]),
    ]  # fmt: skip
    assert (await ask(api, "GET /quotas", query="user=carol"))["total"] == 2
    left = await ask(api, "PATCH /quotas", {"user": "carol", "values": {"connection_count": None}})
    assert left["values"] == {"producer_byte_rate": 1000}
    left = await ask(api, "PATCH /quotas", {"user": "carol", "values": {"producer_byte_rate": None}})
    assert left["values"] == {}
    assert (await ask(api, "GET /quotas", query="user=carol"))["total"] == 1


@pytest.mark.parametrize(
    ("body", "status", "about"),
    [
        pytest.param({"values": {"connection_count": 1}}, 422, "needs", id="nobody"),
        pytest.param({"user": "a", "values": {}}, 422, "at least one quota", id="nothing"),
        pytest.param({"user": "a", "values": {"speed": 1}}, 400, "/values/speed", id="unknown"),
        pytest.param({"user": "a", "values": {"connection_count": 0}}, 400, "/values", id="zero"),
        pytest.param({"user": "a", "values": {"connection_count": 1.5}}, 422, "whole number", id="fraction"),
        pytest.param({"ip": "10.0.0.300", "values": {"connection_count": 1}}, 422, "IP address", id="ip"),
        pytest.param({"ip": "::1", "values": {"request_percentage": 1}}, 422, "unknown", id="not of ip"),
        pytest.param(
            {"ip": "::1", "user": "a", "values": {"connection_count": 1}}, 422, "combined", id="combined"
        ),
        pytest.param(
            {"user": "a", "defaults": ["user"], "values": {"connection_count": 1}}, 422, "/user", id="both"
        ),
        pytest.param({"defaults": ["host"], "values": {"connection_count": 1}}, 400, "host", id="default"),
    ],
)
async def test_a_quota_that_cannot_be_set_is_refused(
    api: Api, body: dict[str, Any], status: int, about: str
) -> None:
    assert about in (await ask(api, "PATCH /quotas", body, status=status))["detail"]
    assert (await ask(api, "GET /quotas"))["total"] == 0


async def test_reading_configurations_is_the_right_to_list_quotas(api: Api) -> None:
    await ask(api, "GET /quotas", who=basic("bob", "secret"), status=403)
    await api.grant((Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME))
    await ask(api, "GET /quotas", who=basic("bob", "secret"))
    refused = await ask(
        api, "PATCH /quotas", {"user": "a", "values": {}}, who=basic("bob", "secret"), status=403
    )
    assert refused["detail"] == "ALTER_CONFIGS is not allowed on the cluster"
