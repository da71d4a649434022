"""Topics with schema validation refuse records on every API, with the record and the place named."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from alpacamq.model.batch import Codec
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Header, Record
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.produce import ProduceRequest
from alpacamq.registry.framing import framed
from tests.api.kafka.test_produce import at_fault, create, produce
from tests.api.kafka.wire import Wire, versions, wired
from tests.api.rest.test_transactions import Producer as HttpProducer
from tests.api.sqs.refusals import refused
from tests.api.sqs.serving import Client, client
from tests.brokers import Broker
from tests.compat.client import DEADLINE_S
from tests.compat.confluent import Confluent
from tests.waiting import eventually

from .nodes import Node, running_nodes
from .test_cluster import PARTITIONS, leaders
from .test_cluster import create as create_in_cluster

ORDER = json.dumps({"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]})
GOOD, BAD = b'{"amount": 1}', b'{"amount": "1"}'
# Plain JSON, and records that name the schema, are checked by the same one.
SUBJECT = "order"
SETTINGS = {
    "schema.validation": "full",
    "schema.validation.subject": SUBJECT,
    "confluent.value.subject.name.strategy": "RecordNameStrategy",
}
TITLED = json.dumps(json.loads(ORDER) | {"title": SUBJECT})
REASON = 'at /amount: "1" is not of type "number"'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("schemas") / "data")
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="module")
def schema_id(broker: Broker) -> int:
    url = f"http://{broker.registry_address}/subjects/{SUBJECT}/versions"
    answer = httpx.post(url, json={"schemaType": "JSON", "schema": TITLED}, timeout=60)
    found: int = answer.raise_for_status().json()["id"]
    return found


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with wired(broker.host_and_port) as wire:
        yield wire


@pytest.fixture
def made(wire: Wire, topic: str, schema_id: int) -> str:
    """A topic of the test's own with validation."""
    assert schema_id
    create(wire, topic, SETTINGS)
    return topic


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        yield http


@pytest.fixture
def sqs(broker: Broker) -> Client:
    return client(f"http://{broker.sqs_address}")


def records(values: Sequence[bytes | None], due: int = 0) -> list[Record]:
    headers = (Header(DELIVER_AT, str(due).encode()),) if due else ()
    return [Record(at, 0, b"k", value, headers) for at, value in enumerate(values)]


@pytest.mark.parametrize("version", [each for each in versions(ProduceRequest) if each >= 8])
def test_produce_names_the_records_at_fault(wire: Wire, made: str, schema_id: int, version: int) -> None:
    values = [framed(schema_id, GOOD), framed(schema_id, BAD), None, b"none of it"]

    result = produce(wire, made, records(values), version=version)

    assert result.error_code == ErrorCode.INVALID_RECORD
    assert at_fault(result) == [1, 3]
    first, second = (each.batch_index_error_message for each in result.record_errors)
    assert first == f"value does not match schema {schema_id} of subject 'order' {REASON}"
    assert "invalid JSON" in second
    assert result.error_message == f"record 1 of the batch: {first}, and 1 more"
    good = produce(wire, made, records([values[0], None, GOOD]), version=version)
    assert (good.error_code, good.base_offset) == (0, 0)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [10, 20_000])
def test_batches_of_every_codec_and_size_are_checked(
    wire: Wire, made: str, schema_id: int, codec: Codec, count: int
) -> None:
    good = [framed(schema_id, GOOD)] * count
    assert produce(wire, made, records(good), codec).base_offset == 0
    bad = [*good[1:], framed(schema_id, BAD)]
    assert at_fault(produce(wire, made, records(bad), codec)) == [count - 1]
    assert produce(wire, made, records(good), codec).base_offset == count


def test_delayed_records_of_producers_are_checked_when_they_are_sent(
    wire: Wire, topic: str, schema_id: int
) -> None:
    create(wire, topic, SETTINGS | {"message.delays": "true"})
    far_ms = 1_990_000_000_000
    bad = produce(wire, topic, records([framed(schema_id, BAD)], due=far_ms))
    assert (bad.error_code, at_fault(bad)) == (ErrorCode.INVALID_RECORD, [0])


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_producer_goes_on_after_a_refusal(
    broker: Broker, made: str, schema_id: int, *, idempotent: bool
) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.address, "enable.idempotence": idempotent, "linger.ms": 0}
    )
    reports: list[Any] = []
    for value in (GOOD, BAD, GOOD, BAD, BAD, GOOD):
        producer.produce(made, framed(schema_id, value), on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(DEADLINE_S) == 0
    codes = [None if error is None else error.code() for error in reports]
    invalid = KafkaError.INVALID_RECORD
    assert codes == [None, invalid, None, invalid, invalid, None]
    assert Confluent(broker.address).ends(made) == (0, 3)


def test_a_transaction_can_be_aborted_after_a_refusal(broker: Broker, made: str, schema_id: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": made})
    producer.init_transactions(DEADLINE_S)
    reports: list[Any] = []

    def send(value: bytes) -> None:
        producer.produce(made, framed(schema_id, value), on_delivery=lambda error, _: reports.append(error))
        producer.flush(DEADLINE_S)

    def committed(*values: bytes) -> bool:
        producer.begin_transaction()
        for value in values:
            send(value)
        try:
            producer.commit_transaction(DEADLINE_S)
        except KafkaException as error:
            assert error.args[0].txn_requires_abort()  # noqa: PT017 - in a helper
            producer.abort_transaction(DEADLINE_S)
            return False
        return True

    assert not committed(GOOD, BAD)
    assert [error is None for error in reports] == [True, False]
    # librdkafka aborts the next one, too: it needs another epoch after a record that failed.
    assert committed(GOOD) or committed(GOOD)
    (record,) = Confluent(broker.address).read(made, count=1)
    assert record.value == framed(schema_id, GOOD)
    assert (record.offset or 0) >= 2, "behind the aborted record and its marker"


def encoded(value: bytes) -> dict[str, str]:
    return {"value_base64": base64.b64encode(value).decode()}


@pytest.mark.parametrize("delay", [{}, {"delay_ms": 3_600_000}])
def test_http_names_the_message_and_the_place(
    http: httpx.Client, made: str, schema_id: int, delay: dict[str, Any]
) -> None:
    path = f"/topics/{made}/messages"
    answer = http.post(path, json={"value": {"amount": "1"}} | delay)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:alpacamq:problem:invalid-record")
    assert answer.json()["detail"] == f"value does not match the latest version of subject 'order' {REASON}"
    assert http.post(path, json={"value": {"amount": 1}} | delay).status_code == 200
    batch = [encoded(framed(schema_id, GOOD)) | delay, encoded(framed(schema_id, BAD)) | delay]
    answer = http.post(path, json={"messages": batch})
    assert answer.json()["errors"] == 1
    error = answer.json()["results"][1]["error"]
    assert (error["status"], error["detail"]) == (
        400,
        f"record 1: value does not match schema {schema_id} of subject 'order' {REASON}",
    )
    assert http.post(path, json={"messages": [batch[1]] * 2}).status_code == 400


def test_transactions_of_the_http_api_are_checked(http: httpx.Client, made: str) -> None:
    producer = HttpProducer(http, made)
    producer.ask("begin").raise_for_status()
    messages = [{"value": {"amount": 1}}, {"value": {"amount": "1"}}]
    answer = producer.ask("publish", topic=made, messages=messages).json()
    assert answer["errors"] == 1
    assert REASON in answer["results"][1]["error"]["detail"]
    producer.end("commit")
    (message,) = http.get(f"/topics/{made}/messages").json()["messages"]
    assert message["value"] == '{"amount":1}'


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.usefixtures("schema_id")
def test_sqs_refuses_invalid_contents(sqs: Client, http: httpx.Client, topic: str, suffix: str) -> None:
    name = topic[-60:].strip("-_") + suffix
    attributes = {"FifoQueue": "true"} if suffix else {}
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    http.patch(f"/topics/{name}/settings", json={"settings": SETTINGS}).raise_for_status()
    more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if suffix else {}
    with refused("InvalidMessageContents", REASON):
        sqs.send_message(QueueUrl=url, MessageBody=BAD.decode(), **more)
    sqs.send_message(QueueUrl=url, MessageBody=GOOD.decode(), **more)


def test_metrics_count_checked_and_refused_records(
    wire: Wire, http: httpx.Client, made: str, schema_id: int
) -> None:
    produce(wire, made, records([framed(schema_id, GOOD), framed(schema_id, BAD)]))
    lines = http.get("/metrics").text.splitlines()
    assert f'alpacamq_topic_schema_checked_total{{topic="{made}"}} 2' in lines
    assert f'alpacamq_topic_schema_refused_total{{topic="{made}"}} 1' in lines


def test_any_node_checks_and_the_registry_may_move(tmp_path: Path) -> None:
    """The leaders of the topic are on all nodes, and the registry is on one of them."""
    with running_nodes(tmp_path) as nodes:
        first = next(iter(nodes))
        create_in_cluster(nodes, "orders", factor=1)
        asked: dict[str, Any] = {"settings": {"schema.validation": "full"}}
        httpx.patch(f"http://{first.http}/topics/orders/settings", json=asked).raise_for_status()
        subject = f"http://{first.http}/schemas/subjects/orders-value/versions"
        schema = {"schemaType": "JSON", "schema": ORDER}
        found = httpx.post(subject, json=schema, timeout=60).raise_for_status().json()["id"]
        good, bad = framed(found, GOOD), framed(found, BAD)

        def publish(node: Node, value: bytes, partition: int) -> httpx.Response:
            path = f"http://{node.http}/topics/orders/messages"
            return httpx.post(path, json=encoded(value) | {"partition": partition}, timeout=60)

        for node in nodes:
            for partition in range(PARTITIONS):
                eventually(lambda: publish(node, bad, partition).status_code == 400)  # noqa: B023
                assert REASON in publish(node, bad, partition).json()["detail"]
                assert publish(node, good, partition).status_code == 200
        producer = Producer({"bootstrap.servers": nodes.kafka, "enable.idempotence": True})
        reports: list[Any] = []

        def produce_to(partition: int, value: bytes) -> Any:
            producer.produce(
                "orders", value, partition=partition, on_delivery=lambda error, _: reports.append(error)
            )
            assert producer.flush(DEADLINE_S) == 0
            return reports[-1]

        for partition in range(PARTITIONS):
            assert produce_to(partition, bad).code() == KafkaError.INVALID_RECORD
            assert produce_to(partition, good) is None
        (registry_on,) = leaders(nodes, "_schemas")
        elsewhere = [
            partition for partition, leader in enumerate(leaders(nodes, "orders")) if leader != registry_on
        ]
        nodes.by_id[registry_on].kill()
        for partition in elsewhere:
            # Retried by the producer until the registry has a leader again.
            assert produce_to(partition, good) is None
            assert produce_to(partition, bad).code() == KafkaError.INVALID_RECORD
        assert elsewhere
