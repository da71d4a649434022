"""Produce: batches from a client into partitions, and the acknowledgement when they are in.

Nothing here looks at records. A topic that needs its records looked at (compacted, with a compression
of its own, or with delays) is served off the event loop, and the first batch of a transaction in a
partition waits for the coordinator's word. Both hold up their connection meanwhile, so that
batches keep their order.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.split import may_hold_delays
from alpacamq.broker.enlisting import join_transaction, while_none_ends
from alpacamq.broker.partition.leader import Append, Partition
from alpacamq.broker.partition.validation import (
    admit,
    check_replicas,
    check_writable,
    needs_unpacking,
    unpacked,
)
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.transactions.transaction import ProducerIdentity, TransactionPartitions
from alpacamq.model.batch import BatchHeader, Codec
from alpacamq.model.errors import (
    AlpacaError,
    FencedProducer,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopic,
    UnknownTopicId,
    UnsupportedCompression,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ManyEntries, ProtocolError
from alpacamq.protocol.framing import RequestHeader, response_frame
from alpacamq.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from alpacamq.protocol.notation import ZERO_UUID
from alpacamq.protocol.produce_codec import (
    TOPIC_IDS_FROM,
    PartitionProduced,
    ProduceCall,
    decode_produce,
    decode_produce_in_slices,
    encode_produce_response,
)
from alpacamq.protocol.schema import encode_in_slices
from alpacamq.telemetry.tracing import ClientApi

from .errors import code_of, text_of
from .turns import Work

if TYPE_CHECKING:
    from .connection import Answer, Connection

# Kafka's own producer would need larger requests than it makes for more.
MAX_PRODUCED_PARTITIONS = 20_000
# A larger request is staged and written in slices.
BYTES_AT_ONCE = 4 << 20
# Batches that are appended without a stop after the coordinator has agreed to them.
DEFERRED_AT_ONCE = 200

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
_ZSTD_FROM = 7
_ABORTABLE_FROM = 11
_JOINS_BY_WRITING_FROM = 12


# What became of a partition's batch, or the append that will tell.
Entry = PartitionProduced | tuple[Partition, Append]


@dataclass(slots=True)
class Deferred:
    """A batch that cannot be appended at once, and where its result goes."""

    entries: list[Entry]
    at: int
    partition: Partition
    data: bytearray | memoryview
    header: BatchHeader
    # Whether the coordinator has to be asked if the partition is part of the producer's transaction.
    joins_transaction: bool


class PendingProduce:
    """A Produce request some of whose batches may not be in yet."""

    __slots__ = (
        "_answer",
        "_connection",
        "_correlation_id",
        "_entries",
        "_missing",
        "_stats",
        "_version",
        "acks",
        "client_id",
    )

    def __init__(
        self, connection: "Connection", answer: "Answer | None", header: RequestHeader, call: ProduceCall
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._version = header.api_version
        self._correlation_id = header.correlation_id
        self._entries: list[tuple[bytes, list[Entry]]] = []
        self._stats = connection.request_stats
        self._missing = 1  # the request itself, until all of it has been staged
        self.acks = call.acks
        self.client_id = header.client_id

    def topic(self, key: bytes) -> list[Entry]:
        """The results of one more topic, to be filled by the caller."""
        entries: list[Entry] = []
        self._entries.append((key, entries))
        return entries

    def stage(self, broker: Broker, partition: Partition, append: Append) -> None:
        self._missing += 1
        if partition.stage(append):
            broker.stage(partition)

    def done(self) -> None:
        """One more part is finished; the last one answers."""
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        topics = [(key, [self._result(entry) for entry in entries]) for key, entries in self._entries]
        if self._answer is not None:
            self._answer.fill((encode_produce_response(self._version, self._correlation_id, topics),))
        else:
            self._end_unanswered(
                any_refused=any(result.error_code for _, results in topics for result in results)
            )

    def _end_unanswered(self, *, any_refused: bool) -> None:
        if self._stats is not None:
            self._stats.seconds.observe(monotonic() - self._connection.received_at)
        if any_refused:
            # A client that wants no acknowledgement can only learn of a failure this way.
            self._connection.close("a batch sent with acks=0 was refused")

    def _result(self, entry: Entry) -> PartitionProduced:
        result = entry if isinstance(entry, PartitionProduced) else _result(*entry)
        if result.error_code and self._stats is not None:
            self._stats.refused(ErrorCode(result.error_code).name)
        return result


class LargeProduce(PendingProduce):
    """A Produce request with so many partitions that it is answered in slices."""

    __slots__ = ("all_in",)

    def __init__(
        self, connection: "Connection", answer: "Answer | None", header: RequestHeader, call: ProduceCall
    ) -> None:
        super().__init__(connection, answer, header, call)
        self.all_in = asyncio.Event()

    def _finish(self) -> None:
        self.all_in.set()

    async def answer_in_slices(self, work: Work) -> None:
        """Answer, once all is in."""
        by_id = self._version >= TOPIC_IDS_FROM
        responses = []
        any_refused = False
        for key, entries in self._entries:
            await work.pause()
            results = []
            for entry in entries:
                await work.pause()
                result = self._result(entry)
                any_refused |= bool(result.error_code)
                results.append(
                    PartitionProduceResponse(
                        index=result.partition,
                        error_code=result.error_code,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.log_start_offset,
                        error_message=result.error_message,
                    )
                )
            responses.append(
                TopicProduceResponse(
                    name="" if by_id else key.decode(),
                    topic_id=UUID(bytes=key) if by_id else ZERO_UUID,
                    partition_responses=results,
                )
            )
        if self._answer is None:
            self._end_unanswered(any_refused=any_refused)
            return
        body = await work.run(encode_in_slices(ProduceResponse(responses=responses), self._version))
        api = APIS[ApiKey.PRODUCE]
        self._answer.fill((response_frame(api, self._version, self._correlation_id, body),))


def _joins_transaction(call: ProduceCall, partition: Partition, batch: BatchHeader) -> bool:
    """Whether the batch may be the first of its transaction in the partition."""
    if batch.is_transactional != (call.transactional_id is not None):
        raise InvalidRequest("a transactional batch and a transactional id come together or not at all")
    return batch.is_transactional and partition.log.transactions.open_offset(batch.producer_id) is None


def _result(partition: Partition, append: Append) -> PartitionProduced:
    index = partition.identity.partition
    outcome = append.outcome
    if isinstance(outcome, AlpacaError):
        return refused(index, outcome, partition.log.start_offset)
    assert outcome is not None
    append_time = (
        append.header.max_timestamp if partition.config.message_timestamp_type == "LogAppendTime" else -1
    )
    return PartitionProduced(index, 0, outcome.base_offset, append_time, partition.log.start_offset)


def refused(index: int, error: AlpacaError, log_start_offset: int = -1) -> PartitionProduced:
    """The result of a batch that did not get in."""
    return PartitionProduced(index, code_of(error), -1, -1, log_start_offset, text_of(error))


class ProduceRequests:
    """Handles Produce requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        """Stage a request's batches; they are written when the turn ends."""
        try:
            if len(frame) > BYTES_AT_ONCE:
                raise ManyEntries
            call = decode_produce(header.api_version, frame, header.body_at)
        except ManyEntries:
            connection.hold()
            # Not to be given up half-way: what has been staged so far is part of the log.
            work = Work(connection.turns, lambda: True, len(frame))
            connection.spawn(
                work.drive(self._handle_in_slices(connection, header, connection.kept(frame), work))
            )
            return
        answer = None if call.acks == ACKS_NONE else connection.reserve()
        pending = PendingProduce(connection, answer, header, call)
        deferred: list[Deferred] = []
        for _ in self._stage(header, call, pending, deferred):
            pass
        if deferred:
            connection.hold()
            connection.spawn(self._catch_up(connection, pending, header.api_version, call, deferred))
        else:
            pending.done()

    async def _handle_in_slices(
        self, connection: "Connection", header: RequestHeader, frame: memoryview, work: Work
    ) -> None:
        """Do for a request with much in it what `handle` does; what was staged is written at every stop."""
        try:
            with connection.cancelling_on_close():
                await work.begin()
                call = await work.run(decode_produce_in_slices(header.api_version, frame, header.body_at))
            if sum(max(len(partitions), 1) for _, partitions in call.topics) > MAX_PRODUCED_PARTITIONS:
                raise ProtocolError(
                    f"a Produce request may name {MAX_PRODUCED_PARTITIONS} partitions at most"
                )
            answer = None if call.acks == ACKS_NONE else connection.reserve()
            pending = LargeProduce(connection, answer, header, call)
            deferred: list[Deferred] = []
            for _ in self._stage(header, call, pending, deferred):
                if work.is_over:
                    self._broker.commit()
                    await work.pause()
            self._broker.commit()
            await self._append_in_slices(pending, header.api_version, call, deferred, work)
            pending.done()
            work.leave()
            del frame, call, deferred
            connection.proceed()  # its answer has its place, and all of it is in the log
            await pending.all_in.wait()
            await pending.answer_in_slices(work)
        finally:
            work.leave()

    def _stage(
        self, header: RequestHeader, call: ProduceCall, pending: PendingProduce, deferred: list[Deferred]
    ) -> Iterator[None]:
        """Stage the batches of a request, with a stop after each; those that cannot be are `deferred`."""
        now_ms = self._broker.clock.now_ms()
        find = self._broker.topics.find
        for key, partitions in call.topics:
            entries = pending.topic(key)
            yield
            for index, records in partitions:
                yield
                try:
                    if (partition := find(key, index)) is None:
                        raise self._unknown(header.api_version, key, index)
                    self._check(call, partition)
                    if not records:
                        raise InvalidRecord(f"no batch was sent for partition {index}")
                    data, batch = admit(records, partition.config, now_ms)
                    if batch.attributes & 7 == Codec.ZSTD and header.api_version < _ZSTD_FROM:
                        raise UnsupportedCompression(f"zstd needs Produce version {_ZSTD_FROM} or later")
                    joins = _joins_transaction(call, partition, batch)
                    if (
                        joins
                        or needs_unpacking(partition.config, batch)
                        or (partition.config.message_delays and may_hold_delays(data, batch))
                    ):
                        # The frame is gone when the turn ends: what is worked on later is copied.
                        deferred.append(
                            Deferred(entries, len(entries), partition, bytearray(data), batch, joins)
                        )
                        entries.append(PartitionProduced(index))
                        continue
                except AlpacaError as error:
                    entries.append(refused(index, error))
                    continue
                traces = partition.traces
                arrival = None if traces is None else traces.arrival(data, batch, header.client_id)
                append = Append(data, batch, pending.done, arrival)
                entries.append((partition, append))
                pending.stage(self._broker, partition, append)

    async def _catch_up(
        self,
        connection: "Connection",
        pending: PendingProduce,
        version: int,
        call: ProduceCall,
        deferred: Sequence[Deferred],
    ) -> None:
        await self._append_deferred(pending, version, call, deferred)
        pending.done()
        connection.proceed()

    async def _append_in_slices(
        self,
        pending: PendingProduce,
        version: int,
        call: ProduceCall,
        deferred: Sequence[Deferred],
        work: Work,
    ) -> None:
        for start in range(0, len(deferred), DEFERRED_AT_ONCE):
            some = deferred[start : start + DEFERRED_AT_ONCE]
            await self._append_deferred(pending, version, call, some)
            await work.pause()

    async def _append_deferred(
        self, pending: PendingProduce, version: int, call: ProduceCall, deferred: Sequence[Deferred]
    ) -> None:
        ready = [entry for entry in deferred if await self._unpack(entry, pending.client_id)]
        refusals = await self._refusals(version, call, ready)
        # Nothing may come between the coordinator's word and the append.
        for entry in ready:
            partition = entry.partition
            if (refusal := refusals.get(partition.identity)) is not None:
                entry.entries[entry.at] = refused(partition.identity.partition, refusal)
                continue
            traces = partition.traces
            arrival = None
            if traces is not None and not entry.header.is_control:  # else all of it waits for its time
                arrival = traces.arrival(entry.data, entry.header, pending.client_id)
            append = Append(entry.data, entry.header, pending.done, arrival)
            entry.entries[entry.at] = (partition, append)
            pending.stage(self._broker, partition, append)
        self._broker.commit()

    async def _unpack(self, entry: Deferred, client_id: str | None) -> bool:
        """Look at the records of a batch whose topic asks for that; false if they are refused."""
        partition = entry.partition
        try:
            if needs_unpacking(partition.config, entry.header):
                limit = self._broker.settings.unpacked_limit_bytes
                entry.data, entry.header = await asyncio.get_running_loop().run_in_executor(
                    self._broker.work_threads, unpacked, entry.data, entry.header, partition.config, limit
                )
            if partition.config.message_delays and may_hold_delays(entry.data, entry.header):
                entry.data, entry.header = await self._broker.delayed_batches.without_delayed(
                    partition, entry.data, entry.header, Origin(ClientApi.KAFKA, client_id or "")
                )
        except AlpacaError as error:
            entry.entries[entry.at] = refused(partition.identity.partition, error)
            return False
        return True

    async def _refusals(
        self, version: int, call: ProduceCall, deferred: Sequence[Deferred]
    ) -> dict[TopicPartition, AlpacaError]:
        """Partitions that may not be written to in the producer's transaction, and why.

        Clients of the current protocol do not announce their partitions: writing is joining.
        """
        joining = {entry.partition: entry.header for entry in deferred if entry.joins_transaction}
        if not joining:
            return {}
        return await while_none_ends(tuple(joining), lambda: self._ask_to_join(version, call, joining))

    async def _ask_to_join(
        self, version: int, call: ProduceCall, joining: Mapping[Partition, BatchHeader]
    ) -> dict[TopicPartition, AlpacaError]:
        assert call.transactional_id is not None
        header = next(iter(joining.values()))
        wanted = TransactionPartitions(
            transactional_id=call.transactional_id,
            producer=ProducerIdentity(header.producer_id, header.producer_epoch),
            partitions=tuple(partition.identity for partition in joining),
        )
        coordinators = self._broker.coordinators
        if version >= _JOINS_BY_WRITING_FROM:
            return await join_transaction(coordinators, wanted)
        try:
            verified = await coordinators.ask_transaction(
                call.transactional_id,
                lambda machine, ticket, now_ms: machine.verify_partitions(wanted, ticket, now_ms),
            )
        except ProducerFenced as error:
            # A batch is told so in the words of a partition: clients expect no others here.
            return dict.fromkeys(wanted.partitions, FencedProducer(str(error)))
        except AlpacaError as error:
            return dict.fromkeys(wanted.partitions, error)
        kind = TransactionAbortable if version >= _ABORTABLE_FROM else InvalidTransactionState
        return {
            identity: kind(f"{identity} is not part of the transaction of {call.transactional_id!r}")
            for identity in verified.absent
        }

    def _check(self, call: ProduceCall, partition: Partition) -> None:
        check_writable(partition.identity)
        if call.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            raise InvalidRequiredAcks(f"acks={call.acks} is none of 0, 1 and -1 (all)")
        if call.acks == ACKS_ALL:
            check_replicas(partition.identity, partition.config)

    def _unknown(self, version: int, key: bytes, index: int) -> AlpacaError:
        if (error := self._broker.topics.not_ready(key, index)) is not None:
            return error
        if version >= TOPIC_IDS_FROM:
            return UnknownTopicId(f"no topic with the id {key.hex()} has a partition {index}")
        return UnknownTopic(f"there is no partition {index} of a topic {key.decode()!r}")
