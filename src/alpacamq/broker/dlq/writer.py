"""Performs the moves that queue engines decide: to dead-letter topics, and back in a redrive.

A move is appended to its target under its own producer id and sequence, so that a move repeated after a
crash is detected. A failed move is retried until it succeeds: a full disk loses no dead letter. Only a
redrive to a topic that was deleted returns the message to its queue.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from alpacamq.broker.partition.validation import compression_level, stored_codec
from alpacamq.broker.queue.deliveries import QueueReader
from alpacamq.broker.remote.appends import RemoteAppends
from alpacamq.broker.remote.progress import ProducerSequences
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.queue import Moved, QueueTraces, with_trace
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.producer_state import follows
from alpacamq.model.batch import BROKER_EPOCH, Codec, read_header, stamp_append_time
from alpacamq.model.dead_letters import dead_letter_topic, default_dead_letter_topic
from alpacamq.model.errors import AlpacaError, CoordinatorUnavailable, TopicExists, UnknownTopic
from alpacamq.model.headers import (
    DEAD_LETTER_HEADERS,
    DEAD_LETTER_REASON,
    DEAD_LETTERED_AT,
    DEDUPLICATION_ID,
    DELIVERY_COUNT,
    IS_REDRIVEN,
    ORIGIN_GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
)
from alpacamq.model.ids import TopicName
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.names import local_id, local_topic, topic_beside
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import INT32_MAX, SETTINGS, TopicConfig
from alpacamq.queues.engine import QueueEngine
from alpacamq.queues.messages import Move, MovesDone, MovesReturned, QueueId
from alpacamq.telemetry.logs import get_logger


def dead_letter(record: Record, move: Move, now_ms: int) -> Record:
    """Return the record with headers for its origin and the reason."""
    origin = {
        # As clients name them, which are of the same tenant.
        ORIGIN_TOPIC: local_topic(move.queue.topic),
        ORIGIN_PARTITION: str(move.partition),
        ORIGIN_OFFSET: str(record.offset),
        ORIGIN_TIMESTAMP: str(record.timestamp_ms),
        ORIGIN_GROUP: local_id(move.queue.group),
        DELIVERY_COUNT: str(move.delivery_count),
        DEAD_LETTER_REASON: move.reason,
        DEAD_LETTERED_AT: str(now_ms),
    }
    headers = tuple(Header(name, text.encode()) for name, text in origin.items())
    return record._replace(timestamp_ms=now_ms, headers=_without_origin(record) + headers)


def restored(record: Record, now_ms: int) -> Record:
    """Return a dead letter without its origin headers and with a new timestamp.

    That would make its deduplication id look newer than it is: the record is marked.
    """
    headers = _without_origin(record)
    names = {header.key for header in headers}
    if DEDUPLICATION_ID in names and IS_REDRIVEN not in names:
        headers = (*headers, Header(IS_REDRIVEN, b"1"))
    return record._replace(timestamp_ms=now_ms, headers=headers)


def origin(record: Record, source: str) -> tuple[str | None, int | None]:
    """Return the topic and partition in the origin headers of a record in the dead-letter topic `source`."""
    topic = partition = None
    for name, value in record.headers:
        if name == ORIGIN_TOPIC and value:
            topic = topic_beside(source, value.decode(errors="replace"))
        elif name == ORIGIN_PARTITION and value and value.isdigit() and len(value) < 10:
            partition = int(value)
    return topic, partition


def _without_origin(record: Record) -> tuple[Header, ...]:
    return tuple(header for header in record.headers if header.key not in DEAD_LETTER_HEADERS)


log = get_logger(__name__)

MAX_BATCH_MOVES = 100
MAX_BATCH_BYTES = 512 << 10
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 30.0


class _MoveQueue:
    """Pending moves of one partition of a queue, in the order of their sequences."""

    __slots__ = ("host", "moves", "sequences")

    def __init__(self, host: StateMachineHost[QueueEngine]) -> None:
        self.host = host
        self.moves: deque[Move] = deque()
        self.sequences: set[int] = set()

    def add(self, move: Move) -> None:
        # A rebuilt engine requests moves in progress again.
        if move.sequence not in self.sequences:
            self.sequences.add(move.sequence)
            self.moves.append(move)

    def take(self) -> Move:
        """Remove the first move."""
        move = self.moves.popleft()
        self.sequences.discard(move.sequence)
        return move


def _machine(host: StateMachineHost[QueueEngine]) -> QueueEngine:
    if (machine := host.machine) is None:
        raise CoordinatorUnavailable(f"{host.partition.identity} is being loaded")
    return machine


class _TargetDeleted(Exception):
    """The target topic of a redrive was deleted."""


class MoveTargets(NamedTuple):
    """What moves need of the partitions they append to, which other brokers may lead."""

    appends: RemoteAppends
    progress: ProducerSequences
    reads: RemoteReads


class DlqWriter:
    """The moves in progress. Their tasks belong to the host of the queue."""

    def __init__(
        self,
        topics: Topics,
        reader: QueueReader,
        targets: MoveTargets,
        clock: Clock,
        traces: QueueTraces | None = None,
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._targets = targets
        self._clock = clock
        self._traces = traces
        self._queues: dict[tuple[QueueId, int, int], _MoveQueue] = {}

    def submit(self, host: StateMachineHost[QueueEngine], moves: Sequence[Move]) -> None:
        """Perform moves, and post MovesDone to the host when they are done."""
        for move in moves:
            key = (move.queue, move.partition, move.producer_id)
            pending = self._queues.get(key)
            if pending is None or pending.host is not host:
                pending = self._queues[key] = _MoveQueue(host)
                # If it is cancelled, the next engine requests the moves again.
                host.spawn(self._move_all(key, pending), partial(self._ended, key, pending))
            pending.add(move)

    def _ended(self, key: tuple[QueueId, int, int], pending: _MoveQueue) -> None:
        if self._queues.get(key) is pending:
            del self._queues[key]

    async def _move_all(self, key: tuple[QueueId, int, int], pending: _MoveQueue) -> None:
        wait_seconds = RETRY_SECONDS
        while pending.moves:
            moves = list(islice(pending.moves, MAX_BATCH_MOVES))
            try:
                moved = await self._move(moves, pending.host)
            except _TargetDeleted:
                returned = (pending.take(),)
                pending.host.post_once(MovesReturned(moves=returned))
                continue
            except Exception as error:  # noqa: BLE001 - a bug costs one queue of moves, not the broker
                if wait_seconds == RETRY_SECONDS:
                    self._report(moves[0], error)
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
                continue
            wait_seconds = RETRY_SECONDS
            done = tuple(pending.take() for _ in range(moved))
            pending.host.post_once(MovesDone(moves=done))
        self._ended(key, pending)  # before another move could be added

    def _report(self, move: Move, error: Exception) -> None:
        """Log once why moves fail."""
        report = log.error if isinstance(error, AlpacaError) else log.exception
        queue = move.queue
        report("not_moved", group=queue.group, topic=queue.topic, partition=move.partition, reason=str(error))

    async def _move(self, moves: Sequence[Move], host: StateMachineHost[QueueEngine]) -> int:
        """Perform the first of these moves that fit into one batch; return their number."""
        first = moves[0]
        queue = first.queue
        if self._topics.image.topic_by_id(first.topic_id) is None:
            return 1  # the topic was deleted with its messages, and the queue with it
        # The sequences must be on disk before the target has them: assigned again after a power cut,
        # they would make other messages look like duplicates.
        state = host.partition
        await state.flush_to(state.log.end_offset)
        places = [(move.partition, move.offset) for move in moves]
        is_committed = _machine(host).is_committed(queue)
        records = await self._reader.read(queue.topic, places, is_committed=is_committed)
        if (record := records.get(places[0])) is None:  # deleted by retention, or damaged
            log.warning(
                "record_missing_before_move",
                topic=queue.topic,
                partition=first.partition,
                offset=first.offset,
            )
            return 1
        topic = (
            first.target
            or dead_letter_topic(queue.topic, _machine(host).settings(queue).queue_dead_letter_topic)
            or default_dead_letter_topic(queue.topic)  # the setting was changed after the decision
        )
        target = await self._target(first, record, topic)
        # What is found is on disk: the queue's record of the move must not outlive the moved message.
        last = await self._targets.progress.last_sequence(target, first.producer_id, is_on_disk=True)
        if last is not None and not follows(first.sequence, last):
            return 1  # done before a crash
        config = self._topics.config_of(self._topics.image.topic(topic))
        batch: list[Record] = []
        traced: list[tuple[Move, Moved, int]] = []
        size = 0
        now_ms = self._clock.now_ms()
        for move, place in zip(moves, places, strict=True):
            if (record := records.get(place)) is None or move.sequence != first.sequence + len(batch):
                break
            if batch and (move.target != first.target or self._find(move, record, topic) != target):
                break
            size += len(record.key or b"") + len(record.value or b"")
            if batch and size > MAX_BATCH_BYTES:
                break
            changed = self._changed(move, record, config, now_ms)
            if self._traces is not None and (moved := self._traces.moving(move, record)) is not None:
                traced.append((move, moved, len(batch)))
                changed = with_trace(changed, moved)
            batch.append(changed._replace(offset=len(batch)))
        packed = _packed(batch, first, config, now_ms)
        placed = await self._targets.appends.append(target.topic_id, target.partition, packed)
        led = self._topics.find(target.topic_id.bytes, target.partition)
        if self._traces is not None and led is not None:
            # Before the flush, during which consumers may already receive and acknowledge the message.
            for move, moved, at in traced:
                self._traces.moved(move, moved, led, placed.base_offset + at)
        await self._targets.reads.flush(target, placed.next_offset)
        return len(batch)

    def _changed(self, move: Move, record: Record, config: TopicConfig, now_ms: int) -> Record:
        changed = restored(record, now_ms) if move.target else dead_letter(record, move, now_ms)
        if changed.key is None and config.is_compacted:
            # Compaction needs keys.
            return changed._replace(key=f"{move.queue.topic}-{move.partition}-{move.offset}".encode())
        return changed

    async def _target(self, move: Move, record: Record, topic: str) -> PartitionId:
        """Return the partition to append to; creates a missing dead-letter topic."""
        if (found := self._find(move, record, topic)) is not None:
            return found
        if move.target:
            raise _TargetDeleted
        source = self._topics.image.topic(move.queue.topic)
        with suppress(TopicExists):
            await self._topics.create(
                topic,
                partitions=source.partitions,
                overrides=_dead_letter_settings(self._topics.config_of(source)),
                may_collide=True,
            )
        if (found := self._find(move, record, topic)) is None:
            raise UnknownTopic(f"topic {topic!r} has been deleted")
        return found

    def _find(self, move: Move, record: Record, topic: str) -> PartitionId | None:
        if (found := self._topics.image.topics.get(TopicName(topic))) is None:
            return None
        index = move.partition
        if move.target:
            came_from, partition = origin(record, move.queue.topic)
            if came_from == topic and partition is not None and partition < found.partitions:
                index = partition
            elif record.key is not None:
                index = partition_for_key(record.key, found.partitions)
        return PartitionId(found.id, index % found.partitions)


def _dead_letter_settings(source: TopicConfig) -> dict[str, str]:
    """Return settings that keep dead letters as long as their source, without expiry or delivery limit."""
    settings = {"cleanup.policy": "delete", "queue.max.deliveries": "0", "queue.ttl.ms": "-1"}
    usual_ms = SETTINGS["retention.ms"].default
    if source.retention_ms < 0 or source.retention_ms > usual_ms:
        settings["retention.ms"] = str(source.retention_ms)
    return settings


def _packed(records: Sequence[Record], first: Move, config: TopicConfig, now_ms: int) -> bytearray:
    batch = write_batch(
        records,
        codec=stored_codec(config) or Codec.NONE,
        level=compression_level(config),
        producer_id=first.producer_id,
        producer_epoch=BROKER_EPOCH,
        base_sequence=first.sequence & INT32_MAX,
    )
    if config.message_timestamp_type == "LogAppendTime":
        stamp_append_time(batch, read_header(batch), now_ms)
    return batch
