"""Quotas with unmodified clients, which are slowed down and lose nothing."""

import asyncio
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import ThrottlingQuotaExceededError

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import ClientQuota, EntityPart, list_quotas, remove_quotas, set_quotas
from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import KEPT, Broker
from tests.kafka_tools import kafka_configs, require_kafka

from .client import DEADLINE_S
from .sqs import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY

MIB = 1 << 20
LIMITED = "limited"
VALUE = bytes(10_000)
COUNT = 200


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this module: others have no quotas."""
    broker = Broker(tmp_path_factory.mktemp("quotas") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def cluster(own: Broker) -> Iterator[Cluster]:
    with Cluster(parse_address(own.address)) as cluster:
        yield cluster
        for quota in list_quotas(cluster):
            remove_quotas(cluster, quota.entity, quota.values)


@pytest.fixture
def made(own: Broker, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": own.address})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    return topic


def limit(cluster: Cluster, key: str, value: float, **names: str | None) -> None:
    entity = tuple(EntityPart(type_.replace("_", "-"), name) for type_, name in names.items())
    set_quotas(cluster, entity, {key: value})


def produce(own: Broker, topic: str, client_id: str) -> tuple[list[KafkaError | None], list[float]]:
    """Produce messages; return their errors, and how long the client was throttled each time."""
    throttled: list[float] = []
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": own.address,
            "client.id": client_id,
            "batch.size": 200_000,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    for _ in range(COUNT):
        producer.produce(topic, VALUE, partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    return errors, throttled


def test_a_producer_is_throttled_and_others_are_not(own: Broker, cluster: Cluster, made: str) -> None:
    limit(cluster, "producer_byte_rate", 2 * MIB, client_id=LIMITED)
    errors, throttled = produce(own, made, LIMITED)
    assert errors == [None] * COUNT
    assert max(throttled) > 0
    errors, throttled = produce(own, made, "other")
    assert errors == [None] * COUNT
    assert throttled == []


def test_a_throttled_producer_of_large_batches_keeps_its_connection(
    own: Broker, cluster: Cluster, made: str
) -> None:
    limit(cluster, "producer_byte_rate", 2 * MIB, client_id=LIMITED)
    # Requests that arrive while it is throttled, and do not fit into the buffer of small ones.
    batches = {"batch.size": 100_000, "linger.ms": 5}
    disconnects: list[KafkaError] = []
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": own.address,
            "client.id": LIMITED,
            "error_cb": disconnects.append,
            "queue.buffering.max.messages": 1000,
            **batches,
        }
    )
    for _ in range(4 * COUNT):
        producer.produce(made, VALUE, partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    assert errors == [None] * 4 * COUNT
    assert disconnects == []


def with_confluent(address: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "client.id": LIMITED})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    try:
        count = 0
        while count < COUNT:
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            assert message.error() is None
            count += 1
        return count
    finally:
        consumer.close()


def with_kafka_python(address: str, topic: str) -> int:
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        client_id=LIMITED,
        auto_offset_reset="earliest",
        consumer_timeout_ms=DEADLINE_S * 1000,
    )
    consumer.assign([KafkaPythonPartition(topic, 0)])
    try:
        return sum(1 for _, _ in zip(range(COUNT), consumer, strict=False))
    finally:
        consumer.close()


def with_aiokafka(address: str, topic: str) -> int:
    async def consume() -> int:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address, client_id=LIMITED, auto_offset_reset="earliest"
        )
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(COUNT):
                    await consumer.getone()
            return COUNT
        finally:
            await consumer.stop()

    return asyncio.run(consume())


@pytest.mark.parametrize("consume", [with_confluent, with_kafka_python, with_aiokafka])
def test_a_throttled_consumer_reads_every_message(
    own: Broker, cluster: Cluster, made: str, consume: Any
) -> None:
    produce(own, made, "other")
    limit(cluster, "consumer_byte_rate", 2 * MIB, client_id=LIMITED)
    before = throttled(own, "consumer_byte_rate")
    assert consume(own.address, made) == COUNT
    assert throttled(own, "consumer_byte_rate") > before


def throttled(own: Broker, quota: str) -> float:
    """Return how many requests the broker has throttled because of a quota."""
    text = httpx.get(f"http://{own.http_address}/metrics").text
    name = f'alpacamq_throttled_requests_total{{quota="{quota}"}}'
    (value,) = (line.split()[-1] for line in text.splitlines() if line.startswith(name))
    return float(value)


def test_an_admin_client_learns_that_its_mutations_are_too_many(
    own: Broker, cluster: Cluster, topic: str
) -> None:
    limit(cluster, "controller_mutation_rate", 1, client_id=LIMITED)
    admin = KafkaAdminClient(bootstrap_servers=own.address, client_id=LIMITED)
    try:
        with pytest.raises(ThrottlingQuotaExceededError):
            admin.create_topics({f"{topic}-{number}": {"num_partitions": 3} for number in range(3)})
        known = AdminClient({"bootstrap.servers": own.address}).list_topics(timeout=DEADLINE_S).topics
        assert [f"{topic}-{number}" in known for number in range(3)] == [True, False, False]
    finally:
        admin.close()


def test_kafka_configs_manages_quotas(own: Broker, cluster: Cluster) -> None:
    require_kafka()
    user = ("--entity-type", "users", "--entity-name", "alice")
    both = (*user, "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
    for entity, settings in (
        (user, "producer_byte_rate=1024,consumer_byte_rate=2048"),
        (both, "request_percentage=12.5"),
        (address, "connection_creation_rate=10"),
    ):
        done = kafka_configs(own.address, *entity, "--alter", "--add-config", settings)
        assert done.returncode == 0, done.stderr
    alice = EntityPart("user", "alice")
    assert list_quotas(cluster) == [
        ClientQuota(entity=(EntityPart("client-id", None), alice), values={"request_percentage": 12.5}),
        ClientQuota(entity=(EntityPart("ip", "10.0.0.1"),), values={"connection_creation_rate": 10}),
        ClientQuota(entity=(alice,), values={"producer_byte_rate": 1024, "consumer_byte_rate": 2048}),
    ]
    told = kafka_configs(own.address, *user, "--describe").stdout
    assert "producer_byte_rate=1024" in told
    done = kafka_configs(own.address, *user, "--alter", "--delete-config", "producer_byte_rate")
    assert done.returncode == 0, done.stderr
    assert list_quotas(cluster, [alice])[1].values == {"consumer_byte_rate": 2048}


def test_an_http_client_is_refused_until_what_it_sent_is_paid_for(
    own: Broker, cluster: Cluster, made: str
) -> None:
    limit(cluster, "producer_byte_rate", 100, user="ANONYMOUS")
    with httpx.Client(base_url=f"http://{own.http_address}") as http:
        message = {"value": "x" * 6000}
        assert http.post(f"/topics/{made}/messages", json=message).status_code == 200
        refused = http.post(f"/topics/{made}/messages", json=message)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 61
        assert refused.json()["type"] == "urn:alpacamq:problem:quota-exceeded"
        # Other requests have their own quotas, and health is never refused.
        assert len(http.get(f"/topics/{made}/messages").json()["messages"]) == 1
        assert http.get("/readyz").status_code == 200
        limit(cluster, "consumer_byte_rate", 100, user="ANONYMOUS")
        assert http.get(f"/topics/{made}/messages").status_code == 200
        assert http.get(f"/topics/{made}/messages").status_code == 429
        assert http.get(f"/groups/g/poll?topic={made}").status_code == 429
        limit(cluster, "controller_mutation_rate", 0.01, user="ANONYMOUS")
        assert http.post("/topics", json={"name": f"{made}-1"}).status_code == 201
        assert http.post("/topics", json={"name": f"{made}-2"}).status_code == 429


def test_connections_of_http_clients_count_as_well(own: Broker, cluster: Cluster) -> None:
    limit(cluster, "connection_count", 1, ip="127.0.0.7")
    transports = [httpx.HTTPTransport(local_address="127.0.0.7") for _ in range(2)]
    clients = [httpx.Client(base_url=f"http://{own.http_address}", transport=each) for each in transports]
    try:
        assert [each.get("/readyz").status_code for each in clients] == [200, 429]
    finally:
        for each in clients:
            each.close()


def test_connections_of_a_user_count_on_every_api(own: Broker, cluster: Cluster, topic: str) -> None:
    limit(cluster, "connection_count", 2, user="ANONYMOUS")
    assert list_quotas(cluster)  # this connection counts as well, from its next request on
    with httpx.Client(base_url=f"http://{own.http_address}") as first:
        assert first.get("/topics").status_code == 200
        with httpx.Client(base_url=f"http://{own.http_address}") as second:
            refused = second.get("/topics")
            assert (refused.status_code, refused.headers["connection"]) == (429, "close")
            assert "too many connections" in refused.json()["detail"]
        with pytest.raises(ClientError) as raised:
            sqs_client(own, {"total_max_attempts": 1}).create_queue(QueueName=topic)
        assert raised.value.response["Error"]["Code"] == "RequestThrottled"
    sqs_client(own, {"total_max_attempts": 10, "mode": "standard"}).create_queue(QueueName=topic)


def sqs_client(own: Broker, retries: dict[str, Any]) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{own.sqs_address}",
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(retries=retries),
    )


def test_an_sqs_client_is_throttled_and_retries_by_itself(own: Broker, cluster: Cluster, topic: str) -> None:
    impatient = sqs_client(own, {"total_max_attempts": 1})
    url = impatient.create_queue(QueueName=topic[-80:].strip("-_"))["QueueUrl"]
    limit(cluster, "producer_byte_rate", 10_000, user="ANONYMOUS")
    impatient.send_message(QueueUrl=url, MessageBody="x" * 10_000)
    with pytest.raises(ClientError) as refused:
        impatient.send_message(QueueUrl=url, MessageBody="x")
    assert refused.value.response["Error"]["Code"] == "RequestThrottled"
    patient = sqs_client(own, {"total_max_attempts": 20, "mode": "standard"})
    sent = patient.send_message(QueueUrl=url, MessageBody="x")
    assert sent["ResponseMetadata"]["RetryAttempts"] > 0
    limit(cluster, "consumer_byte_rate", 100, user="ANONYMOUS")
    assert len(impatient.receive_message(QueueUrl=url)["Messages"]) == 1
    with pytest.raises(ClientError, match="RequestThrottled"):
        impatient.receive_message(QueueUrl=url)
    form = {"Action": "ReceiveMessage", "QueueUrl": url, "Version": "2012-11-05"}
    answer = httpx.post(f"http://{own.sqs_address}/", data=form)
    assert answer.status_code == 403
    assert "<Code>RequestThrottled</Code>" in answer.text
