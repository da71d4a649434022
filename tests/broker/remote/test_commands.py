"""Commands to the controller while it changes, in a cluster of three."""

import asyncio
from pathlib import Path

from alpacamq.cluster.commands import AllocateProducerIds

from .three_brokers import three_brokers


async def test_repeatable_commands_outlast_a_change_of_the_controller(tmp_path: Path) -> None:
    """Also those of the controller's own node, which it has proposed and cannot know to be committed."""
    async with three_brokers(tmp_path) as cluster:
        controller = next(each for each in cluster.brokers.values() if each.metadata.is_controller)
        asking = [
            asyncio.ensure_future(broker.metadata.ask(AllocateProducerIds(count=1)))
            for _ in range(20)
            for broker in cluster.brokers.values()
        ]
        await asyncio.sleep(0)  # the first ones are proposed
        controller.metadata.quorum.transfer_leadership()
        blocks = await asyncio.gather(*asking)
        assert len({block.first for block in blocks}) == 60
        assert not controller.metadata.is_controller
