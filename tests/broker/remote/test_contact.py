"""A broker that has lost the controller leads nothing, and requests through it wait for another leader."""

import asyncio
from pathlib import Path

from alpacamq.broker.publishing import Message
from alpacamq.model.errors import AlpacaError, LeaderNotAvailable, NotLeader

from .three_brokers import ThreeBrokers, three_brokers


async def lose_contact(cluster: ThreeBrokers, node_id: int) -> None:
    """Cut a broker off from the two others, until it knows."""
    for other in {1, 2, 3} - {node_id}:
        cluster.wires.cut(node_id, other)
    broker = cluster[node_id]
    await cluster.until(lambda: not broker.registration.has_contact(), "contact lost")


async def test_a_broker_without_contact_leads_nothing_and_comes_back(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        node_id = cluster.leader_id("orders")
        broker = cluster[node_id]
        await lose_contact(cluster, node_id)
        await cluster.until(lambda: broker.topics.find(b"orders", 0) is None, "it leads nothing")
        assert isinstance(broker.topics.absence(b"orders", 0), LeaderNotAvailable | NotLeader)
        # Others have elected one; this broker cannot reach it, and says so in time.
        publishing = asyncio.ensure_future(broker.publisher.publish("orders", [Message(value=b"a")]))
        others = next(each for number, each in cluster.brokers.items() if number != node_id)
        await cluster.until(
            lambda: others.topics.image.topics and cluster.state("orders").leader != node_id, "another leader"
        )
        [placed] = await others.publisher.publish("orders", [Message(value=b"b")])
        assert not isinstance(placed, AlpacaError)
        cluster.wires.heal()
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        # What waited has gone to the new leader.
        [late] = await publishing
        assert not isinstance(late, AlpacaError)
