"""Which attempts at a batch count: decided once, kept in a topic, found again by whoever repeats the batch.

A decision is a record under the name of its sink, written in a transaction of the sink's own
transactional id. Whoever claims that id afterwards has either made the last decision visible
or kept it from ever being, so two drivers can never both decide.
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
from alpacamq_spark.retry import PATIENCE_S, persistently
from alpacamq_spark.write.staging import Batch, StagedWrite

_PARTITIONS = 8
_SETTINGS = {
    "cleanup.policy": "compact",
    # Only the last decision of a sink counts, so the log is kept short.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
# Whoever dies while deciding holds up those who look for their own decisions no longer than this.
_DECIDING_MS = 10_000
_FIRST_LOOK = 256
# Runs that a sink remembers to have been taken over from.
_MAX_SUPERSEDED = 100


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that counts."""

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
    """The last batch of a sink that was decided, and who may decide the next."""

    sink: str
    query: str
    run: str
    number: int
    winners: tuple[Winner, ...]
    superseded: tuple[str, ...] = ()
    # False says nothing: to show the winners again does no harm.
    is_shown: bool = False

    def covers(self, batch: Batch) -> bool:
        """Whether the batch is this one or one before."""
        return self.query == batch.query and self.number >= batch.number

    def taken_over(self, run: str) -> "Decision":
        """The same in the hands of another run."""
        return msgspec.structs.replace(self, run=run, superseded=self._superseded_by(run))

    def _superseded_by(self, run: str) -> tuple[str, ...]:
        if run == self.run:
            return self.superseded
        return (*self.superseded, self.run)[-_MAX_SUPERSEDED:]

    @staticmethod
    def after(last: "Decision | None", batch: Batch, winners: Iterable[Winner]) -> "Decision":
        """The decision for a batch, made after `last`."""
        return Decision(
            sink=batch.sink,
            query=batch.query,
            run=batch.run,
            number=batch.number,
            winners=tuple(winners),
            superseded=() if last is None else last._superseded_by(batch.run),
        )


def winner(staged: StagedWrite) -> Winner:
    """An attempt as a decision names it."""
    assert staged.producer is not None
    return Winner(
        partition=staged.partition,
        transactional_id=staged.producer.transactional_id,
        producer_id=staged.producer.producer_id,
        epoch=staged.producer.epoch,
        rows=staged.rows,
        digest=staged.digest,
    )


def hold(cluster: Cluster, sink: str) -> ProducerIdentity:
    """Claim a sink's own id, so that nobody else decides for it and attempts see that they are late."""
    return persistently(lambda: claim(cluster, sink, _DECIDING_MS))


class DecisionLog:
    """The decisions of one sink; to be added to by whoever holds it."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._sink = sink
        self._partition = persistently(lambda: _partition(cluster, sink))
        self._producer: ProducerIdentity | None = None
        self._written = 0

    def hold(self) -> None:
        """Become the one who may decide, until another does."""
        self._producer = hold(self._cluster, self._sink)
        self._written = 0

    def last(self) -> Decision | None:
        """The last decision, if there is one. Later ones are near the end, so the search goes backwards."""
        extent = persistently(lambda: extents(self._cluster, [self._partition]))[self._partition]
        look, end = _FIRST_LOOK, extent.end
        while True:
            start = max(extent.start, extent.end - look)
            if (found := self._last_between(start, end)) is not None or start == extent.start:
                return found
            look, end = 8 * look, start

    def write(self, decision: Decision) -> None:
        """Decide; Refused with a fencing error if another has taken over meanwhile."""
        assert decision.sink == self._sink
        producer = self._producer
        assert producer is not None, "who decides holds the sink"
        record = Record(0, time.time_ns() // 1_000_000, self._sink.encode(), msgspec.json.encode(decision))
        # A batch of thousands of tasks has thousands of winners, which are much alike.
        batch = write_batch(
            [record],
            codec=Codec.ZSTD,
            attributes=TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self._written,
        )
        persistently(lambda: add_partitions(self._cluster, producer, [self._partition]))
        persistently(lambda: send_batches(self._cluster, producer, {self._partition: batch}))
        persistently(lambda: end_transaction(self._cluster, producer, committed=True))
        self._written += 1

    def _last_between(self, start: int, end: int) -> Decision | None:
        fetcher = PartitionFetcher(self._cluster, self._partition, Isolation.COMMITTED)
        found = None
        position = start
        deadline = time.monotonic() + PATIENCE_S
        while position < end:
            at = position
            fetched = persistently(lambda at=at: fetcher.fetch(at))  # type: ignore[misc]
            for batch in fetched.batches:
                if batch.is_visible:
                    for record in read_records(batch.data):
                        if record.key == self._sink.encode() and start <= record.offset < end:
                            found = _read(record)
                position = max(position, batch.header.next_offset)
            # Another sink that is deciding holds up what comes after it.
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
    """Where the decisions of a sink are; makes the topic when it is first needed."""
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
            "was not made by the connector. Delete it while nothing writes with Spark, and it is made anew"
        )
    # Not by how many there are: partitions may be added, and what was decided stays where it is.
    return TopicPartition(topic.name, partition_for_key(sink.encode(), _PARTITIONS))
