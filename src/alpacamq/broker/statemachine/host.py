"""Runs one state machine on one partition of an internal topic.

Requests are gathered for a turn of the event loop and given to the machine as one batch. The records it
returns are appended as one record batch; replies and effects follow once those records, and all before
them, are as durable as the topic promises. If records cannot be written, memory is ahead of the log: the
machine is discarded and rebuilt, and every request that it has handled fails with CoordinatorUnavailable: it
may have taken effect. CoordinatorLoading means that it has not.

A host belongs to one leader epoch of its partition. When that ends, it is stopped, with every task that works
for its machine, and is not used again.

Snapshots are taken in slices between events. Changes made meanwhile are appended to the snapshot, so that
it ends up equal to the log up to an offset.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from math import inf
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from alpacamq.broker.later import Later
from alpacamq.broker.partition.appends import Append
from alpacamq.broker.partition.leader import Partition
from alpacamq.model.batch import read_header
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    NotCoordinator,
    NotLeader,
)
from alpacamq.model.records import write_new_batch
from alpacamq.model.state_machine import Change, Outcome, Pending, Request, StateMachine
from alpacamq.telemetry.logs import get_logger

from .snapshots import BLOCK_CHANGES, StateSnapshots, encode_block, replay_changes

log = get_logger(__name__)

# A snapshot is due after this many records or this long after the first of them. A larger state
# is written once per full turnover, estimated at this many bytes per record.
SNAPSHOT_RECORDS = 10_000
SNAPSHOT_RECORD_BYTES = 64
SNAPSHOT_MS = 5 * 60_000
# How long a snapshot may block the event loop at a time, and how many entries are taken between checks
# of the clock.
SLICE_SECONDS = 0.0005
_SLICE_ENTRIES = 32
MAX_SLEEP_SECONDS = 5.0
# A process that wakes this much too late was stopped, or its machine was. Heartbeats that clients have sent
# meanwhile are waiting to be read; they get this long before sessions end.
STALL_SECONDS = 2.0
CATCH_UP_SECONDS = 1.0
RELOAD_SECONDS = 1.0
MAX_RELOAD_SECONDS = 60.0
LOAD_SECONDS = 5.0
# Corrections after a load that are written as one batch.
MAX_CORRECTIONS = 10_000
# Requests that are handled in one turn of the event loop at most.
MAX_REQUESTS = 1000


class SnapshotInProgress:
    """A snapshot that is being taken: the entries so far, and the machine's changes meanwhile."""

    def __init__(self, entries: Iterator[Change]) -> None:
        self._entries = entries
        self._blocks: list[bytes] = []
        self._later_blocks: list[bytes] = []
        self._later: list[Change] = []
        self.count = 0
        self.is_complete = False

    def changed(self, changes: list[Change]) -> None:
        """Add changes of the machine behind the entries."""
        self._later += changes
        if len(self._later) >= BLOCK_CHANGES:
            self._close_later()

    def take_some(self) -> None:
        """Take entries until they end or the slice is over."""
        ends_at = monotonic() + SLICE_SECONDS
        block: list[Change] = []
        for change in self._entries:
            block.append(change)
            if len(block) >= BLOCK_CHANGES or (len(block) % _SLICE_ENTRIES == 0 and monotonic() >= ends_at):
                break
        else:
            self.is_complete = True
        self.count += len(block)
        if block:
            self._blocks.append(encode_block(block))

    def blocks(self) -> list[bytes]:
        """Return the whole snapshot, which equals the log up to its current end."""
        self._close_later()
        return self._blocks + self._later_blocks

    def _close_later(self) -> None:
        for at in range(0, len(self._later), BLOCK_CHANGES):
            self._later_blocks.append(encode_block(self._later[at : at + BLOCK_CHANGES]))
        self._later.clear()


class Now(Protocol):
    """The clock of a machine: steady, or the wall clock where timestamps are compared with it."""

    def now_ms(self) -> int: ...


class Replied(Protocol):
    """What waits for a reply: a future, or a result that comes Later."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...


class Batching(NamedTuple):
    """Limits the requests of one batch by weight."""

    weigh: Callable[[Any], int]
    max_weight: int


M = TypeVar("M", bound=StateMachine)
R = TypeVar("R")


class Rebuilt(NamedTuple, Generic[M]):
    """A machine rebuilt from its log up to an offset."""

    machine: M
    # Records replayed behind the snapshot.
    records: int
    corrections: Outcome
    end_offset: int


def is_committed(partition: Partition, end_offset: int) -> bool:
    """Return whether everything before an offset survives a change of the leader."""
    return partition.high_watermark >= end_offset


class StateMachineHost(Generic[M]):
    """One machine and the partition that stores it."""

    def __init__(
        self,
        partition: Partition,
        make: Callable[[], M],
        snapshots: StateSnapshots,
        clock: Now,
        executor: Executor,
        *,
        perform: Callable[[Sequence[Any]], None] | None = None,
        read: Callable[[Any], None] | None = None,
        check: Callable[[M], Outcome] | None = None,
        batching: Batching | None = None,
    ) -> None:
        """Give durable effects to `perform` and reads to `read`.

        `check` runs in a thread after a load and corrects what a crash has left inconsistent.
        """
        self.partition = partition
        # The epoch in which this broker leads the partition; the records of this host belong to no other.
        self.leader_epoch = partition.leader_epoch
        self._stopped: NotCoordinator | None = None
        self._running: asyncio.Task[Any] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._make = make
        self._snapshots = snapshots
        self._clock = clock
        self._executor = executor
        self._perform = perform
        self._read = read
        self._check = check
        self._batching = batching
        self._machine: M | None = None
        self._gathered: deque[Pending] = deque()
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None  # before the first request
        self._posted_once: set[Request[Any]] = set()
        self._in_flight: deque[list[Outcome]] = deque()
        self._pending: set[Replied] = set()
        self._has_been_loaded = False
        # The reason the last load failed, if it did.
        self.failure: str | None = None
        self._reload_seconds = RELOAD_SECONDS
        self._posted_before_load: list[Request[Any]] = []
        self._changed = asyncio.Event()
        self._loaded = asyncio.Event()
        self._wake_at_ms: int | None = None
        # When `run` looks again if nothing wakes it; before any deadline while it is awake.
        self._sleeps_until_ms = -inf
        self._records_since_snapshot = 0
        self._snapshot_due_ms: int | None = None
        self._snapshot_entries = 0
        self._snapshot: SnapshotInProgress | None = None
        self._is_writing_snapshot = False

    async def ask(self, request: Request[R]) -> R:
        """Return the reply to a request, or raise it if it is an error. Cancelling withdraws the request."""
        await self.loaded()
        reply = self.submit(request)
        try:
            answer = await reply
        except asyncio.CancelledError:
            self.cancel(reply)
            raise
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer

    def submit(self, request: Request[R]) -> "asyncio.Future[R | AlpacaError]":
        """Add a request to the next batch. The future's result is the reply, or an AlpacaError."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit_to(reply, request)
        return reply

    def submit_to(self, reply: "Replied", request: Request[Any]) -> None:
        """Add a request to the next batch; `reply` gets what the future of `submit` does."""
        if self._stopped is not None:
            reply.set_result(self._stopped)
            return
        self._pending.add(reply)
        self._gather(Pending(request, reply))

    def submit_for(self, request: Request[R], use: Callable[[R | AlpacaError], None]) -> None:
        """Add a request to the next batch, and call `use` with the reply when it is known."""
        reply: Later[Any] = Later()
        reply.when_done(use)
        self.submit_to(reply, request)

    def cancel(self, reply: "Replied") -> None:
        """Withdraw a request. A reply that is already on its way still becomes the future's result."""
        self._pending.discard(reply)
        for at, pending in enumerate(self._gathered):
            if pending.reply_to is reply:
                del self._gathered[at]
                return
        if self._machine is not None:
            self._machine.cancel(reply)
            self._plan()

    def post(self, event: Request[Any]) -> None:
        """Give the machine an event that has no reply; kept until the machine is loaded."""
        if self._stopped is not None:
            return
        if self._machine is None:
            self._posted_before_load.append(event)
        else:
            self._gather(Pending(event, None))

    def post_once(self, event: Request[Any]) -> None:
        """Post an event unless an equal one is in the next batch; dropped while the machine is loaded.

        For events that a machine finds out by itself when it is loaded.
        """
        if self._machine is not None and event not in self._posted_once:
            self._posted_once.add(event)
            self._gather(Pending(event, None))

    async def handled(self) -> None:
        """Return once everything that was posted and submitted before has been handled."""
        last = self._gathered[-1] if self._gathered else None
        while last is not None and any(pending is last for pending in self._gathered):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, None], ended: Callable[[], None] = lambda: None) -> None:
        """Run a task for the machine; it is cancelled when the host is stopped. Calls `ended` in any case."""
        if self._tasks is None:
            work.close()
            ended()
        else:
            # Not a `finally` of the task: one that is cancelled before it begins has none.
            self._tasks.create_task(work).add_done_callback(lambda _: ended())

    def stop(self, reason: NotCoordinator) -> None:
        """Stop for ever, because this broker does not lead the partition in this epoch any more.

        Pending requests fail with `reason`. Records that were appended and are not acknowledged yet may still
        become part of the log: requests that the machine has handled fail with `has_begun`.
        """
        self._stopped = reason
        self._discard(NotCoordinator(str(reason), reason.coordinator, has_begun=True), not_begun=reason)
        self._posted_before_load.clear()
        self._loaded.set()  # lets those who wait for a load find out
        if self._running is not None:
            self._running.cancel()

    def reload(self, reason: str) -> None:
        """Discard the machine and load it again."""
        self._fail(CoordinatorUnavailable(reason))

    def wake(self) -> None:
        """Recompute the time to sleep, because the clock was set."""
        self._changed.set()

    @property
    def machine(self) -> M | None:
        """The machine, for reading only; None while it is loaded."""
        return self._machine

    @property
    def is_taking_snapshot(self) -> bool:
        return self._snapshot is not None

    async def loaded(self) -> M:
        """Return the machine, after waiting a short time for a load; else raise CoordinatorLoading.

        Raises CoordinatorUnavailable at once if loading has failed.
        """
        if self._machine is not None:
            return self._machine
        if self._stopped is None and self.failure is not None:
            raise CoordinatorUnavailable(f"{self.partition.identity} cannot be loaded: {self.failure}")
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                return await self.wait_until_loaded()
        except TimeoutError:
            raise CoordinatorLoading(f"{self.partition.identity} is being loaded") from None

    async def wait_until_loaded(self) -> M:
        """Return the machine, however long it takes to load. Raises the reason if the host is stopped."""
        while self._machine is None:
            if self._stopped is not None:
                raise self._stopped.with_traceback(None)
            await self._loaded.wait()
        return self._machine

    def _gather(self, pending: Pending) -> None:
        self._gathered.append(pending)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop = loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self._handle_gathered)

    def _handle_gathered(self) -> None:
        if self._posted_once:
            self._posted_once.clear()
        # Events that are posted meanwhile, such as results of reads, have to wait for the next turn.
        left = min(len(self._gathered), MAX_REQUESTS)
        try:
            while left > 0 and (batch := self._next_batch(left)):
                left -= len(batch)
                self._handle(batch)
        finally:
            self._is_scheduled = bool(self._gathered)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._handle_gathered)

    def _next_batch(self, limit: int) -> list[Pending]:
        if self._batching is None and len(self._gathered) <= limit:
            batch = list(self._gathered)
            self._gathered.clear()
            return batch
        batch = []
        weight = 0
        while self._gathered and len(batch) < limit:
            if self._batching is not None:
                weight += self._batching.weigh(self._gathered[0].request)
                if batch and weight > self._batching.max_weight:
                    break
            batch.append(self._gathered.popleft())
        return batch

    def _handle(self, batch: Sequence[Pending]) -> None:
        if self._machine is None:
            unavailable = self._stopped or self._loading_again()
            for request, reply in batch:
                if reply is None:
                    self._posted_before_load.append(request)
                else:
                    self._reply(reply, unavailable)
            return
        try:
            now_ms = self._clock.now_ms()
            self._apply(self._machine.handle(batch, now_ms), now_ms)
        except Exception as error:
            # A bug, and it may have left the state half changed: rebuild it from the log.
            log.exception("coordinator_crashed", partition=str(self.partition.identity))
            self._fail(CoordinatorUnavailable(f"internal error: {error!r}"))

    async def run(self) -> None:
        """Load the machine, tick it when it is due, rebuild it when it fails, until cancelled."""
        if self._stopped is not None:
            return
        self._running = asyncio.current_task()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._run()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception as error:
                log.exception("coordinator_crashed", partition=str(self.partition.identity))
                self._fail(CoordinatorUnavailable(f"internal error: {error!r}"))

    async def _step(self) -> None:
        if self._machine is None:
            await self._load()
            return
        is_due = self._wake_at_ms is not None and self._wake_at_ms <= self._clock.now_ms()
        if is_due:
            now_ms = self._clock.now_ms()
            self._apply(self._machine.tick(now_ms), now_ms)
        if self._snapshot is not None:
            self._continue_snapshot(self._snapshot)
        elif self._machine is not None and self._is_snapshot_due():
            self._snapshot = SnapshotInProgress(self._machine.snapshot())
        elif not is_due:
            await self._sleep()
            return
        await asyncio.sleep(0)  # others get their turn before the next deadline

    async def _sleep(self) -> None:
        self._changed.clear()
        snapshot_due_ms = None if self._is_writing_snapshot else self._snapshot_due_ms
        due = [at_ms for at_ms in (self._wake_at_ms, snapshot_due_ms) if at_ms is not None]
        # The clock is that of the cluster, which may run faster than this machine's for a while.
        seconds = min(max(min(due) - self._clock.now_ms(), 0) / 1000, MAX_SLEEP_SECONDS) if due else None
        began_at = monotonic()
        self._sleeps_until_ms = min(due) if due else inf
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until_ms = -inf
        if seconds is not None and monotonic() - began_at >= seconds + STALL_SECONDS:
            await self._catch_up(monotonic() - began_at)

    async def _catch_up(self, slept_seconds: float) -> None:
        """Handle requests that came while the process was stopped before deadlines that have passed."""
        if self._wake_at_ms is not None and self._wake_at_ms <= self._clock.now_ms():
            log.warning("stalled", partition=str(self.partition.identity), seconds=round(slept_seconds, 1))
            await asyncio.sleep(CATCH_UP_SECONDS)

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        if self._has_been_loaded:
            await asyncio.sleep(self._reload_seconds)
        self._has_been_loaded = True
        began_at = monotonic()
        try:
            rebuilt = await loop.run_in_executor(self._executor, self._rebuild)
            await self._until_committed(rebuilt.end_offset)
        except (AlpacaError, OSError) as error:
            if self.failure != str(error):  # logged once, not at every attempt
                log.error("coordinator_not_loaded", partition=str(self.partition.identity), reason=str(error))
            self.failure = str(error)
            self._reload_seconds = min(2 * self._reload_seconds, MAX_RELOAD_SECONDS)
            return
        self.failure, self._reload_seconds = None, RELOAD_SECONDS
        machine, records, corrections, _ = rebuilt
        self._machine = machine
        self._loaded.set()
        self._records_since_snapshot = records
        log.info(
            "coordinator_loaded",
            partition=str(self.partition.identity),
            records=records,
            took_ms=round((monotonic() - began_at) * 1000),
        )
        # A record batch has a limited size, and there may be a correction for every record.
        for at in range(0, len(corrections.changes), MAX_CORRECTIONS):
            some = Outcome(changes=corrections.changes[at : at + MAX_CORRECTIONS])
            self._apply(some, self._clock.now_ms())
        now_ms = self._clock.now_ms()
        self._apply(machine.loaded(now_ms), now_ms)
        posted, self._posted_before_load = self._posted_before_load, []
        for event in posted:
            self.post(event)

    async def _until_committed(self, end_offset: int) -> None:
        """Return once the high watermark has reached the end of what was loaded.

        Records above it may be lost with the next change of the leader: no reply may show them.
        """
        partition = self.partition
        advanced = asyncio.Event()
        watch = object()
        partition.watch(watch, lambda _: advanced.set())
        try:
            while not is_committed(partition, end_offset):
                await advanced.wait()
                advanced.clear()
        finally:
            partition.unwatch(watch)

    def _rebuild(self) -> "Rebuilt[M]":
        """Return a machine rebuilt from the log."""
        machine = self._make()
        offset = 0
        stored = self.partition.log
        end_offset = stored.end_offset
        if (snapshot := self._snapshots.newest(stored.end_offset, self.partition.epoch_at)) is not None:
            offset = snapshot.offset
            for key, value in snapshot.changes:
                machine.replay(key, value)
        count = 0
        for count, (key, value) in enumerate(replay_changes(stored, offset), start=1):  # noqa: B007
            machine.replay(key, value)
        corrections = Outcome() if self._check is None else self._check(machine)
        return Rebuilt(machine, count, corrections, end_offset)

    def _apply(self, outcome: Outcome, now_ms: int) -> None:
        if outcome.reads and self._read is not None:
            for read in outcome.reads:
                self._read(read)
        if outcome.changes:
            self._append(outcome, now_ms)
        elif self._in_flight:
            # Its replies depend on records that are not durable yet.
            self._in_flight[-1].append(outcome)
        else:
            self._deliver(outcome)
        self._plan()

    def _append(self, outcome: Outcome, now_ms: int) -> None:
        # No other leader may have written since the machine was loaded.
        if self._stopped is not None or self.partition.leader_epoch != self.leader_epoch:
            self._fail(NotCoordinator(f"this broker does not lead in epoch {self.leader_epoch} any more"))
            return
        batch = write_new_batch([(key, value, (), now_ms) for key, value in outcome.changes])
        outcomes = [outcome]
        append = Append(batch, read_header(batch), lambda: self._appended(append, outcomes))
        self._in_flight.append(outcomes)
        self.partition.stage(append)
        self.partition.commit()
        self._records_since_snapshot += len(outcome.changes)
        if self._snapshot is not None:
            self._snapshot.changed(outcome.changes)

    def _appended(self, append: Append, outcomes: list[Outcome]) -> None:
        in_flight = self._in_flight
        if not (in_flight and in_flight[0] is outcomes) and not any(each is outcomes for each in in_flight):
            return  # the machine these records belonged to has failed meanwhile
        if isinstance(append.outcome, AlpacaError):
            self._fail(append.outcome)
            return
        # Records become durable in order; a refusal is immediate and fails the machine above.
        assert in_flight[0] is outcomes
        in_flight.popleft()
        for outcome in outcomes:
            self._deliver(outcome)

    def _deliver(self, outcome: Outcome) -> None:
        if outcome.effects and self._perform is not None:
            self._perform(outcome.effects)
        for reply, answer in outcome.replies:
            if reply is not None:
                self._reply(reply, answer)

    def _reply(self, reply: Any, answer: object) -> None:
        self._pending.discard(reply)
        if reply.done():
            return
        try:
            reply.set_result(answer)
        except Exception:
            # A bug in the callback of one client; others wait for replies of the same batch.
            log.exception("reply_failed", partition=str(self.partition.identity))

    def _fail(self, error: AlpacaError) -> None:
        if self._stopped is not None:
            return
        # That another broker leads now is no failure: this host is about to be stopped.
        report = log.info if isinstance(error, NotLeader) else log.error
        report("coordinator_failed", partition=str(self.partition.identity), reason=str(error))
        self._loaded.clear()
        self._discard(
            CoordinatorUnavailable(f"{self.partition.identity}: {error}"), not_begun=self._loading_again()
        )
        self._changed.set()

    def _discard(self, reason: AlpacaError, *, not_begun: AlpacaError) -> None:
        """Discard the machine and what it has not delivered; fail the requests that wait for it.

        Those that it has not handled have certainly not taken effect, and fail with `not_begun`.
        """
        self._machine = self._snapshot = None
        self._in_flight.clear()
        for _, reply in list(self._gathered):
            if reply is not None:
                self._reply(reply, not_begun)
        for reply in list(self._pending):
            self._reply(reply, reason)

    def _loading_again(self) -> CoordinatorLoading:
        return CoordinatorLoading(f"{self.partition.identity} is being loaded again")

    def _plan(self) -> None:
        """Wake `run` if something is due before it would wake."""
        if self._machine is None:
            return
        due_ms = self._wake_at_ms = self._machine.next_deadline_ms
        if due_ms is not None and due_ms < self._sleeps_until_ms:
            self._changed.set()
        if self._records_since_snapshot and self._snapshot_due_ms is None:
            self._snapshot_due_ms = self._clock.now_ms() + SNAPSHOT_MS
            self._changed.set()
        if self._records_since_snapshot >= max(SNAPSHOT_RECORDS, self._snapshot_entries):
            self._changed.set()

    def _is_snapshot_due(self) -> bool:
        if not self._records_since_snapshot or self._is_writing_snapshot:
            return False
        if self._records_since_snapshot >= max(SNAPSHOT_RECORDS, self._snapshot_entries):
            return True
        return self._snapshot_due_ms is not None and self._snapshot_due_ms <= self._clock.now_ms()

    def _continue_snapshot(self, snapshot: SnapshotInProgress) -> None:
        snapshot.take_some()
        if not snapshot.is_complete:
            return
        # Between events the state equals the log up to its end, durable or not. If a crash loses part of
        # that, the snapshot reaches beyond the log, or into another epoch, and is not used.
        offset = self.partition.log.end_offset
        epoch = max(self.partition.epoch_at(offset - 1), 0)
        blocks = snapshot.blocks()
        self._snapshot = None
        self._records_since_snapshot = 0
        self._snapshot_due_ms = None
        self._snapshot_entries = max(snapshot.count, sum(map(len, blocks)) // SNAPSHOT_RECORD_BYTES)
        # Written in the background: the machine has deadlines to keep meanwhile.
        self._is_writing_snapshot = True
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._executor, self._snapshots.write, offset, epoch, blocks)
        writing.add_done_callback(self._snapshot_written)

    def _snapshot_written(self, writing: "asyncio.Future[None]") -> None:
        self._is_writing_snapshot = False
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.warning("snapshot_failed", partition=str(self.partition.identity), reason=str(error))
        self._changed.set()
