"""Stages the rows of a task in an open transaction of its own.

Tasks make nothing visible. A task may be one of several attempts at the same rows, may be cancelled
with incomplete rows and without an error, and may end after its batch was committed; so only the
driver commits transactions, and only those reported to it. Before it ends a batch, the driver claims
the sink's own transactional id: from that a late attempt notices that it is late.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc32c
from pyspark.sql.datasource import WriterCommitMessage

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import find_topic
from alpacamq.client.kafka.transactional import (
    ProducerIdentity,
    add_partitions,
    claim,
    end_transaction,
    send_batches,
)
from alpacamq.client.kafka.transactions import transaction
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq_spark.errors import InvalidColumns, InvalidOption, StagedWriteLost
from alpacamq_spark.options import WriteOptions
from alpacamq_spark.retry import retry

from .packing import Ints, Slot, pack_batch
from .rows import normal_rows

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)
_SIGN = np.uint32(0x7FFFFFFF)
# Longer keys are rare, and numpy would pass over all rows once per word of the key.
_LONG_KEY_BYTES = 128
# Rows without a key that go to one partition before the next one is used.
_KEYLESS_RUN = 1000


class Placement:
    """Assigns the rows of one topic to partitions; rows without key rotate, beginning at `turn`."""

    def __init__(self, topic: TopicName, partitions: int, turn: int) -> None:
        self._topic = topic
        self._count = partitions
        self._keyless = turn * _KEYLESS_RUN

    def place(self, keys: pa.Array, explicit: pa.Array | None) -> npt.NDArray[np.int32]:
        """Return the partition of each row."""
        places = np.empty(len(keys), dtype=np.int32)
        is_keyless = keys.is_null().to_numpy(zero_copy_only=False)
        places[~is_keyless] = hashed(keys.drop_null(), self._count)
        keyless = int(is_keyless.sum())
        turns = (self._keyless + np.arange(keyless)) // _KEYLESS_RUN
        places[is_keyless] = turns % self._count
        self._keyless += keyless
        if explicit is not None:
            told = explicit.is_valid().to_numpy(zero_copy_only=False)
            wanted = explicit.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
            wrong = wanted[(wanted < 0) | (wanted >= self._count)]
            if wrong.size:
                raise NotFound("partition", f"{self._topic}-{wrong[0]}")
            places[told] = wanted
        return places


def destinations(
    topics: pa.Array, keys: pa.Array, explicit: pa.Array | None, placements: Mapping[TopicName, Placement]
) -> dict[TopicPartition, npt.NDArray[np.int64]]:
    """Return the rows of each partition, in order."""
    if topics.null_count:
        raise InvalidColumns("the topic of a row is null")
    coded = topics.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    found: dict[TopicPartition, npt.NDArray[np.int64]] = {}
    for code, name in enumerate(coded.dictionary.to_pylist()):
        topic = TopicName(name)
        rows = np.flatnonzero(codes == code)
        chosen = pa.array(rows)
        places = placements[topic].place(
            keys.take(chosen), None if explicit is None else explicit.take(chosen)
        )
        order = np.argsort(places, kind="stable")
        partitions, firsts = np.unique(places[order], return_index=True)
        for partition, those in zip(partitions, np.split(rows[order], firsts[1:]), strict=True):
            found[TopicPartition(topic, int(partition))] = those
    return found


def hashed(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key; no key is null."""
    sizes = pc.binary_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(sizes):
        return np.empty(0, dtype=np.int32)
    if sizes.max() > _LONG_KEY_BYTES:
        return np.array([partition_for_key(key.as_buffer(), partitions) for key in keys], dtype=np.int32)
    return ((_murmur2(keys, sizes) & _SIGN) % np.uint32(partitions)).astype(np.int32)


def _murmur2(keys: pa.Array, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Compute the hash of `model.murmur2` for all keys at once."""
    edges = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys)]
    starts = edges.astype(np.int64)
    # The last word of the last key may extend past the data.
    data = np.concatenate([np.frombuffer(keys.buffers()[2] or b"", dtype=np.uint8), np.zeros(4, np.uint8)])
    state = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    whole = sizes // 4
    for index in range(int(np.max(whole))):
        active = np.flatnonzero(whole > index)
        at = starts[active] + 4 * index
        word = _word(data, at, 4) * _MULTIPLIER
        word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
        state[active] = state[active] * _MULTIPLIER ^ word
    for rest in (1, 2, 3):
        active = np.flatnonzero(sizes % 4 == rest)
        at = starts[active] + 4 * whole[active]
        state[active] = (state[active] ^ _word(data, at, rest)) * _MULTIPLIER
    state = (state ^ (state >> np.uint32(13))) * _MULTIPLIER
    mixed: npt.NDArray[np.uint32] = state ^ (state >> np.uint32(15))
    return mixed


def _word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint32]:
    """Read `width` bytes from each position as little-endian numbers."""
    word = np.zeros(len(at), dtype=np.uint32)
    for index in range(width):
        word |= data[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word


# A batch's records before compression; below the default of max.message.bytes.
_BATCH_BYTES = 512 << 10
# Rows buffered in a task until batches are full.
_WAITING_BYTES = 32 << 20
# The state of an open transaction.
OPEN = "Ongoing"
# Used instead of a query name: jobs under one transactionalId have consecutive numbers.
JOBS = "jobs"
_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The unit of a commit: a micro-batch of a query, or a job.

    `query` stays the same after a restart, `run` does not; a job is a run of its own.
    """

    sink: str
    query: str
    run: str
    number: int

    @property
    def is_job(self) -> bool:
        return self.query == JOBS

    @property
    def is_unnamed(self) -> bool:
        """Whether the sink's name was generated for this run, so that no other run can use it."""
        return self.sink == unnamed_sink(self.run)

    def attempt_id(self, partition: int, attempt: int) -> str:
        """Return the transactional id of one attempt at one partition.

        Every other batch reuses the ids, because the broker keeps each for days. The next batch does
        not: its ids show whether the previous batch was committed.
        """
        return f"{self.sink}/{self.run}/{partition}/{attempt}/{self.number % 2}"


def unnamed_sink(run: str) -> str:
    """Return the name of a sink without a transactionalId."""
    return f"spark-{run}"


class AttemptId(NamedTuple):
    """The sink and run in an attempt's transactional id."""

    sink: str
    run: str

    @classmethod
    def parse(cls, transactional_id: str) -> "AttemptId | None":
        """Parse an id made by `Batch.attempt_id`; None for other ids."""
        sink, *rest = transactional_id.rsplit("/", 4)
        return cls(sink, rest[0]) if len(rest) == 4 else None


@dataclass(frozen=True, kw_only=True)
class StagedWrite(WriterCommitMessage):  # type: ignore[misc]
    """The result of one attempt; without a producer if there were no rows."""

    batch: Batch
    partition: int
    producer: ProducerIdentity | None
    rows: int
    digest: int


@dataclass(slots=True)
class _Waiting:
    """Rows of one partition that are not sent yet, and the number sent before."""

    sent: int = 0
    size: int = 0
    rows: list[pa.RecordBatch] = field(default_factory=list)


class StagingArea:
    """The open transaction of one attempt, which begins with the first row."""

    def __init__(
        self, cluster: Cluster, options: WriteOptions, batch: Batch, partition: int, attempt: int
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._batch = batch
        self._partition = partition
        self._attempt_id = batch.attempt_id(partition, attempt)
        self._producer: ProducerIdentity | None = None
        self._held_by: tuple[int, int] | None = None
        self._placements: dict[TopicName, Placement] = {}
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._joined: set[TopicPartition] = set()
        self._size = 0
        self._rows = 0
        self._digest = 0

    def begin(self) -> None:
        """Note the holder of the sink before waiting for the first row."""
        self._held_by = self._holder()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, and send full batches."""
        if not batch.num_rows:
            return
        rows = normal_rows(batch, time.time_ns() // 1_000_000)
        self._rows += rows.num_rows
        for name in ("key", "value"):
            self._digest = _digest(rows.column(name), self._digest)
        for partition, those in self._places(batch, rows).items():
            self._add(partition, rows.take(pa.array(those)))
        self._flush(all_of_it=self._size > _WAITING_BYTES)

    def finish(self) -> StagedWrite:
        """Send the rest; leave the transaction open. Raises if the batch was ended meanwhile."""
        self._flush(all_of_it=True)
        if self._producer is not None and self._holder() != self._held_by:
            raise self._lost(self._producer)
        return StagedWrite(
            batch=self._batch,
            partition=self._partition,
            producer=self._producer,
            rows=self._rows,
            digest=self._digest,
        )

    def give_up(self) -> None:
        """Abort the transaction of a failed task; if that fails too, it times out."""
        if self._producer is not None:
            with suppress(AlpacaError):
                end_transaction(self._cluster, self._producer, committed=False)

    def _places(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> dict[TopicPartition, Ints]:
        has = batch.schema.names
        if self._options.topic is not None:  # overrides the column, as in Spark's Kafka sink
            topics = pa.repeat(self._options.topic, batch.num_rows)
        else:
            topics = batch.column("topic").cast(pa.string())
        for name in topics.unique().drop_null().to_pylist():
            self._know(TopicName(name))
        explicit = batch.column("partition") if "partition" in has else None
        if explicit is not None and pa.types.is_null(explicit.type):
            explicit = None
        return destinations(topics, rows.column("key"), explicit, self._placements)

    def _know(self, topic: TopicName) -> None:
        if topic not in self._placements:
            found = retry(lambda: find_topic(self._cluster, topic, may_create=True))
            self._placements[topic] = Placement(topic, len(found.partitions), turn=self._partition)

    def _add(self, partition: TopicPartition, rows: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(partition, _Waiting())
        for part in _parts(rows):
            waiting.rows.append(part)
            waiting.size += part.nbytes
            self._size += part.nbytes

    def _flush(self, *, all_of_it: bool) -> None:
        """Send rounds of one batch for each partition that has a full one, or any rows with `all_of_it`."""
        while batches := self._next_round(all_of_it):
            self._send(batches)

    def _next_round(self, all_of_it: bool) -> dict[TopicPartition, bytearray]:
        ready = {}
        for partition, waiting in self._waiting.items():
            if waiting.size < _BATCH_BYTES and not (all_of_it and waiting.rows):
                continue
            taken = [waiting.rows.pop(0)]
            size = taken[0].nbytes
            while waiting.rows and size + waiting.rows[0].nbytes <= _BATCH_BYTES:
                size += waiting.rows[0].nbytes
                taken.append(waiting.rows.pop(0))
            waiting.size -= size
            self._size -= size
            rows = pa.concat_batches(taken) if len(taken) > 1 else taken[0]
            slot = Slot(self._identity(), waiting.sent)
            waiting.sent = (waiting.sent + rows.num_rows) % 2**31
            ready[partition] = pack_batch(rows, slot, self._options.codec)
        return ready

    def _identity(self) -> ProducerIdentity:
        if self._producer is None:
            timeout_ms = self._options.transaction_timeout_ms
            name = self._free_id()
            try:
                self._producer = retry(lambda: claim(self._cluster, name, timeout_ms))
            except Refused as refused:
                if refused.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                    raise
                raise InvalidOption(
                    f"kafka.transaction.timeout.ms={timeout_ms} is more than the broker allows; "
                    "see transactions.max_timeout_ms in its configuration"
                ) from refused
        return self._producer

    def _free_id(self) -> str:
        """Return the attempt's id, or a variant of it while another attempt uses that.

        When Spark retries a stage, it counts attempts from 0 again, and those of the first try may still
        run or be decided. Not random from the start, because ids are to be reused.
        """
        name = self._attempt_id
        found = retry(lambda: transaction(self._cluster, name))
        return name if found is None or found.state != OPEN else f"{name}-{uuid4().hex}"

    def _send(self, batches: dict[TopicPartition, bytearray]) -> None:
        producer = self._identity()
        try:
            if new := batches.keys() - self._joined:
                retry(lambda: add_partitions(self._cluster, producer, new))
                self._joined |= new
            retry(lambda: send_batches(self._cluster, producer, batches))
        except Refused as refused:
            if refused.code not in _FENCED:
                raise
            raise self._lost(producer) from refused

    def _holder(self) -> tuple[int, int] | None:
        """Return producer id and epoch of the sink's holder, which change when a batch is ended."""
        found = retry(lambda: transaction(self._cluster, self._batch.sink))
        return None if found is None else (found.producer_id, found.producer_epoch)

    def _lost(self, producer: ProducerIdentity) -> StagedWriteLost:
        return StagedWriteLost(
            f"the transaction of {producer.transactional_id!r} was ended while its task was writing: its "
            "batch was committed without it, another query took over, or it was open longer than "
            f"kafka.transaction.timeout.ms={self._options.transaction_timeout_ms}"
        )


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into parts of at most half a batch, or single rows if they are larger."""
    if rows.num_rows == 1 or rows.nbytes <= _BATCH_BYTES // 2:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from _parts(rows.slice(0, middle))
    yield from _parts(rows.slice(middle))


def _digest(column: pa.Array, before: int) -> int:
    """Extend the checksum `before` by all values and their lengths."""
    filled = column.fill_null(b"")
    edges = np.frombuffer(filled.buffers()[1], dtype=np.int32)[
        filled.offset : filled.offset + len(filled) + 1
    ]
    data = memoryview(filled.buffers()[2] or b"")[edges[0] : edges[-1]]
    return int(crc32c(data, crc32c(np.diff(edges).tobytes(), before)))
