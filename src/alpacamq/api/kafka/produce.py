"""Produce: appends batches to partitions, and acknowledges them once they are durable.

Records are not decoded here. Batches of a topic that requires decoding (compacted, with a compression
type of its own, with schemas, or with delays) are handled elsewhere, and the first batch of a transaction in
a partition waits for the coordinator. Both hold their connection meanwhile, so that batches keep their
order.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.split import may_hold_delays
from alpacamq.broker.partition.appends import Acks, Append
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.partition.validation import (
    admit,
    check_writable,
    name_timestamps,
    needs_unpacking,
    unpacked,
)
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.broker.transactions import enlist
from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity, VerifyPartitions
from alpacamq.model.batch import BatchHeader, Codec, read_header
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorUnavailable,
    FencedProducer,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTransactionState,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    PeerFailed,
    PeerUnavailable,
    ProducerFenced,
    RequestTimedOut,
    TenantStorageFull,
    TransactionAbortable,
    TransactionalIdNotAuthorized,
    UnknownBroker,
    UnsupportedCompression,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.names import id_of, localized, topic_of
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ManyEntries, ProtocolError
from alpacamq.protocol.framing import RequestHeader, response_frame
from alpacamq.protocol.messages.leadership import LeaderIdAndEpoch, NodeEndpoint
from alpacamq.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
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
from alpacamq.security.acls import Operation
from alpacamq.telemetry.tracing import ClientApi

from .brokers import BrokerNode, hinted_nodes, leader_hint
from .errors import code_of, text_of
from .inbox import NO_FRAME
from .operations import AllowedTopics
from .turns import Work

if TYPE_CHECKING:
    from .connection import Answer, Connection

# Kafka's own producer does not make requests large enough for more.
MAX_PRODUCED_PARTITIONS = 20_000
# A larger request is staged and written in slices.
BYTES_AT_ONCE = 4 << 20
# Batches appended without a stop after the coordinator has accepted them.
DEFERRED_AT_ONCE = 200

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
_NONE: AbstractSet[bytes] = frozenset()
_ZSTD_FROM = 7
_RECORD_ERRORS_FROM = 8
_ABORTABLE_FROM = 11
_JOINS_BY_WRITING_FROM = 12


# The coordinator of a transaction, on any broker, did not answer.
_NOT_CONFIRMED = (
    CoordinatorLoading,
    CoordinatorUnavailable,
    NotController,
    NotCoordinator,
    PeerFailed,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
)

# The result of a batch, or its pending append.
Entry = PartitionProduced | tuple[Partition, Append]


@dataclass(slots=True)
class Deferred:
    """A batch that cannot be appended immediately, and the position of its result."""

    entries: list[Entry]
    at: int
    partition: Partition
    data: bytearray | memoryview
    header: BatchHeader
    # For a refused batch: returns the error with the records at fault. Slow.
    refusal: Callable[[], AlpacaError] | None = None


class PendingProduce:
    """A Produce request with pending batches."""

    __slots__ = (
        "_answer",
        "_connection",
        "_correlation_id",
        "_entries",
        "_leaders",
        "_missing",
        "_stats",
        "_tenant",
        "_topics",
        "_version",
        "awaits",
        "client_id",
        "messages",
        "throttle_ms",
    )

    def __init__(
        self,
        topics: Topics,
        connection: "Connection",
        answer: "Answer | None",
        header: RequestHeader,
        call: ProduceCall,
        tenant: str | None,
    ) -> None:
        self._tenant = tenant
        self._connection = connection
        self._answer = answer
        self._version = header.api_version
        self._correlation_id = header.correlation_id
        self._entries: list[tuple[bytes, list[Entry]]] = []
        self._stats = connection.request_stats
        self._topics = topics
        # Leaders on other brokers that the response names.
        self._leaders: set[int] = set()
        self._missing = 1  # the request itself, until all its batches are staged
        self.awaits = Acks.ALL if call.acks == ACKS_ALL else Acks.LEADER
        self.client_id = header.client_id
        # In its batches, by their headers.
        self.messages = 0
        self.throttle_ms = 0

    def topic(self, key: bytes) -> list[Entry]:
        """Add a list for the results of one more topic, filled by the caller."""
        entries: list[Entry] = []
        self._entries.append((key, entries))
        return entries

    def stage(self, broker: Broker, partition: Partition, append: Append) -> None:
        self._missing += 1
        if partition.stage(append):
            broker.stage(partition)

    def done(self) -> None:
        """Note that one more part is complete; the last one sends the response."""
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        topics = [(key, [self._result(entry) for entry in entries]) for key, entries in self._entries]
        if self._answer is not None:
            frame = encode_produce_response(
                self._version, self._correlation_id, topics, self.throttle_ms, self._hinted_nodes()
            )
            self._answer.fill((frame,))
        else:
            self._end_unanswered(
                any_refused=any(result.error_code for _, results in topics for result in results)
            )

    def _end_unanswered(self, *, any_refused: bool) -> None:
        if self._stats is not None:
            self._stats.seconds.observe(monotonic() - self._connection.received_at)
        if any_refused:
            # Without acknowledgements, closing is the only way to signal a failure.
            self._connection.close("a batch sent with acks=0 was refused")

    def _result(self, entry: Entry) -> PartitionProduced:
        result = entry if isinstance(entry, PartitionProduced) else _result(*entry)
        if result.error_code:
            if self._stats is not None:
                self._stats.refused(ErrorCode(result.error_code).name)
            if self._tenant is not None and result.error_message is not None:
                result = result._replace(error_message=localized(self._tenant, result.error_message))
        if result.current_leader is not None:
            self._leaders.add(result.current_leader[0])
        return result

    def _hinted_nodes(self) -> list[BrokerNode]:
        if not self._leaders:
            return []
        return hinted_nodes(self._topics.image, self._leaders, self._connection.listener.name)


class LargeProduce(PendingProduce):
    """A Produce request with so many partitions that its response is built in slices."""

    __slots__ = ("all_in",)

    def __init__(
        self,
        topics: Topics,
        connection: "Connection",
        answer: "Answer | None",
        header: RequestHeader,
        call: ProduceCall,
        tenant: str | None,
    ) -> None:
        super().__init__(topics, connection, answer, header, call, tenant)
        self.all_in = asyncio.Event()

    def _finish(self) -> None:
        self.all_in.set()

    async def answer_in_slices(self, work: Work) -> None:
        """Respond once all batches are complete."""
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
                        record_errors=[
                            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
                            for index, reason in result.record_errors
                        ],
                        current_leader=LeaderIdAndEpoch()
                        if result.current_leader is None
                        else LeaderIdAndEpoch(
                            leader_id=result.current_leader[0], leader_epoch=result.current_leader[1]
                        ),
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
        nodes = [
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in self._hinted_nodes()
        ]
        response = ProduceResponse(
            responses=responses, throttle_time_ms=self.throttle_ms, node_endpoints=nodes
        )
        body = await work.run(encode_in_slices(response, self._version))
        api = APIS[ApiKey.PRODUCE]
        self._answer.fill((response_frame(api, self._version, self._correlation_id, body),))


def _of_tenant(tenant: str, call: ProduceCall) -> ProduceCall:
    """Return a request of a tenant's client with the stored name of its transactional id."""
    if not call.transactional_id:
        return call
    return call._replace(transactional_id=id_of(tenant, call.transactional_id))


def _joins_transaction(call: ProduceCall, partition: Partition, batch: BatchHeader) -> bool:
    """Return whether the batch may be the first of its transaction in the partition."""
    if batch.is_transactional != (call.transactional_id is not None):
        raise InvalidRequest("a transactional batch requires a transactional id and vice versa")
    return batch.is_transactional and not partition.has_transaction(batch.producer_id, batch.producer_epoch)


def _retriable(error: AlpacaError, version: int) -> AlpacaError:
    """Return the error of a batch whose transaction could not be confirmed: producers retry after it.

    They would take the error of a coordinator for one of their own. Only those that join a transaction by
    writing expect that its predecessor is not complete.
    """
    is_early = isinstance(error, ConcurrentTransactions) and version < _JOINS_BY_WRITING_FROM
    if is_early or isinstance(error, _NOT_CONFIRMED):
        return NotEnoughReplicas(f"the transaction could not be confirmed: {error}")
    return error


def _result(partition: Partition, append: Append) -> PartitionProduced:
    index = partition.identity.partition
    outcome = append.outcome
    if isinstance(outcome, AlpacaError):
        return refused(index, outcome, partition.start_offset)
    assert outcome is not None
    append_time = (
        append.header.max_timestamp if partition.config.message_timestamp_type == "LogAppendTime" else -1
    )
    return PartitionProduced(index, 0, outcome.base_offset, append_time, partition.start_offset)


def refused(index: int, error: AlpacaError, log_start_offset: int = -1) -> PartitionProduced:
    """Return the result of a refused batch."""
    return PartitionProduced(
        index,
        code_of(error),
        -1,
        -1,
        log_start_offset,
        text_of(error),
        error.record_errors,
        leader_hint(error),
    )


class ProduceRequests:
    """Handles Produce requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        """Stage the batches of a request; they are written when the turn ends."""
        try:
            if len(frame) > BYTES_AT_ONCE:
                raise ManyEntries
            call = decode_produce(header.api_version, frame, header.body_at)
        except ManyEntries:
            connection.hold()
            # Never abandoned half-way: staged batches are part of the log.
            work = connection.work(frame)
            connection.spawn(
                work.drive(self._handle_in_slices(connection, header, connection.kept(frame), work))
            )
            return
        if (tenant := self._broker.access.tenant_of(connection.caller)) is not None:
            call = _of_tenant(tenant, call)
        answer = None if call.acks == ACKS_NONE else connection.reserve()
        pending = PendingProduce(self._broker.topics, connection, answer, header, call, tenant)
        deferred: list[Deferred] = []
        for _ in self._stage(connection, header, call, pending, deferred, tenant):
            pass
        if (meter := connection.meter) is not None:
            meter.write_credit -= len(frame)
            meter.write_message_credit -= pending.messages
            if meter.write_credit <= 0 or meter.write_message_credit <= 0 or meter.is_time_due:
                pending.throttle_ms = connection.charge_due()
        if deferred:
            connection.hold()
            connection.spawn(self._catch_up(connection, pending, header.api_version, call, deferred))
        else:
            pending.done()

    async def _handle_in_slices(
        self, connection: "Connection", header: RequestHeader, frame: memoryview, work: Work
    ) -> None:
        """Do the same as `handle` for a large request; staged batches are written at every stop."""
        try:
            with connection.cancelling_on_close():
                await work.begin()
                call = await work.run(decode_produce_in_slices(header.api_version, frame, header.body_at))
            if sum(max(len(partitions), 1) for _, partitions in call.topics) > MAX_PRODUCED_PARTITIONS:
                raise ProtocolError(
                    f"a Produce request must not name more than {MAX_PRODUCED_PARTITIONS} partitions"
                )
            if (tenant := self._broker.access.tenant_of(connection.caller)) is not None:
                call = _of_tenant(tenant, call)
            answer = None if call.acks == ACKS_NONE else connection.reserve()
            pending = LargeProduce(self._broker.topics, connection, answer, header, call, tenant)
            deferred: list[Deferred] = []
            for _ in self._stage(connection, header, call, pending, deferred, tenant):
                if work.is_over:
                    self._broker.commit()
                    await work.pause()
            self._broker.commit()
            await self._append_in_slices(pending, header.api_version, call, deferred, work)
            if (meter := connection.meter) is not None:
                meter.write_credit -= len(frame)
                meter.write_message_credit -= pending.messages
                meter.used_seconds += work.used_seconds
                meter.is_time_due = True
                pending.throttle_ms = connection.charge_due()
            pending.done()
            work.leave()
            frame = NO_FRAME
            del call, deferred
            connection.proceed()  # its response is reserved, and all its batches are in the log
            await pending.all_in.wait()
            await pending.answer_in_slices(work)
        finally:
            work.leave()

    def _stage(
        self,
        connection: "Connection",
        header: RequestHeader,
        call: ProduceCall,
        pending: PendingProduce,
        deferred: list[Deferred],
        tenant: str | None,
    ) -> Iterator[None]:
        """Stage the batches of a request, with a stop after each; the rest goes to `deferred`."""
        now_ms = self._broker.time.now_ms()
        topics = self._broker.topics
        find = topics.find
        access = self._broker.access
        is_limited = access.limits(connection.caller)
        has_valid_acks = call.acks in (ACKS_ALL, ACKS_NONE, ACKS_LEADER)
        # Topics for which nothing has to be decided.
        allowed = _NONE
        writable = connection.writable
        if (
            is_limited
            and writable is not None
            and tenant is None
            and call.transactional_id is None
            and writable.epoch == access.epoch
            and writable.caller is connection.caller
            and writable.by_id is (header.api_version >= TOPIC_IDS_FROM)
        ):
            allowed = writable.keys
        # Added to names; ids are those of the topics of all tenants.
        prefix = b""
        if tenant is not None and header.api_version < TOPIC_IDS_FROM:
            prefix = topic_of(tenant, "").encode()
        for sent, partitions in call.topics:
            entries = pending.topic(sent)
            key = prefix + sent if prefix else sent
            yield
            if (
                is_limited
                and key not in allowed
                and (refusal := self._refusal(connection, header, call, key, tenant)) is not None
            ):
                for index, _ in partitions:
                    entries.append(refused(index, refusal))
                    yield
                continue
            for index, records in partitions:
                yield
                try:
                    if (partition := find(key, index)) is None:
                        raise topics.absence(key, index)
                    check_writable(partition.identity)
                    if not has_valid_acks:
                        raise InvalidRequiredAcks(f"acks={call.acks} must be 0, 1 or -1 (all)")
                    if not records:
                        raise InvalidRecord(f"the request has no batch for partition {index}")
                    config = partition.config
                    data, batch = admit(records, config, now_ms)
                    pending.messages += batch.record_count
                    if batch.attributes & 7 == Codec.ZSTD and header.api_version < _ZSTD_FROM:
                        raise UnsupportedCompression(f"zstd requires Produce version {_ZSTD_FROM} or later")
                    if (
                        _joins_transaction(call, partition, batch)
                        or config.checks_schemas
                        or needs_unpacking(config, batch)
                        or (config.message_delays and may_hold_delays(data, batch))
                    ):
                        # The frame is valid until the turn ends: deferred batches are copied.
                        deferred.append(Deferred(entries, len(entries), partition, bytearray(data), batch))
                        entries.append(PartitionProduced(index))
                        continue
                except InvalidTimestamp as error:
                    assert partition is not None
                    assert records is not None
                    if header.api_version >= _RECORD_ERRORS_FROM and call.acks != ACKS_NONE:
                        deferred.append(self._refused(entries, partition, bytearray(records), error, now_ms))
                    entries.append(refused(index, error))
                    continue
                except AlpacaError as error:
                    entries.append(refused(index, error))
                    continue
                traces = partition.traces
                trace = None if traces is None else traces.produce_trace(data, batch, header.client_id)
                append = Append(data, batch, pending.done, trace, pending.awaits, call.timeout_ms)
                entries.append((partition, append))
                pending.stage(self._broker, partition, append)

    def _refusal(
        self,
        connection: "Connection",
        header: RequestHeader,
        call: ProduceCall,
        key: bytes,
        tenant: str | None,
    ) -> AlpacaError | None:
        """Return the error of a topic to which the client must not write."""
        caller = connection.caller
        if call.transactional_id is not None:
            try:
                self._broker.access.check_transactional_id(caller, Operation.WRITE, call.transactional_id)
            except TransactionalIdNotAuthorized as error:
                return error
        if tenant is not None:
            try:
                self._broker.tenant_usage.check_storage_of(tenant)
            except TenantStorageFull as error:
                return error
        if (writable := connection.writable) is None:
            broker = self._broker
            writable = connection.writable = AllowedTopics(broker.access, broker.topics, Operation.WRITE)
        return writable.refusal(caller, key, by_id=header.api_version >= TOPIC_IDS_FROM)

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
        if any(entry.partition.config.checks_schemas for entry in deferred):
            deferred = await self._checked_by_schema(deferred)
        ready = [entry for entry in deferred if await self._unpack(entry, pending.client_id)]
        refusals = await self._refusals(version, call, ready)
        # No await between the confirmation by the coordinator and the append.
        for entry in ready:
            partition = entry.partition
            if (refusal := refusals.get(partition.identity)) is not None:
                entry.entries[entry.at] = refused(partition.identity.partition, refusal)
                continue
            traces = partition.traces
            trace = None
            if traces is not None and not entry.header.is_control:  # else all its records are delayed
                trace = traces.produce_trace(entry.data, entry.header, pending.client_id)
            append = Append(entry.data, entry.header, pending.done, trace, pending.awaits, call.timeout_ms)
            entry.entries[entry.at] = (partition, append)
            pending.stage(self._broker, partition, append)
        self._broker.commit()

    async def _checked_by_schema(self, deferred: Sequence[Deferred]) -> Sequence[Deferred]:
        """Return the batches whose records the schemas of their topics allow, checked together."""
        results = await asyncio.gather(*map(self._is_allowed_by_schema, deferred))
        return [entry for entry, is_allowed in zip(deferred, results, strict=True) if is_allowed]

    async def _is_allowed_by_schema(self, entry: Deferred) -> bool:
        partition = entry.partition
        if entry.refusal is not None or not partition.config.checks_schemas:
            return True
        try:
            await self._broker.schema_checks.check_batch(partition, entry.data, entry.header)
        except AlpacaError as error:
            entry.entries[entry.at] = refused(partition.identity.partition, error)
            return False
        return True

    async def _unpack(self, entry: Deferred, client_id: str | None) -> bool:
        """Validate the records of a batch if its topic requires it; return False if they are refused."""
        partition = entry.partition
        try:
            if entry.refusal is not None:
                raise await asyncio.get_running_loop().run_in_executor(
                    self._broker.work_threads, entry.refusal
                )
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

    def _refused(
        self,
        entries: list[Entry],
        partition: Partition,
        data: bytearray,
        error: InvalidTimestamp,
        now_ms: int,
    ) -> Deferred:
        """Return a batch that was refused by its header; its records are read to name those at fault."""
        limit = self._broker.settings.unpacked_limit_bytes
        refusal = partial(name_timestamps, error, data, partition.config, now_ms, limit)
        return Deferred(entries, len(entries), partition, data, read_header(data), refusal)

    async def _refusals(
        self, version: int, call: ProduceCall, deferred: Sequence[Deferred]
    ) -> dict[TopicPartition, AlpacaError]:
        """Return the partitions that are not writable in the producer's transaction, with errors.

        Clients of the current protocol do not announce partitions: writing adds them (KIP-890).
        """
        batches = [entry for entry in deferred if entry.header.is_transactional]
        if not batches:
            return {}
        header = batches[0].header
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        # A transactional id has one producer, and only that of the first batch is compared with it.
        refusals: dict[TopicPartition, AlpacaError] = {
            entry.partition.identity: InvalidProducerIdMapping(
                f"the transaction of {call.transactional_id!r} has batches of more than one producer"
            )
            for entry in batches
            if (entry.header.producer_id, entry.header.producer_epoch) != producer
        }
        partitions = tuple(
            dict.fromkeys(entry.partition for entry in batches if entry.partition.identity not in refusals)
        )
        errors = await enlist(producer, partitions, partial(self._enlist, version, call, producer))
        return refusals | {identity: _retriable(error, version) for identity, error in errors.items()}

    async def _enlist(
        self, version: int, call: ProduceCall, producer: ProducerIdentity, joining: Sequence[Partition]
    ) -> dict[TopicPartition, AlpacaError]:
        assert call.transactional_id is not None
        partitions = tuple(partition.identity for partition in joining)
        transactions = self._broker.transactions
        if version >= _JOINS_BY_WRITING_FROM:
            wanted = AddPartitions(
                transactional_id=call.transactional_id, producer=producer, partitions=partitions
            )
            return await transactions.add_partitions(wanted)
        try:
            verified = await transactions.ask(
                VerifyPartitions(
                    transactional_id=call.transactional_id, producer=producer, partitions=partitions
                )
            )
        except ProducerFenced as error:
            # Reported with an error code of partitions: clients expect no others here.
            return dict.fromkeys(partitions, FencedProducer(str(error)))
        except AlpacaError as error:
            return dict.fromkeys(partitions, error)
        kind = TransactionAbortable if version >= _ABORTABLE_FROM else InvalidTransactionState
        return {
            identity: kind(f"{identity} is not part of the transaction of {call.transactional_id!r}")
            for identity in verified.absent
        }
