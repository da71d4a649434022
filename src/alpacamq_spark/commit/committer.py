"""Commits staged writes on the driver: decides which attempts count, commits those, aborts the others.

A driver may die between the decision and the last commit. The repetition of the batch finds the
decision and completes it; its own attempts are aborted, except as replacements for decided attempts
whose transaction timed out in the meantime.

A decision is a record keyed by its sink, written in a transaction of the sink's own transactional id.
Claiming that id either makes a pending decision visible or aborts it, so two drivers can never both
decide. The repetition of a batch finds its decision.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.client.kafka.topics import create_topic, find_topic
from alpacamq.client.kafka.transactional import (
    ProducerIdentity,
    add_partitions,
    claim,
    end_transaction,
    send_batches,
)
from alpacamq.client.kafka.transactions import Transaction, list_transactions, transaction, transactions_of
from alpacamq.model.batch import TRANSACTIONAL, Codec
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ids import TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Record, write_batch
from alpacamq_spark.errors import InDoubt, SinkFenced, StagedWriteLost
from alpacamq_spark.last_record import last_record
from alpacamq_spark.read.subscription import COMMITS_TOPIC
from alpacamq_spark.retry import retry
from alpacamq_spark.write.staging import OPEN, AttemptId, Batch, StagedWrite, unnamed_sink

_PARTITIONS = 8
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only the last decision of a sink matters, so the log is kept short.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
# A driver that dies while deciding blocks readers of the partition for this long at most.
_DECIDE_TIMEOUT_MS = 10_000
# Superseded runs that a sink's decision lists.
_MAX_SUPERSEDED = 100


class CommittedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that a decision commits."""

    partition: int
    transactional_id: str
    producer_id: int
    epoch: int
    rows: int
    digest: int

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(
            transactional_id=self.transactional_id, producer_id=self.producer_id, epoch=self.epoch
        )


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The last decided batch of a sink, and the run that may decide the next."""

    sink: str
    query: str
    run: str
    number: int
    attempts: tuple[CommittedAttempt, ...] = msgspec.field(name="winners")
    superseded: tuple[str, ...] = ()
    # False means unknown: committing the attempts again is harmless.
    is_committed: bool = msgspec.field(default=False, name="is_shown")

    def covers(self, batch: Batch) -> bool:
        """Return whether the batch is this one or an earlier one."""
        return self.query == batch.query and self.number >= batch.number

    def taken_over(self, run: str) -> "Decision":
        """Return this decision as taken over by another run."""
        return msgspec.structs.replace(self, run=run, superseded=self._superseded_by(run))

    def _superseded_by(self, run: str) -> tuple[str, ...]:
        if run == self.run:
            return self.superseded
        return (*self.superseded, self.run)[-_MAX_SUPERSEDED:]

    @staticmethod
    def after(last: "Decision | None", batch: Batch, attempts: Iterable[CommittedAttempt]) -> "Decision":
        """Return the decision for a batch, made after `last`."""
        return Decision(
            sink=batch.sink,
            query=batch.query,
            run=batch.run,
            number=batch.number,
            attempts=tuple(attempts),
            superseded=() if last is None else last._superseded_by(batch.run),
        )


def committed_attempt(staged: StagedWrite) -> CommittedAttempt:
    """Convert a staged write to an attempt in a decision."""
    assert staged.producer is not None
    return CommittedAttempt(
        partition=staged.partition,
        transactional_id=staged.producer.transactional_id,
        producer_id=staged.producer.producer_id,
        epoch=staged.producer.epoch,
        rows=staged.rows,
        digest=staged.digest,
    )


def claim_sink(cluster: Cluster, sink: str) -> ProducerIdentity:
    """Claim a sink's own id: fences other deciders and lets late attempts notice."""
    return retry(lambda: claim(cluster, sink, _DECIDE_TIMEOUT_MS))


class DecisionLog:
    """The decisions of one sink; only the holder of its id may add one."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._sink = sink
        self._partition = retry(lambda: _partition(cluster, sink))
        self._fetcher = PartitionFetcher(cluster, self._partition, Isolation.COMMITTED)
        self._producer: ProducerIdentity | None = None
        self._written = 0

    def claim_sink(self) -> None:
        """Claim the right to decide, until another driver does."""
        self._producer = claim_sink(self._cluster, self._sink)
        self._written = 0

    def last(self) -> Decision | None:
        """Return the last decision, or None. Searches backwards, because it is near the end."""
        found = last_record(self._fetcher, self._sink.encode())
        return None if found is None else _read(found)

    def write(self, decision: Decision) -> None:
        """Write a decision. Raises Refused with a fencing error if another driver has claimed the sink."""
        assert decision.sink == self._sink
        producer = self._producer
        assert producer is not None, "claim the sink before deciding"
        record = Record(0, time.time_ns() // 1_000_000, self._sink.encode(), msgspec.json.encode(decision))
        # A batch of thousands of tasks has thousands of similar attempts.
        batch = write_batch(
            [record],
            codec=Codec.ZSTD,
            attributes=TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self._written,
        )
        retry(lambda: add_partitions(self._cluster, producer, [self._partition]))
        retry(lambda: send_batches(self._cluster, producer, {self._partition: batch}))
        retry(lambda: end_transaction(self._cluster, producer, committed=True))
        self._written += 1


def _read(record: Record) -> Decision | None:
    if record.value is None:
        return None
    try:
        return msgspec.json.decode(record.value, type=Decision)
    except msgspec.MsgspecError as error:
        raise CorruptBatch(
            f"the decision at offset {record.offset} of {COMMITS_TOPIC} cannot be read: {error}"
        ) from error


def _partition(cluster: Cluster, sink: str) -> TopicPartition:
    """Return the partition for a sink's decisions; create the topic on first use."""
    try:
        topic = find_topic(cluster, COMMITS_TOPIC)
    except NotFound:
        try:
            create_topic(cluster, COMMITS_TOPIC, partitions=_PARTITIONS, replicas=-1, settings=_SETTINGS)
        except Refused as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = find_topic(cluster, COMMITS_TOPIC)
    if len(topic.partitions) < _PARTITIONS:
        raise InDoubt(
            f"the topic {COMMITS_TOPIC} has {len(topic.partitions)} partitions and needs {_PARTITIONS}: it "
            "was not created by the connector. Delete it while no Spark job writes; it is created again"
        )
    # A fixed count: partitions may be added, and existing decisions stay where they are.
    return TopicPartition(topic.name, partition_for_key(sink.encode(), _PARTITIONS))


# The transaction belongs to another producer by now, or was ended the other way.
ENDED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})
# The broker keeps transactional ids for days, not for ever.
FORGOTTEN = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND})
_CLAIM_TIMEOUT_MS = 60_000


def commit_transactions(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> list[ProducerIdentity]:
    """Commit transactions; return those that were aborted before. Idempotent."""
    lost = []
    for producer in producers:
        try:
            _end(cluster, producer, committed=True)
        except Refused as refused:
            if refused.code not in ENDED:
                raise
            lost.append(producer)
    return lost


def await_markers(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Wait until committed transactions are visible. A slow broker does not undo them."""
    for producer in producers:
        with suppress(Refused):
            # The broker answers a repeated request once it has written the markers to every partition.
            _end(cluster, producer, committed=True)


def abort_transactions(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Abort transactions; ignore those that have ended already."""
    for producer in producers:
        with suppress(Refused):
            _end(cluster, producer, committed=False)


def abort_unless_committed(cluster: Cluster, producer: ProducerIdentity) -> bool:
    """Abort a transaction; return false if it was committed already."""
    try:
        _end(cluster, producer, committed=False)
    except Refused as refused:
        if refused.code not in ENDED:
            raise
        # Aborted by its timeout, or committed.
        return refused.code != ErrorCode.INVALID_TXN_STATE
    return True


def ended_transactions(cluster: Cluster, producers: Sequence[ProducerIdentity]) -> list[ProducerIdentity]:
    """Return those whose transaction has ended, either way."""
    found = retry(lambda: transactions_of(cluster, [each.transactional_id for each in producers]))
    return [each for each in producers if not _is_open(each, found.get(each.transactional_id))]


def abort_orphans(
    cluster: Cluster, sink: str, kept: Iterable[ProducerIdentity], is_over: Callable[[str], bool]
) -> None:
    """Abort open attempts at a sink of runs that are over, except those in `kept`.

    Also abort orphans of other unnamed jobs that are over: no later run of theirs would do so.
    """
    spared = {producer.transactional_id for producer in kept}
    for summary in retry(lambda: list_transactions(cluster, OPEN)):
        attempt = AttemptId.parse(summary.id)
        if attempt is None or summary.id in spared:
            continue
        mine = attempt.sink == sink
        if is_over(attempt.run) if mine else _is_orphan(cluster, attempt):
            retry(lambda name=summary.id: claim(cluster, name, _CLAIM_TIMEOUT_MS))  # type: ignore[misc]


def _is_orphan(cluster: Cluster, attempt: AttemptId) -> bool:
    """Return whether an attempt belongs to an unnamed job that has ended and so claimed its own id."""
    if attempt.sink != unnamed_sink(attempt.run):
        return False
    return retry(lambda: transaction(cluster, attempt.sink)) is not None


def _is_open(producer: ProducerIdentity, found: Transaction | None) -> bool:
    return found is not None and found.state == OPEN and found.producer_epoch == producer.epoch


def _end(cluster: Cluster, producer: ProducerIdentity, *, committed: bool) -> None:
    retry(lambda: end_transaction(cluster, producer, committed=committed))


# A rival that claims the sink's id fences a pending decision. The next attempt shows which one won.
_ATTEMPTS = 5


def commit(cluster: Cluster, staged: Sequence[StagedWrite]) -> None:
    """Make one batch visible, exactly once whatever happened before."""
    written = [each for each in staged if each.producer is not None]
    if not written:
        if staged:
            complete(cluster, staged[0].batch)
        return
    if written[0].batch.is_unnamed:
        _commit_unnamed(cluster, written)
        return
    for tries_left in reversed(range(_ATTEMPTS)):
        try:
            _BatchCommit(cluster, written[0].batch, written).commit()
        except _Overtaken:
            if not tries_left:
                raise SinkFenced(f"other writers keep committing under {written[0].batch.sink!r}") from None
        except Refused as refused:
            if refused.code not in ENDED or not tries_left:
                raise
        else:
            return


def complete(cluster: Cluster, batch: Batch) -> None:
    """Complete the decision for a batch that has no rows this time, perhaps because of retention."""
    if batch.is_unnamed:
        return
    last = DecisionLog(cluster, batch.sink).last()
    if last is not None and last.number == batch.number and last.covers(batch) and not last.is_committed:
        abort(cluster, batch, ())


def abort(cluster: Cluster, batch: Batch, staged: Sequence[StagedWrite]) -> None:
    """Abort the transactions of a failed batch, unless it was decided before it failed."""
    written = [each for each in staged if each.producer is not None]
    if batch.is_unnamed:
        _abort_unnamed(cluster, batch, written)
        return
    try:
        _BatchCommit(cluster, batch, written).abort()
    except SinkFenced:
        # The other run decides now. It has committed what this run decided, or repeats it in its decision.
        last = DecisionLog(cluster, batch.sink).last()
        kept = {each.producer for each in last.attempts} if last is not None else set()
        abort_transactions(cluster, [each for each in _producers(written) if each not in kept])
        raise


def _commit_unnamed(cluster: Cluster, written: Sequence[StagedWrite]) -> None:
    """Commit a job that is never repeated: its first committed transaction is the decision."""
    batch, producers = written[0].batch, _producers(written)
    if ended_transactions(cluster, producers) or commit_transactions(cluster, producers):
        raise StagedWriteLost(_timeout_message(batch))
    claim_sink(cluster, batch.sink)
    abort_orphans(cluster, batch.sink, producers, lambda _: True)
    await_markers(cluster, producers)


def _abort_unnamed(cluster: Cluster, batch: Batch, written: Sequence[StagedWrite]) -> None:
    producers = _producers(written)
    if producers and not abort_unless_committed(cluster, producers[0]):
        commit_transactions(cluster, producers[1:])
    else:
        abort_transactions(cluster, producers[1:])
    claim_sink(cluster, batch.sink)
    abort_orphans(cluster, batch.sink, (), lambda _: True)


class _Overtaken(Exception):
    """Another writer has decided since the decisions were read."""


class _BatchCommit:
    """One attempt to end a batch, as holder of the sink's id."""

    def __init__(self, cluster: Cluster, batch: Batch, written: Sequence[StagedWrite]) -> None:
        self._cluster = cluster
        self._written = written
        self._log = DecisionLog(cluster, batch.sink)
        self._batch = batch
        # Before claiming the id, because the claim ends the tasks of the current holder.
        self._check_not_fenced(self._log.last())
        self._log.claim_sink()
        self._last = self._log.last()
        self._check_not_fenced(self._last)
        self._batch = self._numbered(batch)

    def _check_not_fenced(self, last: Decision | None) -> None:
        if last is not None and self._batch.run in last.superseded:
            raise SinkFenced(self._conflict(last))

    def _numbered(self, batch: Batch) -> Batch:
        """Number a job without a number: the next number, or the last if that was decided for this job."""
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
            if last is not None and takes_over and not last.is_committed:
                with suppress(InDoubt):
                    self._commit_attempts(last)  # its driver may have died before that
            self._decide([committed_attempt(each) for each in self._written])
        # On takeover, abort all that other runs have begun; later, tell runs apart by name.
        over = {batch.run, *(self._last.superseded if self._last is not None else ())}
        abort_orphans(
            self._cluster, batch.sink, self._committed_producers(), lambda run: takes_over or run in over
        )

    def abort(self) -> None:
        if self._last is not None and self._last.covers(self._batch):
            self._commit_attempts(self._last)
        self._abort_losers()
        abort_orphans(
            self._cluster, self._batch.sink, self._committed_producers(), lambda run: run == self._batch.run
        )

    def _repeat(self, last: Decision) -> None:
        """Complete a decision that was made already."""
        if last.run != self._batch.run:
            last = last.taken_over(self._batch.run)
            self._write(last)
        if (
            last.number == self._batch.number
            and not last.is_committed
            and (lost := self._commit_attempts(last))
        ):
            self._decide(self._replace_lost(last, lost))
        self._abort_losers()

    def _replace_lost(self, last: Decision, lost: Sequence[CommittedAttempt]) -> list[CommittedAttempt]:
        """Replace decided attempts whose transaction timed out by attempts of this repetition."""
        again = {each.partition: committed_attempt(each) for each in self._written}
        if len(lost) == len(last.attempts):
            return list(again.values())  # nothing of the batch was ever visible
        for each in lost:
            other = again.get(each.partition)
            if other is None or (other.rows, other.digest) != (each.rows, each.digest):
                raise InDoubt(
                    f"batch {last.number} of {last.sink!r} was committed in part when its driver died, and "
                    f"the rest timed out, including {each.rows} rows of task {each.partition}. The repeated "
                    "batch is divided differently, so the rest cannot be told from what was committed. "
                    f"{_ADVICE}"
                )
        return [each if each not in lost else again[each.partition] for each in last.attempts]

    def _decide(self, attempts: Sequence[CommittedAttempt]) -> None:
        mine = {each.producer for each in self._written}
        if ended_transactions(self._cluster, [each.producer for each in attempts if each.producer in mine]):
            if self._log.last() != self._last:
                raise _Overtaken
            if self._last is not None and self._last.run != self._batch.run:
                raise SinkFenced(self._conflict(self._last))
            raise StagedWriteLost(_timeout_message(self._batch))
        decision = Decision.after(self._last, self._batch, attempts)
        self._write(decision)
        if lost := self._commit_attempts(decision):
            raise StagedWriteLost(
                f"batch {self._batch.number} of {self._batch.sink!r} was decided, but {len(lost)} of its "
                "transactions ended meanwhile; it is completed when the batch is repeated"
            )
        if self._batch.is_job:
            # Streams repeat a batch at once or never; jobs may do so after the broker dropped the ids.
            self._write(msgspec.structs.replace(decision, is_committed=True))
            await_markers(self._cluster, [each.producer for each in attempts])

    def _write(self, decision: Decision) -> None:
        self._log.write(decision)
        self._last = decision

    def _commit_attempts(self, decision: Decision) -> list[CommittedAttempt]:
        """Commit the decided attempts; return those that had been aborted."""
        try:
            lost = commit_transactions(self._cluster, [each.producer for each in decision.attempts])
        except Refused as refused:
            if refused.code not in FORGOTTEN:
                raise
            raise InDoubt(
                f"it is unknown whether batch {decision.number} of {decision.sink!r} was committed: it was "
                f"decided, but the broker no longer has its transactions. {_ADVICE}"
            ) from refused
        return [each for each in decision.attempts if each.producer in lost]

    def _abort_losers(self) -> None:
        kept = self._committed_producers()
        abort_transactions(self._cluster, [each for each in _producers(self._written) if each not in kept])

    def _committed_producers(self) -> set[ProducerIdentity]:
        return {each.producer for each in self._last.attempts} if self._last is not None else set()

    def _conflict(self, last: Decision) -> str:
        return (
            f"another query or job writes under transactionalId {last.sink!r} (run {last.run}, batch "
            f"{last.number}), so run {self._batch.run} may not; give each a transactionalId of its own"
        )


_ADVICE = "Compare the topic with the source, then continue with a new checkpoint and transactionalId"


def _producers(written: Sequence[StagedWrite]) -> list[ProducerIdentity]:
    return [each.producer for each in written if each.producer is not None]


def _timeout_message(batch: Batch) -> str:
    return (
        f"a transaction for {batch.sink!r} was aborted before all tasks were done: they took longer than "
        "kafka.transaction.timeout.ms"
    )
