"""Asks the leader of a partition how far a producer of the brokers has come there.

For producers whose batches are built again after a failover, maybe with other boundaries: what their leader
has must not be appended again, and what it only seems to have must not be forgotten.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import NotLeader, RequestTimedOut
from alpacamq.model.state_machine import Request

from .routing import LeaderCalls

TIMEOUT_MS = 5_000


class LastSequence(msgspec.Struct, frozen=True, array_like=True):
    """The sequence of the last record that a producer has appended; None if the leader knows of none."""

    last_sequence: int | None


class ProducerProgress(Request[LastSequence], frozen=True, kw_only=True, tag="producer-progress"):
    """Return how far a producer has come, once that is committed; with `is_on_disk`, once it is flushed."""

    place: PartitionId
    producer_id: int
    is_on_disk: bool = False


VALUES: tuple[type[msgspec.Struct], ...] = (ProducerProgress,)


class ProducerSequences:
    """The progress of producers in any partition of the cluster."""

    def __init__(self, leaders: LeaderCalls) -> None:
        self._leaders = leaders

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {ProducerProgress: self._on_progress}

    async def last_sequence(
        self, place: PartitionId, producer_id: int, *, is_on_disk: bool = False
    ) -> int | None:
        """Return the last sequence of a producer, once it is committed. Raises why that is not known now."""
        request = ProducerProgress(place=place, producer_id=producer_id, is_on_disk=is_on_disk)
        found = await self._leaders.ask(
            place, lambda _: self._progress(request), lambda _: request, TIMEOUT_MS
        )
        return found.last_sequence

    async def _on_progress(self, request: ProducerProgress, _peer: Peer) -> LastSequence:
        return await self._progress(request)

    async def _progress(self, request: ProducerProgress) -> LastSequence:
        partition = self._leaders.led_or_raise(request.place)
        last = partition.log.producers.last_sequence(request.producer_id)
        if last is not None:
            end_offset = partition.log.end_offset
            try:
                async with asyncio.timeout(TIMEOUT_MS / 1000):
                    await _until_committed(partition, end_offset)
                    if request.is_on_disk:
                        await partition.flush_to(end_offset)
            except TimeoutError:
                raise RequestTimedOut(f"{partition.identity}: its last records are not committed") from None
        return LastSequence(last)


async def _until_committed(partition: Partition, end_offset: int) -> None:
    """Return once the high watermark has reached an offset. Raises NotLeader if leading ends first."""
    epoch = partition.leader_epoch
    advanced = asyncio.Event()
    watch = object()
    partition.watch(watch, lambda _: advanced.set())
    try:
        while partition.high_watermark < end_offset:
            await advanced.wait()
            advanced.clear()
            if not partition.is_leading or partition.leader_epoch != epoch:
                raise NotLeader(f"{partition.identity} has another leader now")
    finally:
        partition.unwatch(watch)
