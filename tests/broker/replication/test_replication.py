"""Partitions on three brokers: what is acknowledged, and what every replica has in the end."""

from pathlib import Path

from .nodes import a_cluster, produce


async def test_an_acknowledged_batch_is_on_every_replica(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        assert await produce(leader, b"a") == 0
        for node in cluster.nodes.values():
            assert node.partition().log.flushed_offset == 1
        assert leader.high_watermark == 1
        await cluster.replicated()
