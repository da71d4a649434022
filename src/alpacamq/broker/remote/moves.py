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
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.topics import Topics
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import NotLeader, RequestTimedOut
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request

from .appends import Placed, RemoteAppends
from .reads import RemoteReads, waiting_for_records

CALL_MS = 10_000


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

    def __init__(
        self, topics: Topics, appends: RemoteAppends, reads: RemoteReads, peers: Peers | None
    ) -> None:
        self._topics = topics
        self._appends = appends
        self._reads = reads
        self._peers = peers

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The calls that this broker answers."""
        return {FindSequence: self._on_find}

    async def last_sequence(self, place: PartitionId, producer_id: int) -> int | None:
        """Return the last sequence of a producer in a partition, which is committed and on disk."""
        if (partition := self._topics.find(place.topic_id.bytes, place.partition)) is not None:
            return await _last_sequence(partition, producer_id)
        error = self._topics.absence(place.topic_id.bytes, place.partition)
        if not isinstance(error, NotLeader) or error.leader is None or self._peers is None:
            raise error
        request = FindSequence(place=place, producer_id=producer_id)
        return (await self._peers.call(BrokerId(error.leader), request, CALL_MS)).sequence

    async def append(self, place: PartitionId, batch: bytearray) -> Placed:
        """Append a batch; returns once it is committed, and on disk whatever the topic's settings say."""
        placed = await self._appends.append(place.topic_id, place.partition, batch)
        await self._reads.flush(place, placed.next_offset)
        return placed

    async def _on_find(self, request: FindSequence, _peer: Peer) -> SequenceFound:
        place = request.place
        if (partition := self._topics.find(place.topic_id.bytes, place.partition)) is None:
            raise self._topics.absence(place.topic_id.bytes, place.partition)
        return SequenceFound(await _last_sequence(partition, request.producer_id))


async def _last_sequence(partition: Partition, producer_id: int) -> int | None:
    sequence = partition.log.producers.last_sequence(producer_id)
    if sequence is None:
        return None
    end_offset = partition.end_offset
    await partition.flush_to(end_offset)
    loop = asyncio.get_running_loop()
    until = loop.time() + CALL_MS / 1000
    with waiting_for_records([partition]) as waiter:
        while partition.high_watermark < end_offset:
            if not partition.is_leading:
                raise NotLeader(f"this broker does not lead {partition.identity} any more")
            if loop.time() >= until:
                raise RequestTimedOut(f"{partition.identity} is not replicated up to {end_offset}")
            await waiter.wait(until - loop.time())
    return sequence
