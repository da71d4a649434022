"""The fixture of three brokers in one process."""

from pathlib import Path

from alpacamq.model.ids import BrokerId

from .three_brokers import three_brokers


async def test_a_topic_has_leaders_on_every_broker_and_survives_one(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3)
        assert {cluster.leader_id("orders", index) for index in range(3)} == {1, 2, 3}
        gone = cluster.leader_id("orders", 0)
        assert cluster.follower_of("orders", 0) is not cluster.leader_of("orders", 0)
        await cluster.kill(gone)
        await cluster.until(lambda: cluster.leader_id("orders", 0) != gone, "another leader")
        await cluster.led("orders", 0)
        await cluster.start(gone)
        await cluster.until(lambda: gone in cluster.state("orders", 0).isr, "the replica in sync again")
        await cluster.move_leader("orders", 0, gone)
        assert cluster.leader_of("orders", 0) is cluster[gone]


async def test_lost_and_cut_connections_are_opened_again(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3)
        for node_id in (1, 2, 3):
            cluster.wires.lose(node_id)
        cluster.wires.cut(1, 2)
        cluster.wires.cut(1, 3)
        brokers = cluster[2].metadata.image.brokers
        await cluster.until(lambda: brokers[BrokerId(1)].is_fenced, "1 to be fenced")
        cluster.wires.heal()
        await cluster.until(lambda: not brokers[BrokerId(1)].is_fenced, "1 to return")
        await cluster.until(lambda: len(cluster.state("orders", 0).isr) == 3, "all in sync")
