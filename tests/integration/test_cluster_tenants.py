"""Two tenants on three nodes: the same names on every API and node, limits, usage and suspension."""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import eventually

from .nodes import Node, Nodes

DEADLINE_S = 60.0
NODES = 3
PASSWORD = "a secret of tests"  # noqa: S105 - of this cluster only
ADMIN, ANNA, BORIS = "admin", "anna", "boris"
RED, BLUE = "crimson", "azure"
TENANTS = {ANNA: RED, BORIS: BLUE}
# The same in both tenants, for all APIs.
TOPIC, GROUP, TRANSACTION, QUEUE = "orders", "team", "tx", "jobs"
PUBLISH = f"POST /topics/{TOPIC}/messages"


class Cluster:
    """The nodes, and clients of them."""

    def __init__(self, root: Path) -> None:
        users = root / "users"
        users.write_text("".join(f"{name}:{PASSWORD}\n" for name in (ADMIN, *TENANTS)))
        users.chmod(0o600)
        security = (
            "[security]\nauthentication = true\nacls = true\nsuper_users = ['User:admin']\n"
            f"users_file = '{users}'\n"
        )
        self.nodes = Nodes(root, NODES, security)
        self._keys: dict[str, tuple[str, str]] = {}

    def http(self, who: str, node: Node, request: str, body: Any = None, status: int | None = 200) -> Any:
        """Return what an HTTP request is answered with; None if it is empty."""
        method, _, path = request.partition(" ")
        answer = httpx.request(
            method, f"http://{node.http}{path}", json=body, auth=(who, PASSWORD), timeout=DEADLINE_S
        )
        assert status in (None, answer.status_code), (request, answer.text)
        return json.loads(answer.text) if answer.text.startswith("{") else answer.text

    def status(self, who: str, node: Node, request: str, body: Any = None) -> int:
        method, _, path = request.partition(" ")
        auth = (who, PASSWORD)
        url = f"http://{node.http}{path}"
        return httpx.request(method, url, json=body, auth=auth, timeout=DEADLINE_S).status_code

    def wait_for(self, status: int, who: str, node: Node, request: str, body: Any = None) -> None:
        """Repeat a request until its answer has a status: nodes learn of a change one after the other."""
        eventually(lambda: self.status(who, node, request, body) == status, within_s=DEADLINE_S)

    def kafka(self, who: str, node: Node, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": node.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": who,
            "sasl.password": PASSWORD,
            "log_level": 0,
            **settings,
        }

    def sqs(self, who: str, node: Node) -> Any:
        if who not in self._keys:
            key = self.http(who, node, "POST /keys", {}, status=201)
            self._keys[who] = key["id"], key["aws_secret_access_key"]
        key_id, secret = self._keys[who]
        return boto3.client(
            "sqs",
            endpoint_url=f"http://{node.sqs}",
            region_name="us-east-1",
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def limit(self, node: Node, tenant: str, **limits: int | None) -> None:
        self.http(ADMIN, node, f"PATCH /admin/tenants/{tenant}", {"limits": limits})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose tenants have a topic, a queue and a transactional id of the same names."""
    cluster = Cluster(tmp_path_factory.mktemp("tenants"))
    try:
        cluster.nodes.start()
        first, second, third = cluster.nodes
        for who, tenant in TENANTS.items():
            cluster.http(ADMIN, first, "POST /admin/tenants", {"id": tenant}, status=201)
            path = f"PUT /admin/tenants/{tenant}/principals/User:{who}"
            cluster.http(ADMIN, second, path, {"admin": True})
        for who, node in zip(TENANTS, (second, third), strict=True):
            # Known there as soon as it knows the member.
            eventually(partial(is_member, cluster, who, node), within_s=DEADLINE_S)
            admin = AdminClient(cluster.kafka(who, node))
            admin.create_topics([NewTopic(TOPIC, NODES, NODES)])[TOPIC].result(DEADLINE_S)
        yield cluster
    finally:
        for node in cluster.nodes:
            node.end()


def is_member(cluster: Cluster, who: str, node: Node) -> bool:
    """Return whether a node knows the tenant of a user, whose metrics have no totals of the broker."""
    return "alpacamq_build_info" not in str(cluster.http(who, node, "GET /metrics", status=None)) and (
        cluster.status(who, node, "GET /metrics") == 200
    )


def test_the_same_names_are_different_things_through_every_node(cluster: Cluster) -> None:
    nodes = list(cluster.nodes)
    producers = {}
    for number, who in enumerate(TENANTS):
        # Transactions of the same id, open at the same time.
        producer = Producer(
            cluster.kafka(who, nodes[number], **{"transactional.id": TRANSACTION, "acks": "all"})
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producers[who] = producer
    for who, producer in producers.items():
        for partition in range(NODES):
            producer.produce(TOPIC, f"{who} by Kafka", partition=partition)
        assert producer.flush(DEADLINE_S) == 0
    for producer in producers.values():
        producer.commit_transaction(DEADLINE_S)
    for who in TENANTS:
        for number, node in enumerate(nodes):
            body = {"value": f"{who} by HTTP", "partition": number}
            cluster.http(who, node, PUBLISH, body)
    expected = {who: [f"{who} by HTTP"] * NODES + [f"{who} by Kafka"] * NODES for who in TENANTS}
    for who in TENANTS:
        for number, node in enumerate(nodes):
            read = cluster.http(who, node, f"GET /topics/{TOPIC}/messages?limit=100")
            assert sorted(each["value"] for each in read["messages"]) == expected[who]
            assert sorted(consumed(cluster, who, node, f"{GROUP}-{number}", 2 * NODES)) == expected[who]
            listed = cluster.http(who, node, "GET /transactions")["transactions"]
            assert [each["transactional_id"] for each in listed] == [TRANSACTION]
    assert sorted(consumed(cluster, ANNA, nodes[0], GROUP, 2 * NODES)) == expected[ANNA]
    # Of the same group in the other tenant.
    assert sorted(consumed(cluster, BORIS, nodes[1], GROUP, 2 * NODES)) == expected[BORIS]


def consumed(cluster: Cluster, who: str, node: Node, group: str, count: int) -> list[str]:
    """Return the values that a member of a group reads through a node, and commit."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(cluster.kafka(who, node, **settings))
    found: list[str] = []
    with closing(consumer):
        consumer.subscribe([TOPIC])

        def read() -> bool:
            for message in consumer.consume(count, 0.5):
                assert message.error() is None, message.error()
                found.append(message.value().decode())
            return len(found) >= count

        eventually(read, within_s=DEADLINE_S)
        consumer.commit(asynchronous=False)
    return found


def test_queues_of_the_same_name_are_different_queues_through_every_node(cluster: Cluster) -> None:
    nodes = list(cluster.nodes)
    for who in TENANTS:
        url = cluster.sqs(who, nodes[0]).create_queue(QueueName=QUEUE)["QueueUrl"]
        for node in nodes:
            sqs = cluster.sqs(who, node)
            name = url.rpartition("/")[2]
            assert name == QUEUE
            sqs.send_message(QueueUrl=url, MessageBody=f"{who} by SQS")
    for who in TENANTS:
        found: list[str] = []
        for _ in range(3 * NODES):
            for node in nodes:
                sqs = cluster.sqs(who, node)
                got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2, MaxNumberOfMessages=10)
                for message in got.get("Messages", []):
                    found.append(message["Body"])
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                if len(found) == NODES:
                    break
            if len(found) == NODES:
                break
        assert found == [f"{who} by SQS"] * NODES


LISTS = (
    "/topics", "/groups", "/transactions", "/stats/topics", "/stats/groups", "/reliability/stats",
    "/priority/stats", "/delay/topics", "/redrives", "/traces", "/keys", "/metrics", "/healthz",
)  # fmt: skip


def test_no_node_shows_a_tenant_anything_of_the_other(cluster: Cluster) -> None:
    first = next(iter(cluster.nodes))
    cluster.http(ANNA, first, "POST /topics", {"name": "zebra", "partitions": 3}, status=201)
    for _ in range(3):
        cluster.http(ANNA, first, "POST /topics/zebra/messages", {"value": "zebra"})
    cluster.http(ANNA, first, "GET /groups/zebra-team/poll?topic=zebra&wait_ms=5000")
    cluster.http(ANNA, first, "POST /producers/init", {"transactional_id": "zebra-tx"})
    for node in cluster.nodes:
        cluster.wait_for(200, ANNA, node, "GET /topics/zebra")
        for path in LISTS:
            shown = str(cluster.http(BORIS, node, f"GET {path}"))
            for foreign in ("zebra", RED, BLUE, "User:anna"):
                assert foreign not in shown, (node.id, path, foreign)
        for path in ("/topics/{}", "/groups/{}-team", "/topics/{}/messages"):
            answers = {
                str(cluster.http(BORIS, node, f"GET {path.format(name)}", status=404)).replace(name, "it")
                for name in ("zebra", "other")
            }
            assert len(answers) == 1, answers
        metadata = AdminClient(cluster.kafka(BORIS, node)).list_topics(timeout=DEADLINE_S)
        assert TOPIC in metadata.topics
        assert "zebra" not in metadata.topics
    cluster.http(ANNA, first, "DELETE /topics/zebra", status=204)


def failure_of(producer: Producer) -> str | None:
    """Return the error that a message is refused with; None if it is written."""
    failures: list[str | None] = []
    producer.produce(
        TOPIC, b"x", on_delivery=lambda error, _: failures.append(None if error is None else error.name())
    )
    producer.flush(DEADLINE_S)
    (failure,) = failures
    return failure


def test_limits_of_a_tenant_hold_on_every_node(cluster: Cluster) -> None:
    nodes = list(cluster.nodes)
    for who in TENANTS:
        cluster.http(who, nodes[0], PUBLISH, {"messages": [{"value": "to be read"}] * 5})
    existing = cluster.http(ADMIN, nodes[0], f"GET /admin/tenants/{RED}/usage")
    limits = {
        "topics": existing["topics"],
        "storage_bytes": 1,
        "group_members": 1,
        "fetch_messages_per_second": 4,
    }
    cluster.limit(nodes[2], RED, **limits)
    read = f"GET /topics/{TOPIC}/messages?limit=100"
    for node in nodes:
        cluster.wait_for(429, ANNA, node, read)  # once the limit is known there
        assert cluster.status(BORIS, node, read) == 200
        assert cluster.status(BORIS, node, read) == 200
    cluster.limit(nodes[0], RED, fetch_messages_per_second=None)
    message = {"value": "too much"}
    for node in nodes:
        cluster.wait_for(507, ANNA, node, PUBLISH, message)
        assert cluster.status(BORIS, node, PUBLISH, message) == 200
        assert cluster.status(ANNA, node, read) == 200
        assert cluster.status(ANNA, node, "POST /topics", {"name": f"more-{node.id}"}) == 422
        assert failure_of(Producer(cluster.kafka(ANNA, node))) == "POLICY_VIOLATION"
        group = {"topics": [TOPIC]}
        for who, last in ((ANNA, 429), (BORIS, 200)):
            joins = [cluster.status(who, node, f"POST /groups/full-{node.id}/join", group) for _ in range(2)]
            assert joins == [200, last]
    cluster.limit(nodes[1], RED, **dict.fromkeys(limits))
    for node in nodes:
        cluster.wait_for(200, ANNA, node, PUBLISH, message)


def test_a_suspension_reaches_every_node(cluster: Cluster) -> None:
    nodes = list(cluster.nodes)
    producers = {node.id: Producer(cluster.kafka(ANNA, node)) for node in nodes}
    assert {failure_of(producer) for producer in producers.values()} == {None}
    cluster.sqs(ANNA, nodes[0]).list_queues()  # with a key, which a suspended tenant cannot create
    cluster.http(ADMIN, nodes[1], f"POST /admin/tenants/{RED}/suspend", {"reason": "invoice 17"})
    for node in nodes:
        cluster.wait_for(403, ANNA, node, f"GET /topics/{TOPIC}")
        for path in (f"/topics/{TOPIC}", "/topics", "/metrics"):
            refused = cluster.http(ANNA, node, f"GET {path}", status=403)
            assert refused["detail"] == "the tenant is suspended: invoice 17"
        with pytest.raises(ClientError, match="invoice 17"):
            cluster.sqs(ANNA, node).list_queues()
        assert TOPIC not in AdminClient(cluster.kafka(ANNA, node)).list_topics(timeout=DEADLINE_S).topics
        assert failure_of(producers[node.id]) == "TOPIC_AUTHORIZATION_FAILED"
        assert cluster.status(BORIS, node, f"GET /topics/{TOPIC}") == 200
    cluster.http(ADMIN, nodes[2], f"POST /admin/tenants/{RED}/activate")
    for node in nodes:
        cluster.wait_for(200, ANNA, node, f"GET /topics/{TOPIC}")


MESSAGES, MESSAGE_BYTES = 300, 10_000


def test_usage_is_exact_on_every_node_and_over_restarts(cluster: Cluster) -> None:
    """Known messages, of a size that makes their headers small: storage is that of their values to 1 %."""
    nodes = list(cluster.nodes)
    tenant = "amber"
    cluster.http(ADMIN, nodes[0], "POST /admin/tenants", {"id": tenant}, status=201)
    new_topic = {"name": f"{tenant}:{TOPIC}", "partitions": NODES, "replication_factor": NODES}
    cluster.http(ADMIN, nodes[0], "POST /topics", new_topic, status=201)
    producer = Producer(cluster.kafka(ADMIN, nodes[0], acks="all"))
    for number in range(MESSAGES):
        producer.produce(f"{tenant}:{TOPIC}", b"x" * MESSAGE_BYTES, partition=number % NODES)
    assert producer.flush(DEADLINE_S) == 0

    def check() -> None:
        for node in nodes:
            usage = cluster.http(ADMIN, node, f"GET /admin/tenants/{tenant}/usage")
            assert usage["messages"] == MESSAGES
            assert usage["storage_bytes"] == pytest.approx(MESSAGES * MESSAGE_BYTES, rel=0.01)

    check()
    nodes[1].stop()
    nodes[0].kill()
    for node in nodes[:2]:
        node.start()
    for node in nodes[:2]:
        node.wait_until_ready(2)
    for node in nodes:
        eventually(partial(has_replicas, cluster, node), within_s=DEADLINE_S)
    check()


def has_replicas(cluster: Cluster, node: Node) -> bool:
    """Return whether partitions have leaders, and those that a node leads all replicas in sync."""
    checks = cluster.http(ADMIN, node, "GET /healthz", status=None).get("checks", {})
    return all(checks.get(name, {}).get("status") == "ok" for name in ("cluster", "replicas"))
