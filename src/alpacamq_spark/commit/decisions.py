"""Decisions about which attempts at a batch are committed, stored in a topic.

A decision is a record keyed by its sink, written in a transaction of the sink's own transactional id.
Claiming that id either makes a pending decision visible or aborts it, so two drivers can never both
decide. The repetition of a batch finds its decision.
"""

import time
from collections.abc import Iterable

import msgspec

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.topics import create_topic, find_topic
from alpacamq.client.kafka.transactional import (
    ProducerIdentity,
    add_partitions,
    claim,
    end_transaction,
    send_batches,
)
from alpacamq.model.batch import TRANSACTIONAL, Codec
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ids import TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq_spark.errors import InDoubt, ReadStalled
from alpacamq_spark.read.subscription import COMMITS_TOPIC
from alpacamq_spark.retry import RETRY_TIMEOUT_S, retry
from alpacamq_spark.write.staging import Batch, StagedWrite

_PARTITIONS = 8
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only the last decision of a sink matters, so the log is kept short.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
# A driver that dies while deciding blocks readers of the partition for this long at most.
_CLAIM_TIMEOUT_MS = 10_000
_FIRST_LOOK = 256
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
    return retry(lambda: claim(cluster, sink, _CLAIM_TIMEOUT_MS))


class DecisionLog:
    """The decisions of one sink; only the holder of its id may add one."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._sink = sink
        self._partition = retry(lambda: _partition(cluster, sink))
        self._producer: ProducerIdentity | None = None
        self._written = 0

    def claim_sink(self) -> None:
        """Claim the right to decide, until another driver does."""
        self._producer = claim_sink(self._cluster, self._sink)
        self._written = 0

    def last(self) -> Decision | None:
        """Return the last decision, or None. Searches backwards, because it is near the end."""
        extent = retry(lambda: extents(self._cluster, [self._partition]))[self._partition]
        look, end = _FIRST_LOOK, extent.end
        while True:
            start = max(extent.start, extent.end - look)
            if (found := self._last_between(start, end)) is not None or start == extent.start:
                return found
            look, end = 8 * look, start

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

    def _last_between(self, start: int, end: int) -> Decision | None:
        fetcher = PartitionFetcher(self._cluster, self._partition, Isolation.COMMITTED)
        found = None
        position = start
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        while position < end:
            at = position
            fetched = retry(lambda at=at: fetcher.fetch(at))  # type: ignore[misc]
            for batch in fetched.batches:
                if batch.is_visible:
                    for record in read_records(batch.data):
                        if record.key == self._sink.encode() and start <= record.offset < end:
                            found = _read(record)
                position = max(position, batch.header.next_offset)
            # A pending decision of another sink in the same partition blocks reading.
            if position < end and time.monotonic() > deadline:
                raise ReadStalled(f"{self._partition} cannot be read to {end}, only to {position}")
        return found


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
