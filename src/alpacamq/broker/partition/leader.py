"""The leader of one partition: takes batches, advances the high watermark and wakes waiters.

Appends are staged and written together by `commit`, so that all small batches of one receive cost one
write. A batch is acknowledged, and visible to readers, once it is as durable as its topic promises.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from alpacamq.broker.tracing.partition import PartitionTraces, ProduceTrace
from alpacamq.log.epochs import EpochEnd
from alpacamq.log.partition_log import Appended, Incoming, PartitionLog
from alpacamq.log.producer_state import ProducerEntry
from alpacamq.log.reader import Slice, TimestampOffset
from alpacamq.model.batch import BatchHeader, read_header
from alpacamq.model.errors import AlpacaError, FencedLeaderEpoch, StorageFailed, UnknownLeaderEpoch
from alpacamq.model.ids import TopicId, TopicPartition
from alpacamq.model.topics import TopicConfig
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

# flush.ms of this size means never: the operating system decides when data reaches the disk. A
# background sync still runs, which promises nothing but bounds the scan of a recovery.
NEVER_FLUSH_MS = 2**62
BACKGROUND_FLUSH_MS = 60_000
_WRITTEN = bytearray()


class Append:
    """A batch to be appended and its outcome."""

    __slots__ = ("data", "done", "header", "outcome", "trace")

    def __init__(
        self,
        data: bytearray | memoryview,
        header: BatchHeader,
        done: Callable[[], None],
        trace: ProduceTrace | None = None,
    ) -> None:
        self.trace = trace
        self.data = data
        self.header = header
        self.done = done
        self.outcome: Appended | AlpacaError | None = None


class FlushSchedule(Protocol):
    """Flushes partitions to disk."""

    def now(self, partition: "Partition") -> None:
        """Flush as soon as the running flush, if any, has ended: producers wait."""
        ...

    def within(self, partition: "Partition", delay_ms: int) -> None:
        """Flush at most `delay_ms` from now."""
        ...


class Partition:
    """The leader of one partition."""

    def __init__(
        self,
        identity: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        flushes: FlushSchedule,
    ) -> None:
        self.identity = identity
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = max(log.epochs.latest, 0)
        self.high_watermark = log.end_offset
        # Where a power loss has cut the log, while state may still refer to records behind it.
        self.cut_offset: int | None = None
        self._flushes = flushes
        self._staged: list[Append] = []
        # The error of the last write; None if it succeeded.
        self.refusal: AlpacaError | None = None
        # Counters since the broker started, for metrics.
        self.written_batches = self.written_bytes = 0
        self.fetched_messages = self.fetched_bytes = 0
        self.skipped_batches = 0  # skipped by readers: damaged, or failed to unpack
        self._awaiting_flush: deque[tuple[int, list[Append]]] = deque()
        # Tasks in `flush_to`, each with the offset it waits for.
        self._flush_waiters: list[tuple[int, asyncio.Future[None]]] = []
        # Whether appends wait for a postponed flush without a time limit.
        self.always_waits_for_flush = False
        self._watchers: dict[object, Callable[[int], None]] = {}
        # None where tracing is disabled.
        self.traces: PartitionTraces | None = None

    def lead(self, leader_epoch: int) -> None:
        """Lead in an epoch that the controller has assigned. The log records it with the first batch.

        Records may have been lost that readers had seen, and their offsets will be used again: the new epoch
        lets those readers notice.
        """
        self.leader_epoch = max(leader_epoch, self.leader_epoch)

    @property
    def is_sound(self) -> bool:
        """Whether all stored data can be served and is known to be on disk."""
        return self.log.damage is None and self.log.in_doubt is None

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    def configure(self, config: TopicConfig) -> None:
        """Apply new settings from the next append on."""
        self.log.config = config
        if self.traces is not None:
            self.traces.configure(config)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def last_stable_offset(self) -> int:
        """The limit of read_committed readers: the first record of an undecided transaction."""
        return self.log.transactions.last_stable_offset(self.high_watermark)

    def check_epoch(self, epoch: int) -> None:
        """Raise an error if the client's leader epoch is not the current one; -1 skips the check."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.identity} is at leader epoch {self.leader_epoch}, not {epoch}")
        raise UnknownLeaderEpoch(
            f"{self.identity} is at leader epoch {self.leader_epoch}, {epoch} is unknown"
        )

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return where a leader epoch ended, for clients that check whether the log was truncated.

        An epoch without batches is not in the history, but clients may have seen it: the epoch before
        it ends at the same offset.
        """
        log = self.log
        if epoch == self.leader_epoch:
            return EpochEnd(epoch, log.end_offset)
        if log.epochs.latest < epoch < self.leader_epoch:
            return EpochEnd(max(log.epochs.latest, 0), log.end_offset)
        return log.epochs.end_offset_for(epoch, log.end_offset)

    def stage(self, append: Append) -> bool:
        """Queue a batch for `commit`; true if the queue was empty."""
        self._staged.append(append)
        return len(self._staged) == 1

    def commit(self) -> None:
        """Write the staged batches and acknowledge them, now or when their flush has ended."""
        appends, self._staged = self._staged, []
        log = self.log
        before_bytes = log.size_bytes
        try:
            outcomes = log.append([Incoming(a.data, a.header) for a in appends], self.leader_epoch)
        except AlpacaError as error:
            self._refuse(appends, error)
            return
        self.refusal = None
        added_bytes = log.size_bytes - before_bytes
        self.written_bytes += added_bytes
        self.written_batches += len(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            append.outcome = outcome
            append.data = _WRITTEN  # a batch waiting for its flush need not be kept in memory
        config = log.config
        if log.unflushed_records >= config.flush_messages or self._awaiting_flush:
            self._awaiting_flush.append((log.end_offset, appends))
            self._flushes.now(self)
            return
        self._flushes.within(
            self, config.flush_ms if config.flush_ms < NEVER_FLUSH_MS else BACKGROUND_FLUSH_MS
        )
        if self.traces is not None:
            _record_outcomes(appends)
        self._advance_high_watermark(log.end_offset, added_bytes)
        for append in appends:
            append.done()

    async def flush_to(self, offset: int) -> None:
        """Return once everything before `offset` is on disk, whatever the topic's flush settings say.

        Call it before appending a record elsewhere that depends on these.
        """
        if offset > self.log.flushed_offset:
            await self._flush(offset)

    async def seal(self) -> None:
        """Begin a new segment, and return once a checkpoint covers everything before it."""
        self.log.roll()
        await self._flush(self.log.end_offset)
        if not self.log.is_checkpointed:
            await self._flush(self.log.end_offset)  # the first flush was running already

    async def _flush(self, offset: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flush_waiters.append((offset, waiter))
        self._flushes.now(self)
        await waiter

    def flushed(self) -> None:
        """Complete the appends and waiters that the flush that has ended covers, or fail them."""
        log = self.log
        if log.in_doubt is not None:
            self._fail_awaiting(log.fsync_error())
            return
        self._wake_flush_waiters()
        ready: list[Append] = []
        while self._awaiting_flush and self._awaiting_flush[0][0] <= log.flushed_offset:
            ready += self._awaiting_flush.popleft()[1]
        if self.traces is not None:
            _record_outcomes(ready)
        if self._awaiting_flush and not log.is_flushable:
            self._fail_awaiting(StorageFailed(f"{self.identity} is closed"))
        elif self._awaiting_flush:
            self._flushes.now(self)
            self._advance_high_watermark(log.flushed_offset, 0)
        else:
            self._advance_high_watermark(log.end_offset, 0)
        for append in ready:
            append.done()

    def flush_failed(self, error: AlpacaError) -> None:
        """Fail all that wait for a flush, because none could begin."""
        self._fail_awaiting(error)

    def watch(self, key: object, wake: Callable[[int], None]) -> None:
        """Call `wake` with the number of new readable bytes whenever there are some, until `unwatch`."""
        self._watchers[key] = wake

    def unwatch(self, key: object) -> None:
        self._watchers.pop(key, None)

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool) -> Slice | None:
        """Read whole batches from `offset` on, before a limit that is no later than the high watermark."""
        return self.log.read(offset, max_bytes, limit_offset, at_least_one=at_least_one)

    def verify(self, part: Slice) -> None:
        """Check the bytes of a slice that this process has not written; DamagedLog. Blocking."""
        self.log.verify(part)

    def aborted_between(self, offset: int, next_offset: int) -> Sequence[tuple[int, int]]:
        """Return producer id and first offset of the aborted transactions in a range."""
        return self.log.transactions.aborted_between(offset, next_offset)

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampOffset | None:
        """Return the first record at or after a timestamp and before `limit_offset`. Blocking."""
        return self.log.offset_for_timestamp(timestamp_ms, limit_offset)

    def max_timestamp(self, limit_offset: int) -> TimestampOffset | None:
        """Return the record with the largest timestamp before `limit_offset`. Blocking."""
        return self.log.max_timestamp(limit_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which an offset was written."""
        return self.log.epochs.epoch_at(offset)[0]

    def open_transaction(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction."""
        return self.log.transactions.open_offset(producer_id)

    def producers(self) -> Mapping[int, ProducerEntry]:
        """Return the idempotent producers that the partition remembers, by id."""
        return self.log.producers.copy()

    def retire(self, error: AlpacaError) -> None:
        """Fail all waiters and wake all watchers, because the partition is being deleted."""
        self._fail_awaiting(error)
        for wake in list(self._watchers.values()):
            wake(2**31)

    def _refuse(self, appends: list[Append], error: AlpacaError) -> None:
        if self.refusal is None:
            # Logged once, not for every retry of every producer.
            log.error("writes_refused", partition=str(self.identity), reason=str(error))
        self.refusal = error.with_traceback(None)
        for append in appends:
            append.outcome = error
        _record_outcomes(appends)
        for append in appends:
            append.done()

    def _advance_high_watermark(self, offset: int, added_bytes: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self._watchers:
            for wake in list(self._watchers.values()):
                wake(max(added_bytes, 1))

    def _wake_flush_waiters(self) -> None:
        if not self._flush_waiters:
            return
        flushed_offset = self.log.flushed_offset
        waiters, self._flush_waiters = self._flush_waiters, []
        for offset, waiter in waiters:
            if waiter.done():
                continue  # cancelled
            if offset <= flushed_offset:
                waiter.set_result(None)
            elif self.log.is_flushable:
                self._flush_waiters.append((offset, waiter))
            else:
                waiter.set_exception(StorageFailed(f"{self.identity} is closed or damaged"))

    def _fail_awaiting(self, error: AlpacaError) -> None:
        waiters, self._flush_waiters = self._flush_waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error.with_traceback(None))
        waiting, self._awaiting_flush = self._awaiting_flush, deque()
        for _, appends in waiting:
            for append in appends:
                append.outcome = error
            _record_outcomes(appends)
            for append in appends:
                append.done()


def _record_outcomes(appends: list[Append]) -> None:
    """Record the outcome of batches in their traces, before it becomes visible."""
    for append in appends:
        if append.trace is not None:
            outcome = append.outcome
            if isinstance(outcome, Appended) and not outcome.duplicate:
                append.trace.persisted(outcome.base_offset, outcome.next_offset)
            else:
                append.trace.refused()


async def append(partition: Partition, batch: bytearray) -> Appended:
    """Append one batch and wait until it is as durable as its topic promises."""
    done = asyncio.Event()
    entry = Append(batch, read_header(batch), done.set)
    partition.stage(entry)
    partition.commit()
    await done.wait()
    if isinstance(entry.outcome, AlpacaError):
        raise entry.outcome.with_traceback(None)
    assert entry.outcome is not None
    return entry.outcome


async def delete_before(partition: Partition, offset: int, executor: Executor) -> None:
    """Move the log start to `offset`, which is no later than the high watermark. Survives a crash."""
    # A log start beyond the end that a power cut leaves would hide the next appends.
    await partition.flush_to(offset)
    deletion = partition.log.begin_delete_before(offset)
    await asyncio.get_running_loop().run_in_executor(executor, deletion.run)


class WriteBatcher:
    """The partitions with appends waiting for `commit`."""

    __slots__ = ("_is_due", "_partitions")

    def __init__(self) -> None:
        self._partitions: list[Partition] = []
        self._is_due = False

    def stage(self, partition: Partition) -> None:
        """Register a partition with appends waiting."""
        self._partitions.append(partition)

    def commit(self) -> None:
        """Write everything staged since the last commit, before the acknowledgements are sent."""
        if not self._partitions:
            return
        staged, self._partitions = self._partitions, []
        errors: list[Exception] = []
        for partition in staged:
            try:
                partition.commit()
            except Exception as error:  # noqa: BLE001 - the other partitions must still be written
                errors.append(error)
        if errors:
            raise errors[0]

    def commit_soon(self) -> None:
        """Commit after the tasks that are ready to run have had a chance to stage more."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._commit_due)

    def _commit_due(self) -> None:
        self._is_due = False
        self.commit()
