"""A member that uses kafka-python."""

from collections.abc import Iterable
from typing import Any

import kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError

from .group_member import HEARTBEAT_MS, MOST_AT_ONCE, POLL_S, CommitTimer, Kind, Settings, StopSignal, numbers
from .journal import Journal


class Member(kafka.AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """One consumer, and the listener of its rebalances."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._topic = settings.topic
        self._journal = journal
        incremental = settings.kind is Kind.KAFKA_PYTHON_COOPERATIVE
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=settings.address,
            group_id=settings.group,
            group_instance_id=settings.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            partition_assignment_strategy=[
                CooperativeStickyAssignor if incremental else RangePartitionAssignor
            ],
        )

    def run(self) -> None:
        ending, timer = StopSignal(), CommitTimer()
        self._consumer.subscribe([self._topic], listener=self)
        while not ending.is_set:
            try:
                records = self._consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=MOST_AT_ONCE)
            except KafkaConnectionError:
                continue  # raised if it needs metadata while the broker is down
            for batch in records.values():
                for record in batch:
                    self._journal.delivered(record.partition, record.offset, record.timestamp)
            if timer.is_due():
                self._journal.flush()
                if offsets := self._offsets(self._journal.positions):
                    self._consumer.commit_async(offsets, callback=self._on_commit)
        self._consumer.close(autocommit=False)

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        generation = self._consumer.group_metadata().generation_id
        self._journal.assigned(generation, numbers(assigned))

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        given_up = numbers(revoked)
        positions = self._journal.positions
        self._journal.flush()
        if offsets := self._offsets({each: positions[each] for each in given_up if each in positions}):
            try:
                await self._consumer.commit_async(offsets)
            except KafkaError as error:
                self._journal.refused(f"commit: {error}")
            else:
                self._journal.committed(_committed(offsets))
        self._journal.revoked(given_up)

    async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._journal.revoked(numbers(lost), was_lost=True)

    def _offsets(self, positions: dict[int, int]) -> dict[Any, Any]:
        return {
            kafka.TopicPartition(self._topic, partition): kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in positions.items()
        }

    def _on_commit(self, offsets: dict[Any, Any], answer: Any) -> None:
        if isinstance(answer, Exception):
            self._journal.refused(f"commit: {answer}")
        else:
            self._journal.committed(_committed(offsets))


def _committed(offsets: dict[Any, Any]) -> dict[int, int]:
    return {place.partition: committed.offset for place, committed in offsets.items()}
