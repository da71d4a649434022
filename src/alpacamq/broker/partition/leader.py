"""One partition on this broker: takes batches while it leads, advances the high watermark, wakes waiters.

Appends are staged and written together by `commit`, so that all small batches of one receive cost one
write. Without other replicas a batch is acknowledged, and visible to readers, once it is as durable as its
topic promises. With others it is visible once all replicas in sync have it; see `replication.leader`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from time import monotonic
from typing import Protocol

from alpacamq.broker.tracing.partition import PartitionTraces
from alpacamq.cluster.partition_state import PartitionState
from alpacamq.log.epochs import EpochEnd
from alpacamq.log.partition_log import Appended, PartitionLog
from alpacamq.log.producer_state import NO_MARKER, ProducerEntry
from alpacamq.log.reader import Slice, TimestampOffset
from alpacamq.model.batch import read_header
from alpacamq.model.errors import (
    AlpacaError,
    FencedLeaderEpoch,
    NotLeader,
    OutOfOrderSequence,
    StorageFailed,
    UnknownLeaderEpoch,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicPartition
from alpacamq.model.topics import TopicConfig
from alpacamq.replication.leader import (
    CommittedState,
    FollowerStatus,
    KnownBrokers,
    PartitionLeader,
    ProposeIsr,
)
from alpacamq.replication.throttle import is_throttled
from alpacamq.telemetry.logs import get_logger

from .appends import Acks, Append, fail, record_outcomes
from .replicated import Replicated

log = get_logger(__name__)

# flush.ms of this size means never: the operating system decides when data reaches the disk. A
# background sync still runs, which promises nothing but bounds the scan of a recovery.
NEVER_FLUSH_MS = 2**62
BACKGROUND_FLUSH_MS = 60_000
# Within this time producers send again what was refused, and what they had sent behind it.
REFUSED_RETRY_SECONDS = 5.0
_WRITTEN = bytearray()


class FlushSchedule(Protocol):
    """Flushes partitions to disk."""

    def now(self, partition: "Partition") -> None:
        """Flush as soon as the running flush, if any, has ended: producers wait."""
        ...

    def within(self, partition: "Partition", delay_ms: int) -> None:
        """Flush at most `delay_ms` from now."""
        ...


class ReplicationHost(Protocol):
    """What the partitions of a broker share for their replication."""

    node_id: BrokerId
    # The registered brokers of the committed image, kept up to date.
    brokers: KnownBrokers
    replica_lag_ms: int
    # Whether replicas flush before they count (cluster.flush = "ack").
    flush_counts: bool

    def now_ms(self) -> int:
        """Return monotonic time."""
        ...

    def led(self, partition: "Partition") -> None:
        """Note that a partition with other replicas is led here."""
        ...

    def followed(self, partition: "Partition", state: PartitionState) -> None:
        """Follow the leader of a partition, as the image names it now."""
        ...

    def stopped(self, partition: "Partition") -> None:
        """Neither lead nor follow a partition any more."""
        ...

    def in_sync_changed(self, before: Collection[int], after: Collection[int]) -> None:
        """Note a change of the in-sync set of a partition led here."""
        ...

    def has_proposal(self, partition: "Partition") -> None:
        """Send the partition's proposal for the in-sync set to the controller."""
        ...

    def storage_changed(self) -> None:
        """Note that the disk has failed a partition, or that a partition is sound again. In any thread."""
        ...


class ReplicaSession(Protocol):
    """Sends a led partition to a follower."""

    def log_changed(self, partition: "Partition") -> None:
        """Note that there is more to send, or that the partition is not led any more."""
        ...

    def watermark_changed(self, partition: "Partition") -> None:
        """Note that the high watermark or the log start moved. The follower is in no hurry to know."""
        ...


class FollowedLog(Protocol):
    """The follower of a partition that another broker leads."""

    @property
    def is_cutting(self) -> bool:
        """Whether the log is being truncated in a thread."""
        ...

    @property
    def leader_start_offset(self) -> int:
        """Where the leader's log starts; -1 if that is not known."""
        ...

    @property
    def is_rebuilding(self) -> bool:
        """Whether the log was emptied because of damage, and is not complete again."""
        ...

    async def suspend(self) -> None:
        """Begin nothing any more, and return once the log is at rest."""
        ...

    def flushed(self) -> None: ...
    def flush_failed(self) -> None: ...


class Partition:
    """One partition of which this broker has a replica."""

    def __init__(
        self,
        identity: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        flushes: FlushSchedule,
        replication: ReplicationHost | None = None,
    ) -> None:
        self.identity = identity
        self.topic_id = topic_id
        self.log = log
        self._replication = replication
        # None while this broker leads the partition.
        self._not_leading: AlpacaError | None = NotLeader(f"the leader of {identity} is not known yet")
        # The replicas of the committed state; empty before the first role.
        self._replicas: Sequence[int] = ()
        self._isr: Collection[int] = ()
        # Those among them that a reassignment adds.
        self._adding: Collection[int] = ()
        # None unless this broker leads and there are other replicas.
        self._replicated: Replicated | None = None
        # Set by the replication host while another broker leads.
        self.following: FollowedLog | None = None
        # Held while files are changed in a thread that no other may change meanwhile.
        self.files = asyncio.Lock()
        self._sessions: dict[ReplicaSession, None] = {}
        # Bytes appended that the high watermark has not passed.
        self._unseen_bytes = 0
        self.leader_epoch = max(log.epochs.latest, 0)
        self.high_watermark = log.end_offset
        # Where a power loss has cut the log, while state may still refer to records behind it.
        self.cut_offset: int | None = None
        self._flushes = flushes
        self._staged: list[Append] = []
        # The error of the last write and when that was, by the monotonic clock; None if it succeeded.
        self.refusal: AlpacaError | None = None
        self.refused_s = 0.0
        # The same, until some seconds after writes succeed again.
        self._last_refusal: AlpacaError | None = None
        # Counters since the broker started, for metrics.
        self.written_batches = self.written_bytes = 0
        # Messages that became visible while this broker did not lead: others have counted them.
        self._counted_elsewhere = 0
        self.fetched_messages = self.fetched_bytes = 0
        self.skipped_batches = 0  # skipped by readers: damaged, or failed to unpack
        self._awaiting_flush: deque[tuple[int, Sequence[Append]]] = deque()
        # Tasks in `flush_to`, each with the offset it waits for.
        self._flush_waiters: list[tuple[int, asyncio.Future[None]]] = []
        # Whether appends wait for a postponed flush without a time limit.
        self.always_waits_for_flush = False
        self._watchers: dict[object, Callable[[int], None]] = {}
        # None where tracing is disabled.
        self.traces: PartitionTraces | None = None
        if replication is not None:
            log.on_failure(replication.storage_changed)

    # Roles.

    def lead(self, state: PartitionState, min_isr: int = 1) -> None:
        """Lead as the image says. The log records a new epoch with the first batch.

        Records may have been lost that readers had seen, and their offsets will be used again: the new epoch
        lets those readers notice.
        """
        if self.is_leading and self._replication is not None and set(self._isr) != set(state.isr):
            self._replication.in_sync_changed(self._isr, state.isr)
        self._begin_role(state)
        self.following = None
        self.leader_epoch = max(state.leader_epoch, self.leader_epoch)
        self._not_leading = None
        host = self._replication
        if host is None or len(state.replicas) == 1:
            self._lead_alone()
            return
        committed = CommittedState(
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=[BrokerId(broker) for broker in state.replicas],
            isr=[BrokerId(broker) for broker in state.isr],
            min_isr=min_isr,
        )
        former = self._replicated
        if former is None or former.core.leader_epoch != state.leader_epoch:
            self._replicated = replicated = Replicated(self._new_core(host, committed))
            if former is not None:
                replicated.adopt(former)
            host.led(self)
            self._tell_sessions()
        else:
            replicated, core = former, former.core
            core.updated(committed, host.now_ms())
            if core.min_isr != min_isr and core.partition_epoch == state.partition_epoch:
                core.configure(min_isr, flush_counts=host.flush_counts)
        self._progress(replicated)

    def follow(self, state: PartitionState) -> None:
        """Follow the leader that the image names; wait for one if there is none."""
        self._begin_role(state)
        self.leader_epoch = max(state.leader_epoch, self.leader_epoch)
        text = "has no leader" if state.leader is None else f"is led by broker {state.leader}"
        self._stop_leading(NotLeader(f"{self.identity} {text}", state.leader, state.leader_epoch))
        if self._replication is not None:
            self._replication.followed(self, state)

    def stop(self, error: AlpacaError) -> None:
        """Neither lead nor follow any more; appends fail with `error`."""
        self._stop_leading(error)
        if self._replication is not None:
            self._replication.stopped(self)
        self.following = None

    def suspend(self, error: AlpacaError) -> None:
        """Take and acknowledge nothing: another broker may lead by now. `lead` continues in the same epoch.

        Followers still fetch, and the core stays: proposals may be under way whose outcome it has to know.
        """
        self._not_leading = error.with_traceback(None)
        if self._replicated is not None:
            self._replicated.fail_all(error)
        self._fail_awaiting(error)
        self._wake_watchers()

    @property
    def is_suspended(self) -> bool:
        """Whether it has other replicas and would lead, were it not for `suspend`."""
        return self._not_leading is not None and self._replicated is not None

    async def settled(self, state: PartitionState | None) -> None:
        """Return once the log is at rest, if `state` changes the leader: then its role may change."""
        if self.following is not None and (state is None or state.leader_epoch > self.leader_epoch):
            await self.following.suspend()

    @property
    def is_leading(self) -> bool:
        return self._not_leading is None

    @property
    def written_messages(self) -> int:
        """Messages that became visible while this broker led; of a partition without other replicas, all."""
        return max(self.high_watermark - self._counted_elsewhere, 0)

    def _begin_role(self, state: PartitionState) -> None:
        log = self.log
        if not self._replicas and len(state.replicas) > 1:
            # Only a partition with no other replica knows that all it has is committed.
            self.high_watermark = min(max(log.high_watermark_hint, log.start_offset), log.end_offset)
            self._counted_elsewhere = self.high_watermark
        self._replicas, self._isr, self._adding = state.replicas, state.isr, state.adding

    def _new_core(self, host: ReplicationHost, state: CommittedState) -> PartitionLeader:
        log = self.log
        # A replica that was started again at its leader's log start may not have heard of a watermark yet.
        self.high_watermark = min(max(self.high_watermark, log.start_offset), log.end_offset)
        log.remember_high_watermark(self.high_watermark)
        return PartitionLeader(
            broker_id=host.node_id,
            state=state,
            log_end=log.end_offset,
            flushed_end=log.flushed_offset,
            high_watermark=self.high_watermark,
            replica_lag_ms=host.replica_lag_ms,
            brokers=host.brokers,
            now_ms=host.now_ms(),
            flush_counts=host.flush_counts,
        )

    def _lead_alone(self) -> None:
        """Lead without other replicas: all that is flushed is committed."""
        former, self._replicated = self._replicated, None
        if self._replication is not None:
            self._replication.stopped(self)
        if former is not None and (appends := former.take_all()):
            self._awaiting_flush.append((self.log.end_offset, appends))
        if self.high_watermark < self.log.end_offset and not self._awaiting_flush:
            self._advance_high_watermark(self.log.flushed_offset, 0)
        if self.high_watermark < self.log.end_offset:
            self._flushes.now(self)
        self._tell_sessions()

    def _stop_leading(self, error: AlpacaError) -> None:
        was_leading = self._not_leading is None or self._replicated is not None
        self._not_leading = error.with_traceback(None)
        replicated, self._replicated = self._replicated, None
        if replicated is not None:
            replicated.fail_all(error)
        if was_leading:
            self._fail_awaiting(error)
            self._tell_sessions()
            self._wake_watchers()

    def _wake_watchers(self) -> None:
        """Have consumers read again, to learn that this is not the leader."""
        for wake in list(self._watchers.values()):
            wake(2**31)

    # Replicas, if this broker leads.

    @property
    def replicas(self) -> Sequence[int]:
        """The brokers that have a replica, the preferred leader first; empty before the first role."""
        return self._replicas

    @property
    def in_sync(self) -> Collection[int]:
        """The replicas that have everything that is committed, as the image says."""
        return self._isr

    @property
    def is_under_replicated(self) -> bool:
        return len(self._isr) < len(self._replicas)

    @property
    def is_below_min_isr(self) -> bool:
        """Whether acks=all is refused."""
        return self._replicated is not None and self._replicated.core.is_below_min_isr

    @property
    def covers_former_epochs(self) -> bool:
        """Whether the watermark has passed all that former leaders may have committed: its end is known."""
        return self._replicated is None or self._replicated.core.covers_former_epochs

    def followers(self) -> list[FollowerStatus]:
        """Return the followers as their leader sees them; empty if this broker does not lead."""
        if self._replicated is None or self._replication is None:
            return []
        return self._replicated.core.followers(self._replication.now_ms())

    def is_throttled(self, follower_id: BrokerId) -> bool:
        """Return whether a limit of the leader applies to a follower: see `replication.throttle`."""
        assert self._replication is not None
        place = f"{self.identity.partition}:{self._replication.node_id}"
        listed = self.config.leader_replication_throttled_replicas
        return is_throttled(follower_id, self._isr, self._adding, listed, place)

    def attach(self, session: ReplicaSession) -> None:
        """Tell a session of every change until `detach`."""
        self._sessions[session] = None

    def detach(self, session: ReplicaSession) -> None:
        self._sessions.pop(session, None)

    def fetched_by(
        self, broker_id: BrokerId, broker_epoch: int, leader_epoch: int, last_epoch: int, offset: int
    ) -> tuple[int, int] | None:
        """Note how far a follower has come; return where its log diverges as (epoch, end offset).

        Raises the reason why it cannot fetch: an epoch, a position or a broker that does not fit.
        """
        replicated = self._led_replicas(leader_epoch)
        core, log = replicated.core, self.log
        diverging = core.check_fetch(leader_epoch, last_epoch, offset, log.start_offset, log.epochs)
        if diverging is None:
            assert self._replication is not None
            is_advanced = core.fetched(broker_id, broker_epoch, offset, self._replication.now_ms())
            if is_advanced or core.unsent is not None:
                self._progress(replicated)
        return diverging

    def check_replica_epoch(self, leader_epoch: int) -> None:
        """Check that a follower's position is of the epoch in which this broker leads."""
        core = self._led_replicas(leader_epoch).core
        if core.leader_epoch != leader_epoch:
            raise FencedLeaderEpoch(f"{self.identity} is at leader epoch {core.leader_epoch}")

    def _led_replicas(self, leader_epoch: int) -> Replicated:
        if self._replicated is None:
            if self._not_leading is not None and leader_epoch <= self.leader_epoch:
                raise self._not_leading.with_traceback(None)
            # The image of this broker is older than the follower's.
            raise UnknownLeaderEpoch(f"{self.identity} has no other replica in epoch {self.leader_epoch}")
        return self._replicated

    # The in-sync set, for the object that sends proposals to the controller.

    def take_proposal(self) -> tuple[PartitionLeader, ProposeIsr] | None:
        """Return a proposal to be sent and the core that has to learn its outcome."""
        if self._replicated is None or self._replicated.core.unsent is None:
            return None
        core = self._replicated.core
        return core, core.take_proposal()

    def proposal_ended(self, core: PartitionLeader, report: Callable[[PartitionLeader], object]) -> bool:
        """Report the outcome of a proposal to its core; false if that has ended with its epoch."""
        replicated = self._replicated
        if replicated is None or replicated.core is not core:
            return False
        report(core)
        self._progress(replicated)
        return True

    def tick(self, now_ms: int) -> None:
        """Look for followers that fell behind or caught up."""
        if self._replicated is not None:
            self._replicated.core.tick(now_ms)
            if self._replicated.core.unsent is not None:
                self._progress(self._replicated)

    def flush_soon(self) -> None:
        """Flush what is not on disk: it counts for nothing until then."""
        if self.log.unflushed_records and self.log.is_flushable:
            self._flushes.now(self)

    def start_moved(self) -> None:
        """Let followers and watchers know that the log start has moved."""
        for session in list(self._sessions):
            session.watermark_changed(self)
        for wake in list(self._watchers.values()):
            wake(0)

    def _tell_sessions(self) -> None:
        if self._sessions:
            for session in list(self._sessions):
                session.log_changed(self)

    def _progress(self, replicated: Replicated) -> None:
        """Perform what follows from the state of the core."""
        core = replicated.core
        if core.unsent is not None:
            assert self._replication is not None
            self._replication.has_proposal(self)
        if core.high_watermark > self.high_watermark:
            unseen, self._unseen_bytes = self._unseen_bytes, 0
            self.log.remember_high_watermark(core.high_watermark)
            self._advance_high_watermark(core.high_watermark, unseen)
            for session in list(self._sessions):
                session.watermark_changed(self)
        if ready := replicated.take_replicated():
            if self.traces is not None:
                record_outcomes(ready, self._isr)
            for append in ready:
                append.complete()

    def follower_watermark(self, offset: int) -> None:
        """Note the high watermark of a partition that another broker leads."""
        self._counted_elsewhere += offset - self.high_watermark
        is_advanced = offset > self.high_watermark
        self.high_watermark = offset
        self.log.remember_high_watermark(offset)
        if is_advanced and self._watchers:
            for wake in list(self._watchers.values()):
                wake(1)

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

    def bytes_after(self, offset: int) -> int:
        """Return about how many bytes lie at and after `offset`."""
        return self.log.bytes_after(offset)

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
        appends: Sequence[Append] = self._staged
        self._staged = []
        if self._not_leading is not None:
            fail(appends, self._not_leading)
            return
        replicated = self._replicated
        if replicated is not None and not (appends := replicated.admit(appends)):
            return
        log = self.log
        before_bytes = log.size_bytes
        try:
            outcomes = log.append([(a.data, a.header) for a in appends], self.leader_epoch)
        except AlpacaError as error:
            self.refused(error)
            fail(appends, error)
            return
        if self._last_refusal is not None or isinstance(outcomes[-1], StorageFailed):
            outcomes = self._behind_refused(outcomes)
        added_bytes = log.size_bytes - before_bytes
        self.written_bytes += added_bytes
        self.written_batches += len(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            append.outcome = outcome
            append.data = _WRITTEN  # a batch waiting for its flush need not be kept in memory
        if replicated is not None:
            self._await_replicas(replicated, appends, added_bytes)
            return
        if log.unflushed_records >= log.config.flush_messages or self._awaiting_flush:
            self._awaiting_flush.append((log.end_offset, appends))
            self._flushes.now(self)
            return
        self.flush_later()
        if self.traces is not None:
            record_outcomes(appends)
        self._advance_high_watermark(log.end_offset, added_bytes)
        for append in appends:
            append.complete()

    def _behind_refused(self, outcomes: list[Appended | AlpacaError]) -> list[Appended | AlpacaError]:
        """Return results in which a batch that follows a refused one of its producer has the same error.

        Such batches were on their way when the write failed. For OutOfOrderSequence some producers begin a
        new epoch, in which batches of other partitions whose outcome they do not know are sent under new
        sequences: they would be stored twice.
        """
        if isinstance(error := outcomes[-1], StorageFailed):
            self.refused(error)
        elif any(isinstance(each, Appended) and not each.duplicate for each in outcomes):
            self.refusal = None
        refused = self._last_refusal
        if refused is None or monotonic() - self.refused_s > REFUSED_RETRY_SECONDS:
            self._last_refusal = self.refusal
            return outcomes
        return [refused if isinstance(each, OutOfOrderSequence) else each for each in outcomes]

    def flush_later(self) -> None:
        """Flush as late as the topic allows."""
        flush_ms = self.log.config.flush_ms
        self._flushes.within(self, flush_ms if flush_ms < NEVER_FLUSH_MS else BACKGROUND_FLUSH_MS)

    def _await_replicas(self, replicated: Replicated, appends: Sequence[Append], added_bytes: int) -> None:
        """Acknowledge written batches once the replicas have them, or now if their producers do not wait."""
        assert self._replication is not None
        log, core = self.log, replicated.core
        self._unseen_bytes += added_bytes
        flushes_first = log.unflushed_records >= log.config.flush_messages or bool(self._awaiting_flush)
        ready: list[Append] = []
        after_flush: list[Append] = []
        for append in appends:
            outcome = append.outcome
            if not isinstance(outcome, Appended):
                ready.append(append)
            elif append.acks is not Acks.ALL:
                (after_flush if flushes_first else ready).append(append)
            elif outcome.next_offset > core.high_watermark:
                # A duplicate, too: its original may not be replicated yet.
                replicated.wait(append, outcome.next_offset)
            else:
                ready.append(append)
        if after_flush:
            self._awaiting_flush.append((log.end_offset, after_flush))
        is_advanced = core.appended(log.end_offset, self._replication.now_ms())
        if flushes_first or self._replication.flush_counts:
            self._flushes.now(self)
        else:
            self.flush_later()
        self._tell_sessions()
        if is_advanced:
            self._progress(replicated)
        if self.traces is not None:
            record_outcomes(ready)
        for append in ready:
            append.complete()

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
        if self.following is not None and self.following.is_cutting:
            raise NotLeader(f"{self.identity} is led by another broker, and is being truncated to its log")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flush_waiters.append((offset, waiter))
        self._flushes.now(self)
        await waiter

    def flushed(self) -> None:
        """Complete the appends and waiters that the flush that has ended covers, or fail them."""
        log = self.log
        if log.in_doubt is not None:
            self._fail_awaiting(log.fsync_error())
            if self._replicated is not None:
                self._replicated.fail_all(log.fsync_error())
            if self.following is not None:
                self.following.flush_failed()
            return
        self._wake_flush_waiters()
        if self.following is not None:
            self.following.flushed()
            return
        ready: list[Append] = []
        while self._awaiting_flush and self._awaiting_flush[0][0] <= log.flushed_offset:
            ready += self._awaiting_flush.popleft()[1]
        if self.traces is not None:
            record_outcomes(ready)
        if self._awaiting_flush and not log.is_flushable:
            self._fail_awaiting(StorageFailed(f"{self.identity} is closed"))
        elif self._replicated is not None:
            if self._awaiting_flush:
                self._flushes.now(self)
            if self.traces is not None:
                self._replicated.note_flushed(log.flushed_offset)
            if self._replicated.core.flushed(log.flushed_offset):
                self._progress(self._replicated)
        elif self._not_leading is not None and len(self._replicas) > 1:
            pass  # other replicas decide what is committed
        elif self._awaiting_flush:
            self._flushes.now(self)
            self._advance_high_watermark(log.flushed_offset, 0)
        else:
            self._advance_high_watermark(log.end_offset, 0)
        for append in ready:
            append.complete()

    def flush_failed(self, error: AlpacaError) -> None:
        """Fail all that wait for a flush, because none could begin."""
        self._fail_awaiting(error)
        if self._replicated is not None:
            self._replicated.fail_all(error)
        if self.following is not None:
            self.following.flush_failed()

    def watch(self, key: object, wake: Callable[[int], None]) -> None:
        """Call `wake` with the number of new readable bytes whenever there are some, until `unwatch`.

        It is called with 0 when the log start has moved.
        """
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

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a transaction of this instance of a producer is open."""
        if self.log.transactions.open_offset(producer_id) is None:
            return False
        known = self.log.producers.get(producer_id)
        return known is not None and known.epoch == epoch

    def last_marker_offset(self, producer_id: int) -> int:
        """Return the offset of a producer's last marker, -1 if there is none."""
        known = self.log.producers.get(producer_id)
        return NO_MARKER.offset if known is None else known.last_marker.offset

    def producers(self) -> Mapping[int, ProducerEntry]:
        """Return the idempotent producers that the partition remembers, by id."""
        return self.log.producers.copy()

    def retire(self, error: AlpacaError) -> None:
        """Fail all waiters and wake all watchers, because the partition is being deleted."""
        self.stop(error)
        self._fail_awaiting(error)
        self._wake_watchers()

    def refused(self, error: AlpacaError) -> None:
        """Note that a write has failed."""
        is_first = self.refusal is None
        self.refusal = self._last_refusal = error.with_traceback(None)
        self.refused_s = monotonic()
        if is_first:
            # Once, not for every retry of every producer.
            log.error("writes_refused", partition=str(self.identity), reason=str(error))
            if self._replication is not None:
                self._replication.storage_changed()

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
            fail(appends, error)


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
    partition.start_moved()


class WriteBatcher:
    """The partitions with appends waiting for `commit`."""

    __slots__ = ("_is_due", "_loop", "_partitions")

    def __init__(self) -> None:
        self._partitions: list[Partition] = []
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None  # before the first append

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
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._commit_due)

    def _commit_due(self) -> None:
        self._is_due = False
        self.commit()
