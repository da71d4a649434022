"""Creates topics to measure on, and counts their records."""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 60.0
_LOOK_AGAIN_S = 0.01


def create(
    address: str, name: str, partitions: int, config: Mapping[str, str] | None = None, *, replicas: int = 1
) -> None:
    """Create a topic, and wait until it is writable."""
    admin = _admin(address)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
    for made in admin.create_topics([topic]).values():
        made.result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while not _is_ready(admin, name, partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} has no leaders")
        time.sleep(_LOOK_AGAIN_S)


def delete(address: str, name: str) -> None:
    admin = _admin(address)
    for gone in admin.delete_topics([name]).values():
        gone.result(WAIT_S)


def record_count(address: str, name: str, partitions: int) -> int:
    """Count the records in all partitions, by first and last offsets."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
    try:
        total = 0
        for partition in range(partitions):
            first, end = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=WAIT_S)
            total += end - first
        return total
    finally:
        consumer.close()


def _admin(address: str) -> Any:
    # Level 3: errors only; otherwise it logs that it was closed early.
    return AdminClient({"bootstrap.servers": address, "log_level": 3})


def _is_ready(admin: Any, name: str, partitions: int) -> bool:
    topic = admin.list_topics(name, WAIT_S).topics[name]
    return (
        topic.error is None
        and len(topic.partitions) == partitions
        and all(partition.leader >= 0 and partition.error is None for partition in topic.partitions.values())
    )
