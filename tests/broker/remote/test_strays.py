"""Directories of partitions that were deleted or moved while a broker was down."""

from pathlib import Path

import pytest

from alpacamq.broker.partition.replicas import directory_name, is_stray
from alpacamq.cluster.image import ClusterImage, partition_change, topic_change
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.ids import BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.topics import Topic

from .three_brokers import three_brokers

KEPT = Topic(name=TopicName("kept"), id=TopicId(int=0xABC << 80), partitions=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(directory_name(TopicPartition(KEPT.name, 0), KEPT.id), False, id="its own partition"),
        pytest.param(directory_name(TopicPartition(KEPT.name, 1), KEPT.id), True, id="moved to others"),
        pytest.param(directory_name(TopicPartition(KEPT.name, 7), KEPT.id), False, id="not in the image yet"),
        pytest.param(
            directory_name(TopicPartition(KEPT.name, 0), TopicId(int=7 << 80)), True, id="a deleted namesake"
        ),
        pytest.param(
            directory_name(TopicPartition(TopicName("gone"), 3), TopicId(int=9 << 80)),
            True,
            id="deleted topic",
        ),
        pytest.param("lost+found", False, id="another program's directory"),
    ],
)
def test_the_image_says_which_directories_are_stray(name: str, expected: bool) -> None:
    image = ClusterImage()
    states = [PartitionState(replicas=(1, 2), isr=(1, 2)), PartitionState(replicas=(2, 3), isr=(2, 3))]
    image.apply(
        [
            topic_change(KEPT),
            *(partition_change(PartitionId(KEPT.id, index), state) for index, state in enumerate(states)),
        ]
    )
    assert is_stray(name, image, BrokerId(1)) is expected


async def test_a_topic_deleted_while_a_broker_is_down_is_deleted_there_too(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, stray_retention_ms=0) as cluster:
        await cluster.create("kept", partitions=1)
        await cluster.create("gone", partitions=2)
        # Not the controller: what is asked of it while it ends may have taken effect.
        victim = next(number for number, each in cluster.brokers.items() if not each.metadata.is_controller)
        partitions = tmp_path / f"node-{victim}" / "partitions"

        def has(topic: str) -> bool:
            return any(each.name.startswith(f"{topic}-") for each in partitions.iterdir())

        await cluster.until(lambda: has("kept") and has("gone"), "both topics on the broker")
        await cluster.kill(victim)
        await cluster.any.topics.delete("gone")
        assert has("gone")
        await cluster.start(victim)
        await cluster.until(lambda: not has("gone"), "directories of the deleted topic to go")
        assert has("kept")
