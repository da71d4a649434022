"""confluent-kafka, which is librdkafka."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from .client import DEADLINE_S, Cluster, Record, Refused, replicas_for

if TYPE_CHECKING:
    from concurrent.futures import Future

# librdkafka derives these from the metadata or the fetch position.
LOCAL_CODES = {
    KafkaError._UNKNOWN_TOPIC: 3,
    KafkaError._UNKNOWN_PARTITION: 3,
    KafkaError._AUTO_OFFSET_RESET: 1,
}


def refused(error: Any) -> Refused:
    return Refused(LOCAL_CODES.get(error.code(), error.code()), error.str())


class Confluent:
    """confluent-kafka's producer, consumer and admin client."""

    name: ClassVar[str] = "confluent-kafka"
    sets_timestamps: ClassVar[bool] = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._admin_client: Any = None

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int] | None:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "compression.type": compression,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "message.timeout.ms": int(DEADLINE_S * 1000),
                "message.max.bytes": 100_000_000,
                "topic.metadata.propagation.max.ms": 500,
            }
        )
        reports: list[tuple[Any, Any]] = []
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp=record.timestamp_ms or 0,
                on_delivery=lambda error, message: reports.append((error, message)),
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0, "some records have no delivery report"
        for error, _ in reports:
            if error is not None:
                raise refused(error)
        return None if acks == "0" else [message.offset() for _, message in reports]

    def read(
        self,
        topic: str,
        *,
        count: int,
        partition: int = 0,
        start: int = 0,
        reset: str | None = None,
    ) -> list[Record]:
        consumer = self._consumer(**{"auto.offset.reset": reset or "error"})
        consumer.assign([TopicPartition(topic, partition, start)])
        records: list[Record] = []
        deadline = time.monotonic() + DEADLINE_S
        try:
            while len(records) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(records), 0.2):
                    if message.error() is not None:
                        raise refused(message.error())
                    records.append(as_record(message))
        finally:
            consumer.close()
        return records

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        consumer = self._consumer()
        try:
            asked = [TopicPartition(topic, partition, timestamp_ms)]
            (answer,) = consumer.offsets_for_times(asked, timeout=DEADLINE_S)
        finally:
            consumer.close()
        if answer.error is not None:
            raise refused(answer.error)
        return answer.offset if answer.offset >= 0 else None

    def partition_count(self, topic: str) -> int:
        metadata = self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        if metadata.error is not None:
            raise refused(metadata.error)
        return len(metadata.partitions)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        settings: Mapping[str, str] | None = None,
        only_check: bool = False,
    ) -> None:
        replicas = replicas_for(self._address) if replication is None else replication
        new = NewTopic(topic, partitions, replicas, config=dict(settings or {}))
        _result(self._admin.create_topics([new], validate_only=only_check)[topic])

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic])[topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=DEADLINE_S).topics)

    def add_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)])[topic])

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = _result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in entries.items()}

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=dict(settings))
        _result(self._admin.alter_configs([resource])[resource])

    def change_settings(self, topic: str, changes: Mapping[str, tuple[str, str | None]]) -> None:
        """Change settings: name → (set, delete, append or subtract; value)."""
        self._change(ResourceType.TOPIC, topic, changes)

    def change_broker_settings(
        self, broker: int, changes: Mapping[str, tuple[str, str | None]], *, only_check: bool = False
    ) -> None:
        """Change settings of a broker, as `change_settings` does."""
        self._change(ResourceType.BROKER, str(broker), changes, validate_only=only_check)

    def broker_settings(self, broker: int) -> dict[str, tuple[str, str]]:
        """Return the settings of a broker with their sources."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        entries = _result(self._admin.describe_configs([resource])[resource])
        return {name: (entry.value, ConfigSource(entry.source).name) for name, entry in entries.items()}

    def _change(
        self,
        kind: ResourceType,
        name: str,
        changes: Mapping[str, tuple[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType[operation.upper()])
            for setting, (operation, value) in changes.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        answers = self._admin.incremental_alter_configs([resource], validate_only=validate_only)
        _result(answers[resource])

    def delete_records(self, topic: str, *, before: int, partition: int = 0) -> int:
        where = TopicPartition(topic, partition, before)
        low: int = _result(self._admin.delete_records([where])[where]).low_watermark
        return low

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        return (
            self._list_offset(topic, partition, OffsetSpec.earliest())[0],
            self._list_offset(topic, partition, OffsetSpec.latest())[0],
        )

    def newest(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Return offset and timestamp of the record with the largest timestamp."""
        return self._list_offset(topic, partition, OffsetSpec.max_timestamp())

    def replicas(self, topic: str) -> list[set[int]]:
        """Return the brokers with a replica of each partition."""
        partitions = self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return [set(partitions[number].replicas) for number in sorted(partitions)]

    def cluster(self) -> Cluster:
        answer = _result(self._admin.describe_cluster())
        return Cluster(
            id=answer.cluster_id,
            controller=answer.controller.id,
            brokers={node.id: f"{node.host}:{node.port}" for node in answer.nodes},
        )

    def _list_offset(self, topic: str, partition: int, spec: Any) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        answer = _result(self._admin.list_offsets({where: spec})[where])
        return answer.offset, answer.timestamp

    def _consumer(self, **settings: Any) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self._address,
                # The client requires a group name; assign() never joins it.
                "group.id": "none",
                "enable.auto.commit": False,
                "check.crcs": True,
                **settings,
            }
        )

    @property
    def _admin(self) -> Any:
        if self._admin_client is None:
            self._admin_client = AdminClient({"bootstrap.servers": self._address, "log_level": 0})
        return self._admin_client


def as_record(message: Message) -> Record:
    """Convert a consumed message to a Record."""
    return Record(
        value=message.value(),
        key=message.key(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result(DEADLINE_S)
    except KafkaException as error:
        raise refused(error.args[0]) from None
