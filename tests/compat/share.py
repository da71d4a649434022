"""confluent-kafka's share consumer, with set-up and inspection for tests."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import ShareGroupOffset, share_group_offsets
from alpacamq.protocol.error_codes import ErrorCode
from tests.waiting import eventually

from .client import replicas_for

EARLIEST = {"share.auto.offset.reset": "earliest"}


class Queue:
    """A topic and a share group that reads it, from the beginning by default."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.topic = self.group = name
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(
        self, *, partitions: int = 1, settings: Mapping[str, str] = EARLIEST, **config: str
    ) -> "Queue":
        options = {name.replace("_", "."): text for name, text in config.items()}
        topic = NewTopic(self.topic, partitions, replicas_for(self.address), config=options)
        self._admin.create_topics([topic])[self.topic].result()
        if settings:
            self.configure(settings)
        return self

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set the group's settings."""
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result()

    def settings(self) -> dict[str, str]:
        """Return the group's settings from the broker."""
        resource = ConfigResource(ResourceType.GROUP, self.group)
        entries = self._admin.describe_configs([resource])[resource].result()
        return {name: entry.value for name, entry in entries.items()}

    def publish(self, *values: str, **options: Any) -> None:
        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(self.topic, value=value, **options)
        assert producer.flush(20) == 0

    @contextmanager
    def consumer(self, mode: str = "implicit", **options: Any) -> Iterator[ShareConsumer]:
        """Open a member of the group."""
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "share.acknowledgement.mode": mode,
                **{name.replace("_", "."): value for name, value in options.items()},
            }
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()

    def places(self) -> dict[int, ShareGroupOffset]:
        """Return the group's offset in each partition; empty before it has any."""
        with Cluster(*map(parse_address, self.address.split(","))) as cluster:
            try:
                places = share_group_offsets(cluster, self.group)
            except Refused as refused:
                if refused.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                return {}
        return {place.partition: found for place, found in places.items()}

    def is_done(self) -> bool:
        """Return whether all messages are done."""
        places = self.places()
        return bool(places) and not any(place.lag for place in places.values())


def values_of(messages: Any) -> list[str]:
    """Return the values of a poll; fails on errors."""
    found = []
    for message in messages:
        assert message.error() is None, message.error()
        found.append(message.value().decode())
    return found


def take(consumer: ShareConsumer, within_s: float = 30) -> list[Any]:
    """Return the result of the first poll with messages; they are not acknowledged."""
    return eventually(lambda: list(consumer.poll(0.5)), within_s=within_s, what="messages")


def drain(consumer: ShareConsumer, count: int, within_s: float = 30) -> list[str]:
    """Poll until `count` messages were received and acknowledged, by the next poll or a commit."""
    values: list[str] = []

    def poll() -> bool:
        values.extend(values_of(consumer.poll(0.5)))
        return len(values) >= count

    eventually(poll, within_s=within_s, what=f"{count} messages")
    assert set(consumer.commit_sync(20).values()) == {None}
    return values


def settle(
    consumer: ShareConsumer, messages: Any, how: Callable[[str], AcknowledgeType] | None = None
) -> None:
    """Acknowledge each message with the type that `how` gives for its value, and wait for confirmation."""
    for message in messages:
        kind = AcknowledgeType.ACCEPT if how is None else how(message.value().decode())
        consumer.acknowledge(message, kind)
    for place, error in consumer.commit_sync(20).items():
        assert error is None, (place, error)
