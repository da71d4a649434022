"""Redrives over three nodes as real processes: a node ends while dead letters go back to their topic."""

import itertools
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.topics import QUEUES_TOPIC
from alpacamq.queues.messages import built_in_group
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import create, leaders, read_all
from .test_cluster_queues import poll, publish

COUNT = 300
# So that the node ends in the middle: far from the end where the redrive ends with it.
SLOW, FAST = 15, 150
# The messages that the ended redrive had leased come back after a minute.
MOVED_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def dead_letters(nodes: Nodes, topic: str) -> None:
    """Publish messages, and reject them all."""
    create(nodes, topic)
    publish(nodes.by_id[1], topic, [str(number) for number in range(COUNT)])
    left = COUNT
    while left:
        receipts = [message["receipt"] for message in poll(nodes.by_id[2], topic)]
        rejected = httpx.post(
            f"http://{nodes.by_id[3].http}/messages/reject",
            json={"receipts": receipts, "reason": "no"},
            timeout=40,
        )
        rejected.raise_for_status()
        left -= len(receipts)
    eventually(
        lambda: contents(nodes, f"{topic}.dlq").total() >= COUNT, within_s=60, what="all are dead letters"
    )
    # The first message creates the queue, whose node may learn of the last ones a little later.
    first = redrive(nodes.by_id[1], topic, max_messages=1)
    eventually(lambda: progress(nodes.by_id[1], first) == ("completed", 1), within_s=60)
    eventually(lambda: unmoved(nodes.by_id[1], topic) == COUNT - 1, within_s=60)


def unmoved(node: Node, topic: str) -> int:
    """Return how many dead letters are left in their queue."""
    source = f"{topic}.dlq"
    answer = httpx.get(f"http://{node.http}/groups/{built_in_group(source)}/queues/{source}", timeout=40)
    answer.raise_for_status()
    return sum(each["ready"] + each["in_flight"] for each in answer.json()["partitions"])


def redrive(node: Node, topic: str, **limits: int) -> str:
    answer = httpx.post(
        f"http://{node.http}/topics/{topic}.dlq/dead-letters/redrive", json=limits, timeout=40
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def progress(node: Node, task: str) -> tuple[str, int]:
    answer = httpx.get(f"http://{node.http}/redrives/{task}", timeout=40)
    answer.raise_for_status()
    return str(answer.json()["state"]), int(answer.json()["moved"])


def contents(nodes: Nodes, topic: str) -> Counter[int]:
    """Return how often each message is in a topic."""
    partitions = range(len(leaders(nodes, topic)))
    return Counter(itertools.chain.from_iterable(read_all(nodes, topic, index) for index in partitions))


def queue_node(nodes: Nodes, topic: str) -> int:
    """Return the node that hosts the queue of the dead letters."""
    source = f"{topic}.dlq"
    found = leaders(nodes, QUEUES_TOPIC)
    return found[crc32c(f"{built_in_group(source)}\0{source}".encode()) % len(found)]


@pytest.mark.parametrize("victim", ["the node that was asked", "the node of the queue"])
def test_a_node_that_ends_during_a_redrive_loses_and_doubles_nothing(nodes: Nodes, victim: str) -> None:
    topic = f"orders-{victim.rpartition(' ')[2]}"
    dead_letters(nodes, topic)
    of_queue = queue_node(nodes, topic)
    asked = nodes.by_id[of_queue % 3 + 1]
    killed = asked if victim == "the node that was asked" else nodes.by_id[of_queue]
    left = next(node for node in nodes if node not in (asked, killed))

    task = redrive(asked, topic, messages_per_second=SLOW if killed is asked else FAST)
    eventually(lambda: progress(asked, task)[1] >= 5, within_s=60, what="some are moved")
    killed.kill()

    if killed is asked:
        assert httpx.get(f"http://{left.http}/redrives/{task}", timeout=40).status_code == 404
        moved = contents(nodes, topic).total() - COUNT
        assert 0 < moved < COUNT, "it ended with its node"

        def is_moved() -> bool:
            again = redrive(left, topic)
            eventually(lambda: progress(left, again)[0] == "completed", within_s=60)
            return contents(nodes, topic).total() >= 2 * COUNT

        eventually(is_moved, within_s=MOVED_WITHIN_S, what="the rest is moved when it is started again")
    else:
        # It goes on with the next node of the queue.
        eventually(lambda: progress(asked, task)[0] == "completed", within_s=MOVED_WITHIN_S)
        eventually(lambda: contents(nodes, topic).total() >= 2 * COUNT, within_s=60)

    assert contents(nodes, topic) == dict.fromkeys(range(COUNT), 2)
    killed.start()
    killed.wait_until_ready(len(killed.events("ready")) + 1)
    assert unmoved(killed, topic) == 0
    assert sum(len(poll(killed, topic, wait_ms=0)) for _ in range(10)) == COUNT
