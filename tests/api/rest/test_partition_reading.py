"""The partitions that a request reads."""

import asyncio
import threading
from pathlib import Path

import pytest

from alpacamq.broker.broker import WORK_THREADS
from alpacamq.model.errors import PartitionNotReady
from tests.broker.open_brokers import running


async def test_the_partitions_of_a_topic_under_creation_are_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        go_on = threading.Event()
        for _ in range(WORK_THREADS):  # of which one would open the partitions
            broker.work_threads.submit(go_on.wait)
        making = asyncio.create_task(broker.topics.create("made", partitions=20))
        try:
            async with asyncio.timeout(30):
                while "made" not in broker.topics.image.topics:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0)
            with pytest.raises(PartitionNotReady, match="is being opened"):
                broker.topics.every_partition_of("made")
        finally:
            go_on.set()
        await making
        assert len(broker.topics.every_partition_of("made")) == 20
