"""kafka-python, the pure Python client."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, for_code
from kafka.protocol.consumer.offsets import OffsetSpec

from .client import DEADLINE_S, Cluster, Record, Refused, replicas_for

BLOCK_MS = 3000


@contextmanager
def refusals() -> Iterator[None]:
    """Convert the client's errors to ours."""
    try:
        yield
    except KafkaError as error:
        raise Refused(getattr(error, "errno", -1), str(error)) from error


class KafkaPython:
    """kafka-python's producer, consumer and admin client."""

    name: ClassVar[str] = "kafka-python"
    sets_timestamps: ClassVar[bool] = True

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int] | None:
        producer = KafkaProducer(
            bootstrap_servers=self._address,
            compression_type=None if compression == "none" else compression,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=20,
            max_block_ms=BLOCK_MS,
            max_request_size=100_000_000,
        )
        with closing(producer), refusals():
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(DEADLINE_S)
            offsets = [future.get(DEADLINE_S).offset for future in sent]
        return None if acks == "0" else offsets

    def read(
        self,
        topic: str,
        *,
        count: int,
        partition: int = 0,
        start: int = 0,
        reset: str | None = None,
    ) -> list[Record]:
        where = TopicPartition(topic, partition)
        records: list[Record] = []
        deadline = time.monotonic() + DEADLINE_S
        with self._consumer(auto_offset_reset=reset or "none") as consumer, refusals():
            consumer.assign([where])
            consumer.seek(where, start)
            while len(records) < count and time.monotonic() < deadline:
                polled = consumer.poll(200, max_records=count - len(records))
                records += [_as_record(message) for message in polled.get(where, ())]
        return records

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer, refusals():
            answer = consumer.offsets_for_times({where: timestamp_ms})[where]
        return None if answer is None else answer.offset

    def partition_count(self, topic: str) -> int:
        with self._admin() as admin:
            (described,) = admin.describe_topics([topic])
        if described["error_code"]:
            raise Refused(described["error_code"], str(for_code(described["error_code"])))
        return len(described["partitions"])

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
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": dict(settings or {}),
        }
        with self._admin() as admin:
            answer = admin.create_topics({topic: wanted}, validate_only=only_check, raise_errors=False)
        _check(answer["topics"])

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            answer = admin.delete_topics([topic], raise_errors=False)
        _check(answer["topics"])

    def topics(self) -> set[str]:
        with self._admin() as admin:
            return set(admin.list_topics())

    def add_partitions(self, topic: str, total: int) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: total})

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        with self._admin() as admin:
            answer = admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in answer["topic"][topic].items()}

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        # This client sends every modified setting, so that none is reset by accident.
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings)), incremental=False)

    def change_settings(self, topic: str, changes: Mapping[str, tuple[str, str | None]]) -> None:
        """Change settings: name → (set, delete, append or subtract; value)."""
        settings = {name: (how.upper(), value) for name, (how, value) in changes.items()}
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic, settings), incremental=True)

    def change_broker_settings(
        self, broker: int, changes: Mapping[str, tuple[str, str | None]], *, only_check: bool = False
    ) -> None:
        """Change settings of a broker, as `change_settings` does."""
        settings = {name: (how.upper(), value) for name, (how, value) in changes.items()}
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker), settings)
        self._alter(resource, incremental=True, validate_only=only_check)

    def broker_settings(self, broker: int) -> dict[str, tuple[str, str]]:
        """Return the settings of a broker with their sources."""
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker))
        with self._admin() as admin:
            answer = admin.describe_configs([resource], config_filter="all")
        entries = answer["broker"][str(broker)]
        return {name: (entry["value"], entry["config_source"]) for name, entry in entries.items()}

    def delete_records(self, topic: str, *, before: int, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        with self._admin() as admin:
            answer = admin.delete_records({where: before})
        low: int = answer[where]["low_watermark"]
        return low

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        return (
            self._list_offset(topic, partition, OffsetSpec.EARLIEST).offset,
            self._list_offset(topic, partition, OffsetSpec.LATEST).offset,
        )

    def newest(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Return offset and timestamp of the record with the largest timestamp."""
        answer = self._list_offset(topic, partition, OffsetSpec.MAX_TIMESTAMP)
        return answer.offset, answer.timestamp

    def cluster(self) -> Cluster:
        with self._admin() as admin:
            answer = admin.describe_cluster()
        return Cluster(
            id=answer["cluster_id"],
            controller=answer["controller_id"],
            brokers={node["broker_id"]: f"{node['host']}:{node['port']}" for node in answer["brokers"]},
        )

    def log_dirs(self, topic: str) -> list[dict[str, Any]]:
        """Return every log directory of every broker with its part of `topic`."""
        with self._admin() as admin:
            answers = admin.describe_log_dirs([topic])
        return [directory for answer in answers for directory in answer["log_dirs"]]

    def topic_partitions(self, topics: Sequence[str], limit: int = 2000) -> list[tuple[str, int]]:
        """Return every partition by DescribeTopicPartitions, in as many pages as necessary."""
        found: list[tuple[str, int]] = []
        cursor = None
        with self._admin() as admin:
            while True:
                page = admin.describe_topic_partitions(list(topics), limit, cursor)
                found += [
                    (topic["name"], partition["partition_index"])
                    for topic in page["topics"]
                    for partition in topic["partitions"]
                ]
                cursor = page["next_cursor"]
                if cursor is None:
                    return found

    def _alter(self, resource: ConfigResource, *, incremental: bool, validate_only: bool = False) -> None:
        with self._admin() as admin:
            # Unknown names are sent to the broker: its answer is tested.
            answer = admin.alter_configs(
                [resource], validate_only=validate_only, raise_on_unknown=False, incremental=incremental
            )
        outcome = answer[resource.resource_type.name.lower()][resource.name]
        if outcome != "OK":
            number = re.search(r"\[Error (\d+)\]", outcome)
            raise Refused(int(number[1]) if number else -1, outcome)

    def _list_offset(self, topic: str, partition: int, spec: Any) -> Any:
        where = TopicPartition(topic, partition)
        with self._admin() as admin:
            return admin.list_partition_offsets({where: spec})[where]

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        with closing(KafkaAdminClient(bootstrap_servers=self._address)) as admin, refusals():
            yield admin

    @contextmanager
    def _consumer(self, **settings: Any) -> Iterator[Any]:
        consumer = KafkaConsumer(
            bootstrap_servers=self._address,
            enable_auto_commit=False,
            check_crcs=True,
            allow_auto_create_topics=False,
            **settings,
        )
        with closing(consumer):
            yield consumer


def _as_record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def _check(topics: Sequence[Mapping[str, Any]]) -> None:
    for topic in topics:
        if topic["error_code"]:
            raise Refused(topic["error_code"], topic.get("error_message") or "")
