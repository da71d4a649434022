"""A member that uses aiokafka."""

import asyncio
from collections.abc import Iterable
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from .group_member import HEARTBEAT_MS, MOST_AT_ONCE, POLL_S, CommitTimer, Settings, StopSignal, numbers
from .journal import Journal


class Member(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """One consumer, and the listener of its rebalances."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._consumer: Any = None

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        ending, timer = StopSignal(), CommitTimer()
        await self._start()
        try:
            while not ending.is_set:
                records = await self._consumer.getmany(
                    timeout_ms=int(POLL_S * 1000), max_records=MOST_AT_ONCE
                )
                for batch in records.values():
                    for record in batch:
                        self._journal.delivered(record.partition, record.offset, record.timestamp)
                if timer.is_due():
                    await self._commit(self._journal.positions)
            # The library does not report that it gives up its partitions when it leaves.
            await self.on_partitions_revoked(self._consumer.assignment())
        finally:
            # aiokafka leaves the group without calling its listener: nothing is read from here on.
            await self.on_partitions_revoked(self._consumer.assignment())
            await self._consumer.stop()

    async def _start(self) -> None:
        settings = self._settings
        while True:
            self._consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=settings.address,
                group_id=settings.group,
                group_instance_id=settings.instance_id,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=HEARTBEAT_MS,
                fetch_max_wait_ms=50,
                retry_backoff_ms=50,
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            self._consumer.subscribe([settings.topic], listener=self)
            try:
                await self._consumer.start()
            except aiokafka.errors.KafkaConnectionError as error:
                # The broker is restarting: other clients retry by themselves.
                self._journal.refused(error)
                await self._consumer.stop()
            else:
                return

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        generation = self._consumer._coordinator.generation
        self._journal.assigned(generation, numbers(assigned))

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        given_up = numbers(revoked)
        positions = self._journal.positions
        await self._commit({each: positions[each] for each in given_up if each in positions})
        self._journal.revoked(given_up)

    async def _commit(self, positions: dict[int, int]) -> None:
        self._journal.flush()
        if not positions:
            return
        topic = self._settings.topic
        offsets = {
            aiokafka.TopicPartition(topic, partition): offset for partition, offset in positions.items()
        }
        try:
            await self._consumer.commit(offsets)
        except aiokafka.errors.KafkaError as error:
            self._journal.refused(f"commit: {error}")
        else:
            self._journal.committed(dict(positions))
