"""The partitions that a request reads."""

import asyncio
from pathlib import Path

import pytest

from alpacamq.api.rest.partition_reading import all_partitions
from alpacamq.model.errors import UnknownTopic
from tests.broker.open_brokers import running


async def test_a_topic_that_is_being_made_is_not_there_yet(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        making = asyncio.create_task(broker.topics.create("made", partitions=20))
        async with asyncio.timeout(30):
            while "made" not in broker.topics.image.topics:  # noqa: ASYNC110 - to look just after it is decided
                await asyncio.sleep(0)
        with pytest.raises(UnknownTopic, match="is being made"):
            all_partitions(broker, "made")
        await making
        assert len(all_partitions(broker, "made")) == 20
