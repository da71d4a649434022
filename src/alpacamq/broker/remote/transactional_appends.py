"""Appends of the HTTP API's transactions, to partitions of any broker.

The leader of a partition adds it to the transaction and continues the producer's sequence from its log: such
a producer sends none. So a call whose outcome is unknown is not repeated.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from alpacamq.broker.partition.leader import Partition, WriteBatcher
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.broker.transactions import Transactions, enlist
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity
from alpacamq.model.batch import read_header, stamp_producer
from alpacamq.model.errors import (
    AlpacaError,
    LeaderNotAvailable,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    UnknownBroker,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicPartition
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.tracing import ClientApi

from .appends import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    TIMEOUT_MS,
    AppendedBatches,
    Placed,
    begin_appends,
)

# How long an append follows a leader that moves.
FOLLOW_SECONDS = 15.0
_SEQUENCE_MASK = 0x7FFF_FFFF


class TransactionalProducer(msgspec.Struct, frozen=True, kw_only=True):
    """The producer of a transaction; the partitions it writes to are added to the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class AppendInTransaction(Request[AppendedBatches], frozen=True, kw_only=True, tag="append-in-transaction"):
    """Batches of a transaction for one partition, in order."""

    topic: TopicId
    partition: int
    producer: TransactionalProducer
    batches: tuple[bytes, ...]
    origin: tuple[ClientApi, str]


VALUES: tuple[type[msgspec.Struct], ...] = (AppendInTransaction,)

Results = list[Placed | AlpacaError]


def has_not_begun(error: AlpacaError) -> bool:
    """Return whether a failed call has certainly appended nothing, and the next may find a leader.

    Not the error of a batch: a leader that is replaced may have appended it.
    """
    return isinstance(
        error,
        LeaderNotAvailable
        | NotLeader
        | PartitionNotReady
        | PeerUnavailable
        | UnknownBroker
        | UnknownTopic
        | UnknownTopicId,
    )


class TransactionalAppends:
    """Appends the batches of a transaction."""

    def __init__(
        self, topics: Topics, transactions: Transactions, staged: WriteBatcher, peers: Peers | None
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._staged = staged
        self._peers = peers

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {AppendInTransaction: self._on_append}

    async def append(
        self,
        producer: TransactionalProducer,
        batches: Mapping[PartitionId, Sequence[bytearray]],
        origin: Origin,
    ) -> dict[PartitionId, Results]:
        """Append batches to partitions of any broker; return the outcome of each, in order.

        Follows leaders that move for a limited time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FOLLOW_SECONDS
        pause_seconds = FIRST_RETRY_SECONDS
        results: dict[PartitionId, Results] = {}
        while True:
            attempted = {place: some for place, some in batches.items() if place not in results}
            done, not_begun = await self._attempt(producer, attempted, origin)
            results |= done
            if not not_begun:
                return results
            if self._peers is None or loop.time() + pause_seconds >= deadline:
                return results | {place: [error] * len(batches[place]) for place, error in not_begun.items()}
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MAX_RETRY_SECONDS)

    async def _attempt(
        self,
        producer: TransactionalProducer,
        batches: Mapping[PartitionId, Sequence[bytearray]],
        origin: Origin,
    ) -> tuple[dict[PartitionId, Results], dict[PartitionId, AlpacaError]]:
        """Return the outcomes, and the errors of partitions whose leaders have certainly appended nothing."""
        led = {place: self._topics.find(place.topic_id.bytes, place.partition) for place in batches}
        here = {place: partition for place, partition in led.items() if partition is not None}
        elsewhere = [place for place, partition in led.items() if partition is None]
        calls = asyncio.gather(
            *(self._append_elsewhere(producer, place, batches[place], origin) for place in elsewhere)
        )
        try:
            results = await self._append_here(producer, here, batches, origin)
            outcomes = await calls
        finally:
            calls.cancel()
        not_begun: dict[PartitionId, AlpacaError] = {}
        for place, outcome in zip(elsewhere, outcomes, strict=True):
            if not isinstance(outcome, AlpacaError):
                results[place] = outcome
            elif has_not_begun(outcome) and self._topics.exists(place.topic_id.bytes, place.partition):
                not_begun[place] = outcome
            else:
                results[place] = [outcome] * len(batches[place])
        return results, not_begun

    async def _append_elsewhere(
        self,
        producer: TransactionalProducer,
        place: PartitionId,
        batches: Sequence[bytearray],
        origin: Origin,
    ) -> Results | AlpacaError:
        """Return the outcomes of batches, or the error of the call."""
        try:
            error = self._topics.absence(place.topic_id.bytes, place.partition)
            if not isinstance(error, NotLeader) or error.leader is None or self._peers is None:
                raise error
            value = AppendInTransaction(
                topic=place.topic_id,
                partition=place.partition,
                producer=producer,
                batches=tuple(map(bytes, batches)),
                origin=(origin.api, origin.client),
            )
            reply = await self._peers.call(BrokerId(error.leader), value, TIMEOUT_MS)
        except AlpacaError as error:
            return error.with_traceback(None)
        return reply.outcomes

    async def _append_here(
        self,
        producer: TransactionalProducer,
        partitions: Mapping[PartitionId, Partition],
        batches: Mapping[PartitionId, Sequence[bytearray]],
        origin: Origin,
    ) -> dict[PartitionId, Results]:
        """Append to partitions of this broker, after adding them to the transaction where necessary."""
        identity = ProducerIdentity(producer.producer_id, producer.producer_epoch)

        async def add(joining: Sequence[Partition]) -> dict[TopicPartition, AlpacaError]:
            wanted = AddPartitions(
                transactional_id=producer.transactional_id,
                producer=identity,
                partitions=tuple(partition.identity for partition in joining),
            )
            return await self._transactions.add_partitions(wanted)

        refusals = await enlist(identity, tuple(partitions.values()), add)
        # Nothing else may run from here to the commits: sequences continue from the log's current state.
        self._staged.commit()
        results: dict[PartitionId, Results] = {}
        begun = {}
        for place, partition in partitions.items():
            if (refusal := refusals.get(partition.identity)) is not None:
                results[place] = [refusal] * len(batches[place])
                continue
            sequence = partition.log.producers.next_sequence(producer.producer_id, producer.producer_epoch)
            for batch in batches[place]:
                stamp_producer(batch, producer.producer_id, producer.producer_epoch, sequence)
                sequence = (sequence + read_header(batch).record_count) & _SEQUENCE_MASK
            entries = [(batch, origin) for batch in batches[place]]
            begun[place] = begin_appends(partition, entries, TIMEOUT_MS)
        for place, appending in begun.items():
            results[place] = await appending
        return results

    async def _on_append(self, value: AppendInTransaction, _peer: Peer) -> AppendedBatches:
        place = PartitionId(value.topic, value.partition)
        if (partition := self._topics.find(value.topic.bytes, value.partition)) is None:
            raise self._topics.absence(value.topic.bytes, value.partition)
        batches = {place: [bytearray(batch) for batch in value.batches]}
        origin = Origin(*value.origin)
        appended = await self._append_here(value.producer, {place: partition}, batches, origin)
        return AppendedBatches.of(appended[place])
