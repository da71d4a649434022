"""Status of a cluster of three, as any of its brokers reports it; reassigning, draining and removing."""

from pathlib import Path

import pytest

from alpacamq.broker.administration import elect_all, reassign, remove_node
from alpacamq.broker.publishing import Message
from alpacamq.broker.tracing.tracing import TracingSettings
from alpacamq.cluster.commands import DrainBroker, ElectionKind, Reassignment, UnregisterBroker
from alpacamq.model.errors import InvalidRequest, UnknownBroker
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Header

from .three_brokers import ThreeBrokers, three_brokers

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def in_sync(cluster: ThreeBrokers, topic: str, index: int, *nodes: int) -> None:
    await cluster.until(
        lambda: sorted(cluster.state(topic, index).isr) == sorted(nodes), f"{nodes} are in sync"
    )


async def test_every_broker_reports_the_same(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3)
        for broker in cluster.brokers.values():
            found = await broker.cluster_status.describe()
            assert sorted(found.reports) == [1, 2, 3]
            assert not found.failures
            assert found.quorum is not None
            assert found.quorum.leader == broker.metadata.controller_id
            assert sorted(voter.node_id for voter in found.quorum.voters) == [1, 2, 3]
            assert found.summary.partitions == 3
            assert [found.summary.by_broker[node].leaders for node in (1, 2, 3)] == [1, 1, 1]
            lag = found.lag_of(1)
            assert (lag.partitions, lag.out_of_sync, lag.lag_messages) == (2, 0, 0)


async def test_a_lost_broker_is_out_of_sync_and_behind(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        lost = next(number for number in (1, 2, 3) if number != cluster.leader_id("orders"))
        await cluster.kill(lost)
        await in_sync(cluster, "orders", 0, *({1, 2, 3} - {lost}))
        await cluster.leader_of("orders").publisher.publish("orders", [Message(value=b"x")] * 5)
        for broker in cluster.brokers.values():
            found = await broker.cluster_status.describe()
            assert sorted(found.reports) == sorted({1, 2, 3} - {lost})
            assert found.summary.under_replicated == 1
            lag = found.lag_of(lost)
            assert (lag.partitions, lag.out_of_sync, lag.lag_messages) == (1, 1, 5)


async def test_counters_follow_the_in_sync_set(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        leader = cluster.leader_of("orders")
        lost = next(number for number in (1, 2, 3) if number != leader.settings.node_id)
        before = leader.replication.stats.in_sync_shrinks
        await cluster.kill(lost)
        await in_sync(cluster, "orders", 0, *({1, 2, 3} - {lost}))
        await cluster.until(lambda: leader.replication.stats.in_sync_shrinks > before, "it shrank")
        await cluster.start(lost)
        await in_sync(cluster, "orders", 0, 1, 2, 3)
        await cluster.until(lambda: leader.replication.stats.in_sync_expands > 0, "it grew")
        await leader.publisher.publish("orders", [Message(value=b"x" * 1000)])
        follower = cluster.follower_of("orders")
        await cluster.until(lambda: follower.replication.received_bytes > 1000, "bytes were received")


async def test_a_drained_and_stopped_broker_is_removed_with_its_vote(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3, replication_factor=2)
        other = cluster[1].metadata
        with pytest.raises(InvalidRequest, match="drain it first"):
            await remove_node(other, BrokerId(3))
        with pytest.raises(UnknownBroker):
            await remove_node(other, BrokerId(9))
        await other.ask(DrainBroker(broker_id=BrokerId(3)))
        await cluster.until(lambda: not other.image.replicas_on(3), "broker 3 has no replicas")
        with pytest.raises(InvalidRequest, match="running"):
            await remove_node(other, BrokerId(3))
        # Its vote does not come back while it runs.
        assert 3 not in {voter.id for voter in other.quorum.voters}
        await cluster.stop(3)
        await cluster.until(lambda: other.image.broker(3).is_fenced, "broker 3 is fenced")
        await remove_node(other, BrokerId(3))
        assert sorted(other.image.brokers) == [1, 2]
        assert sorted(voter.id for voter in other.quorum.voters) == [1, 2]


async def test_a_voter_is_not_unregistered(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.kill(3)
        metadata = cluster.any.metadata
        await cluster.until(lambda: metadata.image.broker(3).is_fenced, "broker 3 is fenced")
        with pytest.raises(InvalidRequest, match="remove its vote first"):
            await metadata.ask(UnregisterBroker(broker_id=BrokerId(3)))


async def test_replicas_are_reassigned_and_preferred_leaders_elected(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=2, replication_factor=1)
        metadata = cluster[2].metadata
        wanted = [Reassignment("orders", 0, (3, 1)), Reassignment("orders", 9, (1,))]
        results = await reassign(metadata, wanted)
        assert [result.failure is None for result in results] == [True, False]
        await cluster.until(lambda: cluster.state("orders").isr == (3, 1), "the new replicas are in sync")
        assert not cluster.state("orders").is_moving
        await elect_all(metadata, ElectionKind.PREFERRED)
        await cluster.until(lambda: cluster.state("orders").leader == 3, "the preferred replica leads")


async def test_a_trace_shows_when_all_replicas_had_a_message(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, tracing=TracingSettings()) as cluster:
        await cluster.create("orders", partitions=1)
        leader = cluster.leader_of("orders")
        header = Header("traceparent", f"00-{TRACE}-{'1' * 16}-01".encode())
        await leader.publisher.publish("orders", [Message(value=b"x", headers=(header,))])
        assert leader.tracing is not None
        events = {event.name: event for event in leader.tracing.store.events(TRACE)}
        assert [*events] == [
            "publish.received",
            "publish.partitioned",
            "publish.persisted",
            "publish.replicated",
        ]
        replicated = events["publish.replicated"]
        assert replicated.attributes == {"in_sync": "1, 2, 3"}
        assert replicated.at_us >= events["publish.persisted"].at_us >= events["publish.received"].at_us
