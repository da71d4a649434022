"""confluent-kafka's share consumer, and what a test has to set up and look at around it."""

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

EARLIEST = {"share.auto.offset.reset": "earliest"}


class Queue:
    """A topic that a share group works off, from the beginning unless told otherwise."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.topic = self.group = name
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(
        self, *, partitions: int = 1, settings: Mapping[str, str] = EARLIEST, **config: str
    ) -> "Queue":
        options = {name.replace("_", "."): text for name, text in config.items()}
        topic = NewTopic(self.topic, partitions, 1, config=options)
        self._admin.create_topics([topic])[self.topic].result()
        if settings:
            self.configure(settings)
        return self

    def configure(self, settings: Mapping[str, str]) -> None:
        """Give the group these settings."""
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result()

    def settings(self) -> dict[str, str]:
        """What the broker says the group is configured with."""
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
        """A member of the group."""
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
        """Where the group is in each partition; nowhere before it is known."""
        with Cluster(parse_address(self.address)) as cluster:
            try:
                places = share_group_offsets(cluster, self.group)
            except Refused as refused:
                if refused.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                return {}
        return {place.partition: found for place, found in places.items()}

    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        places = self.places()
        return bool(places) and not any(place.lag for place in places.values())


def values_of(messages: Any) -> list[str]:
    """What a poll brought; an error among it is a failure."""
    found = []
    for message in messages:
        assert message.error() is None, message.error()
        found.append(message.value().decode())
    return found


def take(consumer: ShareConsumer, within_s: float = 30) -> list[Any]:
    """What the first poll brings that brings anything; it is not acknowledged."""
    return eventually(lambda: list(consumer.poll(0.5)), within_s=within_s, what="messages")


def drain(consumer: ShareConsumer, count: int, within_s: float = 30) -> list[str]:
    """Poll until so many messages have come, and have them acknowledged: by the next poll, or a commit."""
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
    """Acknowledge messages, each as `how` says of its value, and have that confirmed."""
    for message in messages:
        kind = AcknowledgeType.ACCEPT if how is None else how(message.value().decode())
        consumer.acknowledge(message, kind)
    for place, error in consumer.commit_sync(20).items():
        assert error is None, (place, error)
