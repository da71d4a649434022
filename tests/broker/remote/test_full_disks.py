"""A broker without room for records leaves its partitions to others until it has some."""

from pathlib import Path

import pytest

from alpacamq.model.errors import DiskFull

from .three_brokers import three_brokers


async def test_leaders_leave_a_broker_whose_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        full = cluster.leader_id("orders")
        partition = await cluster.led("orders")
        with monkeypatch.context() as patch:
            patch.setattr(cluster[full], "can_write", lambda: False)
            partition.refusal = DiskFull("no room")
            await cluster.until(lambda: full not in cluster.state("orders").isr, "the broker out of sync")
            assert (await cluster.led("orders")) is not partition
        await cluster.until(lambda: full in cluster.state("orders").isr, "the broker back in sync")
