"""The errors that users see name what was wrong, over HTTP, the schema registry, SQS and Kafka.

A real broker, and clients without changes. Each code is one that the error reference lists.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.brokers import KEPT, Broker
from tests.compat import sqs

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
TIMEOUT_S = 30
SCHEMA = {"schema": json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]})}
OTHER_SCHEMA = {
    "schema": json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": "string"}]})
}


class Clients(NamedTuple):
    """Clients of one broker, which has a topic, a compacted topic, a queue, a group and a schema."""

    http: httpx.Client
    registry: httpx.Client
    sqs: Any
    queue_url: str
    admin: Any


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    broker = Broker(tmp_path_factory.mktemp("errors") / "data", config=KEPT)
    try:
        broker.start()
        with (
            httpx.Client(base_url=f"http://{broker.http_address}", timeout=TIMEOUT_S) as http,
            httpx.Client(base_url=f"http://{broker.registry_address}", timeout=TIMEOUT_S) as registry,
        ):
            for name, settings in (
                ("orders", {"max.message.bytes": "1000"}),
                ("compacted", {"cleanup.policy": "compact"}),
            ):
                http.post(
                    "/topics", json={"name": name, "partitions": 1, "settings": settings}
                ).raise_for_status()
            http.post("/topics/orders/messages", json={"value": "one"}).raise_for_status()
            http.get("/groups/workers/poll?topic=orders").raise_for_status()
            for subject in ("orders-value", "deleted-value"):
                registry.post(f"/subjects/{subject}/versions", json=SCHEMA).raise_for_status()
            registry.delete("/subjects/deleted-value").raise_for_status()
            queues = sqs.client(broker.sqs_address)
            url = queues.create_queue(QueueName="work")["QueueUrl"]
            queues.purge_queue(QueueUrl=url)
            yield Clients(
                http,
                registry,
                queues,
                url,
                AdminClient({"bootstrap.servers": broker.address, "log_level": 0}),
            )
    finally:
        broker.end()


def row(code: str, *names: str, request: Any) -> Any:
    """Return a case: a request, the code of its error, and what the text contains."""
    return pytest.param(request, code, names, id=f"{code}-{'-'.join(names)[:40]}")


def check(code: str, names: tuple[str, ...], found: str, text: str) -> None:
    assert found == code, text
    assert f"`{code}`" in REFERENCE or f" {code} |" in REFERENCE
    for name in names:
        assert name in text


def http(
    method: str, path: str, body: Any = None, **headers: str
) -> Callable[[httpx.Client], httpx.Response]:
    def send(client: httpx.Client) -> httpx.Response:
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if content is None else {"content-type": "application/json"}
        return client.request(method, path, content=content, headers=kind | headers)

    return send


def new_topic(**fields: Any) -> Callable[[httpx.Client], httpx.Response]:
    return http("POST", "/topics", {"name": "new", **fields})


def message(**fields: Any) -> Callable[[httpx.Client], httpx.Response]:
    return http("POST", "/topics/orders/messages", {"value": "v", **fields})


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        row("invalid-input", "/name", request=new_topic(name="a b")),
        row("invalid-input", "/partitions", ">= 1", request=new_topic(partitions=0)),
        row("invalid-input", "/partitons", "did you mean 'partitions'", request=new_topic(partitons=1)),
        row("invalid-input", "'topic'", request=http("POST", "/cluster/elections", {"topic": "orders"})),
        row("invalid-input", "not JSON", request=http("POST", "/topics", b"{")),
        row("invalid-input", "'urgent'", "critical, high", request=message(priority="urgent")),
        row(
            "invalid-input",
            "'best'",
            "preferred",
            request=http("POST", "/cluster/elections", {"kind": "best"}),
        ),
        row("conflicting-input", "/value_base64", request=message(value_base64="eA==")),
        row(
            "unsupported-media-type",
            "text/plain",
            request=lambda c: c.post("/topics", content="{}", headers={"content-type": "text/plain"}),
        ),
        row("unknown-path", "/nope", request=http("GET", "/nope")),
        row("method-not-allowed", "GET", "PUT", request=http("PUT", "/topics")),
        row(
            "cross-origin",
            "http://evil.example",
            request=http("GET", "/topics", origin="http://evil.example"),
        ),
        row("topic-exists", "'orders'", request=new_topic(name="orders")),
        row(
            "invalid-partition-count",
            "2000000",
            "topics.max_partitions",
            request=new_topic(partitions=2_000_000),
        ),
        row(
            "invalid-partition-count",
            "'orders'",
            request=http("POST", "/admin/topics/orders/partitions", {"partitions": 1}),
        ),
        row("invalid-replication", "3", "1 broker", request=new_topic(replication_factor=3)),
        row(
            "invalid-config",
            "retention.mss",
            "retention.ms?",
            request=new_topic(settings={"retention.mss": "1"}),
        ),
        row("invalid-config", "retention.ms='soon'", request=new_topic(settings={"retention.ms": "soon"})),
        row(
            "invalid-config",
            "'shred'",
            "compact, delete",
            request=new_topic(settings={"cleanup.policy": "shred"}),
        ),
        row(
            "invalid-config",
            "queue.*",
            "retention.ms",
            request=http("PUT", "/groups/workers/queues/orders", {"settings": {"retention.ms": "1"}}),
        ),
        row("unknown-topic", "'nowhere'", request=http("GET", "/topics/nowhere")),
        row("unknown-topic", "no partition 7", request=message(partition=7)),
        row("not-compacted", "cleanup.policy=delete", request=http("POST", "/admin/topics/orders/compact")),
        row(
            "offset-out-of-range",
            "500",
            "0 to 1 of orders-0",
            request=http("GET", "/topics/orders/partitions/0/messages?offset=500"),
        ),
        row("batch-too-large", "max.message.bytes=1000", request=message(value="x" * 2000)),
        row("invalid-record", "no key", request=http("POST", "/topics/compacted/messages", {"value": "v"})),
        row("invalid-delay", "delays.max_delay_ms=", request=message(delay_ms=10**13)),
        row("invalid-receipt", "malformed", request=http("POST", "/messages/ack", {"receipt": "nonsense"})),
        row("unknown-delayed", "77", "'orders'", request=http("DELETE", "/topics/orders/delayed/0/77")),
        row("unknown-task", "'none'", request=http("GET", "/redrives/none")),
        row("unknown-trace", "a" * 32, request=http("GET", f"/traces/{'a' * 32}")),
        row("group-id-not-found", "'nobodies'", request=http("GET", "/groups/nobodies")),
        row(
            "group-id-not-found",
            "'nobodies'",
            "'orders'",
            request=http("GET", "/groups/nobodies/queues/orders"),
        ),
        row(
            "unknown-member",
            "'nobodies'",
            request=http("POST", "/groups/nobodies/heartbeat", {"member_id": "m", "member_epoch": 1}),
        ),
        row(
            "offset-metadata-too-large",
            "orders-0",
            "4096",
            request=http(
                "POST",
                "/groups/shop/offsets",
                {"offsets": [{"topic": "orders", "partition": 0, "offset": 0, "metadata": "x" * 5000}]},
            ),
        ),
        row("invalid-tenant", "'No Good'", request=http("POST", "/admin/tenants", {"id": "No Good"})),
        row("unknown-tenant", "'none'", request=http("GET", "/admin/tenants/none")),
        row("unknown-api-key", "'none'", request=http("DELETE", "/keys/none")),
        row("unknown-broker", "77", request=http("DELETE", "/cluster/nodes/77")),
        row(
            "security-disabled",
            "security.authentication",
            request=http("POST", "/session", {"user": "a", "password": "b"}),
        ),
    ],
)
def test_errors_over_http(
    clients: Clients, request_: Callable[[httpx.Client], httpx.Response], code: str, names: tuple[str, ...]
) -> None:
    response = request_(clients.http)
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    check(code, names, problem["type"].rpartition(":")[2], problem["detail"])


def test_a_host_that_is_not_of_the_broker_is_named(clients: Clients) -> None:
    response = clients.http.get("/topics", headers={"host": "evil.example"})
    assert response.status_code == 421
    assert "'evil.example'" in response.text
    assert "http.hosts" in response.text


def test_a_settled_message_is_named(clients: Clients) -> None:
    clients.http.post("/topics/orders/messages", json={"value": "two"}).raise_for_status()
    (leased,) = clients.http.get("/groups/once/poll?topic=orders&max=1").json()["messages"]
    receipt = {"receipt": leased["receipt"]}
    clients.http.post("/messages/ack", json=receipt).raise_for_status()
    problem = clients.http.post("/messages/nack", json=receipt).json()
    check("stale-receipt", ("orders-0",), problem["type"].rpartition(":")[2], problem["detail"])


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        row(
            "409",
            "'orders-value'",
            "BACKWARD",
            "field b",
            request=http("POST", "/subjects/orders-value/versions", OTHER_SCHEMA),
        ),
        row("42201", "line 1", request=http("POST", "/subjects/orders-value/versions", {"schema": "{"})),
        row(
            "42201",
            "'XML'",
            "AVRO, JSON, PROTOBUF",
            request=http("POST", "/subjects/orders-value/versions", {"schema": "{}", "schemaType": "XML"}),
        ),
        row("40401", "'none'", request=http("GET", "/subjects/none/versions")),
        row("40402", "version 9", "'orders-value'", request=http("GET", "/subjects/orders-value/versions/9")),
        row("40403", "999", request=http("GET", "/schemas/ids/999")),
        row("40404", "'deleted-value'", "permanent=true", request=http("DELETE", "/subjects/deleted-value")),
        row("40405", "'orders-value'", request=http("DELETE", "/subjects/orders-value?permanent=true")),
        row("40408", "'orders-value'", request=http("GET", "/config/orders-value")),
        row("40409", "'orders-value'", request=http("GET", "/mode/orders-value")),
        row("42202", "version 0", request=http("GET", "/subjects/orders-value/versions/0")),
        row("42203", "'SOME'", "FULL_TRANSITIVE", request=http("PUT", "/config", {"compatibility": "SOME"})),
        row("42204", "'SLOW'", "READONLY", request=http("PUT", "/mode/orders-value", {"mode": "SLOW"})),
        row("42205", "IMPORT", "force", request=http("PUT", "/mode/orders-value", {"mode": "IMPORT"})),
        row("42208", "'__GLOBAL'", "reserved", request=http("POST", "/subjects/__GLOBAL/versions", SCHEMA)),
    ],
)
def test_errors_of_the_schema_registry(
    clients: Clients, request_: Callable[[httpx.Client], httpx.Response], code: str, names: tuple[str, ...]
) -> None:
    failure = request_(clients.registry).json()
    check(code, names, str(failure["error_code"]), failure["message"])


def test_modes_that_cannot_be_set_are_not_offered(clients: Clients) -> None:
    failure = clients.registry.put("/mode/orders-value", json={"mode": "SLOW"}).json()
    assert "FORWARD" not in failure["message"]


def entries(*ids: str) -> dict[str, Any]:
    return {"Entries": [{"Id": each, "MessageBody": "a"} for each in ids]}


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        row("QueueDoesNotExist", "'none'", request=("get_queue_url", {"QueueName": "none"})),
        row(
            "InvalidParameterValueException",
            "MaxNumberOfMessages",
            "11",
            "10",
            request=("receive_message", {"MaxNumberOfMessages": 11}),
        ),
        row(
            "InvalidParameterValueException",
            "901",
            "900",
            request=("send_message", {"MessageBody": "a", "DelaySeconds": 901}),
        ),
        row(
            "InvalidParameterValueException",
            "1048576",
            request=("send_message", {"MessageBody": "a" * 1_048_577}),
        ),
        row("InvalidMessageContents", "#xFFFD", request=("send_message", {"MessageBody": "\0"})),
        row("ReceiptHandleIsInvalid", '"x"', request=("delete_message", {"ReceiptHandle": "x"})),
        row("EmptyBatchRequest", "at least one", request=("send_message_batch", entries())),
        row(
            "TooManyEntriesInBatchRequest",
            "10",
            "11",
            request=("send_message_batch", entries(*map(str, range(11)))),
        ),
        row("BatchEntryIdsNotDistinct", "Id a", request=("send_message_batch", entries("a", "a"))),
        row("InvalidBatchEntryId", "'a b'", request=("send_message_batch", entries("a b"))),
        row("InvalidAttributeName", "Nope", request=("get_queue_attributes", {"AttributeNames": ["Nope"]})),
        row(
            "InvalidAttributeValue",
            "VisibilityTimeout",
            "0 to 43200",
            request=("set_queue_attributes", {"Attributes": {"VisibilityTimeout": "50000"}}),
        ),
        row("PurgeQueueInProgress", "work", "60 seconds", request=("purge_queue", {})),
        row(
            "QueueNameExists",
            "VisibilityTimeout",
            request=("create_queue", {"QueueName": "work", "Attributes": {"VisibilityTimeout": "99"}}),
        ),
        row(
            "ResourceNotFoundException",
            "SourceArn",
            ":none",
            request=("start_message_move_task", {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:none"}),
        ),
    ],
)
def test_errors_over_sqs(
    clients: Clients, request_: tuple[str, dict[str, Any]], code: str, names: tuple[str, ...]
) -> None:
    action, parameters = request_
    if action not in ("get_queue_url", "create_queue", "start_message_move_task"):
        parameters = {"QueueUrl": clients.queue_url, **parameters}
    with pytest.raises(ClientError) as refused:
        getattr(clients.sqs, action)(**parameters)
    error = refused.value.response["Error"]
    check(code, names, error["QueryErrorCode"], error["Message"])


def created(**fields: Any) -> Callable[[Any], Future[Any]]:
    topic = {"topic": "new", "num_partitions": 1, "replication_factor": 1, **fields}
    return lambda admin: only(admin.create_topics([NewTopic(**topic)]))


def changed(name: str, value: str, *, of: str = "orders") -> Callable[[Any], Future[Any]]:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, of, incremental_configs=[entry])
    return lambda admin: only(admin.incremental_alter_configs([resource]))


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future


def anyone_may_read() -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:a", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        row("INVALID_TOPIC_EXCEPTION", "'a b'", request=created(topic="a b")),
        row("TOPIC_ALREADY_EXISTS", "'orders'", request=created(topic="orders")),
        row("INVALID_PARTITIONS", "topics.max_partitions", request=created(num_partitions=20_000)),
        row("INVALID_REPLICATION_FACTOR", "3", "1 broker", request=created(replication_factor=3)),
        row(
            "INVALID_CONFIG", "retention.mss", "retention.ms?", request=created(config={"retention.mss": "1"})
        ),
        row("INVALID_CONFIG", "retention.ms='soon'", request=changed("retention.ms", "soon")),
        row("UNKNOWN_TOPIC_OR_PARTITION", "'nowhere'", request=changed("retention.ms", "1", of="nowhere")),
        row(
            "INVALID_PARTITIONS",
            "'orders'",
            request=lambda a: only(a.create_partitions([NewPartitions("orders", 1)])),
        ),
        row("GROUP_ID_NOT_FOUND", request=lambda a: only(a.delete_consumer_groups(["nobodies"]))),
        row(
            "OFFSET_OUT_OF_RANGE",
            request=lambda a: only(a.delete_records([TopicPartition("orders", 0, 500)])),
        ),
        row("SECURITY_DISABLED", "security.acls", request=lambda a: only(a.create_acls([anyone_may_read()]))),
    ],
)
def test_errors_over_kafka(
    clients: Clients, request_: Callable[[Any], Future[Any]], code: str, names: tuple[str, ...]
) -> None:
    with pytest.raises(KafkaException) as refused:
        request_(clients.admin).result(TIMEOUT_S)
    error = refused.value.args[0]
    check(code, names, KAFKA_NAMES.get(error.name(), error.name()), error.str())


# As librdkafka calls them.
KAFKA_NAMES = {
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION",
}
