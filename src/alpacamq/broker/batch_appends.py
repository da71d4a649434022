"""Appends batches that clients of streams have encoded, or that were encoded for them.

The Kafka API has its own path, for requests with many partitions and responses in order. The checks are the
same. A batch may go to a partition of any broker.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity
from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import AlpacaError, InvalidRecord, InvalidRequest, NotLeader
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.records import read_contents
from alpacamq.model.topics import TopicConfig

from .delay.split import DelayedBatches, may_hold_delays
from .partition.appends import Acks, Append
from .partition.leader import Partition, WriteBatcher
from .partition.validation import admit, check_writable, needs_unpacking, unpacked
from .remote.appends import Placed, RemoteAppends, placed
from .schemas.checks import SchemaChecks
from .topics import Topics
from .tracing.partition import Origin
from .transactions import Transactions, enlist

Outcome = Placed | AlpacaError
Data = bytearray | memoryview


class BatchAppends:
    """Appends batches to partitions of any broker."""

    def __init__(
        self,
        topics: Topics,
        appends: RemoteAppends,
        transactions: Transactions,
        delayed_batches: DelayedBatches,
        staged: WriteBatcher,
        schema_checks: SchemaChecks,
        *,
        clock: Clock,
        executor: Executor,
        unpacked_limit_bytes: int,
        check_storage: Callable[[str], None],
    ) -> None:
        """`check_storage` raises an error for a topic whose tenant may not store more."""
        self._topics = topics
        self._appends = appends
        self._transactions = transactions
        self._delayed_batches = delayed_batches
        self._staged = staged
        self._schema_checks = schema_checks
        self._clock = clock
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._check_storage = check_storage
        # The last batch of each producer on its way to a partition of another broker.
        self._last: dict[tuple[PartitionId, int], asyncio.Future[Outcome]] = {}

    async def begin(
        self,
        topic: str,
        index: int,
        data: bytearray,
        *,
        acks: Acks,
        timeout_ms: int,
        origin: Origin,
        transactional_id: str | None = None,
    ) -> "asyncio.Future[Outcome]":
        """Begin to append a batch; the outcome comes with the future.

        Batches of one partition are appended in the order of these calls, if each is made after the one
        before has returned. Raises an error if the batch is refused.
        """
        check_writable(TopicPartition(TopicName(topic), index))
        self._check_storage(topic)
        key = topic.encode()
        found = self._topics.find(key, index)
        if found is None:
            return await self._begin_elsewhere(topic, index, data, timeout_ms, origin, transactional_id)
        batch, header = admit(data, found.config, self._clock.now_ms())
        config = found.config
        if header.is_transactional or (transactional_id is not None):
            _check_transactional(header, transactional_id)
        if (
            config.checks_schemas
            or needs_unpacking(config, header)
            or (config.message_delays and may_hold_delays(batch, header))
        ):
            batch, header = await self._prepared(found, batch, header, origin)
        if transactional_id is not None:
            await self._enlist(found, header, transactional_id)
        return self._stage(found, batch, header, acks, timeout_ms, origin)

    def _stage(
        self,
        partition: Partition,
        data: Data,
        header: BatchHeader,
        acks: Acks,
        timeout_ms: int,
        origin: Origin,
    ) -> "asyncio.Future[Outcome]":
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def ended() -> None:
            # Only if nothing was written: the next leader does not recognise it.
            if isinstance(append.outcome, NotLeader) and append.data and not self._appends.is_alone:
                place = PartitionId(partition.topic_id, partition.identity.partition)
                self._submit(place, bytearray(append.data), header, timeout_ms, origin, done)
            elif not done.done():
                done.set_result(placed(partition, append))

        trace = None
        if (traces := partition.traces) is not None and not header.is_control:
            trace = traces.produce_trace(data, header, origin.client, origin.api)
        append = Append(data, header, ended, trace, acks, timeout_ms)
        if partition.stage(append):
            self._staged.stage(partition)
        self._staged.commit_soon()
        return done

    async def _prepared(
        self, partition: Partition, data: Data, header: BatchHeader, origin: Origin
    ) -> tuple[Data, BatchHeader]:
        """Return a batch after the checks and changes that need its records."""
        config = partition.config
        if config.checks_schemas:
            await self._schema_checks.check_batch(partition, data, header)
        data, header = await self._unpacked(data, header, config)
        if config.message_delays and may_hold_delays(data, header):
            data, header = await self._delayed_batches.without_delayed(partition, data, header, origin)
        return data, header

    async def _unpacked(
        self, data: Data, header: BatchHeader, config: TopicConfig
    ) -> tuple[Data, BatchHeader]:
        if not needs_unpacking(config, header):
            return data, header
        work = partial(unpacked, data, header, config, self._unpacked_limit_bytes)
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _enlist(self, partition: Partition, header: BatchHeader, transactional_id: str) -> None:
        """Add a partition to the transaction of a producer if necessary. Append before the next await."""
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        wanted = AddPartitions(
            transactional_id=transactional_id, producer=producer, partitions=(partition.identity,)
        )
        errors = await enlist(producer, (partition,), lambda _: self._transactions.add_partitions(wanted))
        if (error := errors.get(partition.identity)) is not None:
            raise error

    async def _begin_elsewhere(
        self,
        topic: str,
        index: int,
        data: bytearray,
        timeout_ms: int,
        origin: Origin,
        transactional_id: str | None,
    ) -> "asyncio.Future[Outcome]":
        """Begin to append a batch to a partition that this broker does not lead."""
        absence = self._topics.absence(topic.encode(), index)
        if not isinstance(absence, NotLeader) or self._appends.is_alone:
            raise absence
        known = self._topics.image.topic(topic)
        config = self._topics.config_of(known)
        batch, header = admit(data, config, self._clock.now_ms())
        if header.is_transactional or transactional_id is not None:
            _check_transactional(header, transactional_id)
            raise absence  # only the leader knows whether the partition is part of the transaction
        if config.message_delays and may_hold_delays(batch, header):
            raise absence  # and which delayed records of a batch that is sent again are scheduled
        if config.checks_schemas:
            refused = await self._schema_checks.check_messages(topic, config, list(read_contents(batch)))
            for error in refused.values():
                raise error
        batch, header = await self._unpacked(batch, header, config)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._submit(PartitionId(known.id, index), bytearray(batch), header, timeout_ms, origin, done)
        return done

    def _submit(
        self,
        place: PartitionId,
        data: bytearray,
        header: BatchHeader,
        timeout_ms: int,
        origin: Origin,
        done: "asyncio.Future[Outcome]",
    ) -> None:
        """Send a batch to the leader of its partition; those of one producer one after another."""

        def send(_before: object = None) -> None:
            self._appends.submit(place, data, origin, timeout_ms=timeout_ms).add_done_callback(end)

        def end(sent: "asyncio.Future[Outcome]") -> None:
            if not done.done():
                done.set_result(sent.result())

        if header.producer_id < 0:
            send()
            return
        key = (place, header.producer_id)
        before, self._last[key] = self._last.get(key), done

        def forget(_done: object) -> None:
            if self._last.get(key) is done:
                del self._last[key]

        done.add_done_callback(forget)
        if before is None:
            send()
        else:
            before.add_done_callback(send)


def _check_transactional(header: BatchHeader, transactional_id: str | None) -> None:
    if header.is_transactional != (transactional_id is not None):
        raise InvalidRequest("a transactional batch requires a transactional id and vice versa")
    if header.producer_id < 0:
        raise InvalidRecord("a transactional batch needs a producer id")
