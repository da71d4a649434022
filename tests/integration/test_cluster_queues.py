"""Queues over three nodes as real processes: SQS and HTTP through any node, and the loss of one."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.topics import QUEUES_TOPIC
from alpacamq.protocol.error_codes import ErrorCode
from tests.api.kafka.share_member import Member, batch, configure
from tests.api.kafka.share_member import publish as publish_batch
from tests.api.kafka.wire import Wire
from tests.compat.sqs import Sqs, client
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import leaders

GROUP = "workers"
SOON_S = 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def sqs_of(nodes: Nodes) -> list[Sqs]:
    return [client(node.sqs) for node in nodes]


def queue_of(clients: list[Sqs], name: str, **attributes: str) -> str:
    """Create a queue at the first node, and return its URL once all nodes know it."""
    url: str = clients[0].create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def is_known() -> bool:
        return all(name in str(each.list_queues(QueueNamePrefix=name).get("QueueUrls")) for each in clients)

    eventually(is_known, within_s=SOON_S)
    return url


def counts(sqs: Sqs, url: str) -> tuple[int, int]:
    """Return the numbers of visible messages and of those in flight."""
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return (
        int(found["ApproximateNumberOfMessages"]),
        int(found["ApproximateNumberOfMessagesNotVisible"]),
    )


def taken(sqs: Sqs, url: str, count: int, **options: Any) -> list[Any]:
    """Receive until there are so many messages."""
    messages: list[Any] = []
    until = time.monotonic() + SOON_S
    while len(messages) < count and time.monotonic() < until:
        most = min(count - len(messages), 10)
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=most, WaitTimeSeconds=2, **options)
        messages += found.get("Messages", [])
    assert len(messages) == count
    return messages


def test_sqs_queues_work_through_any_node(nodes: Nodes) -> None:
    clients = sqs_of(nodes)
    url = queue_of(clients, "tasks")
    bodies = [f"task {number}" for number in range(30)]
    for number, body in enumerate(bodies):
        clients[number % 3].send_message(QueueUrl=url, MessageBody=body)
    assert {counts(each, url) for each in clients} == {(30, 0)}
    received = [message for sqs in clients for message in taken(sqs, url, 10)]
    assert sorted(message["Body"] for message in received) == sorted(bodies)
    assert {counts(each, url) for each in clients} == {(0, 30)}
    for number, message in enumerate(received):
        clients[(number + 1) % 3].delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert {counts(each, url) for each in clients} == {(0, 0)}


def test_fifo_queues_deduplicate_across_nodes(nodes: Nodes) -> None:
    clients = sqs_of(nodes)
    url = queue_of(clients, "tasks.fifo", FifoQueue="true")

    def send(sqs: Sqs, number: int, group: str) -> tuple[str, str]:
        sent = sqs.send_message(
            QueueUrl=url,
            MessageBody=f"{group}-{number}",
            MessageGroupId=group,
            MessageDeduplicationId=f"{group}-{number}",
        )
        return sent["MessageId"], sent["SequenceNumber"]

    for number in range(4):
        for group in ("a", "b", "c"):
            assert len({send(sqs, number, group) for sqs in clients}) == 1
    order: dict[str, list[str]] = {}
    for number in range(12):
        (message,) = taken(clients[number % 3], url, 1)
        group, _, place = message["Body"].partition("-")
        order.setdefault(group, []).append(place)
        clients[number % 2].delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert order == {group: ["0", "1", "2", "3"] for group in ("a", "b", "c")}
    assert {counts(each, url) for each in clients} == {(0, 0)}


def test_messages_that_are_received_too_often_go_to_the_dead_letter_queue(nodes: Nodes) -> None:
    clients = sqs_of(nodes)
    dead = queue_of(clients, "dead")
    arn = clients[0].get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = queue_of(clients, "fragile", RedrivePolicy=policy, VisibilityTimeout="1")
    for number, sqs in enumerate(clients):
        sqs.send_message(QueueUrl=url, MessageBody=f"fragile {number}")
    assert len(taken(clients[1], url, 3)) == 3
    letters = taken(clients[2], dead, 3)
    assert sorted(letter["Body"] for letter in letters) == ["fragile 0", "fragile 1", "fragile 2"]
    sources = clients[0].list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    assert [source.rpartition("/")[2] for source in sources] == ["fragile"]
    for letter in letters:
        clients[0].change_message_visibility(
            QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"], VisibilityTimeout=0
        )
    task = clients[1].start_message_move_task(SourceArn=arn)["TaskHandle"]
    assert task
    assert sorted(message["Body"] for message in taken(clients[0], url, 3)) == [
        "fragile 0",
        "fragile 1",
        "fragile 2",
    ]


def shard_broker(nodes: Nodes, topic: str) -> int:
    """Return the node that hosts the queue of the group on a topic."""
    found = leaders(nodes, QUEUES_TOPIC)
    return found[crc32c(f"{GROUP}\0{topic}".encode()) % len(found)]


def poll(node: Node, topic: str, **options: int) -> list[Any]:
    query: dict[str, str | int] = {"topic": topic, "max": 100, "wait_ms": 1000, **options}
    answer = httpx.get(f"http://{node.http}/groups/{GROUP}/poll", params=query, timeout=40)
    answer.raise_for_status()
    return list(answer.json()["messages"])


def acknowledge(node: Node, messages: list[Any]) -> None:
    body = {"receipts": [message["receipt"] for message in messages]}
    answer = httpx.post(f"http://{node.http}/messages/ack", json=body, timeout=40)
    answer.raise_for_status()
    assert [result for result in answer.json()["results"] if "error" in result] == []


def publish(node: Node, topic: str, values: list[str]) -> None:
    answer = httpx.post(
        f"http://{node.http}/topics/{topic}/messages",
        json={"messages": [{"value": value} for value in values]},
        timeout=40,
    )
    answer.raise_for_status()
    assert [result for result in answer.json()["results"] if "error" in result] == []


def created(nodes: Nodes, topic: str, partitions: int, factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.kafka})
    admin.create_topics([NewTopic(topic, partitions, factor)])[topic].result(30)
    eventually(lambda: all(leader > 0 for leader in leaders(nodes, topic)), what="leaders")

    def is_known() -> bool:
        return all(httpx.get(f"http://{node.http}/topics/{topic}").status_code == 200 for node in nodes)

    eventually(is_known, within_s=SOON_S)


def test_a_node_with_neither_queue_nor_partition_receives_and_acknowledges(nodes: Nodes) -> None:
    """The topic has one partition with one replica."""
    created(nodes, "lonely", 1, 1)
    publish(nodes.by_id[1], "lonely", [f"{number}" for number in range(20)])
    left = {f"{number}" for number in range(20)}
    for node in nodes:
        messages = poll(node, "lonely", max=5)
        assert len(messages) == 5
        acknowledge(nodes.by_id[node.id % 3 + 1], messages)
        left -= {message["value"] for message in messages}
    elsewhere = {1, 2, 3} - {leaders(nodes, "lonely")[0], shard_broker(nodes, "lonely")}
    away = nodes.by_id[min(elsewhere)]
    messages = poll(away, "lonely")
    assert {message["value"] for message in messages} == left
    acknowledge(away, messages)
    assert poll(away, "lonely", wait_ms=0) == []


def wire_to(node: Node) -> Wire:
    host, _, port = node.kafka.rpartition(":")
    return Wire((host, int(port)))


def joined(wires: dict[int, Wire], topic: str, member_id: str) -> dict[int, Member]:
    """Join the share group, and return the member as each node sees it."""
    members = {each: Member(wire, topic, "sharing", member_id) for each, wire in wires.items()}

    def has_joined() -> bool:
        return any(member.heartbeat(0, [topic]).error_code == 0 for member in members.values())

    eventually(has_joined, within_s=SOON_S)
    return members


def test_share_consumers_fetch_from_leaders_wherever_the_queue_is(nodes: Nodes) -> None:
    created(nodes, "shared", 3, 3)
    wires = {node.id: wire_to(node) for node in nodes}
    configure(wires[1], "sharing", auto_offset_reset="earliest")
    members, others = joined(wires, "shared", "one"), joined(wires, "shared", "two")
    placed = dict(enumerate(leaders(nodes, "shared")))
    for index, leader in placed.items():
        publish_batch(wires[leader], "shared", b"%d" % index, partition=index)
    for index, leader in placed.items():
        got = members[leader].fetch(index, max_wait_ms=5000)[index]
        assert (got.error, got.values) == (0, [b"%d" % index])
    # Another node names the leader.
    wrong = placed[0] % 3 + 1
    response = others[wrong].ask_fetch(0)
    (part,) = response.responses[0].partitions
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader.leader_id == placed[0]
    named = {node.node_id: f"{node.host}:{node.port}" for node in response.node_endpoints}
    assert named == {placed[0]: nodes.by_id[placed[0]].kafka}
    # The end of a session releases the records of that leader's partitions, and no others.
    wires[placed[0]].close()
    wires[placed[0]] = wire_to(nodes.by_id[placed[0]])
    for index, leader in placed.items():
        member = Member(wires[leader], "shared", "sharing", "two")
        taken = member.fetch(index, epoch=0, max_wait_ms=5000 if leader == placed[0] else 0)
        assert (index in taken) == (leader == placed[0]), taken
    for index, leader in placed.items():
        if leader != placed[0]:
            assert members[leader].acknowledge({index: [batch(0)]}) == {index: 0}
    for wire in wires.values():
        wire.close()


def test_leases_and_acknowledgements_survive_kill_9_of_the_node_of_the_queue(nodes: Nodes) -> None:
    created(nodes, "orders", 3, 3)
    everything = {f"{number}" for number in range(300)}
    publish(nodes.by_id[1], "orders", sorted(everything))
    acked: set[str] = set()
    leased: set[str] = set()
    for node in nodes:
        messages = poll(node, "orders", max=50, visibility_ms=60_000)
        acknowledge(node, messages)
        acked |= {message["value"] for message in messages}
        messages = poll(node, "orders", max=30, visibility_ms=8000)
        leased |= {message["value"] for message in messages}
    assert len(acked) == 150
    assert len(leased) == 90
    killed = nodes.by_id[shard_broker(nodes, "orders")]
    others = [node for node in nodes if node is not killed]
    killed.kill()
    killed_at = time.monotonic()
    seen: dict[str, int] = {}
    while len(seen) < 150 and time.monotonic() < killed_at + SOON_S:
        for node in others:
            messages = poll(node, "orders", visibility_ms=60_000)
            for message in messages:
                assert message["value"] not in seen
                seen[message["value"]] = message["delivery_count"]
            if messages:
                acknowledge(node, messages)
    assert not acked & seen.keys()
    assert acked | seen.keys() == everything
    assert {value for value, count in seen.items() if count > 1} == leased
    assert poll(others[0], "orders", wait_ms=0) == []
    killed.start()
    killed.wait_until_ready(2)
    assert poll(killed, "orders", wait_ms=0) == []
