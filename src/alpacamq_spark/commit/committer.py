"""What the driver does with staged writes: decide which count, then show those and drop the rest.

Between the decision and its last transaction shown, a driver may die. Whoever repeats the batch
finds the decision and carries it out; its own attempts are dropped, except where one that won
had been dropped by its timeout in the meantime.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from alpacamq.client.errors import ErrorCode, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.transactional import ProducerIdentity, claim, end_transaction
from alpacamq.client.kafka.transactions import every_transaction, transaction
from alpacamq_spark.errors import InDoubt, SinkFenced, StagedWriteLost
from alpacamq_spark.retry import persistently
from alpacamq_spark.write.staging import OPEN, AttemptId, Batch, StagedWrite, alone

from .decisions import Decision, DecisionLog, Winner, hold, winner

# The transaction is another's by now, or was ended the other way.
ENDED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})
# The broker remembers transactional ids for days, not for ever.
FORGOTTEN = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND})
_REAPING_MS = 60_000


def show(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> list[ProducerIdentity]:
    """Commit transactions; those that were dropped before are returned. Showing twice is showing once."""
    lost = []
    for producer in producers:
        try:
            _end(cluster, producer, committed=True)
        except Refused as refused:
            if refused.code not in ENDED:
                raise
            lost.append(producer)
    return lost


def settle(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Wait until transactions that were shown are seen; a broker that is slow with it does not undo them."""
    for producer in producers:
        with suppress(Refused):
            # Asked again, the broker answers when it has marked the end in every partition.
            _end(cluster, producer, committed=True)


def drop(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Abort transactions; of those that were ended before there is nothing to drop."""
    for producer in producers:
        with suppress(Refused):
            _end(cluster, producer, committed=False)


def is_dropped(cluster: Cluster, producer: ProducerIdentity) -> bool:
    """Abort a transaction unless it was shown already, and say which it is."""
    try:
        _end(cluster, producer, committed=False)
    except Refused as refused:
        if refused.code not in ENDED:
            raise
        # Aborted by its timeout, or shown.
        return refused.code != ErrorCode.INVALID_TXN_STATE
    return True


def not_open(cluster: Cluster, producers: Sequence[ProducerIdentity]) -> list[ProducerIdentity]:
    """Those whose transaction has ended, whichever way."""
    return [producer for producer in producers if not _is_open(cluster, producer)]


def reap(
    cluster: Cluster, sink: str, kept: Iterable[ProducerIdentity], is_over: Callable[[str], bool]
) -> None:
    """Abort what attempts at a sink have left open, of runs that are over, but for those to be kept.

    And what attempts of other jobs have left that were over before: such a job has nobody else.
    """
    spared = {producer.transactional_id for producer in kept}
    for summary in persistently(lambda: every_transaction(cluster, OPEN)):
        attempt = AttemptId.parse(summary.id)
        if attempt is None or summary.id in spared:
            continue
        mine = attempt.sink == sink
        if is_over(attempt.run) if mine else _is_orphan(cluster, attempt):
            persistently(lambda name=summary.id: claim(cluster, name, _REAPING_MS))  # type: ignore[misc]


def _is_orphan(cluster: Cluster, attempt: AttemptId) -> bool:
    """Whether an attempt is of a job without a name that has ended: by then it has claimed its own id."""
    if attempt.sink != alone(attempt.run):
        return False
    return persistently(lambda: transaction(cluster, attempt.sink)) is not None


def _is_open(cluster: Cluster, producer: ProducerIdentity) -> bool:
    found = persistently(lambda: transaction(cluster, producer.transactional_id))
    return found is not None and found.state == OPEN and found.producer_epoch == producer.epoch


def _end(cluster: Cluster, producer: ProducerIdentity, *, committed: bool) -> None:
    persistently(lambda: end_transaction(cluster, producer, committed=committed))


# A rival that claims the sink's id fences a decision on its way. Who is right shows the next time.
_ATTEMPTS = 5


def commit(cluster: Cluster, staged: Sequence[StagedWrite]) -> None:
    """Make one batch visible, exactly once whatever happened before."""
    written = [each for each in staged if each.producer is not None]
    if not written:
        if staged:
            complete(cluster, staged[0].batch)
        return
    if written[0].batch.is_alone:
        _commit_alone(cluster, written)
        return
    for tries_left in reversed(range(_ATTEMPTS)):
        try:
            _Commitment(cluster, written[0].batch, written).commit()
        except _Overtaken:
            if not tries_left:
                raise SinkFenced(f"others keep committing under {written[0].batch.sink!r}") from None
        except Refused as refused:
            if refused.code not in ENDED or not tries_left:
                raise
        else:
            return


def complete(cluster: Cluster, batch: Batch) -> None:
    """Carry out what was decided for a batch that has no rows this time: retention may have passed them."""
    if batch.is_alone:
        return
    last = DecisionLog(cluster, batch.sink).last()
    if last is not None and last.number == batch.number and last.covers(batch) and not last.is_shown:
        abort(cluster, batch, ())


def abort(cluster: Cluster, batch: Batch, staged: Sequence[StagedWrite]) -> None:
    """Drop what a failed batch has written, unless it was decided before it failed."""
    written = [each for each in staged if each.producer is not None]
    if batch.is_alone:
        _abort_alone(cluster, batch, written)
    else:
        _Commitment(cluster, batch, written).abort()


def _commit_alone(cluster: Cluster, written: Sequence[StagedWrite]) -> None:
    """A job that nobody repeats: that its first transaction is shown is the decision."""
    batch, producers = written[0].batch, _producers(written)
    if not_open(cluster, producers) or show(cluster, producers):
        raise StagedWriteLost(_too_slow(batch))
    hold(cluster, batch.sink)
    reap(cluster, batch.sink, producers, lambda _: True)
    settle(cluster, producers)


def _abort_alone(cluster: Cluster, batch: Batch, written: Sequence[StagedWrite]) -> None:
    producers = _producers(written)
    if producers and not is_dropped(cluster, producers[0]):
        show(cluster, producers[1:])
    else:
        drop(cluster, producers[1:])
    hold(cluster, batch.sink)
    reap(cluster, batch.sink, (), lambda _: True)


class _Overtaken(Exception):
    """Another has decided since the last look at the decisions."""


class _Commitment:
    """One try at ending a batch, as the one who holds the sink's id."""

    def __init__(self, cluster: Cluster, batch: Batch, written: Sequence[StagedWrite]) -> None:
        self._cluster = cluster
        self._written = written
        self._log = DecisionLog(cluster, batch.sink)
        self._batch = batch
        # Before the id is claimed, as that ends the tasks of whoever may write.
        self._check_not_fenced(self._log.last())
        self._log.hold()
        self._last = self._log.last()
        self._check_not_fenced(self._last)
        self._batch = self._numbered(batch)

    def _check_not_fenced(self, last: Decision | None) -> None:
        if last is not None and self._batch.run in last.superseded:
            raise SinkFenced(self._taken(last))

    def _numbered(self, batch: Batch) -> Batch:
        """A job without a number is the next, or the last if that was decided for it already."""
        last = self._last
        if batch.number >= 0:
            return batch
        if last is None or last.query != batch.query:
            return replace(batch, number=0)
        return replace(batch, number=last.number if last.run == batch.run else last.number + 1)

    def commit(self) -> None:
        last, batch = self._last, self._batch
        takes_over = last is None or last.run != batch.run
        if last is not None and last.covers(batch):
            self._repeat(last)
        else:
            if last is not None and takes_over and not last.is_shown:
                with suppress(InDoubt):
                    self._show(last)  # its driver may have died before it could
            self._decide([winner(each) for each in self._written])
        # Who takes over ends all that any other run has begun; later, runs are told apart by name.
        over = {batch.run, *(self._last.superseded if self._last is not None else ())}
        reap(self._cluster, batch.sink, self._winners(), lambda run: takes_over or run in over)

    def abort(self) -> None:
        if self._last is not None and self._last.covers(self._batch):
            self._show(self._last)
        self._drop_losers()
        reap(self._cluster, self._batch.sink, self._winners(), lambda run: run == self._batch.run)

    def _repeat(self, last: Decision) -> None:
        """Carry out a decision that was made already."""
        if last.run != self._batch.run:
            last = last.taken_over(self._batch.run)
            self._write(last)
        if last.number == self._batch.number and not last.is_shown and (lost := self._show(last)):
            self._decide(self._replaced(last, lost))
        self._drop_losers()

    def _replaced(self, last: Decision, lost: Sequence[Winner]) -> list[Winner]:
        """The winners, with attempts of this repetition for those that were dropped by their timeout."""
        again = {each.partition: winner(each) for each in self._written}
        if len(lost) == len(last.winners):
            return list(again.values())  # nothing of the batch was ever seen
        for each in lost:
            other = again.get(each.partition)
            if other is None or (other.rows, other.digest) != (each.rows, each.digest):
                raise InDoubt(
                    f"batch {last.number} of {last.sink!r} was half shown when its driver died, and the "
                    f"rest, {each.rows} rows of task {each.partition} among it, was dropped by its timeout. "
                    "Repeated, the batch is divided in another way, so the rest cannot be told from what was "
                    f"shown. {_LOOK}"
                )
        return [each if each not in lost else again[each.partition] for each in last.winners]

    def _decide(self, winners: Sequence[Winner]) -> None:
        mine = {each.producer for each in self._written}
        if not_open(self._cluster, [each.producer for each in winners if each.producer in mine]):
            if self._log.last() != self._last:
                raise _Overtaken
            if self._last is not None and self._last.run != self._batch.run:
                raise SinkFenced(self._taken(self._last))
            raise StagedWriteLost(_too_slow(self._batch))
        decision = Decision.after(self._last, self._batch, winners)
        self._write(decision)
        if lost := self._show(decision):
            raise StagedWriteLost(
                f"batch {self._batch.number} of {self._batch.sink!r} is decided, but {len(lost)} of its "
                "transactions ended meanwhile; it is completed when the batch is repeated"
            )
        if self._batch.is_job:
            # Streams repeat a batch at once or never, jobs perhaps after the broker has forgotten.
            self._write(msgspec.structs.replace(decision, is_shown=True))
            settle(self._cluster, [each.producer for each in winners])

    def _write(self, decision: Decision) -> None:
        self._log.write(decision)
        self._last = decision

    def _show(self, decision: Decision) -> list[Winner]:
        """Commit what won; the winners that had been dropped are returned."""
        try:
            lost = show(self._cluster, [each.producer for each in decision.winners])
        except Refused as refused:
            if refused.code not in FORGOTTEN:
                raise
            raise InDoubt(
                f"whether batch {decision.number} of {decision.sink!r} was shown cannot be told: it was "
                f"decided, but the broker has forgotten its transactions. {_LOOK}"
            ) from refused
        return [each for each in decision.winners if each.producer in lost]

    def _drop_losers(self) -> None:
        kept = self._winners()
        drop(self._cluster, [each for each in _producers(self._written) if each not in kept])

    def _winners(self) -> set[ProducerIdentity]:
        return {each.producer for each in self._last.winners} if self._last is not None else set()

    def _taken(self, last: Decision) -> str:
        return (
            f"another query or job writes under transactionalId {last.sink!r} (run {last.run}, batch "
            f"{last.number}), so run {self._batch.run} may not; give each a transactionalId of its own"
        )


_LOOK = "Compare the topic with the source, then go on with a new checkpoint and transactionalId"


def _producers(written: Sequence[StagedWrite]) -> list[ProducerIdentity]:
    return [each.producer for each in written if each.producer is not None]


def _too_slow(batch: Batch) -> str:
    return (
        f"what a task wrote for {batch.sink!r} was dropped before all were done: they took longer than "
        "kafka.transaction.timeout.ms"
    )
