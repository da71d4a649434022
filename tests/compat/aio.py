"""aiokafka, the asyncio client; each call runs its own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from .client import DEADLINE_S, Cluster, Record, Refused, replicas_for

P = ParamSpec("P")
T = TypeVar("T")

REQUEST_TIMEOUT_MS = 3000


def blocking(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run a call to completion, within the deadline, and convert the client's errors to ours."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(DEADLINE_S):
                return await call(*args, **kwargs)

        try:
            return asyncio.run(bounded())
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error

    return run


class AioKafka:
    """aiokafka's producer, consumer and admin client."""

    name: ClassVar[str] = "aiokafka"
    sets_timestamps: ClassVar[bool] = True

    def __init__(self, address: str) -> None:
        self._address = address

    @blocking
    async def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int] | None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._address,
            compression_type=None if compression == "none" else compression,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=100_000_000,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            reports = await asyncio.gather(*sent)
        finally:
            await producer.stop()
        return None if acks == "0" else [report.offset for report in reports]

    @blocking
    async def read(
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
        async with self._consumer(auto_offset_reset=reset or "none") as consumer:
            consumer.assign([where])
            consumer.seek(where, start)
            while len(records) < count:
                polled = await consumer.getmany(where, timeout_ms=200, max_records=count - len(records))
                records += [_as_record(message) for message in polled.get(where, ())]
        return records

    @blocking
    async def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            answer = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
        return None if answer is None else answer.offset

    @blocking
    async def partition_count(self, topic: str) -> int:
        async with self._admin() as admin:
            (described,) = await admin.describe_topics([topic])
        if described["error_code"]:
            raise Refused(described["error_code"], topic)
        return len(described["partitions"])

    @blocking
    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        settings: Mapping[str, str] | None = None,
        only_check: bool = False,
    ) -> None:
        replicas = replicas_for(self._address) if replication is None else replication
        new = NewTopic(topic, partitions, replicas, topic_configs=dict(settings or {}))
        async with self._admin() as admin:
            answer = await admin.create_topics([new], validate_only=only_check)
        for _, code, words in answer.topic_errors:
            if code:
                raise Refused(code, words or "")

    @blocking
    async def delete_topic(self, topic: str) -> None:
        async with self._admin() as admin:
            answer = await admin.delete_topics([topic])
        for _, code in answer.topic_error_codes:
            if code:
                raise Refused(code, topic)

    @blocking
    async def topics(self) -> set[str]:
        async with self._admin() as admin:
            return set(await admin.list_topics())

    @blocking
    async def add_partitions(self, topic: str, total: int) -> None:
        async with self._admin() as admin:
            await admin.create_partitions({topic: NewPartitions(total)})

    @blocking
    async def settings(self, topic: str) -> dict[str, str]:
        async with self._admin() as admin:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((code, words, _, _, entries),) = answer.resources
        if code:
            raise Refused(code, words or "")
        return {entry[0]: entry[1] for entry in entries}

    @blocking
    async def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))
        async with self._admin() as admin:
            (answer,) = await admin.alter_configs([resource])
        for code, words, *_ in answer.resources:
            if code:
                raise Refused(code, words or "")

    @blocking
    async def delete_records(self, topic: str, *, before: int, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        async with self._admin() as admin:
            answer = await admin.delete_records({where: RecordsToDelete(before)})
        low: int = answer[where]
        return low

    @blocking
    async def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            earliest = await consumer.beginning_offsets([where])
            latest = await consumer.end_offsets([where])
        return earliest[where], latest[where]

    @blocking
    async def cluster(self) -> Cluster:
        async with self._admin() as admin:
            answer = await admin.describe_cluster()
        return Cluster(
            id=answer["cluster_id"],
            controller=answer["controller_id"],
            brokers={node["node_id"]: f"{node['host']}:{node['port']}" for node in answer["brokers"]},
        )

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    @asynccontextmanager
    async def _consumer(self, **settings: Any) -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False, **settings)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _as_record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )
