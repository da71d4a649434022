"""Appends of queues to the topics they move messages to, on any broker.

A move that is repeated after a crash must be recognised although its batch may be another one: the target is
asked first for the last sequence that it has of the move's producer id.
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

from .appends import Placed, RemoteAppends
from .reads import RemoteReads, waiting_for_records
from .routing import LeaderCalls

# How long the record of a move may take to be replicated.
REPLICATED_MS = 10_000


class SequenceFound(msgspec.Struct, frozen=True):
    """The last sequence of a producer; None if the partition knows none."""

    sequence: int | None


class FindSequence(Request[SequenceFound], frozen=True, kw_only=True, tag="find-sequence"):
    """Asks for the last sequence of a producer, once the record that has it is committed and on disk."""

    place: PartitionId
    producer_id: int


VALUES: tuple[type[msgspec.Struct], ...] = (FindSequence,)


class MoveTargets:
    """Appends moved messages to partitions of any broker."""

    def __init__(self, leaders: LeaderCalls, appends: RemoteAppends, reads: RemoteReads) -> None:
        self._leaders = leaders
        self._appends = appends
        self._reads = reads

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The calls that this broker answers."""
        return {FindSequence: self._on_find}

    async def last_sequence(self, place: PartitionId, producer_id: int) -> int | None:
        """Return the last sequence of a producer in a partition, which is committed and on disk."""
        request = FindSequence(place=place, producer_id=producer_id)
        found = await self._leaders.ask(
            place, lambda _: self._find(request), lambda _: request, REPLICATED_MS
        )
        return found.sequence

    async def append(self, place: PartitionId, batch: bytearray) -> Placed:
        """Append a batch; returns once it is committed, and on disk whatever the topic's settings say."""
        placed = await self._appends.append(place.topic_id, place.partition, batch)
        await self._reads.flush(place, placed.next_offset)
        return placed

    async def _find(self, request: FindSequence) -> SequenceFound:
        partition = self._leaders.led_or_raise(request.place)
        return SequenceFound(await _last_sequence(partition, request.producer_id))

    async def _on_find(self, request: FindSequence, _peer: Peer) -> SequenceFound:
        return await self._find(request)


async def _last_sequence(partition: Partition, producer_id: int) -> int | None:
    sequence = partition.log.producers.last_sequence(producer_id)
    if sequence is None:
        return None
    end_offset = partition.end_offset
    await partition.flush_to(end_offset)
    loop = asyncio.get_running_loop()
    until = loop.time() + REPLICATED_MS / 1000
    with waiting_for_records([partition]) as waiter:
        while partition.high_watermark < end_offset:
            if not partition.is_leading:
                raise NotLeader(f"this broker does not lead {partition.identity} any more")
            if loop.time() >= until:
                raise RequestTimedOut(f"{partition.identity} is not replicated up to {end_offset}")
            await waiter.wait(until - loop.time())
    return sequence
