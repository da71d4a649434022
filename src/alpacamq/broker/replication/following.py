"""The follower of one partition on this broker: performs what its core decides.

Appends what was fetched, flushes and truncates, and asks its fetcher for more. A partition that fails,
because a batch is corrupt or the disk is full, retries alone; others of the same leader go on.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from struct import Struct
from typing import Protocol

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.batch import FRAME_BYTES, HEADER_BYTES, read_header
from alpacamq.model.errors import AlpacaError, CorruptBatch, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Buffer
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.fetch_codec import PartitionFetched
from alpacamq.replication.follower import (
    FetchError,
    FetchPosition,
    FlushTo,
    PartitionFollower,
    RestartAt,
    TruncateTo,
)
from alpacamq.replication.throttle import is_throttled
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

# When to try again to flush a log that could not be flushed.
FLUSH_RETRY_MS = 1000
# How long after a log was emptied because of a failed flush it may be emptied for another one.
REBUILD_AGAIN_MS = 60_000
# When to try again to truncate a log that could not be truncated.
CUT_RETRY_SECONDS = 1.0
_LENGTH = Struct(">i")
_LENGTH_AT = 8

_ERRORS = {
    ErrorCode.FENCED_LEADER_EPOCH: FetchError.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchError.UNKNOWN_LEADER_EPOCH,
    ErrorCode.STALE_BROKER_EPOCH: FetchError.STALE_BROKER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchError.INVALID,
}


class Flushes(Protocol):
    """Ends the flushes of a partition before its log is truncated: `GroupCommit`."""

    async def quiesce(self, partition: Partition) -> None: ...


class PositionSink(Protocol):
    """Fetches from one leader."""

    def fetch(self, following: "Following", position: FetchPosition) -> None:
        """Fetch from a position, once; the answer goes to `answered` or `unreachable`."""
        ...

    def retry_at(self, following: "Following", deadline_ms: int) -> None:
        """Call `drive` at a time."""
        ...


class FollowerResources(msgspec.Struct, frozen=True):
    """What the followers of a broker share."""

    node_id: BrokerId
    flushes: Flushes
    executor: Executor
    # Starts tasks that end with the broker.
    spawn: Callable[..., "asyncio.Task[None]"]
    now_ms: Callable[[], int]
    flush_counts: bool
    # Whether the controller has confirmed that it knows of the damage of a replica.
    is_damage_known: Callable[[PartitionId], bool] = lambda _partition: False
    # Called when a damaged replica is sound again.
    storage_changed: Callable[[], None] = lambda: None


class Following:
    """One partition that another broker leads."""

    def __init__(self, partition: Partition, resources: FollowerResources) -> None:
        self.partition = partition
        self.key = partition.topic_id.bytes, partition.identity.partition
        self.core = PartitionFollower(partition.log.epochs, flush_counts=resources.flush_counts)
        self.fetcher: PositionSink | None = None
        # The position that the leader has and has not answered, and since which request it has it.
        self.position: FetchPosition | None = None
        self.sent_in = 0
        # Responses in a row that brought as much as they may.
        self.full_responses = 0
        self._resources = resources
        self._state: PartitionState | None = None
        self._is_suspended = False
        self._has_fetched = False
        # Whether the log was emptied because of damage, and the end that it has to reach again. None: the
        # leader has not told its end since.
        self.is_rebuilding = False
        self._rebuilt_end: int | None = None
        # When a log may be emptied again after another failed flush.
        self._rebuild_again_ms = 0
        self._cutting: asyncio.Task[None] | None = None
        self._last_failure = ""

    # Roles.

    def follow(self, state: PartitionState) -> bool:
        """Follow the leader of a state; true if it is another, or in another epoch, than before."""
        self._is_suspended = False
        self._state = state
        partition = self.partition
        if not self.core.is_newer_leader(state.leader_epoch):
            return False
        self._rebuilt_end = None
        stored = partition.log
        self.core.follow(
            None if state.leader is None else BrokerId(state.leader),
            state.leader_epoch,
            log_end=stored.end_offset,
            flushed_end=stored.flushed_offset,
            high_watermark=partition.high_watermark,
        )
        return True

    async def suspend(self) -> None:
        """Begin nothing any more, and return once the log is at rest."""
        self._is_suspended = True
        while self._cutting is not None:
            await asyncio.wait({self._cutting})

    def stop(self) -> None:
        """Begin nothing any more: the partition is led here, or not on this broker any more."""
        self._is_suspended = True
        self.fetcher = None

    @property
    def is_throttled(self) -> bool:
        """Whether a limit of the follower applies: see `replication.throttle`."""
        state = self._state
        if state is None:
            return False
        node_id, index = self._resources.node_id, self.partition.identity.partition
        listed = self.partition.config.follower_replication_throttled_replicas
        return is_throttled(node_id, state.isr, state.adding, listed, f"{index}:{node_id}")

    @property
    def is_cutting(self) -> bool:
        return self._cutting is not None

    @property
    def leader_start_offset(self) -> int:
        return self.core.leader_start

    # Steps.

    def drive(self) -> None:
        """Do what the core wants next."""
        fetcher = self.fetcher
        if self._is_suspended or self._cutting is not None or fetcher is None:
            return
        if self.partition.log.has_lost_data:
            self._rebuild_if_allowed()
            return
        match self.core.next_step(self._resources.now_ms()):
            case FetchPosition() as position:
                self._has_fetched = True
                fetcher.fetch(self, position)
            case FlushTo():
                self.partition.flush_soon()
            case (TruncateTo() | RestartAt()) as cut:
                self._cut(cut)
            case None:
                if (deadline_ms := self.core.next_deadline_ms) is not None:
                    fetcher.retry_at(self, deadline_ms)

    def flushed(self) -> None:
        """Note that a flush has ended."""
        stored = self.partition.log
        if self._cutting is None and stored.end_offset == self.core.log_end:
            self.core.flushed(stored.flushed_offset)
            self._note_watermark()
            self._end_rebuild_if_done()
            self.drive()

    def flush_failed(self) -> None:
        """Note that a flush failed. If the log is in doubt, it takes no writes until it is rebuilt."""
        self._failed("flush failed")
        if self.partition.log.is_flushable and self.fetcher is not None:
            self.fetcher.retry_at(self, self._resources.now_ms() + FLUSH_RETRY_MS)

    def may_rebuild(self) -> bool:
        """Return whether a log that lacks records may be emptied, to be fetched again from the leader.

        Not while it counts: the controller could elect it. And not while its leader can be about to take it
        into the in-sync set, because of what it had before: it has not fetched since its broker started, or
        the controller knows of the damage and refuses it.
        """
        state = self._state
        return (
            state is not None
            and state.leader is not None
            and self._resources.node_id not in (*state.isr, *state.elr)
            and (not self._has_fetched or self._resources.is_damage_known(self._place))
        )

    @property
    def _place(self) -> PartitionId:
        return PartitionId(self.partition.topic_id, self.partition.identity.partition)

    def _rebuild_if_allowed(self) -> None:
        stored, now_ms = self.partition.log, self._resources.now_ms()
        if self.may_rebuild() and stored.is_restartable:
            if stored.in_doubt is not None:
                # A disk that keeps failing must not fetch everything again and again.
                if now_ms < self._rebuild_again_ms:
                    return  # heartbeats that report the damage try again
                self._rebuild_again_ms = now_ms + REBUILD_AGAIN_MS
            log.warning(
                "replica_rebuilt", partition=str(self.partition.identity), reason=self.partition.log.loss
            )
            # Until it has caught up it counts as damaged: a proposal may be under way that rests on the
            # records it had, and must not find it fit before it has them again.
            self.is_rebuilding, self._rebuilt_end = self._has_fetched, None
            self.core.rebuild(self.partition.log.start_offset)
            cut = self.core.next_step(self._resources.now_ms())
            assert isinstance(cut, RestartAt)
            self._cut(cut)

    def _end_rebuild_if_done(self) -> None:
        """Count as sound again with all that the leader had when it was first asked, on disk."""
        if not self.is_rebuilding or self._rebuilt_end is None or self._cutting is not None:
            return
        stored = self.partition.log
        end = stored.flushed_offset if self._resources.flush_counts else stored.end_offset
        if end >= self._rebuilt_end:
            self.is_rebuilding = False
            log.info("replica_rebuilt", partition=str(self.partition.identity), end_offset=end)
            self._resources.storage_changed()

    # Answers of the leader.

    def note_size(self, size: int, max_bytes: int) -> None:
        """Note how much of what it may bring a response has brought. The end of a segment cuts some short."""
        if size >= max_bytes // 2:
            self.full_responses += 1
        elif size < max_bytes // 64:
            self.full_responses = 0

    def answered(self, fetched: PartitionFetched, records: memoryview) -> None:
        """Handle the answer to the outstanding position, and do what follows."""
        position = self.position
        assert position is not None
        request_id, now_ms = position.request_id, self._resources.now_ms()
        core = self.core
        if fetched.error_code or fetched.diverging_epoch is not None or records:
            self.position = None  # only a new watermark leaves the position open
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            core.out_of_range(request_id, fetched.log_start_offset, fetched.last_stable_offset, now_ms)
        elif fetched.error_code:
            error = _ERRORS.get(ErrorCode(fetched.error_code), FetchError.NOT_LEADER)
            core.failed(request_id, error, now_ms)
        elif fetched.diverging_epoch is not None:
            core.diverged(request_id, *fetched.diverging_epoch, now_ms)
        else:
            self._received(position, fetched, records, now_ms)
        self.drive()

    def unreachable(self) -> None:
        """Note that the connection to the leader was lost."""
        if self.position is not None:
            self.core.failed(self.position.request_id, FetchError.UNREACHABLE, self._resources.now_ms())
            self.position = None
        self.drive()

    def _received(
        self, position: FetchPosition, fetched: PartitionFetched, records: memoryview, now_ms: int
    ) -> None:
        core, stored, request_id = self.core, self.partition.log, position.request_id
        end_offset, last_epoch = _end_of(records) if records else (core.log_end, -1)
        if self.is_rebuilding and self._rebuilt_end is None:
            self._rebuilt_end = fetched.last_stable_offset  # the end of the leader's log
        if not core.received(
            request_id,
            end_offset=end_offset,
            last_epoch=last_epoch,
            high_watermark=fetched.high_watermark,
            start_offset=fetched.log_start_offset,
            now_ms=now_ms,
        ):
            self._note_watermark()
            self._end_rebuild_if_done()
            return
        before = stored.end_offset
        try:
            if not stored.size_bytes and stored.is_flushing:
                raise CorruptBatch("the log may have to begin elsewhere, and cannot during a flush")
            stored.append_fetched(records, position.leader_epoch)
        except AlpacaError as error:
            self._failed(str(error))
            if isinstance(error, StorageFailed):
                self.partition.refused(error)
        else:
            self._last_failure = ""
            self.partition.refusal = None
        if stored.end_offset > before or stored.end_offset == end_offset:
            # After an error, too: the batches before the failure are in the log.
            core.appended(request_id, stored.end_offset)
            if not self._resources.flush_counts:
                self.partition.flush_later()
        else:
            core.failed(request_id, FetchError.INVALID, now_ms)
        self._note_watermark()
        self._end_rebuild_if_done()

    def _failed(self, reason: str) -> None:
        if reason != self._last_failure:
            self._last_failure = reason
            log.error("replica_not_written", partition=str(self.partition.identity), reason=reason)

    def _note_watermark(self) -> None:
        if self.core.high_watermark != self.partition.high_watermark:
            self.partition.follower_watermark(self.core.high_watermark)

    # Truncation.

    def _cut(self, step: TruncateTo | RestartAt) -> None:
        self._cutting = self._resources.spawn(self._cut_in_thread(step))

    async def _cut_in_thread(self, step: TruncateTo | RestartAt) -> None:
        partition, stored = self.partition, self.partition.log
        name = str(partition.identity)
        was_lost = stored.has_lost_data
        try:
            async with partition.files:
                await self._resources.flushes.quiesce(partition)
                is_restart = isinstance(step, RestartAt) or step.offset < stored.start_offset
                work = partial(stored.restart_at if is_restart else stored.truncate_to, step.offset)
                loop = asyncio.get_running_loop()
                # Never abandoned: the next user of the log would see it change.
                await asyncio.shield(loop.run_in_executor(self._resources.executor, work))
        except AlpacaError as error:
            log.error("replica_not_truncated", partition=name, reason=str(error))
            await asyncio.sleep(CUT_RETRY_SECONDS)
        else:
            level = log.error if step.lost_committed else log.info
            level(
                "replica_truncated",
                partition=name,
                end_offset=stored.end_offset,
                lost_committed=step.lost_committed,
            )
            self.core.truncated(stored.end_offset)
            self._note_watermark()
            if was_lost and not self.is_rebuilding:
                self._resources.storage_changed()
        finally:
            self._cutting = None
        self.drive()


def _end_of(records: Buffer) -> tuple[int, int]:
    """Return the offset after the last complete batch of fetched records, and its leader epoch.

    Only lengths are followed: the log checks the batches themselves.
    """
    size = len(records)
    at, last = 0, -1
    while at + HEADER_BYTES <= size:
        length: int = _LENGTH.unpack_from(records, at + _LENGTH_AT)[0]
        after = at + FRAME_BYTES + length
        if length <= 0 or after > size:
            break
        at, last = after, at
    if last < 0:
        return -1, -1
    header = read_header(records, last)
    return header.next_offset, header.leader_epoch
