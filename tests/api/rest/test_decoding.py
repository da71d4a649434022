"""Messages decoded by the schemas that they name, and reasons why some cannot be decoded."""

import json
from base64 import b64encode
from typing import Any
from uuid import UUID

import httpx
import pytest

from alpacamq.api.rest import message_decoding
from alpacamq.registry.framing import framed

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "item", "type": "string"}, {"name": "number", "type": "long"}],
    }
)
# An Order of hay with the number 2**60.
HAY = b"\x06hay" + bytes.fromhex("808080808080808020")
PROTO = 'syntax = "proto3"; message Order { string item = 1; } message Refund { int32 cents = 1; }'


def register(http: httpx.Client, subject: str, schema: str, kind: str = "AVRO") -> dict[str, Any]:
    body = {"schema": schema, "schemaType": kind}
    answer = http.post(f"/schemas/subjects/{subject}/versions", json=body)
    assert answer.status_code == 200, answer.text
    registered: dict[str, Any] = answer.json()
    return registered


def publish(http: httpx.Client, topic: str, value: bytes | None, **fields: Any) -> None:
    content: dict[str, Any] = (
        {"value": None} if value is None else {"value_base64": b64encode(value).decode()}
    )
    message = {"partition": 0, **content, **fields}
    http.post(f"/topics/{topic}/messages", json=message).raise_for_status()


def read(http: httpx.Client, topic: str, **query: Any) -> list[dict[str, Any]]:
    answer = http.get(f"/topics/{topic}/messages", params={"decode": "true", **query})
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def test_avro_values_and_keys_are_decoded_with_the_version_of_the_topics_subject(
    http: httpx.Client, made: str
) -> None:
    register(http, f"a-{made}", ORDER)
    value = register(http, f"{made}-value", ORDER)
    key = register(http, f"{made}-key", '"string"')
    publish(
        http,
        made,
        framed(value["id"], HAY),
        key_base64=b64encode(framed(key["id"], b"\x04k1")).decode(),
    )
    (message,) = read(http, made)
    assert message["value_decoded"] == {
        "schema": {"subject": f"{made}-value", "version": 1, "id": value["id"], "type": "AVRO"},
        "value": {"item": "hay", "number": 2**60},
    }
    assert message["key_decoded"] == {
        "schema": {"subject": f"{made}-key", "version": 1, "id": key["id"], "type": "AVRO"},
        "value": "k1",
    }
    # As without decoding, too.
    assert message["value_base64"] == b64encode(framed(value["id"], HAY)).decode()


def test_json_and_protobuf_values_are_decoded(http: httpx.Client, made: str) -> None:
    as_json = register(http, f"{made}-json", '{"type": "object"}', "JSON")
    as_proto = register(http, f"{made}-proto", PROTO, "PROTOBUF")
    publish(http, made, framed(as_json["id"], b'{"item": "hay"}'))
    publish(http, made, framed(as_proto["id"], b"\x00\x0a\x03hay"))
    publish(http, made, framed(as_proto["id"], b"\x02\x02\x08\x05"))  # the second message of the file
    found = [each["value_decoded"] for each in read(http, made)]
    assert [each["value"] for each in found] == [{"item": "hay"}, {"item": "hay"}, {"cents": 5}]
    assert [each["schema"]["type"] for each in found] == ["JSON", "PROTOBUF", "PROTOBUF"]


def test_a_schema_is_found_by_the_guid_in_a_header(http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", ORDER)
    header = b"\x01" + UUID(registered["guid"]).bytes
    publish(http, made, HAY, headers={"__value_schema_id": {"base64": b64encode(header).decode()}})
    (message,) = read(http, made)
    assert message["value_decoded"]["value"] == {"item": "hay", "number": 2**60}
    assert message["value_decoded"]["schema"]["subject"] == f"{made}-value"


def test_what_cannot_be_decoded_says_why(http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", ORDER)
    publish(http, made, framed(2_000_000_000, HAY))
    publish(http, made, framed(registered["id"], b"\x06ha"))
    publish(http, made, b"plain text")
    publish(http, made, None)
    publish(http, made, framed(registered["id"], bytes(message_decoding.MAX_CONTENT_BYTES + 1)))
    unknown, short, plain, tombstone, large = read(http, made, max_bytes=16 << 20)
    assert unknown["value_decoded"] == {"error": "schema 2000000000 not found"}
    assert short["value_decoded"]["schema"]["version"] == 1
    assert short["value_decoded"]["error"].startswith("the data does not match the schema: ")
    assert "value" not in short["value_decoded"]
    assert "value_decoded" not in plain
    assert "value_decoded" not in tombstone
    assert large["value_decoded"]["error"] == "larger than 524288 bytes"


def test_nothing_is_decoded_unless_asked_for(http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", ORDER)
    publish(http, made, framed(registered["id"], HAY))
    answer = http.get(f"/topics/{made}/messages").json()
    assert "value_decoded" not in answer["messages"][0]


def test_every_way_to_read_decodes(http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", ORDER)
    group = f"group-of-{made}"
    http.get(
        f"/groups/{group}/poll", params={"topic": made, "max": 1, "wait_ms": 0, "start": "earliest"}
    ).raise_for_status()
    publish(http, made, framed(registered["id"], HAY), key="k")
    for path, query in (
        (f"/topics/{made}/partitions/0/messages", {}),
        (f"/topics/{made}/messages/find", {"key": "k"}),
        (f"/groups/{group}/queues/{made}/messages", {}),
    ):
        answer = http.get(path, params={"decode": "true", **query}).raise_for_status().json()
        (message,) = answer["messages"]
        assert message["value_decoded"]["value"]["item"] == "hay", path


def test_a_page_with_too_many_schemas_is_decoded_in_part(http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", ORDER)
    publish(http, made, framed(registered["id"], HAY))
    count = message_decoding.MAX_SCHEMAS
    values = [framed(1_000_000_000 + number, HAY) for number in range(count)]
    messages = [{"value_base64": b64encode(each).decode(), "partition": 0} for each in values]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    decoded = [each["value_decoded"] for each in read(http, made, limit=1000)]
    assert decoded[0]["value"]["item"] == "hay"
    assert decoded[-2]["error"].endswith("not found")
    assert decoded[-1]["error"] == "more than 100 schemas at once; read fewer messages"


def test_data_that_grows_when_decoded_is_cut_at_the_limit_of_a_response(
    http: httpx.Client, made: str
) -> None:
    nulls = register(http, f"{made}-value", '{"type": "array", "items": "null"}')
    bomb = framed(nulls["id"], bytes.fromhex("c0843d00"))  # an array of 500,000 nulls
    for _ in range(3):
        publish(http, made, bomb)
    decoded = [each["value_decoded"] for each in read(http, made)]
    assert len(decoded[0]["value"]) == 500_000
    assert decoded[-1]["error"] == "too much for one response; read fewer messages"


@pytest.mark.parametrize("path", ["/topics/{topic}/messages", "/topics/{topic}/messages/find"])
def test_decoding_is_described(http: httpx.Client, path: str) -> None:
    document = http.get("/openapi.json").json()
    parameters = {each["name"]: each for each in document["paths"][path]["get"]["parameters"]}
    assert parameters["decode"]["schema"]["type"] == "boolean"
    assert "value_decoded" in document["components"]["schemas"]["ReadMessage"]["properties"]
