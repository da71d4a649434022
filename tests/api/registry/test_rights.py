"""The rights of every request, and tenants that see nothing of each other."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.registry.app import ROUTES, RegistryApi
from alpacamq.api.registry.route import AnyRoute
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.model.ids import BrokerId
from alpacamq.registry.framing import framed
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
from alpacamq.security.tenants import TenantLimits
from tests.executed_lines import ExecutedLines

SCHEMA: dict[str, Any] = {"schema": '"int"'}
BODIES: dict[str, Any] = {"/config": {"compatibility": "NONE"}, "/mode": {"mode": "READWRITE"}}


class Answer(NamedTuple):
    """A status, and a body as JSON."""

    status: int
    body: Any


class Api:
    """The registry of a broker with access rules."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._api = RegistryApi(broker)

    async def ask(
        self, method: str, path: str, body: Any = None, query: str = "", who: str | None = "bob"
    ) -> Answer:
        headers = {}
        if who is not None:
            headers["authorization"] = f"Basic {b64encode(f'{who}:secret'.encode()).decode()}"
        sent = b"" if body is None else json.dumps(body).encode()
        response = await self._api(Request(method, path, query, headers, sent, "127.0.0.1:1"))
        return Answer(response.status, json.loads(response.body))

    async def grant(self, operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> None:
        rule = Acl(kind, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)
        assert not any((await self.broker.access.create_acls([rule])).failures)

    async def revoke(self) -> None:
        await self.broker.access.delete_acls([AclFilter(principal="User:bob")])


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    security = SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),))
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path, security=security))
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        for name in ("bob", "admin", "anna", "boris"):
            await broker.access.set_password(name, "secret", tuple(Mechanism), DEFAULT_ITERATIONS)
        api = Api(broker)
        for subject in ("orders-value", "other-value"):
            made = await api.ask("POST", f"/subjects/{subject}/versions", SCHEMA, who="admin")
            assert made.status == 200, made
        yield api
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


def sample(path: str) -> tuple[str, Any]:
    """Return the path and the body of a request to a route."""
    body = next((body for start, body in BODIES.items() if path.startswith(start)), SCHEMA)
    return path.replace("{subject}", "orders-value").replace("{version}", "1"), body


async def test_every_route_needs_authentication(api: Api) -> None:
    for route in ROUTES:
        path, body = sample(route.path)
        assert (await api.ask(route.method, path, body, who=None)).status == 401, route.key


async def test_every_row(api: Api) -> None:
    for route in ROUTES:
        if route.right is None:
            continue
        path, body = sample(route.path)
        for setting, value in BODIES.items():
            await api.ask("PUT", f"{setting}/orders-value", value, who="admin")
        denied = await api.ask(route.method, path, body)
        assert denied.status in (403, 404), (route.key, denied)
        if "subject" in route.path_names:
            missing = await api.ask(route.method, path.replace("orders-", "missing-"), body)
            assert missing.body["error_code"] == denied.body["error_code"], route.key
            await api.grant(route.right.operation, "orders")
        else:
            operation = route.right.on_cluster or route.right.operation
            await api.grant(operation, CLUSTER_NAME, ResourceType.CLUSTER)
        allowed = await api.ask(route.method, path, body)
        assert allowed.status != 403, (route.key, allowed)
        assert allowed.body != denied.body, route.key
        await api.revoke()
        await api.ask("POST", "/subjects/orders-value/versions", SCHEMA, who="admin")


async def test_lists_and_ids_show_subjects_that_may_be_described(api: Api) -> None:
    await api.ask("POST", "/subjects/secret-value/versions", {"schema": '"long"'}, who="admin")
    assert (await api.ask("GET", "/subjects")).body == []
    assert (await api.ask("GET", "/schemas")).body == []
    assert (await api.ask("GET", "/schemas/ids/1")).body["error_code"] == 40403
    await api.grant(Operation.READ, "orders")
    assert (await api.ask("GET", "/subjects")).body == ["orders-value"]
    assert [each["subject"] for each in (await api.ask("GET", "/schemas")).body] == ["orders-value"]
    assert (await api.ask("GET", "/schemas/ids/1")).body["subject"] == "orders-value"
    assert (await api.ask("GET", "/schemas/ids/1/subjects")).body == ["orders-value"]
    assert (await api.ask("GET", "/schemas/ids/2")).body["error_code"] == 40403
    guid = (await api.ask("GET", "/subjects/secret-value/versions/1", who="admin")).body["guid"]
    assert (await api.ask("GET", f"/schemas/guids/{guid}")).body["error_code"] == 40403


async def test_skipping_the_compatibility_check_needs_the_right_to_change_it(api: Api) -> None:
    await api.grant(Operation.WRITE, "orders")
    path = "/subjects/orders-value/versions"
    incompatible = {"schema": '{"type":"record","name":"Other","fields":[{"name":"a","type":"bytes"}]}'}
    assert (await api.ask("POST", path, incompatible)).status == 409
    assert (await api.ask("POST", path, incompatible, query="force=true")).status == 403
    await api.grant(Operation.ALTER_CONFIGS, "orders")
    assert (await api.ask("POST", path, incompatible, query="force=true")).body["version"] == 2


async def test_a_forbidden_reference_is_a_missing_one(api: Api) -> None:
    await api.grant(Operation.WRITE, "mine")
    answers = []
    for subject in ("other-value", "none-value"):
        body = {**SCHEMA, "references": [{"name": "x", "subject": subject, "version": 1}]}
        answer = await api.ask("POST", "/subjects/mine-value/versions", body)
        answers.append(answer.body["message"].replace(subject, "it"))
        assert answer.body["error_code"] == 42201
    assert answers[0] == answers[1]


async def test_an_alias_needs_the_rights_of_both_subjects(api: Api) -> None:
    await api.grant(Operation.ALL, "mine")
    assert (await api.ask("PUT", "/config/mine-value", {"alias": "other-value"})).status == 200
    for method, path in (("GET", "/subjects/mine-value/versions/1"), ("DELETE", "/subjects/mine-value")):
        assert (await api.ask(method, path)).body["error_code"] == 40401
    assert (await api.ask("POST", "/subjects/mine-value/versions", {"schema": '"long"'})).status == 403


async def test_tenants_have_subjects_and_ids_of_their_own(api: Api) -> None:
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        await api.broker.access.create_tenant(tenant, description="", limits=TenantLimits())
        await api.broker.access.add_member(tenant, f"User:{name}", is_admin=True)
    versions = "/subjects/orders-value/versions"
    assert (await api.ask("GET", versions, who="anna")).body["error_code"] == 40401
    for index in range(3):
        fixed = {"schema": json.dumps({"type": "fixed", "name": f"F{index}", "size": 4})}
        path = f"/subjects/s{index}-value/versions"
        made = await api.ask("POST", path, fixed, who="anna")
        assert made.body["id"] == index + 1, made
    assert (await api.ask("GET", "/subjects", who="anna")).body == [f"s{index}-value" for index in range(3)]
    assert (await api.ask("GET", "/subjects/s0-value/versions/1", who="anna")).body["subject"] == "s0-value"
    assert (await api.ask("GET", "/schemas/ids/3", query="subject=s0-value", who="anna")).status == 200
    guid = (await api.ask("GET", "/subjects/s0-value/versions/1", who="anna")).body["guid"]
    assert (await api.ask("GET", f"/schemas/guids/{guid}/ids", who="anna")).body == [
        {"context": ".", "id": 1}
    ]
    assert (await api.ask("PUT", "/config", {"compatibility": "NONE"}, who="anna")).status == 200
    # Nothing of it is visible to another tenant, however it names it.
    assert (await api.ask("GET", "/subjects", who="boris")).body == []
    assert (await api.ask("GET", "/contexts", who="boris")).body == ["."]
    assert (await api.ask("GET", "/schemas", who="boris")).body == []
    assert (await api.ask("GET", "/config", who="boris")).body == {"compatibilityLevel": "BACKWARD"}
    for path in (
        "/schemas/ids/1",
        f"/schemas/guids/{guid}",
        "/subjects/s0-value/versions/1",
        "/subjects/:.@crimson:s0-value/versions/1",
        "/contexts/.@crimson/subjects/s0-value/versions/1",
        "/contexts/.@crimson/schemas/ids/1",
    ):
        found = await api.ask("GET", path, who="boris")
        assert found.status == 404, (path, found)
    body = {**SCHEMA, "references": [{"name": "x", "subject": ":.@crimson:s0-value", "version": 1}]}
    assert (await api.ask("POST", versions, body, who="boris")).body["error_code"] == 42201
    assert (await api.ask("PUT", "/config/a", {"alias": ":.@crimson:s0-value"}, who="boris")).status == 200
    assert (await api.ask("GET", "/subjects/a/versions/1", who="boris")).status == 404
    # Messages name subjects as the client does, and administrators see whose they are.
    missing = await api.ask("GET", "/subjects/none/versions/1", who="anna")
    assert missing.body["message"] == "subject 'none' not found"
    assert ":.@crimson:s0-value" in (await api.ask("GET", "/subjects", who="admin")).body
    assert (await api.ask("GET", "/stats", who="anna")).status == 403


async def test_a_subject_of_another_tenant_is_looked_up_as_an_unknown_one(api: Api) -> None:
    for name, tenant in (("anna", "crimson"), ("boris", "azure")):
        await api.broker.access.create_tenant(tenant, description="", limits=TenantLimits())
        await api.broker.access.add_member(tenant, f"User:{name}", is_admin=True)

    async def asked(route: AnyRoute, subject: str, who: str = "boris") -> tuple[str, list[tuple[str, int]]]:
        path, body = sample(route.path)
        path = path.replace("orders-value", subject)
        recorder = ExecutedLines()
        answer = await recorder.awaiting(api.ask(route.method, path, body, who=who))
        return str(answer).replace(subject, "NAME"), recorder.lines

    about_subjects = [route for route in ROUTES if "subject" in route.path_names]
    assert len(about_subjects) > 10
    for index, route in enumerate(about_subjects):
        # What is made under a name of the other tenant is one's own: each route has names of its own.
        early, secret, unknown = (f"{kind}-{index}-value" for kind in ("early", "zebra", "other"))
        for path, body in ((f"/subjects/{secret}/versions", SCHEMA), *BODIES.items()):
            method = "POST" if body is SCHEMA else "PUT"
            at = path if body is SCHEMA else f"{path}/{secret}"
            assert (await api.ask(method, at, body, who="anna")).status == 200
        await asked(route, early)  # what is made once is there
        found, missing = await asked(route, secret), await asked(route, unknown)
        assert found[1], route.key
        assert found == missing, route.key
        assert "crimson" not in found[0]
        if route.method == "GET":
            assert (await asked(route, secret, "anna"))[1] != found[1], route.key


async def test_two_tenants_use_the_same_subjects_at_once(api: Api) -> None:
    schemas = {"anna": '"long"', "boris": '"string"'}
    for (name, text), tenant in zip(schemas.items(), ("crimson", "azure"), strict=True):
        await api.broker.access.create_tenant(tenant, description="", limits=TenantLimits())
        await api.broker.access.add_member(tenant, f"User:{name}", is_admin=True)
        made = await api.ask("POST", "/subjects/orders-value/versions", {"schema": text}, who=name)
        assert (made.status, made.body["id"]) == (200, 1)
    for name, text in schemas.items():
        assert (await api.ask("GET", "/subjects/orders-value/versions/latest", who=name)).body[
            "schema"
        ] == text
        assert (await api.ask("GET", "/schemas/ids/1", who=name)).body["schema"] == text
        used = (await api.ask("GET", "/schemas/ids/1/versions", who=name)).body
        assert used == [{"subject": "orders-value", "version": 1}]
    # What one sets, compares and deletes concerns its own subject.
    assert (await api.ask("PUT", "/mode/orders-value", {"mode": "READONLY"}, who="anna")).status == 200
    changed = {"schema": '"bytes"'}
    refused = await api.ask("POST", "/subjects/orders-value/versions", changed, who="anna")
    assert refused.status == 422
    assert "crimson" not in refused.body["message"]
    assert (await api.ask("POST", "/subjects/orders-value/versions", changed, who="boris")).status == 200
    incompatible = await api.ask("POST", "/subjects/orders-value/versions", {"schema": '"int"'}, who="boris")
    assert incompatible.status == 409
    assert "azure" not in json.dumps(incompatible.body)
    assert (await api.ask("DELETE", "/subjects/orders-value", who="boris")).body == [1, 2]
    assert (await api.ask("GET", "/subjects/orders-value/versions", who="anna")).body == [1]
    # Nor does it concern the one without a tenant.
    assert (await api.ask("GET", "/subjects/orders-value/versions", who="admin")).body == [1]
    assert (await api.ask("GET", "/mode/orders-value", who="admin")).status == 404


async def test_a_client_without_a_tenant_does_not_find_subjects_of_tenants_by_their_bare_names(
    api: Api,
) -> None:
    await api.broker.access.create_tenant("crimson", description="", limits=TenantLimits())
    await api.broker.access.add_member("crimson", "User:anna", is_admin=True)
    await api.ask("POST", "/subjects/only-value/versions", SCHEMA, who="anna")
    assert (await api.ask("GET", "/subjects/only-value/versions/1", who="admin")).status == 404


async def test_messages_are_decoded_only_by_schemas_that_the_client_may_see(api: Api) -> None:
    rest = RestApi(api.broker, {})

    async def messages(method: str, who: str, body: Any = None, query: str = "") -> Any:
        headers = {"authorization": f"Basic {b64encode(f'{who}:secret'.encode()).decode()}"}
        sent = b"" if body is None else json.dumps(body).encode()
        request = Request(method, "/topics/plain/messages", query, headers, sent, "127.0.0.1:1")
        answered = rest(request)
        response = answered if isinstance(answered, Response) else await answered
        assert response.status == 200, response.body
        return json.loads(response.body)

    found = (await api.ask("GET", "/subjects/orders-value/versions/1", who="admin")).body
    await messages("POST", "admin", {"value_base64": b64encode(framed(found["id"], b"\x02")).decode()})
    await api.grant(Operation.READ, "plain")
    (message,) = (await messages("GET", "bob", query="decode=true"))["messages"]
    assert message["value_decoded"] == {"error": f"schema {found['id']} not found"}
    # The schema has two subjects. Bob may see one of them.
    await api.grant(Operation.DESCRIBE, "other")
    (message,) = (await messages("GET", "bob", query="decode=true"))["messages"]
    assert message["value_decoded"]["value"] == 1
    assert message["value_decoded"]["schema"]["subject"] == "other-value"
