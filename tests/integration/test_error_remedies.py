"""Remedies of the error reference help: the error occurs, the remedy is applied, the request works.

Real brokers: one as it is, one with tight limits, one whose clients log in. The texts of errors are in
test_error_texts.py.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import KEPT, Broker
from tests.cli.command import As, Command
from tests.compat import sqs

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
TIMEOUT_S = 30
PASSWORD = "of-admin"  # noqa: S105 - of a broker of these tests
SECRET = "secret of alice"  # noqa: S105 - as above
TIGHT = """
[log]
unpacked_limit_bytes = 1048576
[http]
max_body_bytes = 65536
[groups]
max_members = 1
[queues]
max_queues = 1
max_waiting_receives = 1
[delays]
max_pending = 1
[metrics]
enabled = false
"""


class Site(NamedTuple):
    """A broker and its HTTP clients."""

    broker: Broker
    http: httpx.Client
    registry: httpx.Client

    def topic(self, name: str, **settings: str) -> str:
        body = {
            "name": name,
            "partitions": 1,
            "settings": {key.replace("_", "."): value for key, value in settings.items()},
        }
        self.http.post("/topics", json=body).raise_for_status()
        return name

    def set(self, topic: str, **settings: str) -> None:
        changed = {key.replace("_", "."): value for key, value in settings.items()}
        self.http.patch(f"/topics/{topic}/settings", json={"settings": changed}).raise_for_status()

    def send(self, topic: str, **message: Any) -> httpx.Response:
        return self.http.post(f"/topics/{topic}/messages", json={"value": "v", **message})

    def poll(self, group: str, topic: str, **wanted: Any) -> httpx.Response:
        return self.http.get(f"/groups/{group}/poll", params={"topic": topic, "wait_ms": 0, **wanted})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from sites(Broker(tmp_path_factory.mktemp("remedies") / "data", config=KEPT))


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from sites(Broker(tmp_path_factory.mktemp("tight") / "data", config=TIGHT))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("locked")
    (directory / "users").write_text(f"admin:{PASSWORD}\n")
    (directory / "users").chmod(0o600)
    security = "[security]\nauthentication = true\nacls = true\nsuper_users = ['User:admin']\n"
    broker = Broker(directory / "data", config=f"{security}users_file = '{directory}/users'\n")
    try:
        broker.start()
        with httpx.Client(base_url=f"http://{broker.http_address}", auth=("admin", PASSWORD)) as http:
            http.post("/users", json={"name": "alice", "password": SECRET}).raise_for_status()
            http.post("/topics", json={"name": "orders"}).raise_for_status()
        yield broker
    finally:
        broker.end()


def sites(broker: Broker) -> Iterator[Site]:
    try:
        broker.start()
        with (
            httpx.Client(base_url=f"http://{broker.http_address}", timeout=TIMEOUT_S) as http,
            httpx.Client(base_url=f"http://{broker.registry_address}", timeout=TIMEOUT_S) as registry,
        ):
            yield Site(broker, http, registry)
    finally:
        broker.end()


def refused(response: httpx.Response, code: str) -> str:
    """Return what a refusal says; it must have a code of the reference."""
    assert f"`{code}`" in REFERENCE
    assert not response.is_success, response.text
    problem: dict[str, str] = response.json()
    assert problem["type"].rpartition(":")[2] == code, problem
    return problem["detail"]


def settings(broker: Broker, **more: Any) -> dict[str, Any]:
    """Settings of a client of librdkafka."""
    base = {"bootstrap.servers": broker.address, "log_level": 0}
    return base | {name.replace("_", "."): value for name, value in more.items()}


def produced(producer: Producer, topic: str, **message: Any) -> KafkaError | None:
    """Return the error of producing a record, None if there was none."""
    results: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        results.append(error)

    producer.produce(topic, **({"value": b"v"} | message), on_delivery=delivered)
    producer.flush(TIMEOUT_S)
    (result,) = results
    return result


def failure(act: Callable[[], object]) -> str:
    """Return the name of the error of a call of confluent-kafka."""
    with pytest.raises(KafkaException) as raised:
        act()
    name: str = raised.value.args[0].name()
    return name


def polled(consumer: Consumer) -> KafkaError | str:
    """Return the first error or value that a consumer gets."""
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    return message.error() or message.value().decode()


# Records and topics.


def test_a_larger_limit_admits_a_batch_that_was_too_large(site: Site) -> None:
    topic = site.topic("too-large", max_message_bytes="1000")
    refused(site.send(topic, value="x" * 2000), "batch-too-large")
    site.set(topic, max_message_bytes="10000")
    assert site.send(topic, value="x" * 2000).is_success


def test_a_smaller_body_is_accepted(tight: Site) -> None:
    topic = tight.topic("bodies")
    response = tight.send(topic, value="x" * 70_000)
    assert response.status_code == 413
    assert "| 413 |" in REFERENCE
    assert tight.send(topic, value="x" * 60_000).is_success


def test_a_record_of_a_compacted_topic_needs_a_key(site: Site) -> None:
    topic = site.topic("compacted", cleanup_policy="compact")
    refused(site.send(topic), "invalid-record")
    assert site.send(topic, key="k").is_success


def test_a_wider_range_admits_an_old_timestamp(site: Site) -> None:
    topic = site.topic("timestamps", message_timestamp_before_max_ms="1000")
    producer = Producer(settings(site.broker))
    error = produced(producer, topic, timestamp=1_000_000_000_000)
    assert error is not None
    assert error.name() == "INVALID_TIMESTAMP"
    site.set(topic, message_timestamp_before_max_ms=str(2**62))
    assert produced(producer, topic, timestamp=1_000_000_000_000) is None


def test_batches_that_unpack_to_less_are_accepted(tight: Site) -> None:
    topic = tight.topic("unpacked", max_message_bytes="10000000", compression_type="zstd")
    producer = Producer(settings(tight.broker, compression_type="gzip", message_max_bytes=10_000_000))
    error = produced(producer, topic, value=b"x" * 2_000_000)
    assert error is not None
    assert produced(producer, topic, value=b"x" * 500_000) is None


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks_are_0_1_or_all(site: Site, acks: int) -> None:
    topic = site.topic(f"acks{acks}")
    error = produced(Producer(settings(site.broker, acks=2)), topic)
    assert error is not None
    assert error.name() == "INVALID_REQUIRED_ACKS"
    assert produced(Producer(settings(site.broker, acks=acks)), topic) is None


def test_a_read_starts_at_an_offset_that_exists(site: Site) -> None:
    topic = site.topic("offsets")
    site.send(topic).raise_for_status()
    where = f"/topics/{topic}/partitions/0/messages"
    refused(site.http.get(where, params={"offset": 500}), "offset-out-of-range")
    assert site.http.get(where, params={"start": "earliest"}).is_success


def test_an_offset_that_was_deleted_is_left_with_a_reset(site: Site) -> None:
    topic = site.topic("gone")
    for _ in range(3):
        site.send(topic).raise_for_status()
    admin = AdminClient(settings(site.broker))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(TIMEOUT_S)
    for reset, expected in (("error", "_AUTO_OFFSET_RESET"), ("earliest", "v")):
        consumer = Consumer(settings(site.broker, group_id=f"reset-{reset}", auto_offset_reset=reset))
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = polled(consumer)
        assert (found.name() if isinstance(found, KafkaError) else found) == expected
        consumer.close()


def test_a_topic_is_created_before_it_is_used(site: Site) -> None:
    refused(site.http.get("/topics/created-later"), "unknown-topic")
    site.topic("created-later")
    assert site.http.get("/topics/created-later").is_success


@pytest.mark.parametrize(
    ("bad", "good"),
    [("a b", "a-b"), ("x" * 250, "x" * 249), ("dotted_name", "dotted.names"), ("..", "a.."), ("é", "e")],
)
def test_names_of_topics(site: Site, bad: str, good: str) -> None:
    if bad == "dotted_name":
        site.topic("dotted.name")
    response = site.http.post("/topics", json={"name": bad})
    assert response.status_code in (400, 409, 422), response.text
    assert site.http.post("/topics", json={"name": good}).is_success


def test_partitions_are_only_added(site: Site) -> None:
    topic = site.topic("partitions")
    where = f"/admin/topics/{topic}/partitions"
    refused(site.http.post(where, json={"partitions": 1}), "invalid-partition-count")
    assert site.http.post(where, json={"partitions": 2}).is_success


def test_a_topic_has_as_many_replicas_as_there_are_brokers(site: Site) -> None:
    body = {"name": "replicas", "replication_factor": 2}
    refused(site.http.post("/topics", json=body), "invalid-replication")
    assert site.http.post("/topics", json={**body, "replication_factor": 1}).is_success


def test_only_compacted_topics_are_compacted(site: Site) -> None:
    topic = site.topic("to-compact")
    refused(site.http.post(f"/admin/topics/{topic}/compact"), "not-compacted")
    site.set(topic, cleanup_policy="compact")
    assert site.http.post(f"/admin/topics/{topic}/compact").is_success


def test_records_of_a_compacted_topic_are_deleted_with_tombstones(site: Site) -> None:
    topic = site.topic("tombstones", cleanup_policy="compact")
    site.send(topic, key="k").raise_for_status()
    admin = AdminClient(settings(site.broker))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 1)]).values()
    assert failure(lambda: deleted.result(TIMEOUT_S)) == "POLICY_VIOLATION"
    assert produced(Producer(settings(site.broker)), topic, key=b"k", value=None) is None


# HTTP.


def test_requests_over_http(site: Site) -> None:
    text = site.http.post(
        "/topics", content=json.dumps({"name": "t"}), headers={"content-type": "text/plain"}
    )
    refused(text, "unsupported-media-type")
    kind = {"content-type": "application/json"}
    assert site.http.post("/topics", content=json.dumps({"name": "t"}), headers=kind).is_success
    wrong = site.http.put("/topics")
    refused(wrong, "method-not-allowed")
    assert {"GET", "POST"} <= set(wrong.headers["allow"].replace(" ", "").split(","))
    refused(site.http.get("/topicz"), "unknown-path")
    assert "/topics" in site.http.get("/openapi.json").json()["paths"]
    expecting = site.http.post("/topics", json={"name": "t2"}, headers={"expect": "miracles"})
    assert expecting.status_code == 417
    assert site.http.post("/topics", json={"name": "t2"}).is_success


def test_metrics_are_switched_on(tight: Site, site: Site) -> None:
    refused(tight.http.get("/metrics"), "metrics-disabled")
    assert site.http.get("/metrics").is_success


def test_a_message_of_a_traced_topic_has_a_trace(site: Site) -> None:
    topic = site.topic("traced", trace_sample="1")
    refused(site.http.get(f"/traces/{'a' * 32}"), "unknown-trace")
    site.send(topic).raise_for_status()
    found = site.http.get("/traces/search", params={"topic": topic, "partition": 0, "offset": 0}).json()
    assert site.http.get(f"/traces/{found['traces'][0]['trace_id']}").is_success


# Groups.


def consumer(site: Site, group: str, **more: Any) -> Consumer:
    return Consumer(settings(site.broker, group_id=group, auto_offset_reset="earliest", **more))


def test_a_group_with_members_is_deleted_once_they_have_stopped(site: Site) -> None:
    topic = site.topic("members")
    site.send(topic).raise_for_status()
    member = consumer(site, "members", group_protocol="consumer")
    member.subscribe([topic])
    assert polled(member) == "v"
    member.commit(asynchronous=False)
    admin = AdminClient(settings(site.broker))
    (deleted,) = admin.delete_consumer_groups(["members"]).values()
    assert failure(lambda: deleted.result(TIMEOUT_S)) == "NON_EMPTY_GROUP"
    refused(site.http.delete("/groups/members"), "non-empty-group")
    member.close()
    assert site.http.delete("/groups/members").is_success


def test_a_full_group_takes_a_member_once_another_has_left(tight: Site) -> None:
    topic = tight.topic("full")
    tight.send(topic).raise_for_status()
    first = tight.http.post("/groups/full/join", json={"topics": [topic]}).json()
    refused(tight.http.post("/groups/full/join", json={"topics": [topic]}), "group-max-size-reached")
    tight.http.post("/groups/full/leave", json={"member_id": first["member_id"]}).raise_for_status()
    assert tight.http.post("/groups/full/join", json={"topics": [topic]}).is_success


def test_a_member_that_is_unknown_joins_again(site: Site) -> None:
    topic = site.topic("unknown-members")
    joined = site.http.post("/groups/known/join", json={"topics": [topic]}).json()
    member = {"member_id": "someone", "member_epoch": joined["member_epoch"]}
    refused(site.http.post("/groups/known/heartbeat", json=member), "unknown-member")
    assert site.http.post(
        "/groups/known/heartbeat", json=member | {"member_id": joined["member_id"]}
    ).is_success


def test_two_members_have_instance_ids_of_their_own(site: Site) -> None:
    topic = site.topic("instances")
    body = {"topics": [topic], "instance_id": "a"}
    site.http.post("/groups/instances/join", json=body).raise_for_status()
    refused(site.http.post("/groups/instances/join", json=body), "unreleased-instance-id")
    assert site.http.post("/groups/instances/join", json={**body, "instance_id": "b"}).is_success


def test_assignors_of_the_broker(site: Site) -> None:
    topic = site.topic("assignors")
    body = {"topics": [topic], "assignor": "sticky"}
    refused(site.http.post("/groups/assignors/join", json=body), "unsupported-assignor")
    for assignor in ("uniform", "range"):
        joined = site.http.post(f"/groups/{assignor}/join", json={**body, "assignor": assignor})
        assert joined.is_success


def test_patterns_of_topics_are_those_of_re2(site: Site) -> None:
    for pattern in ("a(?=b)", r"(a)\1", "["):
        joined = site.http.post("/groups/patterns/join", json={"pattern": pattern})
        refused(joined, "invalid-regular-expression")
    assert site.http.post("/groups/patterns/join", json={"pattern": "ab|aa"}).is_success


def test_metadata_of_an_offset_has_at_most_4096_bytes(site: Site) -> None:
    topic = site.topic("metadata")

    def commit(size: int) -> httpx.Response:
        offset = {"topic": topic, "partition": 0, "offset": 0, "metadata": "x" * size}
        return site.http.post("/groups/metadata/offsets", json={"offsets": [offset]})

    refused(commit(4097), "offset-metadata-too-large")
    assert commit(4096).is_success


# Queues and delays.


def test_messages_in_flight_are_acknowledged_or_the_limit_is_raised(site: Site) -> None:
    topic = site.topic("in-flight", queue_max_in_flight="1")
    for _ in range(3):
        site.send(topic).raise_for_status()
    (first,) = site.poll("workers", topic).json()["messages"]
    held = site.poll("workers", topic)
    refused(held, "too-many-in-flight")
    site.http.post("/messages/ack", json={"receipt": first["receipt"]}).raise_for_status()
    (_,) = site.poll("workers", topic).json()["messages"]
    refused(site.poll("workers", topic), "too-many-in-flight")
    site.set(topic, queue_max_in_flight="2")
    (_,) = site.poll("workers", topic).json()["messages"]


def test_a_receipt_of_the_last_delivery_settles_a_message(site: Site) -> None:
    topic = site.topic("receipts")
    site.send(topic).raise_for_status()
    (first,) = site.poll("workers", topic).json()["messages"]
    released = {"receipt": first["receipt"], "timeout_ms": 0}
    site.http.post("/messages/visibility", json=released).raise_for_status()
    (again,) = site.poll("workers", topic).json()["messages"]
    refused(site.http.post("/messages/ack", json={"receipt": first["receipt"]}), "stale-receipt")
    assert site.http.post("/messages/ack", json={"receipt": again["receipt"]}).is_success


def test_queues_are_limited_and_deleted(tight: Site) -> None:
    """The limit is that of a shard, and there are eight."""
    topic = tight.topic("queues")
    answers = {f"group-{number}": tight.poll(f"group-{number}", topic) for number in range(9)}
    held = [group for group, answer in answers.items() if answer.is_success]
    left = next(group for group, answer in answers.items() if not answer.is_success)
    refused(answers[left], "too-many-groups")
    for group in held:
        tight.http.delete(f"/groups/{group}/queues/{topic}").raise_for_status()
    assert tight.poll(left, topic).is_success


def test_a_delay_is_at_most_the_longest(site: Site) -> None:
    topic = site.topic("delays", message_delays="true")
    refused(site.send(topic, delay_ms=10**13), "invalid-delay")
    assert site.send(topic, delay_ms=60_000).is_success


def test_delayed_messages_are_cancelled_to_make_room(tight: Site) -> None:
    topic = tight.topic("pending", message_delays="true")
    tight.send(topic, delay_ms=3_600_000).raise_for_status()
    refused(tight.send(topic, delay_ms=3_600_000), "too-many-delayed")
    (pending,) = tight.http.get(f"/topics/{topic}/delayed").json()["messages"]
    tight.http.delete(f"/topics/{topic}/delayed/0/{pending['id']}").raise_for_status()
    assert tight.send(topic, delay_ms=3_600_000).is_success


def test_a_delayed_message_that_is_due_is_in_its_topic(site: Site) -> None:
    topic = site.topic("due", message_delays="true")
    site.send(topic, delay_ms=1).raise_for_status()
    (found,) = site.http.get(f"/topics/{topic}/messages?start=earliest&wait_ms=20000").json()["messages"]
    assert found["value"] == "v"
    refused(site.http.delete(f"/topics/{topic}/delayed/0/0"), "unknown-delayed")


@pytest.mark.parametrize("lane", ["critical", "high", "normal", "low", "background"])
def test_names_of_lanes(site: Site, lane: str) -> None:
    topic = site.topic(f"lane-{lane}")
    assert not site.send(topic, priority="urgent").is_success
    assert site.send(topic, priority=lane).is_success


# Transactions.


def test_a_newer_producer_fences_the_older(site: Site) -> None:
    topic = site.topic("fenced")
    older, newer = (Producer(settings(site.broker, transactional_id="shared")) for _ in range(2))
    older.init_transactions(TIMEOUT_S)
    older.begin_transaction()
    older.produce(topic, b"v")
    newer.init_transactions(TIMEOUT_S)
    assert failure(lambda: older.commit_transaction(TIMEOUT_S)) in ("_FENCED", "PRODUCER_FENCED")
    newer.begin_transaction()
    newer.produce(topic, b"v")
    newer.commit_transaction(TIMEOUT_S)


def test_a_transaction_may_last_as_long_as_the_broker_allows(site: Site) -> None:
    too_long = Producer(settings(site.broker, transactional_id="slow", transaction_timeout_ms=900_001))
    assert failure(lambda: too_long.init_transactions(TIMEOUT_S)) == "INVALID_TRANSACTION_TIMEOUT"
    Producer(
        settings(site.broker, transactional_id="slow", transaction_timeout_ms=900_000)
    ).init_transactions(TIMEOUT_S)


def test_a_producer_of_http_is_initialised_again(site: Site) -> None:
    topic = site.topic("producers")
    unknown = {"transactional_id": "http", "producer_id": 77, "producer_epoch": 0}
    assert not site.http.post("/transactions/begin", json=unknown).is_success
    refused(site.http.post("/producers/77/heartbeat", json={"producer_epoch": 0}), "unknown-producer")
    new = site.http.post("/producers/init", json={"transactional_id": "http"}).json()
    known = {"transactional_id": "http"} | {name: new[name] for name in ("producer_id", "producer_epoch")}
    published = {**known, "topic": topic, "messages": [{"value": "v"}]}
    site.http.post("/transactions/begin", json=known).raise_for_status()
    site.http.post("/transactions/publish", json=published).raise_for_status()
    assert site.http.post("/transactions/commit", json=known).is_success


# The schema registry.


def schema(*fields: str) -> dict[str, str]:
    listed = [{"name": each, "type": "string"} for each in fields]
    return {"schema": json.dumps({"type": "record", "name": "A", "fields": listed})}


def registry_code(response: httpx.Response) -> str:
    code = str(response.json()["error_code"])
    assert f"`{code}`" in REFERENCE or f" {code} |" in REFERENCE
    return code


def test_a_lower_level_admits_an_incompatible_schema(site: Site) -> None:
    where = "/subjects/levels-value/versions"
    site.registry.post(where, json=schema("a")).raise_for_status()
    assert registry_code(site.registry.post(where, json=schema("b"))) == "409"
    site.registry.put("/config/levels-value", json={"compatibility": "NONE"}).raise_for_status()
    assert site.registry.post(where, json=schema("b")).is_success


def test_settings_of_a_subject_default_to_the_global_ones(site: Site) -> None:
    site.registry.post("/subjects/own-value/versions", json=schema("a")).raise_for_status()
    for setting, code in (("config", "40408"), ("mode", "40409")):
        where = f"/{setting}/own-value"
        assert registry_code(site.registry.get(where)) == code
        assert site.registry.get(where, params={"defaultToGlobal": "true"}).is_success


def test_subjects_are_deleted_twice(site: Site) -> None:
    where = "/subjects/twice-value"
    site.registry.post(f"{where}/versions", json=schema("a")).raise_for_status()
    permanent = {"permanent": "true"}
    assert registry_code(site.registry.delete(where, params=permanent)) == "40405"
    assert registry_code(site.registry.delete(f"{where}/versions/1", params=permanent)) == "40407"
    site.registry.delete(where).raise_for_status()
    assert registry_code(site.registry.delete(where)) == "40404"
    assert site.registry.delete(where, params=permanent).is_success


def test_a_version_is_deleted_twice(site: Site) -> None:
    where = "/subjects/version-value/versions"
    for fields in (("a",), ("a", "b")):
        site.registry.put("/config/version-value", json={"compatibility": "NONE"}).raise_for_status()
        site.registry.post(where, json=schema(*fields)).raise_for_status()
    site.registry.delete(f"{where}/1").raise_for_status()
    assert registry_code(site.registry.delete(f"{where}/1")) == "40406"
    assert site.registry.delete(f"{where}/1", params={"permanent": "true"}).is_success


def test_ids_are_imported_with_force(site: Site) -> None:
    site.registry.post("/subjects/import-value/versions", json=schema("a")).raise_for_status()
    mode = {"mode": "IMPORT"}
    assert registry_code(site.registry.put("/mode/import-value", json=mode)) == "42205"
    assert site.registry.put("/mode/import-value", json=mode, params={"force": "true"}).is_success


def test_referring_schemas_are_deleted_first(site: Site) -> None:
    site.registry.post("/subjects/base/versions", json=schema("a")).raise_for_status()
    fields = [{"name": "base", "type": "A"}]
    referring = {
        "schema": json.dumps({"type": "record", "name": "B", "fields": fields}),
        "references": [{"name": "A", "subject": "base", "version": 1}],
    }
    site.registry.post("/subjects/referring/versions", json=referring).raise_for_status()
    assert registry_code(site.registry.delete("/subjects/base/versions/1")) == "42206"
    for parameters in ({}, {"permanent": "true"}):
        site.registry.delete("/subjects/referring", params=parameters).raise_for_status()
    assert site.registry.delete("/subjects/base/versions/1").is_success


# SQS.


def test_queues_of_sqs(site: Site) -> None:
    client = sqs.client(site.broker.sqs_address)

    def code(action: str, **parameters: Any) -> str:
        with pytest.raises(ClientError) as raised:
            getattr(client, action)(**parameters)
        found: str = raised.value.response["Error"]["QueryErrorCode"]
        assert f"`{found}`" in REFERENCE
        return found

    assert code("get_queue_url", QueueName="sqs-remedies") == "QueueDoesNotExist"
    url = client.create_queue(QueueName="sqs-remedies")["QueueUrl"]
    assert client.get_queue_url(QueueName="sqs-remedies")["QueueUrl"] == url
    late = {"QueueUrl": url, "MessageBody": "b"}
    assert code("send_message", **late, DelaySeconds=901) == "InvalidParameterValueException"
    client.send_message(**late, DelaySeconds=900)
    entries = [{"Id": str(number), "MessageBody": "b"} for number in range(11)]
    assert code("send_message_batch", QueueUrl=url, Entries=entries) == "TooManyEntriesInBatchRequest"
    client.send_message_batch(QueueUrl=url, Entries=entries[:10])
    long_id = [{"Id": "x" * 81, "MessageBody": "b"}]
    assert code("send_message_batch", QueueUrl=url, Entries=long_id) == "InvalidBatchEntryId"
    client.send_message_batch(QueueUrl=url, Entries=[{"Id": "x" * 80, "MessageBody": "b"}])
    large = [{"Id": each, "MessageBody": "b" * 600_000} for each in "ab"]
    assert code("send_message_batch", QueueUrl=url, Entries=large) == "BatchRequestTooLong"
    for entry in large:
        client.send_message_batch(QueueUrl=url, Entries=[entry])


# Logins and rights.


def login(user: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


def logged_in(broker: Broker, **more: Any) -> dict[str, Any]:
    named = {"sasl_username": "alice", "sasl_password": SECRET, "security_protocol": "SASL_PLAINTEXT"}
    return settings(broker, **(named | {"sasl_mechanism": "SCRAM-SHA-256"} | more))


def test_a_login_needs_the_right_password_and_mechanism(locked: Broker) -> None:
    with httpx.Client(base_url=f"http://{locked.http_address}") as http:
        refused(http.get("/topics"), "authentication-failed")
        refused(http.get("/topics", headers=login("alice", "wrong")), "authentication-failed")
        assert http.get("/topics", headers=login("alice", SECRET)).is_success
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        AdminClient(logged_in(locked, sasl_mechanism=mechanism)).list_topics(timeout=TIMEOUT_S)


def test_rules_admit_what_was_forbidden(locked: Broker, tmp_path: Path) -> None:
    producer = Producer(logged_in(locked, enable_idempotence=False))
    error = produced(producer, "orders")
    assert error is not None
    assert error.name() in ("TOPIC_AUTHORIZATION_FAILED", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART")
    with httpx.Client(base_url=f"http://{locked.http_address}", headers=login("alice", SECRET)) as http:
        body = {"value": "v"}
        refused(http.post("/topics/orders/messages", json=body), "topic-not-authorized")
        refused(http.get("/groups/kitchen/poll?topic=orders"), "group-not-authorized")
        admin = As(locked, tmp_path, "admin", PASSWORD)
        rule = ("acl", "add", "--principal", "User:alice")
        admin.ok(*rule, "--operation", "write", "--operation", "read", "--topic", "orders")
        assert http.post("/topics/orders/messages", json=body).is_success
        refused(http.get("/groups/kitchen/poll?topic=orders"), "group-not-authorized")
        admin.ok(*rule, "--operation", "read", "--group", "kitchen")
        assert http.get("/groups/kitchen/poll?topic=orders").is_success
        refused(
            http.post("/users", json={"name": "bob", "password": "long enough"}), "cluster-not-authorized"
        )
        admin.ok(*rule, "--operation", "alter", "--cluster")
        assert http.post("/users", json={"name": "bob", "password": "long enough"}).is_success
    assert produced(Producer(logged_in(locked)), "orders") is None
    transactional = Producer(logged_in(locked, transactional_id="till"))
    assert failure(lambda: transactional.init_transactions(TIMEOUT_S)) == (
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    )
    admin.ok(*rule, "--operation", "write", "--transactional-id", "till")
    Producer(logged_in(locked, transactional_id="till")).init_transactions(TIMEOUT_S)


def test_users_have_passwords_within_the_limits(locked: Broker) -> None:
    with httpx.Client(base_url=f"http://{locked.http_address}", headers=login("admin", PASSWORD)) as http:
        refused(http.post("/users", json={"name": "carl", "password": "short"}), "invalid-credential")
        assert http.post("/users", json={"name": "carl", "password": "long enough"}).is_success
        refused(http.post("/users", json={"name": "carl", "password": "long enough"}), "already-exists")
        assert http.put("/users/carl/password", json={"password": "another one"}).is_success
        refused(http.delete("/users/nobody"), "unknown-user")
        assert "carl" in {each["name"] for each in http.get("/users").json()["users"]}
        refused(http.delete("/keys/none"), "unknown-api-key")
        refused(http.delete("/acls/none"), "unknown-acl")


def test_aws_sdks_need_the_key_and_region_of_the_broker(locked: Broker) -> None:
    with httpx.Client(base_url=f"http://{locked.http_address}", headers=login("admin", PASSWORD)) as http:
        key = http.post("/keys", json={"description": "sqs"}).raise_for_status().json()

    def client(secret: str, region: str) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"http://{locked.sqs_address}",
            region_name=region,
            aws_access_key_id=key["id"],
            aws_secret_access_key=secret,
        )

    secret = key["aws_secret_access_key"]
    for wrong in (client("wrong", "us-east-1"), client(secret, "eu-central-1")):
        with pytest.raises(ClientError) as raised:
            wrong.list_queues()
        assert f"`{raised.value.response['Error']['Code']}`" in REFERENCE
    assert client(secret, "us-east-1").list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_limits_of_a_tenant_are_raised(site: Site) -> None:
    site.http.post("/admin/tenants", json={"id": "shop", "limits": {"topics": 1}}).raise_for_status()
    shown = Command(site.broker.address, site.broker.http_address)
    assert json.loads(shown.ok("tenant", "show", "shop", "-o", "json"))["limits"]["topics"] == 1
    shown.ok("tenant", "set", "shop", "--limit", "topics=2")
    assert site.http.get("/admin/tenants/shop").json()["limits"]["topics"] == 2
