"""Transactions at the Kafka API: what each version of a request is answered."""

from collections.abc import Sequence
from typing import Any

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TransactionTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.waiting import eventually

from .test_committed_offsets import fetch
from .wire import Wire, versions

TIMEOUT_MS = 60_000


def init(wire: Wire, transactional_id: str | None, version: int = 5, **more: Any) -> Any:
    return wire.ask(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, **more),
        version,
    )


def identity(response: Any) -> dict[str, int]:
    assert response.error_code == 0
    return {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}


def add(
    wire: Wire,
    transactional_id: str,
    producer: dict[str, int],
    topic: str,
    partitions: Sequence[int] = (0,),
    *,
    version: int = 3,
    verify_only: bool = False,
) -> list[int]:
    """The error of each partition."""
    topics = [TransactionTopic(name=topic, partitions=partitions)]
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer["producer_id"],
            v3_and_below_producer_epoch=producer["producer_epoch"],
            v3_and_below_topics=topics,
        )
        (results,) = wire.ask(request, version).results_by_topic_v3_and_below
    else:
        one = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id, topics=topics, verify_only=verify_only, **producer
        )
        (answered,) = wire.ask(AddPartitionsToTxnRequest(transactions=[one]), version).results_by_transaction
        assert answered.transactional_id == transactional_id
        (results,) = answered.topic_results
    return [each.partition_error_code for each in results.results_by_partition]


def end(wire: Wire, transactional_id: str, producer: dict[str, int], version: int = 4) -> Any:
    return wire.ask(EndTxnRequest(transactional_id=transactional_id, committed=True, **producer), version)


def commit_offset(
    wire: Wire, transactional_id: str, producer: dict[str, Any], topic: str, version: int, offset: int = 7
) -> int:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=topic,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        **producer,
    )
    ((result,),) = [each.partitions for each in wire.ask(request, version).topics]
    code: int = result.error_code
    return code


@pytest.mark.parametrize("version", versions(InitProducerIdRequest))
def test_each_idempotent_producer_has_an_id_of_its_own(wire: Wire, version: int) -> None:
    first, second = init(wire, None, version), init(wire, None, version)

    assert first.producer_id != second.producer_id
    assert first.producer_epoch == second.producer_epoch == 0


@pytest.mark.parametrize("version", versions(InitProducerIdRequest))
def test_a_transactional_id_keeps_its_producer_id_and_gets_a_new_epoch(
    wire: Wire, topic: str, version: int
) -> None:
    first, second = init(wire, topic, version), init(wire, topic, version)

    assert first.error_code == second.error_code == 0
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"transactional_id": ""}, ErrorCode.INVALID_REQUEST, id="an empty id"),
        pytest.param({"producer_id": 5}, ErrorCode.INVALID_REQUEST, id="half an identity"),
        pytest.param(
            {"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT, id="no time at all"
        ),
        pytest.param(
            {"transaction_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT, id="too much time"
        ),
    ],
)
def test_invalid_init_producer_requests_are_refused(
    wire: Wire, topic: str, fields: dict[str, Any], code: ErrorCode
) -> None:
    given = {"transactional_id": topic, "transaction_timeout_ms": TIMEOUT_MS, **fields}
    assert wire.ask(InitProducerIdRequest(**given)).error_code == code


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)]
)
def test_a_zombie_cannot_recover(wire: Wire, topic: str, version: int, code: ErrorCode) -> None:
    zombie = identity(init(wire, topic))
    init(wire, topic)
    init(wire, topic)

    assert init(wire, topic, version, **zombie).error_code == code


@pytest.mark.parametrize("version", versions(AddPartitionsToTxnRequest))
def test_partitions_are_added_in_every_version(wire: Wire, made: str, version: int) -> None:
    producer = identity(init(wire, made))

    assert add(wire, made, producer, made, [0, 1], version=version) == [0, 0]

    (described,) = wire.ask(DescribeTransactionsRequest(transactional_ids=[made])).transaction_states
    assert (described.error_code, described.transaction_state) == (0, "Ongoing")
    assert [(each.topic, sorted(each.partitions)) for each in described.topics] == [(made, [0, 1])]


@pytest.mark.parametrize("version", versions(AddPartitionsToTxnRequest))
def test_no_partition_is_added_unless_all_are_there(wire: Wire, made: str, version: int) -> None:
    producer = identity(init(wire, made))

    assert add(wire, made, producer, made, [0, 99], version=version) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    (described,) = wire.ask(DescribeTransactionsRequest(transactional_ids=[made])).transaction_states
    assert described.transaction_state == "Empty"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_fenced_producer_gets_an_error_code_of_its_version(wire: Wire, made: str, version: int) -> None:
    zombie = identity(init(wire, made))
    init(wire, made)
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH

    assert add(wire, made, zombie, made, version=version) == [code]
    assert end(wire, made, zombie, version).error_code == code
    offsets = AddOffsetsToTxnRequest(transactional_id=made, group_id=made, **zombie)
    assert wire.ask(offsets, version).error_code == code


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_verifying_adds_nothing(wire: Wire, made: str, version: int, code: ErrorCode) -> None:
    producer = identity(init(wire, made))
    add(wire, made, producer, made, [1])

    verified = add(wire, made, producer, made, [0, 1], version=version, verify_only=True)

    assert verified == [code, 0]


@pytest.mark.parametrize("version", versions(EndTxnRequest))
def test_a_transaction_ends_in_every_version(wire: Wire, made: str, version: int) -> None:
    producer = identity(init(wire, made))
    add(wire, made, producer, made, [0, 1])

    ended = end(wire, made, producer, version)

    assert ended.error_code == 0
    if version >= 5:
        # With the answer comes what the producer goes on as.
        assert identity(ended) == producer | {"producer_epoch": producer["producer_epoch"] + 1}
    else:
        assert end(wire, made, producer, version).error_code in (0, ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("version", range(5))
def test_older_clients_announce_the_offsets_they_commit(wire: Wire, made: str, version: int) -> None:
    producer = identity(init(wire, made))
    add(wire, made, producer, made)
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert commit_offset(wire, made, producer, made, version) == code

    announced = AddOffsetsToTxnRequest(transactional_id=made, group_id=made, **producer)
    assert wire.ask(announced, version).error_code == 0
    assert commit_offset(wire, made, producer, made, version) == 0
    assert fetch(wire, made, made) == (-1, "", 0)
    assert end(wire, made, producer).error_code == 0

    eventually(lambda: fetch(wire, made, made) == (7, "", 0))


def test_current_clients_commit_offsets_without_announcing_them(wire: Wire, made: str) -> None:
    producer = identity(init(wire, made))

    assert commit_offset(wire, made, producer, made, 5) == 0
    producer = identity(end(wire, made, producer, 5))

    # The answer to the end comes when all is done.
    assert fetch(wire, made, made) == (7, "", 0)
    assert commit_offset(wire, made, producer, made, 5, offset=9) == 0
    identity(end(wire, made, producer, 5))
    assert fetch(wire, made, made) == (9, "", 0)


def test_a_zombies_offsets_are_refused(wire: Wire, made: str) -> None:
    zombie = identity(init(wire, made))
    init(wire, made)

    for version in versions(TxnOffsetCommitRequest):
        assert commit_offset(wire, made, zombie, made, version) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_unknown_ids_have_distinct_errors(wire: Wire, made: str) -> None:
    (described,) = wire.ask(DescribeTransactionsRequest(transactional_ids=[made])).transaction_states
    assert described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    stranger = identity(init(wire, None))
    assert add(wire, made, stranger, made) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("version", versions(ListTransactionsRequest))
def test_transactions_are_listed_by_state_and_producer(wire: Wire, made: str, version: int) -> None:
    producer = identity(init(wire, made))
    add(wire, made, producer, made)

    def listed(**filters: Any) -> list[str]:
        response = wire.ask(ListTransactionsRequest(**filters), version)
        assert response.error_code == 0
        return [each.transactional_id for each in response.transaction_states]

    assert listed(producer_id_filters=[producer["producer_id"]]) == [made]
    assert made in listed(state_filters=["Ongoing", "Empty"])
    assert made not in listed(state_filters=["Empty"])
    if version >= 1:
        assert made in listed(duration_filter=-1)
        assert made not in listed(duration_filter=3_600_000)


def test_states_that_are_none_are_named(wire: Wire) -> None:
    response = wire.ask(ListTransactionsRequest(state_filters=["Ongoing", "Sleeping"]))
    assert response.unknown_state_filters == ["Sleeping"]
    response = wire.ask(ListTransactionsRequest(state_filters=["Sleeping"]))
    assert (response.unknown_state_filters, response.transaction_states) == (["Sleeping"], [])


def test_markers_go_to_partitions_that_can_have_them(wire: Wire, made: str) -> None:
    producer = identity(init(wire, made))
    topics = [
        (made, [0, 99]),
        ("no-such-topic", [0]),
        ("__transaction_state", [0]),
        ("__consumer_offsets", [99]),
    ]
    marker = WritableTxnMarker(
        transaction_result=False,
        coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
        **producer,
    )

    (result,) = wire.ask(WriteTxnMarkersRequest(markers=[marker])).markers

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [[each.error_code for each in topic.partitions] for topic in result.topics]
    assert codes == [[0, unknown], [unknown], [ErrorCode.INVALID_REQUEST], [unknown]]


def test_producers_of_unknown_partitions_are_not_described(wire: Wire, made: str) -> None:
    wanted = DescribeProducersTopic(name=made, partition_indexes=[0, 99])

    (topic,) = wire.ask(DescribeProducersRequest(topics=[wanted])).topics

    assert [(each.error_code, list(each.active_producers)) for each in topic.partitions] == [
        (0, []),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    ]
