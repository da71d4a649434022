"""The transaction coordinator, case by case."""

import msgspec
import pytest

from alpacamq.coordinator.transactions.coordinator import CHANGES_PER_TICK, TransactionSettings
from alpacamq.coordinator.transactions.transaction import (
    LAST_EPOCH,
    NEXT_STATES,
    AddPartitions,
    DescribeTransaction,
    EndProtocol,
    EndTransaction,
    InitProducer,
    ListTransactions,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdentity,
    Transaction,
    TransactionState,
    VerifyPartitions,
    encode_key,
    encode_value,
)
from alpacamq.model.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionalIdNotFound,
)
from alpacamq.model.state_machine import Change

from .transaction_host import START_MS, Host, contents, partition

DAY_MS = 24 * 3_600_000
P0, P1 = partition(0), partition(1)


def init(
    host: Host, name: str = "t", *, timeout_ms: int = 60_000, recovering: ProducerIdentity | None = None
) -> object:
    request = InitProducer(transactional_id=name, timeout_ms=timeout_ms, recovering=recovering)
    return host.ask(request)


def started(host: Host, name: str = "t") -> ProducerIdentity:
    producer = init(host, name)
    assert isinstance(producer, ProducerIdentity)
    return producer


def add(host: Host, producer: ProducerIdentity, *places: object, name: str = "t") -> object:
    request = AddPartitions(
        transactional_id=name,
        producer=producer,
        partitions=places or (P0,),  # type: ignore[arg-type]
    )
    return host.ask(request)


def end(
    host: Host,
    producer: ProducerIdentity,
    *,
    committed: bool = True,
    protocol: EndProtocol = EndProtocol.CLASSIC,
    name: str = "t",
) -> object:
    request = EndTransaction(transactional_id=name, producer=producer, committed=committed, protocol=protocol)
    return host.ask(request)


def described(host: Host, name: str = "t") -> Transaction:
    answer = host.ask(DescribeTransaction(transactional_id=name))
    assert isinstance(answer, Transaction)
    return answer


def store(host: Host, producer: ProducerIdentity, name: str = "t") -> None:
    stored = Transaction(transactional_id=name, producer=producer, timeout_ms=60_000, updated_ms=START_MS)
    host.store(stored, Change(encode_key(name), encode_value(stored)))


def test_every_state_is_in_the_table_and_only_dead_is_final() -> None:
    assert NEXT_STATES.keys() == set(TransactionState)
    assert [state for state, following in NEXT_STATES.items() if not following] == [TransactionState.DEAD]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(InitProducer(transactional_id=""), InvalidRequest, id="no id"),
        pytest.param(
            InitProducer(transactional_id="t", timeout_ms=0), InvalidTransactionTimeout, id="zero timeout"
        ),
        pytest.param(
            InitProducer(transactional_id="t", timeout_ms=900_001), InvalidTransactionTimeout, id="too long"
        ),
        pytest.param(
            InitProducer(transactional_id="t", recovering=ProducerIdentity(4, -1)),
            InvalidRequest,
            id="half an identity",
        ),
    ],
)
def test_an_invalid_init_is_rejected_and_changes_nothing(
    request_: InitProducer, error: type[Exception]
) -> None:
    host = Host()
    assert isinstance(host.ask(request_), error)
    assert host.log == []


def test_replies_wait_until_changes_are_durable() -> None:
    host = Host()
    host.submit(InitProducer(transactional_id="t"), "handle")
    assert host.answered == []
    host.settle()
    assert host.answered == [("handle", ProducerIdentity(1, 0))]


def test_each_init_bumps_the_epoch() -> None:
    host = Host()
    assert [init(host), init(host), init(host)] == [ProducerIdentity(1, epoch) for epoch in range(3)]


@pytest.mark.parametrize("protocol", EndProtocol)
def test_requests_for_an_unknown_transactional_id_fail(protocol: EndProtocol) -> None:
    host = Host()
    unknown = ProducerIdentity(1, 0)
    assert isinstance(add(host, unknown), InvalidProducerIdMapping)
    assert isinstance(end(host, unknown, protocol=protocol), InvalidProducerIdMapping)
    assert isinstance(host.ask(DescribeTransaction(transactional_id="t")), TransactionalIdNotFound)


@pytest.mark.parametrize("protocol", EndProtocol)
def test_another_producer_id_and_another_epoch_get_different_errors(protocol: EndProtocol) -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    for wrong, error in (
        (ProducerIdentity(99, producer.epoch), InvalidProducerIdMapping),
        (ProducerIdentity(producer.producer_id, producer.epoch - 1), ProducerFenced),
        (ProducerIdentity(producer.producer_id, producer.epoch + 1), ProducerFenced),
    ):
        assert isinstance(add(host, wrong, P1), error)
        assert isinstance(end(host, wrong, protocol=protocol), error)
    assert described(host).state is TransactionState.ONGOING


def test_adding_known_partitions_writes_nothing() -> None:
    host = Host()
    producer = started(host)
    assert add(host, producer, P0, P1, P0) == PartitionsAdded(1)
    records = len(host.log)
    assert add(host, producer, P1) == PartitionsAdded(1)
    assert len(host.log) == records
    assert described(host).partitions == (P0, P1)


def test_verification_names_the_partitions_that_are_absent() -> None:
    host = Host()
    producer = started(host)
    add(host, producer, P0)
    request = VerifyPartitions(transactional_id="t", producer=producer, partitions=(P0, P1))
    assert host.ask(request) == PartitionsVerified((P1,), 1)
    end(host, producer)
    assert isinstance(host.ask(request), ConcurrentTransactions)
    host.complete()
    assert host.ask(request) == PartitionsVerified((P0, P1), 1)


@pytest.mark.parametrize("committed", [True, False])
def test_a_classic_end_gets_its_reply_when_decided_and_blocks_until_complete(committed: bool) -> None:
    host = Host()
    producer = started(host)
    add(host, producer, P0, P1)
    assert end(host, producer, committed=committed) == producer
    assert isinstance(add(host, producer), ConcurrentTransactions)
    assert isinstance(init(host), ConcurrentTransactions)
    assert isinstance(end(host, producer, committed=committed), ConcurrentTransactions)
    assert isinstance(end(host, producer, committed=not committed), InvalidTransactionState)
    (markers,) = host.complete()
    assert (markers.producer, markers.committed, markers.partitions) == (producer, committed, (P0, P1))
    assert end(host, producer, committed=committed) == producer
    assert isinstance(end(host, producer, committed=not committed), InvalidTransactionState)
    assert add(host, producer) == PartitionsAdded(2)


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_with_a_new_epoch_gets_its_reply_when_complete(committed: bool) -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    host.submit(
        EndTransaction(
            transactional_id="t", producer=producer, committed=committed, protocol=EndProtocol.NEW_EPOCH
        ),
        "handle",
    )
    host.settle()
    assert "handle" not in [to for to, _ in host.answered]
    (markers,) = host.complete()
    assert markers.producer == producer.bumped()
    assert ("handle", producer.bumped()) in host.answered


def test_a_cancelled_end_gets_no_reply_and_can_be_repeated() -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    request = EndTransaction(
        transactional_id="t", producer=producer, committed=True, protocol=EndProtocol.NEW_EPOCH
    )
    host.submit(request, "handle")
    host.machine.cancel("another")
    host.machine.cancel("handle")
    host.complete()
    assert "handle" not in [to for to, _ in host.answered]
    assert end(host, producer, protocol=EndProtocol.NEW_EPOCH) == producer.bumped()


def test_without_a_transaction_only_an_abort_with_a_new_epoch_succeeds() -> None:
    host = Host()
    producer = started(host)
    for protocol in EndProtocol:
        assert isinstance(end(host, producer, protocol=protocol), InvalidTransactionState)
    assert isinstance(end(host, producer, committed=False), InvalidTransactionState)
    assert end(host, producer, committed=False, protocol=EndProtocol.NEW_EPOCH) is None
    (markers,) = host.complete()
    assert markers.partitions == ()
    assert described(host).producer == producer.bumped()


def test_markers_of_an_earlier_transaction_complete_nothing() -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    end(host, producer)
    (earlier,) = host.complete()
    add(host, producer)
    end(host, producer)
    host.markers_written(earlier)
    host.settle()
    assert described(host).state is TransactionState.PREPARE_COMMIT
    host.complete()
    assert described(host).state is TransactionState.COMPLETE_COMMIT


def test_recovery_returns_the_same_identity_after_a_lost_reply() -> None:
    host = Host()
    producer = started(host)
    assert init(host, recovering=producer) == producer.bumped()
    assert init(host, recovering=producer) == producer.bumped()
    assert init(host, recovering=producer.bumped()) == producer.bumped().bumped()
    assert isinstance(init(host, recovering=producer), ProducerFenced)


def test_recovery_during_a_transaction_aborts_it_and_succeeds() -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    assert isinstance(init(host, recovering=producer), ConcurrentTransactions)
    assert [markers.committed for markers in host.complete()] == [False]
    assert init(host, recovering=producer) == producer.bumped()


def test_a_zombie_can_neither_recover_nor_affect_its_successor() -> None:
    host = Host()
    zombie = started(host)
    assert init(host, recovering=zombie) == zombie.bumped()
    successor = started(host)
    assert isinstance(init(host, recovering=zombie), ProducerFenced)
    add(host, successor)
    assert isinstance(init(host, recovering=zombie.bumped()), ProducerFenced)
    assert end(host, successor) == successor


def test_an_unknown_id_can_be_recovered_once_and_repeatedly() -> None:
    host = Host()
    forgotten = ProducerIdentity(77, 3)
    assert init(host, recovering=forgotten) == ProducerIdentity(1, 0)
    assert init(host, recovering=forgotten) == ProducerIdentity(1, 0)


def test_an_end_after_a_timeout_is_not_a_repetition() -> None:
    """The coordinator aborted with the same epoch that an abort of the client would have used."""
    host = Host()
    producer = started(host)
    add(host, producer)
    host.advance(60_000)
    host.complete()
    assert isinstance(end(host, producer, committed=False, protocol=EndProtocol.NEW_EPOCH), ProducerFenced)


def test_an_end_is_not_a_repetition_once_the_next_transaction_has_begun() -> None:
    host = Host()
    producer = started(host)
    add(host, producer)
    end(host, producer, protocol=EndProtocol.NEW_EPOCH)
    host.complete()
    add(host, producer.bumped())
    assert isinstance(end(host, producer, protocol=EndProtocol.NEW_EPOCH), ProducerFenced)
    # The end of the second transaction by an old client must not count as the end of the first.
    end(host, producer.bumped(), committed=True)
    host.complete()
    assert isinstance(end(host, producer, protocol=EndProtocol.NEW_EPOCH), ProducerFenced)


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    host = Host()
    store(host, ProducerIdentity(500, LAST_EPOCH))
    assert init(host) == ProducerIdentity(1, 0)


def test_recovery_at_the_last_epoch_gives_a_new_producer_id_and_gives_it_again() -> None:
    host = Host()
    exhausted = ProducerIdentity(500, LAST_EPOCH)
    store(host, exhausted)
    assert init(host, recovering=exhausted) == ProducerIdentity(1, 0)
    assert init(host, recovering=exhausted) == ProducerIdentity(1, 0)


def test_recovery_in_a_transaction_at_the_last_epoch_gives_a_usable_identity() -> None:
    host = Host()
    exhausted = ProducerIdentity(500, LAST_EPOCH)
    store(host, exhausted)
    add(host, exhausted)
    assert isinstance(init(host, recovering=exhausted), ConcurrentTransactions)
    assert host.complete()[0].producer == ProducerIdentity(500, LAST_EPOCH + 1)
    assert init(host, recovering=exhausted) == ProducerIdentity(1, 0)
    assert add(host, ProducerIdentity(1, 0)) == PartitionsAdded(2)


def test_the_fencing_epoch_cannot_be_used() -> None:
    host = Host()
    fencing = ProducerIdentity(500, LAST_EPOCH + 1)
    store(host, fencing)
    assert isinstance(add(host, fencing), ProducerFenced)
    assert isinstance(end(host, fencing, committed=False, protocol=EndProtocol.NEW_EPOCH), ProducerFenced)


def test_an_ongoing_transaction_keeps_its_deadline_through_restarts_and_more_partitions() -> None:
    host = Host()
    producer = started(host)
    add(host, producer, P0)
    host.now_ms += 59_000
    add(host, producer, P1)
    host.crash()
    assert host.machine.next_deadline_ms == START_MS + 60_000
    host.advance(1_000)
    (markers,) = host.complete()
    assert (markers.committed, markers.partitions, markers.producer) == (False, (P0, P1), producer.bumped())


def test_expiry_counts_from_the_last_use() -> None:
    host = Host()
    producer = started(host)
    for _ in range(50):
        add(host, producer)
        host.advance(1)
        end(host, producer)
        host.complete()
    assert host.machine.next_deadline_ms == host.now_ms + 7 * DAY_MS


def test_an_unused_id_expires_and_an_ongoing_one_does_not() -> None:
    host = Host(TransactionSettings(id_expiration_ms=1_000))
    producer = started(host)
    started(host, "busy")
    add(host, ProducerIdentity(2, 0), name="busy")
    host.advance(1_000)
    host.settle()
    assert host.log[-1] == Change(encode_key("t"), None)
    assert isinstance(add(host, producer), InvalidProducerIdMapping)
    assert contents(host.machine.snapshot()).keys() == {encode_key("busy")}
    host.crash()
    assert contents(host.machine.snapshot()).keys() == {encode_key("busy")}


def test_a_mass_expiry_is_spread_over_ticks() -> None:
    host = Host()
    for number in range(CHANGES_PER_TICK + 1):
        started(host, f"t{number}")
    host.now_ms += 7 * DAY_MS
    assert len(host.machine.tick(host.now_ms).changes) == CHANGES_PER_TICK
    assert host.machine.next_deadline_ms == host.now_ms
    assert len(host.machine.tick(host.now_ms).changes) == 1
    assert host.machine.next_deadline_ms is None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(ListTransactions(), ["done", "idle", "long", "short"], id="all"),
        pytest.param(
            ListTransactions(states=frozenset({TransactionState.ONGOING})), ["long", "short"], id="state"
        ),
        pytest.param(ListTransactions(producer_ids=frozenset({1, 3})), ["idle", "short"], id="producer"),
        pytest.param(ListTransactions(running_longer_than_ms=500), ["long"], id="duration"),
        pytest.param(
            ListTransactions(transactional_ids=frozenset({"done", "short", "unknown"})),
            ["done", "short"],
            id="transactional id",
        ),
    ],
)
def test_listing_filters_by(request_: ListTransactions, expected: list[str]) -> None:
    host = Host()
    producers = {name: started(host, name) for name in ("idle", "long", "short", "done")}
    add(host, producers["long"], name="long")
    add(host, producers["done"], name="done")
    end(host, producers["done"], name="done")
    host.complete()
    host.now_ms += 1_000
    add(host, producers["short"], name="short")
    answer = host.ask(request_)
    assert isinstance(answer, tuple)
    assert sorted(transaction.transactional_id for transaction in answer) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"", None, id="no key"),
        pytest.param(b"\xc1", None, id="no msgpack"),
        pytest.param(msgspec.msgpack.encode(("offset", "t")), None, id="another kind of key"),
        pytest.param(encode_key("t"), b"", id="empty value"),
        pytest.param(encode_key("t"), b"\x93\x01", id="torn value"),
        pytest.param(encode_key("t"), msgspec.msgpack.encode({"type": "other"}), id="another kind of value"),
    ],
)
def test_a_foreign_record_is_rejected(key: bytes, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        Host().machine.replay(key, value)
