"""The transaction coordinator of one partition of the transactions topic.

A decision is durable before any marker is written, and a decided transaction can only be completed, so a
crash at any point leaves every partition with the same outcome.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import ClassVar

import msgspec

from alpacamq.model.deadlines import NamedDeadlines
from alpacamq.model.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionalIdNotFound,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Reply, reply

from .transaction import (
    COMPLETE,
    PREPARED,
    Aborted,
    AbortIn,
    AddPartitions,
    DescribeTransaction,
    EndProtocol,
    EndTransaction,
    FindOpen,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    OpenTransactions,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdentity,
    Transaction,
    TransactionState,
    VerifyPartitions,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

# Bounds the batch that a mass expiry writes; the remainder stays due.
CHANGES_PER_TICK = 500


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum transaction timeout, and the retention of unused transactional ids."""

    max_timeout_ms: int = 15 * 60_000
    id_expiration_ms: int = 7 * 24 * 3_600_000


class TransactionCoordinator(HandlesOneByOne):
    """The state machine of transactional ids.

    `new_producer_id` returns an id that was never used. `init_producer_id` and `end` take at most one per
    call; the host makes sure that one is available.
    """

    def __init__(
        self, new_producer_id: Callable[[], int], settings: TransactionSettings | None = None
    ) -> None:
        self._new_producer_id = new_producer_id
        self._settings = settings or TransactionSettings()
        self._transactions: dict[str, Transaction] = {}
        self._deadlines = NamedDeadlines()
        self._waiting: dict[str, object] = {}

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def init_producer_id(self, request: InitProducer, reply_to: object, now_ms: int) -> Outcome:
        """Reply with a ProducerIdentity that fences every earlier one."""
        self._check_init(request)
        known, recovering = self._transactions.get(request.transactional_id), request.recovering
        if known is None:
            claimed = Transaction(
                transactional_id=request.transactional_id,
                producer=ProducerIdentity(self._new_producer_id(), 0),
                previous=recovering,
                timeout_ms=request.timeout_ms,
                updated_ms=now_ms,
            )
        else:
            if recovering is not None and recovering not in (known.producer, known.previous):
                raise ProducerFenced(
                    f"transactional id {request.transactional_id!r} belongs to {known.producer}: "
                    f"{recovering} is fenced"
                )
            if known.state in PREPARED:
                raise _still_completing(known)
            if known.state is TransactionState.ONGOING:
                return self._fence(known, recovering, reply_to, now_ms)
            claimed = known.claimed(recovering, request.timeout_ms, self._new_producer_id, now_ms)
        return Outcome([self._put(claimed)], [Reply(reply_to, claimed.producer)])

    def add_partitions(self, request: AddPartitions, reply_to: object, now_ms: int) -> Outcome:
        """Add partitions; the first ones begin a transaction."""
        known = self._owned_by(request.transactional_id, request.producer)
        if known.state in PREPARED:
            raise _still_completing(known)
        if known.state is TransactionState.ONGOING and set(request.partitions) <= set(known.partitions):
            return reply(reply_to, PartitionsAdded(known.number))
        added = known.with_partitions(request.partitions, now_ms)
        return reply(reply_to, PartitionsAdded(added.number), [self._put(added)])

    def verify_partitions(self, request: VerifyPartitions, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the partitions that are not part of the transaction."""
        known = self._owned_by(request.transactional_id, request.producer)
        if known.state in PREPARED:
            raise _still_completing(known)
        added = set(known.partitions)
        absent = tuple(partition for partition in request.partitions if partition not in added)
        return reply(reply_to, PartitionsVerified(absent, known.number))

    def end(self, request: EndTransaction, reply_to: object, now_ms: int) -> Outcome:
        """Decide a transaction. A repeated request gets the same reply as the first."""
        if request.protocol is EndProtocol.NEW_EPOCH:
            return self._end_with_new_epoch(request, reply_to, now_ms)
        known = self._owned_by(request.transactional_id, request.producer)
        if known.state in PREPARED | COMPLETE:
            return self._end_again(known, request, reply_to)
        if known.state is not TransactionState.ONGOING:
            raise _nothing_to_end(known)
        decided = known.decided(committed=request.committed, now_ms=now_ms)
        return Outcome([self._put(decided)], [Reply(reply_to, decided.producer)], [decided.markers])

    def markers_written(self, event: MarkersWritten, _reply_to: object, now_ms: int) -> Outcome:
        """Complete a transaction whose partitions all have their marker."""
        markers = event.markers
        known = self._transactions.get(markers.transactional_id)
        if known is None or known.state not in PREPARED or known.markers != markers:
            return Outcome()
        completed = known.completed(now_ms)
        outcome = Outcome([self._put(completed)])
        if known.transactional_id in self._waiting:
            reply_to = self._waiting.pop(known.transactional_id)
            outcome.replies.append(Reply(reply_to, completed.producer))
        return outcome

    def describe(self, request: DescribeTransaction, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the Transaction."""
        known = self._transactions.get(request.transactional_id)
        if known is None:
            raise TransactionalIdNotFound(f"unknown transactional id {request.transactional_id!r}")
        return reply(reply_to, known)

    def list_transactions(self, request: ListTransactions, reply_to: object, now_ms: int) -> Outcome:
        """Reply with the transactions that match."""
        return reply(
            reply_to,
            tuple(known for known in self._transactions.values() if _matches(known, request, now_ms)),
        )

    def find_open(self, request: FindOpen, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the OpenTransactions of producers."""
        wanted = request.producer_ids
        return reply(
            reply_to,
            OpenTransactions(
                frozenset(
                    (known.producer.producer_id, partition)
                    for known in self._transactions.values()
                    if known.producer.producer_id in wanted
                    for partition in known.partitions
                )
            ),
        )

    def abort_in(self, request: AbortIn, reply_to: object, now_ms: int) -> Outcome:
        """Abort the open transactions of partitions that have lost records."""
        outcome = self.abort_open(now_ms, request.partitions)
        outcome.replies.append(Reply(reply_to, Aborted(len(outcome.changes))))
        return outcome

    HANDLERS: ClassVar = {
        InitProducer: init_producer_id,
        AddPartitions: add_partitions,
        VerifyPartitions: verify_partitions,
        EndTransaction: end,
        DescribeTransaction: describe,
        ListTransactions: list_transactions,
        FindOpen: find_open,
        AbortIn: abort_in,
        MarkersWritten: markers_written,
    }

    def cancel(self, reply_to: object) -> None:
        """Remove a pending request."""
        for transactional_id, waiting in self._waiting.items():
            if waiting is reply_to:
                del self._waiting[transactional_id]
                return

    def tick(self, now_ms: int) -> Outcome:
        """Abort transactions that have timed out, and delete expired transactional ids."""
        outcome = Outcome()
        for transactional_id in islice(self._deadlines.take_due(now_ms), CHANGES_PER_TICK):
            known = self._transactions[transactional_id]
            if known.may_expire:
                del self._transactions[transactional_id]
                outcome.changes.append(Change(encode_key(transactional_id), None))
            else:
                aborted = known.fenced(None, now_ms)
                outcome.changes.append(self._put(aborted))
                outcome.effects.append(aborted.markers)
        return outcome

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record; raise InvalidRecord if it is not a transaction."""
        transactional_id = decode_key(key)
        if value is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = decode_value(value)

    def loaded(self, now_ms: int) -> Outcome:  # noqa: ARG002 - stored times are kept
        """Resume after replay: start deadlines from stored times, and complete prepared transactions."""
        for transaction in self._transactions.values():
            self._schedule(transaction)
        return Outcome(
            effects=[known.markers for known in self._transactions.values() if known.state in PREPARED]
        )

    def abort_open(self, now_ms: int, lost: AbstractSet[TopicPartition] | None = None) -> Outcome:
        """Abort and fence open transactions, because a power loss may have lost some of their records.

        Those of the partitions in `lost`, or all.
        """
        outcome = Outcome()
        for known in [*self._transactions.values()]:
            if known.state is TransactionState.ONGOING and (lost is None or lost & {*known.partitions}):
                aborted = known.fenced(None, now_ms)
                outcome.changes.append(self._put(aborted))
                outcome.effects.append(aborted.markers)
        return outcome

    def snapshot(self) -> Iterator[Change]:
        for transaction in list(self._transactions.values()):
            yield Change(encode_key(transaction.transactional_id), encode_value(transaction))

    def _check_init(self, request: InitProducer) -> None:
        if not request.transactional_id:
            raise InvalidRequest("invalid transactional id: must not be empty")
        if not 0 < request.timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"transaction timeout must be 1 to {self._settings.max_timeout_ms} ms, "
                f"not {request.timeout_ms}"
            )
        if request.recovering is not None and min(request.recovering) < 0:
            raise InvalidRequest(f"invalid {request.recovering}: id and epoch must not be negative")

    def _owned_by(self, transactional_id: str, producer: ProducerIdentity) -> Transaction:
        known = self._transactions.get(transactional_id)
        if known is None:
            raise InvalidProducerIdMapping(f"unknown transactional id {transactional_id!r}")
        known.check(producer)
        return known

    def _fence(
        self, known: Transaction, recovering: ProducerIdentity | None, reply_to: object, now_ms: int
    ) -> Outcome:
        """Abort the transaction of an earlier instance; the new one must retry until that is complete."""
        aborted = known.fenced(recovering, now_ms)
        return Outcome([self._put(aborted)], [Reply(reply_to, _still_completing(aborted))], [aborted.markers])

    def _end_with_new_epoch(self, request: EndTransaction, reply_to: object, now_ms: int) -> Outcome:
        known = self._transactions.get(request.transactional_id)
        if known is not None and request.producer == known.previous and known.state in PREPARED | COMPLETE:
            return self._end_again(known, request, reply_to)
        known = self._owned_by(request.transactional_id, request.producer)
        if known.state in PREPARED:
            raise _still_completing(known)
        if known.state is not TransactionState.ONGOING and request.committed:
            raise _nothing_to_end(known)
        decided = known.decided_with_new_epoch(
            committed=request.committed, new_producer_id=self._new_producer_id, now_ms=now_ms
        )
        self._waiting[request.transactional_id] = reply_to
        return Outcome([self._put(decided)], [], [decided.markers])

    def _end_again(self, known: Transaction, request: EndTransaction, reply_to: object) -> Outcome:
        if known.is_committing != request.committed:
            raise InvalidTransactionState(
                f"the transaction of {known.transactional_id!r} is {known.state.value} and cannot be "
                f"{'committed' if request.committed else 'aborted'}"
            )
        if known.state in PREPARED:
            raise _still_completing(known)
        return reply(reply_to, known.producer)

    def _put(self, transaction: Transaction) -> Change:
        self._transactions[transaction.transactional_id] = transaction
        self._schedule(transaction)
        return Change(encode_key(transaction.transactional_id), encode_value(transaction))

    def _schedule(self, transaction: Transaction) -> None:
        due_ms = None
        if transaction.state is TransactionState.ONGOING:
            assert transaction.started_ms is not None
            due_ms = transaction.started_ms + transaction.timeout_ms
        elif transaction.may_expire:
            due_ms = transaction.updated_ms + self._settings.id_expiration_ms
        self._deadlines.put(transaction.transactional_id, due_ms)


def _matches(known: Transaction, request: ListTransactions, now_ms: int) -> bool:
    if request.states and known.state not in request.states:
        return False
    if request.producer_ids and known.producer.producer_id not in request.producer_ids:
        return False
    limit_ms = request.running_longer_than_ms
    if limit_ms is not None and (known.started_ms is None or now_ms - known.started_ms <= limit_ms):
        return False
    return not request.transactional_ids or known.transactional_id in request.transactional_ids


def _still_completing(known: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"the last transaction of {known.transactional_id!r} is {known.state.value}: "
        "retry when it is complete"
    )


def _nothing_to_end(known: Transaction) -> InvalidTransactionState:
    return InvalidTransactionState(
        f"transactional id {known.transactional_id!r} is {known.state.value}: no transaction to end"
    )
