"""InitProducerId, requests that change transactions, and those that list and describe them."""

from collections.abc import Iterable, Mapping, Sequence

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    DescribeTransaction,
    EndProtocol,
    EndTransaction,
    InitProducer,
    ListTransactions,
    ProducerIdentity,
    TransactionState,
    VerifyPartitions,
)
from alpacamq.model.errors import (
    AlpacaError,
    InvalidGroupId,
    InvalidRequest,
    ProducerFenced,
    TransactionalIdNotAuthorized,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import transactions as wire
from alpacamq.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from alpacamq.security.acls import Operation, ResourceType

NO_PRODUCER = ProducerIdentity(-1, -1)

# The first versions whose clients know PRODUCER_FENCED; earlier ones know another error code.
_FENCED_FROM_IN_INIT = 4
_FENCED_FROM = 2
_BATCHED_FROM = 4
_ABORTABLE_FROM = 5
_NEW_EPOCH_FROM = 5

_MAX_FILTERED_IDS = 10_000

STATE_NAMES: Mapping[TransactionState, str] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
}
_STATES: Mapping[str, TransactionState] = {name: state for state, name in STATE_NAMES.items()}


async def init_producer_id(
    backend: Backend, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    access = backend.broker.access
    try:
        if request.transactional_id is None:
            if not access.may_any(call.caller, Operation.WRITE, ResourceType.TOPIC):
                access.check_cluster(call.caller, Operation.IDEMPOTENT_WRITE)
            producer = ProducerIdentity(await backend.broker.producer_ids.new(), 0)
        else:
            _check_writable(backend, request.transactional_id, call)
            recovering = ProducerIdentity(request.producer_id, request.producer_epoch)
            asked = InitProducer(
                transactional_id=request.transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                recovering=None if recovering == NO_PRODUCER else recovering,
            )
            producer = await backend.broker.transactions.ask_here(asked)
    except AlpacaError as error:
        return InitProducerIdResponse(error_code=_code(error, call, _FENCED_FROM_IN_INIT))
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


async def add_partitions_to_txn(
    backend: Backend, request: wire.AddPartitionsToTxnRequest, call: Call
) -> wire.AddPartitionsToTxnResponse:
    if call.version < _BATCHED_FROM:
        alone = wire.AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        try:
            _check_writable(backend, alone.transactional_id, call)
            added = await _added(backend, alone, call)
        except TransactionalIdNotAuthorized as error:
            added = await _refused(alone.topics, code_of(error), call)
        return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=added)
    try:
        # Brokers send these versions, for their clients.
        backend.broker.access.check_cluster(call.caller, Operation.CLUSTER_ACTION)
    except AlpacaError as error:
        return wire.AddPartitionsToTxnResponse(error_code=code_of(error))
    results = []
    for each in request.transactions:
        await call.pause()
        results.append(
            wire.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id, topic_results=await _added(backend, each, call)
            )
        )
    return wire.AddPartitionsToTxnResponse(results_by_transaction=results)


async def add_offsets_to_txn(
    backend: Backend, request: wire.AddOffsetsToTxnRequest, call: Call
) -> wire.AddOffsetsToTxnResponse:
    try:
        _check_writable(backend, request.transactional_id, call)
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        if not request.group_id:
            raise InvalidGroupId("group id must not be empty")
        asked = AddPartitions(
            transactional_id=request.transactional_id,
            producer=ProducerIdentity(request.producer_id, request.producer_epoch),
            partitions=(await backend.broker.groups.offsets_partition(request.group_id),),
        )
        await backend.broker.transactions.ask_here(asked)
    except AlpacaError as error:
        return wire.AddOffsetsToTxnResponse(error_code=_code(error, call, _FENCED_FROM))
    return wire.AddOffsetsToTxnResponse()


async def end_txn(backend: Backend, request: wire.EndTxnRequest, call: Call) -> wire.EndTxnResponse:
    asked = EndTransaction(
        transactional_id=request.transactional_id,
        producer=ProducerIdentity(request.producer_id, request.producer_epoch),
        committed=request.committed,
        protocol=EndProtocol.NEW_EPOCH if call.version >= _NEW_EPOCH_FROM else EndProtocol.CLASSIC,
    )
    try:
        _check_writable(backend, request.transactional_id, call)
        producer = await backend.broker.transactions.end_here(asked)
    except AlpacaError as error:
        return wire.EndTxnResponse(error_code=_code(error, call, _FENCED_FROM))
    return wire.EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


async def write_txn_markers(
    backend: Backend, request: wire.WriteTxnMarkersRequest, call: Call
) -> wire.WriteTxnMarkersResponse:
    markers = []
    refusal = _marker_refusal(backend, call)
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            partitions = []
            for index in topic.partition_indexes:
                await call.pause()
                partition = TopicPartition(TopicName(topic.name), index)
                code = refusal or await _marked(backend, marker, partition)
                partitions.append(
                    wire.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                )
            await call.pause()
            topics.append(wire.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
        await call.pause()
        markers.append(wire.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    return wire.WriteTxnMarkersResponse(markers=markers)


async def describe_transactions(
    backend: Backend, request: wire.DescribeTransactionsRequest, call: Call
) -> wire.DescribeTransactionsResponse:
    states = []
    for each in await call.each_once(request.transactional_ids, str):
        states.append(await _described(backend, each, call))
        await call.pause()
    return wire.DescribeTransactionsResponse(transaction_states=states)


async def list_transactions(
    backend: Backend, request: wire.ListTransactionsRequest, call: Call
) -> wire.ListTransactionsResponse:
    if len(request.state_filters) > len(_STATES) or len(request.producer_id_filters) > _MAX_FILTERED_IDS:
        return wire.ListTransactionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    unknown = [name for name in request.state_filters if name not in _STATES]
    states = frozenset(_STATES[name] for name in request.state_filters if name in _STATES)
    if request.state_filters and not states:
        return wire.ListTransactionsResponse(unknown_state_filters=unknown)
    asked = ListTransactions(
        states=states,
        producer_ids=frozenset(request.producer_id_filters),
        running_longer_than_ms=request.duration_filter if request.duration_filter >= 0 else None,
    )
    try:
        found = await backend.broker.transactions.find_here(asked)
    except AlpacaError as error:
        return wire.ListTransactionsResponse(error_code=code_of(error), unknown_state_filters=unknown)
    listed = []
    for each in found:
        await call.pause()
        if not backend.broker.access.sees(
            call.caller, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id
        ):
            continue
        listed.append(
            wire.ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer.producer_id,
                transaction_state=STATE_NAMES[each.state],
            )
        )
    return wire.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)


async def describe_producers(
    backend: Backend, request: wire.DescribeProducersRequest, call: Call
) -> wire.DescribeProducersResponse:
    topics = []
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        await call.pause()
        partitions = []
        for index in topic.partition_indexes:
            await call.pause()
            if (topic.name, index) not in seen:
                # Without duplicates: a response may be much larger than its request.
                seen.add((topic.name, index))
                partitions.append(await _producers_of(backend, topic.name, index, call))
        topics.append(wire.DescribeProducersTopicResult(name=topic.name, partitions=partitions))
    return wire.DescribeProducersResponse(topics=topics)


def _check_writable(backend: Backend, transactional_id: str, call: Call) -> None:
    """Raise TransactionalIdNotAuthorized unless the client may use a transactional id."""
    backend.broker.access.check_transactional_id(call.caller, Operation.WRITE, transactional_id)


def _marker_refusal(backend: Backend, call: Call) -> ErrorCode:
    """Return the error of a client that may not write markers, NONE if it may."""
    access = backend.broker.access
    if access.may_cluster(call.caller, Operation.ALTER):  # to end transactions whose producers are lost
        return ErrorCode.NONE
    try:
        access.check_cluster(call.caller, Operation.CLUSTER_ACTION)
    except AlpacaError as error:
        return code_of(error)
    return ErrorCode.NONE


async def _refused(
    topics: Sequence[wire.TransactionTopic], code: ErrorCode, call: Call
) -> list[wire.AddPartitionsToTxnTopicResult]:
    partitions = {
        TopicPartition(TopicName(topic.name), index): code for topic in topics for index in topic.partitions
    }
    return await _results(topics, partitions, call)


async def _added(
    backend: Backend, wanted: wire.AddPartitionsToTxnTransaction, call: Call
) -> list[wire.AddPartitionsToTxnTopicResult]:
    """Add or verify the partitions of a producer, all or none; return a result for each."""
    codes: dict[TopicPartition, ErrorCode] = {}
    any_refused = False
    access = backend.broker.access
    # In later versions, the broker that asks has checked the rights of its client.
    is_broker = call.version >= _BATCHED_FROM
    for topic in wanted.topics:
        await call.pause()
        is_allowed = is_broker or access.may_topic(call.caller, Operation.WRITE, topic.name)
        for index in topic.partitions:
            await call.pause()
            if not is_allowed:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not backend.broker.topics.exists(topic.name.encode(), index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
            any_refused |= code is not ErrorCode.OPERATION_NOT_ATTEMPTED
            codes[TopicPartition(TopicName(topic.name), index)] = code
    if any_refused:
        return await _results(wanted.topics, codes, call)
    partitions = tuple(codes)
    producer = ProducerIdentity(wanted.producer_id, wanted.producer_epoch)
    codes = dict.fromkeys(partitions, ErrorCode.NONE)
    try:
        if wanted.verify_only:
            verified = await backend.broker.transactions.ask_here(
                VerifyPartitions(
                    transactional_id=wanted.transactional_id, producer=producer, partitions=partitions
                )
            )
            known = call.version >= _ABORTABLE_FROM
            absent = ErrorCode.TRANSACTION_ABORTABLE if known else ErrorCode.INVALID_TXN_STATE
            codes.update(dict.fromkeys(verified.absent, absent))
        else:
            await backend.broker.transactions.ask_here(
                AddPartitions(
                    transactional_id=wanted.transactional_id, producer=producer, partitions=partitions
                )
            )
    except AlpacaError as error:
        codes = dict.fromkeys(partitions, _code(error, call, _FENCED_FROM))
    return await _results(wanted.topics, codes, call)


async def _results(
    topics: Sequence[wire.TransactionTopic], codes: Mapping[TopicPartition, ErrorCode], call: Call
) -> list[wire.AddPartitionsToTxnTopicResult]:
    results = []
    for topic in topics:
        await call.pause()
        partitions = []
        for index in topic.partitions:
            await call.pause()
            code = codes[TopicPartition(TopicName(topic.name), index)]
            partitions.append(
                wire.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
        results.append(wire.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions))
    return results


async def _marked(backend: Backend, marker: wire.WritableTxnMarker, partition: TopicPartition) -> ErrorCode:
    try:
        backend.broker.topics.partition(*partition)
        if partition.topic == TRANSACTIONS_TOPIC:
            raise InvalidRequest(f"topic {partition.topic!r} is internal and cannot be part of a transaction")
        await backend.broker.transactions.write_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )
    except AlpacaError as error:
        return code_of(error)
    return ErrorCode.NONE


async def _producers_of(
    backend: Backend, name: str, index: int, call: Call
) -> wire.DescribeProducersPartitionResult:
    try:
        backend.broker.access.check_topic(call.caller, Operation.READ, name)
        partition = backend.broker.topics.partition(name, index)
    except AlpacaError as error:
        return wire.DescribeProducersPartitionResult(
            partition_index=index, error_code=code_of(error), error_message=text_of(error)
        )
    producers = []
    for producer_id, state in partition.producers().items():
        await call.pause()
        producers.append(
            wire.ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.batches[-1].last_sequence if state.batches else -1,
                last_timestamp=state.updated_ms,
                coordinator_epoch=state.last_marker.coordinator_epoch,
                current_txn_start_offset=_or_none(partition.open_transaction(producer_id)),
            )
        )
    return wire.DescribeProducersPartitionResult(partition_index=index, active_producers=producers)


async def _described(backend: Backend, transactional_id: str, call: Call) -> wire.DescribedTransaction:
    access = backend.broker.access
    try:
        access.check_transactional_id(call.caller, Operation.DESCRIBE, transactional_id)
        known = await backend.broker.transactions.ask_here(
            DescribeTransaction(transactional_id=transactional_id)
        )
    except AlpacaError as error:
        return wire.DescribedTransaction(transactional_id=transactional_id, error_code=code_of(error))
    return wire.DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[known.state],
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=_or_none(known.started_ms),
        producer_id=known.producer.producer_id,
        producer_epoch=known.producer.epoch,
        topics=_by_topic(
            partition
            for partition in known.partitions
            if access.sees_topic(call.caller, Operation.DESCRIBE, partition.topic)
        ),
    )


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _by_topic(partitions: Iterable[TopicPartition]) -> list[wire.DescribedTransactionTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return [
        wire.DescribedTransactionTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()
    ]


def _code(error: AlpacaError, call: Call, fenced_from: int) -> ErrorCode:
    """Return an error code that clients of this version know."""
    if isinstance(error, ProducerFenced) and call.version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code_of(error)
