"""Subjects, versions, ids and GUIDs over HTTP."""

import json
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from tests.brokers import Broker

from .requests import Registry, record

VERSIONS = "/subjects/{subject}/versions"


def test_a_registered_schema_is_found_in_every_way(registry: Registry) -> None:
    text = record("a")
    made = registry.register(text)
    found = {**made, "subject": registry.subject}
    canonical = made["schema"]
    assert made["version"] == 1
    assert json.loads(canonical) == json.loads(text)
    assert registry.subject in registry.ask("GET", "/subjects")
    assert registry.ask("GET", VERSIONS) == [1]
    for version in ("1", "latest", "-1"):
        assert registry.ask("GET", f"{VERSIONS}/{version}") == found
        assert registry.send("GET", f"{VERSIONS}/{version}/schema").text == canonical
    assert registry.ask("POST", "/subjects/{subject}", {"schema": text}) == found
    by_id = f"/schemas/ids/{made['id']}"
    assert registry.ask("GET", by_id, subject=registry.subject)["schema"] == canonical
    assert registry.ask("GET", by_id, fetchMaxId=True)["maxId"] >= made["id"]
    assert registry.send("GET", f"{by_id}/schema").text == canonical
    assert registry.subject in registry.ask("GET", f"{by_id}/subjects")
    assert {"subject": registry.subject, "version": 1} in registry.ask("GET", f"{by_id}/versions")
    by_guid = f"/schemas/guids/{made['guid']}"
    assert registry.ask("GET", by_guid)["schema"] == canonical
    assert {"context": ".", "id": made["id"]} in registry.ask("GET", f"{by_guid}/ids")
    listed = registry.ask("GET", "/schemas", subjectPrefix=registry.subject)
    assert listed == [found]


def test_the_same_text_has_one_id_in_all_subjects(registry: Registry) -> None:
    first = registry.register(record("one_id"))
    registry.subject += "-other"
    assert registry.register(record("one_id"))["id"] == first["id"]


def test_lists_have_pages_and_prefixes(registry: Registry) -> None:
    for each in "abc":
        registry.ask("POST", f"/subjects/{registry.subject}.{each}/versions", {"schema": '"int"'})
    names = [f"{registry.subject}.{each}" for each in "abc"]
    prefix = registry.subject
    assert registry.ask("GET", "/subjects", subjectPrefix=prefix) == names
    assert registry.ask("GET", "/subjects", subjectPrefix=prefix, offset=1, limit=1) == names[1:2]
    assert registry.ask("GET", "/subjects", subjectPrefix=f":*:{prefix}") == names


def test_subjects_are_described_page_by_page(registry: Registry) -> None:
    for each in "abc":
        registry.ask("POST", f"/subjects/{registry.subject}.{each}/versions", {"schema": '"int"'})
    first, second = f"{registry.subject}.a", f"{registry.subject}.b"
    registry.ask("PUT", f"/config/{first}", {"compatibility": "NONE"})
    made = registry.ask("POST", f"/subjects/{first}/versions", {"schema": "{}", "schemaType": "JSON"})
    registry.ask("PUT", f"/mode/{second}", {"mode": "READONLY"})
    found = registry.ask("GET", "/descriptions", contains=registry.subject.upper(), limit=2)
    assert found["total"] == 3
    assert [each["subject"] for each in found["subjects"]] == [first, second]
    assert found["subjects"][0] == {
        "subject": first,
        "versions": 2,
        "latest": 2,
        "id": made["id"],
        "schemaType": "JSON",
        "compatibility": "NONE",
        "mode": "READWRITE",
    }
    assert found["subjects"][1]["mode"] == "READONLY"
    rest = registry.ask("GET", "/descriptions", contains=registry.subject, offset=2)
    assert [each["subject"] for each in rest["subjects"]] == [f"{registry.subject}.c"]
    one = registry.ask("GET", "/descriptions", subject=first)
    assert one == {"total": 1, "subjects": found["subjects"][:1]}
    assert registry.ask("GET", "/descriptions", subject="missing") == {"total": 0, "subjects": []}


@pytest.mark.parametrize("name", ["with/slash", "with space", "ünï", "a%b", "q?x=1", "plus+"])
def test_subjects_with_any_characters_are_percent_encoded(registry: Registry, name: str) -> None:
    registry.subject += name
    registry.register('"int"')
    assert registry.ask("GET", f"{VERSIONS}/1")["subject"] == registry.subject
    assert registry.subject in registry.ask("GET", "/subjects")


def test_deletion_is_soft_first_and_then_permanent(registry: Registry) -> None:
    registry.register(record("a"))
    registry.register(record("a", "b?"))
    assert registry.refused("DELETE", f"{VERSIONS}/1", permanent=True) == (404, 40407)
    assert registry.ask("DELETE", f"{VERSIONS}/1") == 1
    assert registry.refused("DELETE", f"{VERSIONS}/1") == (404, 40406)
    assert registry.ask("GET", VERSIONS) == [2]
    assert registry.ask("GET", VERSIONS, deleted=True) == [1, 2]
    assert registry.ask("GET", VERSIONS, deletedOnly=True) == [1]
    assert registry.refused("GET", f"{VERSIONS}/1") == (404, 40402)
    assert registry.ask("GET", f"{VERSIONS}/1", deleted=True)["deleted"] is True
    assert registry.ask("DELETE", f"{VERSIONS}/1", permanent=True) == 1
    assert registry.refused("DELETE", "/subjects/{subject}", permanent=True) == (404, 40405)
    assert registry.ask("DELETE", "/subjects/{subject}") == [2]
    assert registry.refused("DELETE", "/subjects/{subject}") == (404, 40404)
    assert registry.subject not in registry.ask("GET", "/subjects")
    assert registry.subject in registry.ask("GET", "/subjects", deleted=True)
    assert registry.ask("DELETE", "/subjects/{subject}", permanent=True) == [2]
    assert registry.refused("GET", VERSIONS, deleted=True) == (404, 40401)


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/subjects/missing/versions", None, (404, 40401)),
        ("GET", "/subjects/missing/versions/1", None, (404, 40401)),
        ("GET", f"{VERSIONS}/7", None, (404, 40402)),
        ("GET", "/schemas/ids/2147483647", None, (404, 40403)),
        ("GET", "/schemas/ids/none", None, (404, 40403)),
        ("GET", "/schemas/guids/none", None, (404, 40403)),
        ("POST", "/subjects/{subject}", {"schema": '"bytes"'}, (404, 40403)),
        ("GET", "/config/{subject}", None, (404, 40408)),
        ("GET", "/mode/{subject}", None, (404, 40409)),
        ("DELETE", "/config/{subject}", None, (404, 40401)),
        ("POST", VERSIONS, {"schema": '"string"'}, (409, 409)),
        ("POST", VERSIONS, {"schema": "{"}, (422, 42201)),
        ("POST", "/subjects/missing/versions", {"schema": ""}, (422, 42201)),
        ("POST", VERSIONS, {"schema": '"int"', "schemaType": "XML"}, (422, 42201)),
        (
            "POST",
            VERSIONS,
            {"schema": '"x"', "references": [{"name": "x", "subject": "missing", "version": 1}]},
            (422, 42201),
        ),
        ("GET", f"{VERSIONS}/0", None, (422, 42202)),
        ("GET", f"{VERSIONS}/-2", None, (422, 42202)),
        ("GET", f"{VERSIONS}/2147483648", None, (422, 42202)),
        ("GET", f"{VERSIONS}/one", None, (422, 42202)),
        ("PUT", "/config/{subject}", {"compatibility": "SOME"}, (422, 42203)),
        ("PUT", "/mode/{subject}", {"mode": "SLEEP"}, (422, 42204)),
        ("POST", VERSIONS, {"schema": '"bytes"', "id": 9999}, (422, 42205)),
        ("GET", "/subjects/a%00b/versions", None, (422, 42208)),
        ("GET", "/subjects/%3A*%3Ax/versions", None, (422, 42208)),
        ("POST", VERSIONS, {"schema": '"' + "a" * (1 << 20) + '"'}, (422, 42209)),
        (
            "POST",
            VERSIONS,
            {"schema": '"int"', "ruleSet": {"domainRules": [{"name": "1", "type": "CEL"}]}},
            (422, 42210),
        ),
        ("POST", VERSIONS, {"schema": 1}, (400, 400)),
        ("GET", f"{VERSIONS}?limit=many", None, (400, 400)),
        ("GET", "/associations/resources/x", None, (404, 404)),
        ("PUT", "/subjects", {}, (405, 405)),
    ],
)
def test_errors_have_the_codes_of_confluents_registry(
    registry: Registry, method: str, path: str, body: Any, expected: tuple[int, int]
) -> None:
    registry.register('"int"')
    assert registry.refused(method, path, body) == expected


def test_tags_are_refused_with_what_to_use_instead(registry: Registry) -> None:
    tags = [{"schemaEntity": {"entityPath": "Order", "entityType": "sr_record"}, "tags": ["PII"]}]
    for name in ("schemaTagsToAdd", "schemaTagsToRemove"):
        answer = registry.send("POST", VERSIONS, {"schema": '"int"', name: tags})
        assert answer.status_code == 422
        assert "use metadata" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/subjects/x", {"Content-Length": str(1 << 40)}, 413),
        ("/subjects/" + "x" * 20_000, {}, 414),
        ("/subjects/x", {"X-Long": "x" * 40_000}, 431),
    ],
)
def test_requests_that_cannot_be_read_get_an_error_of_the_registry(
    broker: Broker, path: str, headers: dict[str, str], status: int
) -> None:
    host, port = broker.registry_address.rsplit(":", 1)
    connection = HTTPConnection(host, int(port), timeout=60)
    try:
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        error = json.loads(answer.read())
    finally:
        connection.close()
    assert (answer.status, error["error_code"]) == (status, status)
    assert error["message"]


def test_a_deep_body_is_refused(registry: Registry) -> None:
    body = b'{"schema":' + b"[" * 100_000
    answer = registry.client.post("/subjects/x/versions", content=body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)
    nested = '{"type":"array","items":' * 100_000 + '"int"' + "}" * 100_000
    assert registry.refused("POST", VERSIONS, {"schema": nested})[0] == 422


def test_references_are_kept_and_protect_what_they_refer_to(registry: Registry) -> None:
    part = registry.subject + ".part"
    registry.ask("POST", f"/subjects/{part}/versions", {"schema": record("a", name="Part")})
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "Part"}]}
    references = [{"name": "Part", "subject": part, "version": 1}]
    made = registry.register(json.dumps(whole), references=references)
    assert registry.ask("GET", f"{VERSIONS}/1")["references"] == references
    assert registry.ask("GET", f"/subjects/{part}/versions/1/referencedby") == [made["id"]]
    assert registry.refused("DELETE", f"/subjects/{part}/versions/1") == (422, 42206)
    resolved = registry.ask("GET", f"/schemas/ids/{made['id']}", format="resolved")["schema"]
    assert json.loads(resolved)["fields"][0]["type"]["name"] == "Part"


def test_metadata_and_rules_are_returned_as_they_were_sent(registry: Registry) -> None:
    metadata = {"tags": {"a": ["PII"]}, "properties": {"owner": "shop"}, "sensitive": ["owner"]}
    rule = {
        "name": "check",
        "kind": "CONDITION",
        "mode": "WRITE",
        "type": "CEL",
        "expr": "message.a > 0",
        "onFailure": "ERROR",
    }
    registry.register(record("a"), metadata=metadata, ruleSet={"domainRules": [rule]})
    found = registry.ask("GET", f"{VERSIONS}/1")
    assert found["metadata"] == metadata
    assert found["ruleSet"] == {"domainRules": [rule]}
    query = {"key": "owner", "value": "shop"}
    assert registry.ask("GET", "/subjects/{subject}/metadata", **query)["version"] == 1
    assert registry.refused("GET", "/subjects/{subject}/metadata", key="owner", value="x") == (404, 40403)


def test_compatibility_is_checked_without_registering(registry: Registry) -> None:
    registry.register(record("a"))
    check = "/compatibility/subjects/{subject}/versions"
    for path in (check, f"{check}/latest", f"{check}/1"):
        assert registry.ask("POST", path, {"schema": record("a", "b?")}) == {"is_compatible": True}
        refused = registry.ask("POST", path, {"schema": record("a", "b")}, verbose="true")
        assert refused["is_compatible"] is False
        text = "\n".join(refused["messages"])
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in text
        assert "/fields/1" in text
        assert "oldSchema" in text
    assert registry.refused("POST", f"{check}/7", {"schema": '"int"'}) == (404, 40402)
    assert registry.ask("GET", VERSIONS) == [1]


def test_an_incompatible_schema_is_registered_by_force_only(registry: Registry) -> None:
    registry.register(record("a"))
    assert registry.refused("POST", VERSIONS, {"schema": record("b")}) == (409, 409)
    assert registry.ask("POST", VERSIONS, {"schema": record("b")}, force="true")["version"] == 2


def test_normalized_schemas_are_the_same(registry: Registry) -> None:
    one = '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}}}'
    other = '{"properties":{"b":{"type":"string"},"a":{"type":"string"}},"type":"object"}'
    body = {"schemaType": "JSON", "schema": one}
    first = registry.ask("POST", VERSIONS, body, normalize=True)
    again = registry.ask("POST", VERSIONS, {**body, "schema": other}, normalize=True)
    assert (again["id"], again["version"]) == (first["id"], 1)


def test_ids_and_versions_are_imported(registry: Registry) -> None:
    assert registry.ask("PUT", "/mode/{subject}", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    made = registry.register(record("imported", name="Imported"), id=70_001, version=5)
    assert (made["id"], made["version"]) == (70_001, 5)
    body = {"schema": record("imported", name="Imported"), "id": 70_002, "version": 6}
    assert registry.refused("POST", VERSIONS, body) == (422, 42207)
    assert registry.ask("DELETE", "/mode/{subject}") == {"mode": "IMPORT"}


def test_a_read_only_subject_refuses_changes(registry: Registry) -> None:
    registry.register(record("a"))
    registry.ask("PUT", "/mode/{subject}", {"mode": "READONLY"})
    assert registry.ask("GET", "/mode/{subject}") == {"mode": "READONLY"}
    assert registry.refused("POST", VERSIONS, {"schema": record("a", "b?")}) == (422, 42205)
    assert registry.refused("DELETE", f"{VERSIONS}/1") == (422, 42205)


def test_settings_of_a_subject_come_before_those_of_all(registry: Registry) -> None:
    path = "/config/{subject}"
    assert registry.ask("GET", path, defaultToGlobal=True) == {"compatibilityLevel": "BACKWARD"}
    sent = {"compatibility": "none", "normalize": True, "compatibilityGroup": "major"}
    assert registry.ask("PUT", path, sent) == {**sent, "compatibility": "NONE"}
    found = {"compatibilityLevel": "NONE", "normalize": True, "compatibilityGroup": "major"}
    assert registry.ask("GET", path) == found
    assert registry.ask("DELETE", path) == found
    assert registry.refused("GET", path) == (404, 40408)
    assert registry.ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.ask("GET", "/mode") == {"mode": "READWRITE"}


def test_a_context_has_ids_of_its_own(registry: Registry) -> None:
    name = registry.subject
    registry.prefix = "/contexts/.other"
    made = registry.register(record(*"abc", name="InContext"))
    assert registry.ask("GET", f"{VERSIONS}/1")["subject"] == f":.other:{name}"
    assert f":.other:{name}" in registry.ask("GET", "/subjects")
    assert registry.ask("GET", f"/schemas/ids/{made['id']}")["schema"] == made["schema"]
    assert registry.ask("PUT", "/config", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    assert registry.ask("GET", "/config") == {"compatibilityLevel": "FULL"}
    registry.prefix = ""
    assert ".other" in registry.ask("GET", "/contexts")
    assert registry.ask("GET", f"/subjects/:.other:{name}/versions") == [1]
    assert registry.ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_the_registry_describes_itself(registry: Registry) -> None:
    assert registry.ask("GET", "/") == {}
    assert {"JSON", "AVRO"} <= set(registry.ask("GET", "/schemas/types"))
    assert registry.ask("GET", "/stats")["contexts"] >= 1
    assert "kafka-cluster" in registry.ask("GET", "/v1/metadata/id")["scope"]["clusters"]
    assert registry.ask("GET", "/v1/metadata/version")["version"]


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("*/*", "application/vnd.schemaregistry.v1+json"),
        ("text/html, application/*;q=0.8", "application/vnd.schemaregistry.v1+json"),
        ("application/vnd.schemaregistry+json, application/json", "application/vnd.schemaregistry+json"),
        ("application/json", "application/json"),
    ],
)
def test_the_content_type_is_one_that_the_client_accepts(
    registry: Registry, accepted: str, expected: str
) -> None:
    for path in ("/subjects", "/subjects/missing/versions"):
        answer = registry.client.get(path, headers={"Accept": accepted})
        assert answer.headers["content-type"] == expected


def test_other_content_types_are_refused(registry: Registry) -> None:
    assert registry.client.get("/subjects", headers={"Accept": "text/html"}).status_code == 406
    answer = registry.client.post(
        "/subjects/x", content=b"schema", headers={"Content-Type": "application/octet-stream"}
    )
    assert (answer.status_code, answer.json()["error_code"]) == (415, 415)


def test_the_http_api_has_the_registry_under_schemas(registry: Registry, broker: Broker) -> None:
    made = registry.register(record("mounted", name="Mounted"))
    with httpx.Client(base_url=f"http://{broker.http_address}/schemas", timeout=60) as client:
        mounted = Registry(client, registry.subject)
        for path in (f"/ids/{made['id']}", f"/schemas/ids/{made['id']}", f"/guids/{made['guid']}"):
            assert mounted.ask("GET", path)["schema"] == made["schema"]
        for path in ("/subjects", "/config", "/mode", "/contexts", "/stats", "/types", "/schemas/types"):
            assert mounted.ask("GET", path) is not None
        assert mounted.ask("GET", VERSIONS) == [1]
        assert mounted.ask("GET", "/contexts/.none/subjects") == []
        assert mounted.refused("GET", "/nothing") == (404, 404)
        assert client.get(f"http://{broker.http_address}/schemas").json()
        assert client.get(f"http://{broker.http_address}/schemasx").status_code == 404


def test_pages_of_other_sites_are_refused(registry: Registry) -> None:
    answer = registry.client.get("/subjects", headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error_code"]) == (403, 403)
    answer = registry.client.get("/subjects", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error_code"]) == (421, 421)


def test_requests_and_errors_are_counted(registry: Registry, broker: Broker) -> None:
    registry.refused("GET", "/subjects/missing/versions")
    text = httpx.get(f"http://{broker.http_address}/metrics").text
    assert 'alpacamq_registry_request_seconds_count{request="GET /subjects/{subject}/versions"}' in text
    assert 'error="40401"' in text
