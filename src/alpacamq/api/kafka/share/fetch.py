"""One ShareFetch: acquires records of the session's partitions, and waits if there are too few.

Records are acquired by number and estimated size first; then their batches are located. Records that do not
fit are released without counting a delivery.
"""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import topic_refusal
from alpacamq.api.kafka.turns import Work
from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.readable import Readable
from alpacamq.broker.remote.views import is_only_copy
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.share.config import ShareConfig
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    DamagedLog,
    NotCoordinator,
    PartitionNotReady,
    PolicyViolation,
    RequestTimedOut,
    TooManyInFlight,
)
from alpacamq.model.ids import TopicId
from alpacamq.model.topics import INTERNAL_TOPICS
from alpacamq.protocol.messages.share import ShareFetchRequest
from alpacamq.protocol.share_fetch_codec import AcquiredRange, PartitionShared
from alpacamq.queues.messages import Acquired, Action, QueueId, Settlement, ShareTerms, Start
from alpacamq.security.acls import Operation
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi

from .sessions import PartitionKey, ShareSession


def find_shared(broker: Broker, caller: Caller, topic_id: TopicId, index: int) -> Partition:
    """Return a partition that may be shared with a client; raise an error for any other."""
    access, topics = broker.access, broker.topics
    if access.limits(caller):
        refusal = topic_refusal(access, caller, Operation.READ, topic_id.bytes, topics, by_id=True)
        if refusal is not None:
            raise refusal
    if (partition := broker.topics.find(topic_id.bytes, index)) is None:
        raise broker.topics.absence(topic_id.bytes, index)
    if partition.identity.topic in INTERNAL_TOPICS:
        raise PolicyViolation(f"topic {partition.identity.topic!r} is internal and cannot be shared")
    return partition


# Records this close together, by the partition's average, are sent as one slice.
NEAR_BYTES = 16 << 10


@dataclass(slots=True)
class Covering:
    """The batches that hold the first `count` of some offsets."""

    slices: list[Readable] = field(default_factory=list)
    count: int = 0

    @property
    def length(self) -> int:
        return sum(part.length for part in self.slices)

    def release(self) -> None:
        for part in self.slices:
            part.release()
        self.slices.clear()


def average_bytes(partition: Partition) -> int:
    """Return the average size of a record on disk; at least 1."""
    return max(partition.size_bytes // max(partition.end_offset - partition.start_offset, 1), 1)


def cover(
    partition: Partition, offsets: Sequence[int], max_bytes: int, max_slices: int, *, at_least_one: bool
) -> Covering:
    """Return batches for as many of the ascending offsets as fit; none may be before the start of the log."""
    covering = Covering()
    near = NEAR_BYTES // average_bytes(partition) + 1
    room = max_bytes
    try:
        while covering.count < len(offsets) and len(covering.slices) < max_slices:
            first = offsets[covering.count]
            end = _batch_end(partition, _last_near(offsets, covering.count, near))
            part = partition.read(first, room, end, at_least_one=at_least_one and not covering.slices)
            if part is None:
                break
            covering.slices.append(part)
            room = max(room - part.length, 0)
            while covering.count < len(offsets) and offsets[covering.count] < part.next_offset:
                covering.count += 1
    except BaseException:
        covering.release()
        raise
    return covering


async def verify(covering: Covering, partition: Partition, executor: Executor) -> None:
    """Verify bytes that were written before the last start of the broker; DamagedLog if corrupt."""
    loop = asyncio.get_running_loop()
    for part in covering.slices:
        if not part.verified:
            await loop.run_in_executor(executor, partition.verify, part)


def ranges(acquired: Sequence[Acquired], most: int) -> list[AcquiredRange]:
    """Return acquired records in ascending order as ranges of at most `most` offsets."""
    found: list[AcquiredRange] = []
    for entry in acquired:
        if found:
            first, last, delivery_count = found[-1]
            if (
                entry.offset == last + 1
                and entry.delivery_count == delivery_count
                and last - first + 1 < most
            ):
                found[-1] = AcquiredRange(first, entry.offset, delivery_count)
                continue
        found.append(AcquiredRange(entry.offset, entry.offset, entry.delivery_count))
    return found


def _last_near(offsets: Sequence[int], at: int, near: int) -> int:
    """Return the index of the last offset that is close to its predecessor, from `at` on."""
    while at + 1 < len(offsets) and offsets[at + 1] - offsets[at] <= near:
        at += 1
    return offsets[at]


def _batch_end(partition: Partition, offset: int) -> int:
    """Return the offset after the batch that holds `offset`."""
    batch = partition.read(offset, 1, partition.high_watermark, at_least_one=True)
    if batch is None:
        return offset + 1  # nothing can be read; the next read reports it
    batch.release()
    return batch.next_offset


log = get_logger(__name__)

# The member must settle records first, or the queue is being loaded or moves to another broker.
_PASSING = (
    TooManyInFlight,
    CoordinatorLoading,
    CoordinatorUnavailable,
    NotCoordinator,
    RequestTimedOut,
    PartitionNotReady,
)
MAX_RECORDS = 100_000
# Acquired per call, so that other requests get their turn in between: members that share a partition all get
# some of its records.
ACQUIRED_AT_ONCE = 100
MAX_WAIT_MS = 300_000
# A slice keeps its file open until it is sent. More records are left to the next fetch.
MAX_SLICES = 128
# Another member may acquire the records that woke us. A pause prevents a busy loop.
MIN_PAUSE_SECONDS = 0.002
MAX_PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Taken:
    """The records of one partition, or its error."""

    key: PartitionKey
    acquired: list[Acquired] = field(default_factory=list)
    covering: Covering = field(default_factory=Covering)
    error: AlpacaError | None = None

    def shared(self, batch_size: int) -> PartitionShared:
        """Return the response for the partition."""
        if self.error is not None:
            return PartitionShared(self.key[1], code_of(self.error), text_of(self.error))
        return PartitionShared(
            self.key[1], records_bytes=self.covering.length, acquired=ranges(self.acquired, batch_size)
        )


class SharedFetch:
    """A fetch in progress."""

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        session: ShareSession,
        request: ShareFetchRequest,
        config: ShareConfig,
        work: Work,
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._work = work
        self._session = session
        self._group, self._member_id = session.key
        self._lock_ms = config.record_lock_duration_ms
        self._start = Start(config.auto_offset_reset)
        self._terms = ShareTerms(
            max_deliveries=config.delivery_count_limit,
            is_committed=config.isolation_level == "read_committed",
        )
        self._enough_bytes = max(min(request.min_bytes, request.max_bytes), 1)
        self._max_bytes = request.max_bytes
        # The locks of records acquired early must not expire while we wait for more.
        self._wait_ms = min(max(request.max_wait_ms, 0), MAX_WAIT_MS, self._lock_ms // 2)
        self._records_left = min(request.max_records, MAX_RECORDS)
        self._probable_bytes = 0
        self._taken: dict[PartitionKey, Taken] = {}

    async def run(self) -> list[Taken]:
        """Return records once there are enough, or after max_wait_ms."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_ms / 1000
        pause_seconds = 0.0
        while True:
            places = await self._acquire_all()
            if self._is_enough() or loop.time() + pause_seconds >= until:
                break
            self._work.leave()
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            pause_seconds = min(max(pause_seconds * 2, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
            left_ms = int((until - loop.time()) * 1000) + 1
            waiting = self._broker.queues.wait_for_messages(places, max(left_ms, 1))
            if not self._broker.access.limits(self._caller):
                await waiting
                continue
            try:
                await self._broker.access.while_allowed(waiting, self._caller, self._check_rights)
            except AlpacaError:
                await self._sources()  # notes which partitions it may not read any more
                break
        return await self._read_all()

    def _check_rights(self) -> None:
        """Raise an error if the client has lost the right to the group or to a topic."""
        self._broker.access.check_group(self._caller, Operation.READ, self._group)
        for topic_id in {topic_id for topic_id, _ in self._session.partitions}:
            refusal = topic_refusal(
                self._broker.access,
                self._caller,
                Operation.READ,
                topic_id.bytes,
                self._broker.topics,
                by_id=True,
            )
            if refusal is not None:
                raise refusal

    def _is_enough(self) -> bool:
        return (
            not (self._session.is_open and self._session.partitions)
            or self._probable_bytes >= self._enough_bytes
            or self._records_left <= 0
        )

    async def _sources(self) -> dict[TopicId, list[Partition]]:
        """Return the session's partitions by topic, and note the errors of those that cannot be shared."""
        sources: dict[TopicId, list[Partition]] = {}
        for key in list(self._session.partitions):
            await self._work.pause()
            taken = self._taken.setdefault(key, Taken(key))
            try:
                sources.setdefault(key[0], []).append(find_shared(self._broker, self._caller, *key))
                taken.error = None
            except AlpacaError as error:
                taken.error = error
        return sources

    async def _acquire_all(self) -> dict[QueueId, tuple[int, ...]]:
        """Acquire available records; return the partitions that may have more."""
        places: dict[QueueId, tuple[int, ...]] = {}
        for topic_id, partitions in (await self._sources()).items():
            if not partitions or not self._session.is_open:
                continue  # the session has ended, and its records are released already
            queue = QueueId(self._group, partitions[0].identity.topic)
            places[queue] = tuple(partition.identity.partition for partition in partitions)
            if self._records_left <= 0 or self._probable_bytes >= self._max_bytes:
                continue
            try:
                while await self._acquire(topic_id, queue, partitions):
                    await self._work.pause()
            except _PASSING:
                continue  # as if there were no records: clients treat an error as more than temporary
            except AlpacaError as error:
                for index in places[queue]:
                    self._taken[topic_id, index].error = error
        return places

    async def _acquire(self, topic_id: TopicId, queue: QueueId, partitions: Sequence[Partition]) -> bool:
        """Acquire a few records of a topic; return whether there may be more that fit."""
        record_bytes = max(average_bytes(partition) for partition in partitions)
        room = (self._max_bytes - self._probable_bytes) // record_bytes + 1
        wanted = min(self._records_left, room, ACQUIRED_AT_ONCE)
        indexes = tuple(partition.identity.partition for partition in partitions)
        self._session.held.setdefault(queue.topic, set()).update(indexes)
        acquired = await self._broker.queues.acquire(
            queue,
            consumer=self._member_id,
            partitions=indexes,
            max_messages=wanted,
            lock_ms=self._lock_ms,
            start=self._start,
            share=self._terms,
        )
        self._records_left -= len(acquired)
        self._probable_bytes += len(acquired) * record_bytes
        for entry in acquired:
            self._taken[topic_id, entry.partition].acquired.append(entry)
        return (
            len(acquired) == wanted
            and self._session.is_open
            and self._records_left > 0
            and self._probable_bytes < self._max_bytes
        )

    async def _read_all(self) -> list[Taken]:
        """Locate the batches of all acquired records; partitions without records or errors are left out."""
        room, slices = self._max_bytes, MAX_SLICES
        found: list[Taken] = []
        try:
            for taken in self._taken.values():
                await self._work.pause()
                if not taken.acquired:
                    if taken.error is not None:
                        found.append(taken)
                    continue
                found.append(taken)
                await self._read(taken, room, slices, at_least_one=slices == MAX_SLICES)
                self._tell_traces(taken)
                room = max(room - taken.covering.length, 0)
                slices -= len(taken.covering.slices)
                self._session.served(taken.key)
        except BaseException:
            for taken in found:
                taken.covering.release()
            raise
        return [taken for taken in found if taken.acquired or taken.error is not None]

    def _tell_traces(self, taken: Taken) -> None:
        partition = self._broker.topics.find(taken.key[0].bytes, taken.key[1])
        if taken.acquired and partition is not None:
            queue = QueueId(self._group, partition.identity.topic)
            self._broker.queues.sent(queue, taken.acquired, Origin(ClientApi.KAFKA, self._member_id))

    async def _read(self, taken: Taken, room: int, slices: int, *, at_least_one: bool) -> None:
        """Locate the batches of one partition's records, and release records that they do not contain."""
        acquired = sorted(taken.acquired)
        taken.acquired = []
        taken.error = None  # an error after some records does not hold those back
        try:
            self._broker.access.check_group(self._caller, Operation.READ, self._group)
            partition = find_shared(self._broker, self._caller, *taken.key)
        except AlpacaError as error:
            # Deleted meanwhile, and its queues with it; or the client has lost the right to it.
            taken.error = error
            topic_id, index = taken.key
            if (refused := self._broker.topics.find(topic_id.bytes, index)) is not None:
                await self._settle(refused, acquired, Action.RELEASE_UNSEEN)
            return
        begin = next(
            (place for place, entry in enumerate(acquired) if entry.offset >= partition.start_offset),
            len(acquired),
        )
        await self._settle(partition, acquired[:begin], Action.DISCARD)  # deleted by retention meanwhile
        acquired = acquired[begin:]
        try:
            offsets = [entry.offset for entry in acquired]
            taken.covering = cover(partition, offsets, room, slices, at_least_one=at_least_one)
            await verify(taken.covering, partition, self._broker.work_threads)
        except DamagedLog as error:
            log.error("shared_records_damaged", partition=str(partition.identity), reason=str(error))
            taken.covering.release()
            taken.covering = Covering()
            if is_only_copy(partition):
                first, end = error.offsets or (0, 0)
                lost = [entry for entry in acquired if first <= entry.offset < end]
                await self._settle(partition, lost, Action.DISCARD)
                acquired = [entry for entry in acquired if entry not in lost]
            else:  # another replica has them; the client looks for another leader
                taken.error = PartitionNotReady(f"{partition.identity} is damaged at its leader")
        except AlpacaError as error:
            log.error("shared_records_not_read", partition=str(partition.identity), reason=str(error))
            taken.covering.release()
            taken.covering = Covering()
            taken.error = error
        taken.acquired = acquired[: taken.covering.count]
        await self._settle(partition, acquired[taken.covering.count :], Action.RELEASE_UNSEEN)

    async def _settle(self, partition: Partition, entries: Iterable[Acquired], action: Action) -> None:
        """Release or discard records that are not sent."""
        topic, index = partition.identity
        settlements = [
            Settlement(index, entry.offset, action, entry.delivery_count, entry.generation, self._member_id)
            for entry in entries
        ]
        if settlements:
            try:
                await self._broker.queues.settle_acquired(QueueId(self._group, topic), settlements)
            except AlpacaError as error:
                # Their locks expire anyway.
                log.warning("shared_records_not_given_back", partition=f"{topic}-{index}", reason=str(error))
