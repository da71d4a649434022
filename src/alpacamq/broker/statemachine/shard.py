"""The host of every state machine: one machine on one partition of an internal topic.

Events are given to the machine one at a time. The records it answers with are appended as one
batch, and its replies leave once those records, and all before them, are as durable as the topic
promises. If records cannot be written, memory is ahead of the log: the machine is thrown away and
rebuilt, and everybody who waited is told so.

A snapshot is taken a bit at a time, between events. What the machine changes meanwhile is put behind
it, so that in the end it holds exactly what the log says up to an offset.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from alpacamq.broker.partition.leader import Append, Partition
from alpacamq.model.batch import read_header
from alpacamq.model.errors import AlpacaError, CoordinatorLoading, CoordinatorUnavailable
from alpacamq.model.outcome import Change, Outcome
from alpacamq.model.records import Record, write_batch
from alpacamq.telemetry.logs import get_logger

from .replay import replay
from .snapshots import BLOCK_CHANGES, ShardSnapshots, encode_block

log = get_logger(__name__)

# A snapshot is due after this many records or this long after the first of them. A state larger
# than that many records is written as often as it changes once over, about so many bytes a record.
SNAPSHOT_RECORDS = 10_000
SNAPSHOT_RECORD_BYTES = 64
SNAPSHOT_MS = 5 * 60_000
# For how long a snapshot may hold the event loop at a time, and how many entries are taken before
# looking at the clock.
SLICE_SECONDS = 0.0005
_SLICE_ENTRIES = 32
RELOAD_SECONDS = 1.0
MAX_RELOAD_SECONDS = 60.0
LOAD_SECONDS = 5.0


class Machine(Protocol):
    """A state machine: pure, told what happens and when."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        ...

    def tick(self, now_ms: int) -> Outcome: ...

    def gone(self, ticket: object) -> None:
        """Nobody waits for the reply to this ticket any more."""
        ...

    def replay(self, key: bytes, value: bytes | None) -> None: ...
    def loaded(self, now_ms: int) -> Outcome: ...

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state; events may come while they are taken.

        For each key they hold its value as of this call, or one that it was given since: replaying all
        changes since this call behind them must lead to the state that the machine has by then.
        """
        ...


class SnapshotInProgress:
    """A snapshot that is being taken: entries so far, and what the machine has changed meanwhile."""

    def __init__(self, entries: Iterator[Change]) -> None:
        self._entries = entries
        self._blocks: list[bytes] = []
        self._later_blocks: list[bytes] = []
        self._later: list[Change] = []
        self.count = 0
        self.is_complete = False

    def changed(self, changes: list[Change]) -> None:
        """Put behind the entries what the machine has just written."""
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
        """The whole snapshot; it stands for the end of the log as it is now."""
        self._close_later()
        return self._blocks + self._later_blocks

    def _close_later(self) -> None:
        for at in range(0, len(self._later), BLOCK_CHANGES):
            self._later_blocks.append(encode_block(self._later[at : at + BLOCK_CHANGES]))
        self._later.clear()


class Now(Protocol):
    """What a machine goes by: a clock that never jumps, or the wall's for what is due by that."""

    def now_ms(self) -> int: ...


M = TypeVar("M", bound=Machine)


class Shard(Generic[M]):
    """One machine and the partition that remembers it."""

    def __init__(
        self,
        partition: Partition,
        make: Callable[[], M],
        snapshots: ShardSnapshots,
        clock: Now,
        executor: Executor,
        perform: Callable[[Outcome], None] | None = None,
        check: Callable[[M], Outcome] | None = None,
    ) -> None:
        """`check`, in a thread, brings what was stored in line with what else a crash has left."""
        self.partition = partition
        self._make = make
        self._snapshots = snapshots
        self._clock = clock
        self._executor = executor
        self._perform = perform
        self._check = check
        self._machine: M | None = None
        self._in_flight: deque[list[Outcome]] = deque()
        self._tickets: set[asyncio.Future[Any]] = set()
        self._has_been_loaded = False
        # Why the machine could not be loaded, if so the last time.
        self.failure: str | None = None
        self._reload_seconds = RELOAD_SECONDS
        self._untold: list[Callable[[M, int], Outcome]] = []
        self._changed = asyncio.Event()
        self._loaded = asyncio.Event()
        self._wake_at_ms: int | None = None
        self._records_since_snapshot = 0
        self._snapshot_due_ms: int | None = None
        self._snapshot_entries = 0
        self._snapshot: SnapshotInProgress | None = None
        self._is_writing_snapshot = False

    async def ask(self, event: Callable[[M, object, int], Outcome]) -> Any:
        """Give the machine an event under a ticket, and return the reply to it or raise it."""
        machine = await self.loaded()
        ticket: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._tickets.add(ticket)
        try:
            try:
                outcome = event(machine, ticket, self._clock.now_ms())
            except Exception as error:
                # A bug, and nobody knows what it left behind: the log does.
                self._fail(CoordinatorUnavailable(f"internal error: {error!r}"))
                raise
            self._carry_out(outcome)
            answer = await ticket
        except asyncio.CancelledError:
            machine.gone(ticket)
            self._plan()
            raise
        finally:
            self._tickets.discard(ticket)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer

    @property
    def machine(self) -> M | None:
        """The machine as it is, to be looked at only; None while it is being loaded."""
        return self._machine

    @property
    def is_taking_snapshot(self) -> bool:
        return self._snapshot is not None

    async def loaded(self) -> M:
        """The machine, after a short wait if it is just being loaded; CoordinatorLoading after a long one.

        CoordinatorUnavailable at once where loading has failed: waiting would not help.
        """
        if self._machine is not None:
            return self._machine
        if self.failure is not None:
            raise CoordinatorUnavailable(f"{self.partition.identity} cannot be loaded: {self.failure}")
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                return await self.wait_until_loaded()
        except TimeoutError:
            raise CoordinatorLoading(f"{self.partition.identity} is being loaded") from None

    async def wait_until_loaded(self) -> M:
        """The machine, however long it takes to load."""
        while self._machine is None:
            await self._loaded.wait()
        return self._machine

    def submit(self, event: Callable[[M, int], Outcome], tickets: Collection[asyncio.Future[Any]]) -> None:
        """Give the machine one event for many tickets, whose replies come as their results.

        A reply may be an AlpacaError: here it is a result like any other. Who no longer waits for a
        ticket says `abandon`.
        """
        for ticket in tickets:
            self._tickets.add(ticket)
            ticket.add_done_callback(self._tickets.discard)
        if self._machine is None:
            unavailable = CoordinatorUnavailable(f"{self.partition.identity} is being loaded again")
            for ticket in tickets:
                ticket.set_result(unavailable)
            return
        try:
            outcome = event(self._machine, self._clock.now_ms())
        except Exception as error:
            log.exception("coordinator_crashed", partition=str(self.partition.identity))
            self._fail(CoordinatorUnavailable(f"internal error: {error!r}"))
            return
        self._carry_out(outcome)

    def abandon(self, ticket: asyncio.Future[Any]) -> None:
        """Nobody waits for this ticket. A reply that is on its way already still becomes its result."""
        self._tickets.discard(ticket)
        if self._machine is not None:
            self._machine.gone(ticket)
            self._plan()

    def tell(self, event: Callable[[M, int], Outcome]) -> None:
        """Give the machine an event that nobody waits for, once it is loaded."""
        if self._machine is None:
            self._untold.append(event)
        else:
            self.submit(event, ())

    def nudge(self) -> None:
        """The clock was set: look again how long there is to sleep."""
        self._changed.set()

    async def run(self) -> None:
        """Load the machine, tick it when it is due, rebuild it when it fails, until cancelled."""
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
            self._carry_out(self._machine.tick(self._clock.now_ms()))
        if self._snapshot is not None:
            self._go_on_with_snapshot(self._snapshot)
        elif self._machine is not None and self._is_snapshot_due():
            self._snapshot = SnapshotInProgress(self._machine.snapshot())
        elif not is_due:
            await self._sleep()
            return
        await asyncio.sleep(0)  # the next may be due already, and others have to have their turn

    async def _sleep(self) -> None:
        self._changed.clear()
        snapshot_due_ms = None if self._is_writing_snapshot else self._snapshot_due_ms
        due = [at_ms for at_ms in (self._wake_at_ms, snapshot_due_ms) if at_ms is not None]
        seconds = max(min(due) - self._clock.now_ms(), 0) / 1000 if due else None
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        if self._has_been_loaded:
            await asyncio.sleep(self._reload_seconds)
        self._has_been_loaded = True
        try:
            machine, records, corrections = await loop.run_in_executor(self._executor, self._rebuilt)
        except (AlpacaError, OSError) as error:
            if self.failure != str(error):  # said once, not at every attempt
                log.error("coordinator_not_loaded", partition=str(self.partition.identity), reason=str(error))
            self.failure = str(error)
            self._reload_seconds = min(2 * self._reload_seconds, MAX_RELOAD_SECONDS)
            return
        self.failure, self._reload_seconds = None, RELOAD_SECONDS
        self._machine = machine
        self._loaded.set()
        self._records_since_snapshot = records
        log.info("coordinator_loaded", partition=str(self.partition.identity), records=records)
        self._carry_out(corrections)
        self._carry_out(machine.loaded(self._clock.now_ms()))
        untold, self._untold = self._untold, []
        for event in untold:
            self.tell(event)

    def _rebuilt(self) -> tuple[M, int, Outcome]:
        """A machine with everything its log says, how much of that was in no snapshot, and corrections."""
        machine = self._make()
        offset = 0
        if (snapshot := self._snapshots.newest(self.partition.log.end_offset)) is not None:
            offset, changes = snapshot
            for key, value in changes:
                machine.replay(key, value)
        count = 0
        for record in replay(self.partition.log, offset):
            if record.key is not None:
                machine.replay(record.key, record.value)
                count += 1
        return machine, count, Outcome() if self._check is None else self._check(machine)

    def _carry_out(self, outcome: Outcome) -> None:
        if outcome.changes:
            self._append(outcome)
        elif self._in_flight:
            # What this tells rests on records that are not durable yet.
            self._in_flight[-1].append(outcome)
        else:
            self._deliver(outcome)
        self._plan()

    def _append(self, outcome: Outcome) -> None:
        now_ms = self._clock.now_ms()
        batch = write_batch([Record(i, now_ms, *change) for i, change in enumerate(outcome.changes)])
        outcomes = [outcome]
        append = Append(batch, read_header(batch), lambda: self._appended(append, outcomes))
        self._in_flight.append(outcomes)
        self.partition.stage(append)
        self.partition.commit()
        self._records_since_snapshot += len(outcome.changes)
        if self._snapshot is not None:
            self._snapshot.changed(outcome.changes)

    def _appended(self, append: Append, outcomes: list[Outcome]) -> None:
        if not any(entry is outcomes for entry in self._in_flight):
            return  # the machine these records belonged to has failed meanwhile
        if isinstance(append.outcome, AlpacaError):
            self._fail(append.outcome)
            return
        # Records become durable in order; a refusal, which comes at once, ends the machine above.
        assert self._in_flight[0] is outcomes
        self._in_flight.popleft()
        for outcome in outcomes:
            self._deliver(outcome)

    def _deliver(self, outcome: Outcome) -> None:
        for ticket, answer in outcome.replies:
            if isinstance(ticket, asyncio.Future) and not ticket.done():
                ticket.set_result(answer)
        if self._perform is not None:
            self._perform(outcome)

    def _fail(self, error: AlpacaError) -> None:
        log.error("coordinator_failed", partition=str(self.partition.identity), reason=str(error))
        self._machine = self._snapshot = None
        self._loaded.clear()
        self._in_flight.clear()
        unavailable = CoordinatorUnavailable(f"{self.partition.identity}: {error}")
        for ticket in self._tickets:
            if not ticket.done():
                ticket.set_result(unavailable)
        self._changed.set()

    def _plan(self) -> None:
        """Wake `run` if something is due earlier than it thinks."""
        if self._machine is None:
            return
        due_ms = self._machine.next_deadline_ms
        if due_ms is not None and (self._wake_at_ms is None or due_ms < self._wake_at_ms):
            self._changed.set()
        self._wake_at_ms = due_ms
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

    def _go_on_with_snapshot(self, snapshot: SnapshotInProgress) -> None:
        snapshot.take_some()
        if not snapshot.is_complete:
            return
        # Between events the state is what the log says up to its end, durable or not. Should a crash
        # take some of that, the snapshot reaches beyond the log and is not used.
        offset = self.partition.log.end_offset
        blocks = snapshot.blocks()
        self._snapshot = None
        self._records_since_snapshot = 0
        self._snapshot_due_ms = None
        self._snapshot_entries = max(snapshot.count, sum(map(len, blocks)) // SNAPSHOT_RECORD_BYTES)
        # Nobody waits for the disk here: the machine has deadlines to keep meanwhile.
        self._is_writing_snapshot = True
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._executor, self._snapshots.write, offset, blocks)
        writing.add_done_callback(self._snapshot_written)

    def _snapshot_written(self, writing: "asyncio.Future[None]") -> None:
        self._is_writing_snapshot = False
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.warning("snapshot_failed", partition=str(self.partition.identity), reason=str(error))
        self._changed.set()
