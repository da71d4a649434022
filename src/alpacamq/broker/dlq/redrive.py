"""Redrive: moves dead letters back to the topics they came from, or to another topic, in one task each.

A task receives from the dead-letter topic like any consumer of its queue and has the engine move the
messages, so that nothing is lost or duplicated whenever it ends. A task that leaves messages behind, because
their target does not exist, has failed. A task runs at the broker that was asked for it, and continues when
the queue of the dead-letter topic moves to another broker. A restart of its own broker ends it; start again.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple
from uuid import uuid4

import msgspec

from alpacamq.broker.queue.deliveries import settled
from alpacamq.broker.queue.host import QueueHost
from alpacamq.broker.schemas.checks import SchemaChecks
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    InvalidRequest,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    SchemasUnavailable,
)
from alpacamq.model.ids import TopicName
from alpacamq.model.records import Record
from alpacamq.model.topics import INTERNAL_TOPICS
from alpacamq.queues.messages import (
    Acquired,
    Action,
    DescribeRequest,
    FinishedRequest,
    QueueId,
    ReceiveRequest,
    ReleaseConsumerRequest,
    SettleRequest,
    built_in_group,
)
from alpacamq.telemetry.logs import get_logger

from .writer import origin, restored

log = get_logger(__name__)

KEPT_TASKS = 100
BATCH = 100
LEASE_MS = 60_000
# Messages that cannot be moved stay leased while the task runs; the task fails at this many.
MAX_LEFT = 500
MAX_PENDING = 1000
IDLE_WAIT_MS = 200
CONSUMER = "redrive"
POLL_SECONDS = 0.02
RETRY_SECONDS = 0.2
# How long a task waits for its queue, or for partitions, without any progress.
PATIENCE_SECONDS = 120.0
# How long it waits for messages that are ready but not delivered: the queue may still have to read them.
DELIVERY_SECONDS = 10.0
# Errors while a queue moves to another broker, or partitions get other leaders.
TRANSIENT = (
    CoordinatorLoading,
    CoordinatorUnavailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    SchemasUnavailable,
)


class FailureCause(Enum):
    """Why a redrive has failed."""

    TARGET_MISSING = auto()
    NOT_ALLOWED = auto()  # by the schemas of the target
    ORIGIN_UNKNOWN = auto()
    OTHER = auto()


class RedriveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive, running or ended."""

    id: str
    source: str  # the dead-letter topic
    target: str | None  # None: each message to its original topic
    state: str  # running, completed, cancelling, cancelled, failed
    started_ms: int
    moved: int
    to_move: int  # at the start
    messages_per_second: int | None
    failure: str = ""
    cause: FailureCause | None = None


@dataclass(slots=True)
class _Redrive:
    """A task with its limits, its moves in progress and the messages it could not move."""

    task: RedriveTask
    ends: dict[int, int]
    max_messages: int
    # By partition and offset: a lease that has ended is replaced by the next of its message.
    left: dict[tuple[int, int], Acquired] = field(default_factory=dict)
    # Messages that are being moved, by partition and offset.
    pending: dict[tuple[int, int], "_Moving"] = field(default_factory=dict)
    # Whether all that existed at the start was leased.
    is_complete: bool = False
    # Whether leases whose reply was lost have been ended since the last message was moved.
    is_swept: bool = False
    # When leases have ended whose messages did not reach this task, by the loop's clock.
    returns_at: float = 0.0
    # When the queue last delivered messages, by the same clock.
    delivered_at: float = 0.0
    discarded: int = 0  # deleted by retention before they could be moved
    problem: str = ""
    cause: FailureCause | None = None

    def change(self, **values: object) -> None:
        self.task = msgspec.structs.replace(self.task, **values)

    def note(self, cause: FailureCause, problem: str) -> None:
        """Record why messages cannot be moved."""
        self.cause, self.problem = cause, problem

    def fail(self) -> None:
        """End the task as failed."""
        remaining = min(self.max_messages, self.task.to_move) - self.task.moved - self.discarded
        self.change(
            state="failed",
            failure=f"{max(remaining, 0)} messages were not moved: {self.problem}",
            cause=self.cause,
        )

    @property
    def consumer(self) -> str:
        """The name that it leases messages under."""
        return f"{CONSUMER}-{self.task.id}"

    def is_of_start(self, partition: int, offset: int) -> bool:
        """Return whether a message existed when the task began."""
        return offset < self.ends.get(partition, 0)

    @property
    def submitted(self) -> int:
        """Messages that were moved or are being moved."""
        return self.task.moved + len(self.pending)


class _Moving(NamedTuple):
    """A message that an engine was asked to move."""

    lease: Acquired
    target: str
    # Whether the engine has said that it does.
    is_certain: bool = True


class Redrives:
    """The redrives of this broker. `run` owns their tasks."""

    def __init__(self, host: QueueHost, topics: Topics, schema_checks: SchemaChecks) -> None:
        self._host = host
        self._schema_checks = schema_checks
        self._topics = topics
        self._redrives: deque[_Redrive] = deque(maxlen=KEPT_TASKS)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    async def start(
        self,
        source: str,
        *,
        target: str | None,
        messages_per_second: int | None,
        max_messages: int | None,
    ) -> RedriveTask:
        """Start a redrive; raises UnknownTopic or InvalidRequest."""
        self._check(source, target)
        if messages_per_second is not None and messages_per_second < 1:
            raise InvalidRequest(f"messages_per_second must be at least 1, not {messages_per_second}")
        queue = QueueId(built_in_group(source), source)
        # A receive of no messages creates the queue if it does not exist.
        await self._host.lease(ReceiveRequest(queue=queue, consumer=CONSUMER, max_messages=0))
        stats = await self._host.ask(DescribeRequest(queue=queue))
        task = RedriveTask(
            id=uuid4().hex,
            source=source,
            target=target,
            state="running",
            started_ms=self._host.clock.now_ms(),
            moved=0,
            to_move=sum(each.ready + each.backoff for each in stats.partitions),
            messages_per_second=messages_per_second,
        )
        redrive = _Redrive(
            task,
            {each.partition: each.end_offset for each in stats.partitions},
            task.to_move if max_messages is None else max_messages,
        )
        if self._tasks is None:
            raise CoordinatorUnavailable("the broker is stopping")
        self._redrives.appendleft(redrive)
        self._tasks.create_task(self._run(redrive, queue))
        return task

    def tasks(self, source: str | None) -> list[RedriveTask]:
        """List tasks, newest first."""
        return [each.task for each in self._redrives if source in (None, each.task.source)]

    def cancel(self, task_id: str) -> RedriveTask | None:
        """Cancel a running task, if it is here; messages already moved stay moved."""
        if (redrive := self._find(task_id)) is None:
            return None
        if redrive.task.state == "running":
            redrive.change(state="cancelling")
        return redrive.task

    def _find(self, task_id: str) -> _Redrive | None:
        return next((each for each in self._redrives if each.task.id == task_id), None)

    def _check(self, source: str, target: str | None) -> None:
        self._topics.image.topic(source)
        if target is not None:
            self._topics.image.topic(target)
            if target == source:
                raise InvalidRequest(f"topic {source!r} cannot be redriven into itself")
        if INTERNAL_TOPICS & {source, target}:
            raise InvalidRequest("internal topics have no dead letters")

    async def _run(self, redrive: _Redrive, queue: QueueId) -> None:
        try:
            await self._move_all(redrive, queue)
        except AlpacaError as error:
            redrive.note(FailureCause.OTHER, str(error))
            redrive.fail()
        except Exception as error:  # a bug costs one task, not the broker
            log.exception("redrive_crashed", source=redrive.task.source)
            redrive.note(FailureCause.OTHER, f"internal error: {error!r}")
            redrive.fail()
        else:
            if redrive.cause is not None:
                redrive.fail()
            elif redrive.task.state == "cancelling":
                redrive.change(state="cancelled")
            else:
                redrive.change(state="completed")
        finally:
            self._host.release(queue, [*redrive.left.values()])
        log.info("redrive_ended", source=queue.topic, state=redrive.task.state, moved=redrive.task.moved)

    async def _move_all(self, redrive: _Redrive, queue: QueueId) -> None:
        """Move messages until none is left, over changes of the broker that hosts their queue."""
        loop = asyncio.get_running_loop()
        began = redrive.delivered_at = loop.time()
        give_up = None
        while True:
            try:
                if not await self._step(redrive, queue, began):
                    return
                give_up = None
            except TRANSIENT as error:
                if give_up is None:
                    log.warning("redrive_interrupted", source=queue.topic, reason=str(error))
                    give_up = loop.time() + PATIENCE_SECONDS
                elif loop.time() >= give_up:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _step(self, redrive: _Redrive, queue: QueueId, began: float) -> bool:
        """Move some messages, or wait for moves in progress; false if all is done."""
        loop = asyncio.get_running_loop()
        is_over = (
            redrive.is_complete
            or redrive.task.state != "running"
            or redrive.submitted >= redrive.max_messages
        )
        if is_over or len(redrive.pending) > MAX_PENDING:
            if not redrive.pending:
                return False
            await self._wait_for_moves(redrive, queue)
            return True  # what was not moved after all is leased again
        room = min(BATCH, redrive.max_messages - redrive.submitted)
        if (rate := redrive.task.messages_per_second) is not None:
            due = began + redrive.submitted / rate
            if (ahead := due - loop.time()) > 0:
                if redrive.pending:
                    await self._count_moved(redrive, queue)
                await asyncio.sleep(min(ahead, 0.5))
                return True
            room = min(room, max(rate // 10, 1))
        request = ReceiveRequest(
            queue=queue,
            consumer=redrive.consumer,
            max_messages=room,
            visibility_ms=LEASE_MS,
            wait_ms=IDLE_WAIT_MS,
        )
        try:
            leases = (await self._host.lease(request)).messages
        except TRANSIENT:
            # Some may be leased to this task all the same: they come back.
            redrive.returns_at = loop.time() + LEASE_MS / 1000
            raise
        if leases:
            redrive.delivered_at = loop.time()
            has_some = await self._move(redrive, queue, leases)
            if not (has_some or redrive.is_complete or await self._has_ready(redrive, queue)):
                redrive.is_complete = await self._is_swept(redrive, queue)
        elif redrive.pending:
            # Some may be returned: then they are leased again, and reported.
            await self._wait_for_moves(redrive, queue)
        elif loop.time() >= redrive.returns_at and await self._is_swept(redrive, queue):
            return await self._has_undelivered(redrive, queue)
        return True

    async def _is_swept(self, redrive: _Redrive, queue: QueueId) -> bool:
        """End leases that the task does not know of; false if there may be messages to receive again now.

        A receive is repeated when the broker of the queue dies: then there may be leases of the first one.
        """
        if redrive.is_swept:
            return True
        if redrive.left:
            # Their deliveries do not count.
            settlements = tuple(settled(lease, Action.RELEASE_UNSEEN) for lease in redrive.left.values())
            await self._host.ask(SettleRequest(queue=queue, settlements=settlements))
            redrive.left.clear()
        await self._host.ask(ReleaseConsumerRequest(queue=queue, consumer=redrive.consumer))
        redrive.is_swept = True
        return False

    async def _has_ready(self, redrive: _Redrive, queue: QueueId) -> bool:
        """Return whether there may be ready messages that existed when the task began."""
        stats = await self._host.ask(DescribeRequest(queue=queue))
        return any(
            each.ready and redrive.is_of_start(each.partition, each.start_offset) for each in stats.partitions
        )

    async def _has_undelivered(self, redrive: _Redrive, queue: QueueId) -> bool:
        """Return whether to wait for messages that are ready, although a receive has returned none."""
        if any(redrive.is_of_start(*place) for place in redrive.left):
            return False  # they may come after these, in the order of their keys
        if not await self._has_ready(redrive, queue):
            return False
        if asyncio.get_running_loop().time() < redrive.delivered_at + DELIVERY_SECONDS:
            return True
        text = f"their queue has delivered none for {DELIVERY_SECONDS:.0f} s"
        redrive.note(FailureCause.OTHER, f"{text}; others may have leased messages with their keys")
        return False

    async def _move(self, redrive: _Redrive, queue: QueueId, leases: tuple[Acquired, ...]) -> bool:
        """Move messages that existed when the task began; false if there were none of them."""
        due = [lease for lease in leases if redrive.is_of_start(lease.partition, lease.offset)]
        try:
            records = await self._host.reader.read(queue.topic, [lease[:2] for lease in due])
            targets = await self._targets(redrive, records)
        except BaseException:
            self._host.release(queue, leases)
            raise
        moves: list[tuple[Acquired, str]] = []
        discards: list[Acquired] = []
        for lease in due:
            if lease[:2] not in records:
                discards.append(lease)
            elif (target := targets.get(lease[:2])) is None:
                redrive.left[lease[:2]] = lease
            else:
                moves.append((lease, target))
        if moves or discards:
            redrive.is_swept = False
        # Newer messages stay leased: released now, they would be received again.
        redrive.left.update((lease[:2], lease) for lease in leases if lease not in due)
        await self._settle(redrive, queue, moves, discards)
        if self._is_target_deleted(redrive):
            redrive.is_complete = True
        elif len(redrive.left) > MAX_LEFT:
            redrive.is_complete = True
            if redrive.cause is None:
                redrive.note(FailureCause.OTHER, "too many messages have arrived since the task started")
        return bool(due)

    async def _targets(
        self, redrive: _Redrive, records: Mapping[tuple[int, int], Record]
    ) -> Mapping[tuple[int, int], str]:
        """Return the targets of dead letters, without those that the schemas of a target refuse."""
        targets: dict[tuple[int, int], str] = {}
        by_target: dict[str, list[tuple[int, int]]] = {}
        for place, record in records.items():
            if (target := self._target(redrive, record)) is not None:
                targets[place] = target
                by_target.setdefault(target, []).append(place)
        for target, places in by_target.items():
            topic = self._topics.image.topics.get(TopicName(target))
            if topic is None or not (config := self._topics.config_of(topic)).checks_schemas:
                continue
            restored_records = [restored(records[place], 0) for place in places]
            contents = [(0, key, value, headers) for _, _, key, value, headers in restored_records]
            refused = await self._schema_checks.check_messages(target, config, contents)
            for index, error in refused.items():
                redrive.note(FailureCause.NOT_ALLOWED, f"topic {target!r} refuses them: {error}")
                del targets[places[index]]
        return targets

    async def _settle(
        self,
        redrive: _Redrive,
        queue: QueueId,
        moves: Sequence[tuple[Acquired, str]],
        discards: Sequence[Acquired],
    ) -> None:
        settlements = (
            *(settled(lease, Action.MOVE)._replace(target=target) for lease, target in moves),
            *(settled(lease, Action.DISCARD) for lease in discards),
        )
        if not settlements:
            return
        try:
            results = (await self._host.ask(SettleRequest(queue=queue, settlements=settlements))).results
        except TRANSIENT:
            for lease, target in moves:
                redrive.pending[lease.partition, lease.offset] = _Moving(lease, target, is_certain=False)
            raise
        for (lease, target), result in zip(moves, results, strict=False):
            # It is an error too if the request was repeated, because the broker of the queue died.
            redrive.pending[lease.partition, lease.offset] = _Moving(lease, target, is_certain=result is None)
        redrive.discarded += sum(result is None for result in results[len(moves) :])

    async def _wait_for_moves(self, redrive: _Redrive, queue: QueueId) -> None:
        if not await self._count_moved(redrive, queue):
            await asyncio.sleep(POLL_SECONDS)

    async def _count_moved(self, redrive: _Redrive, queue: QueueId) -> bool:
        """Count the moves that have ended; false if none has. Raises UnknownTopic if the source is deleted.

        All were begun before the queue is described here. So what is neither done nor being moved then was
        returned, because its target is deleted, or never begun.
        """
        stats = await self._host.ask(DescribeRequest(queue=queue))
        busy = {each.partition for each in stats.partitions if each.dead_lettering}
        by_partition: dict[int, list[int]] = {}
        for partition, offset in redrive.pending:
            by_partition.setdefault(partition, []).append(offset)
        before = len(redrive.pending)
        for partition, offsets in by_partition.items():
            request = FinishedRequest(queue=queue, partition=partition, offsets=tuple(offsets))
            done = set((await self._host.ask(request)).offsets)
            for offset in offsets:
                if offset in done:
                    del redrive.pending[partition, offset]
                    redrive.change(moved=redrive.task.moved + 1)
                elif partition not in busy:
                    moving = redrive.pending.pop((partition, offset))
                    if moving.is_certain:
                        text = f"topic {moving.target!r} has been deleted"
                        redrive.note(FailureCause.TARGET_MISSING, text)
                    else:
                        redrive.is_complete = False
                        self._host.release(queue, [moving.lease])
        return len(redrive.pending) < before

    def _is_target_deleted(self, redrive: _Redrive) -> bool:
        target = redrive.task.target
        if target is None or target in self._topics.image.topics:
            return False
        redrive.note(FailureCause.TARGET_MISSING, f"topic {target!r} has been deleted")
        return True

    def _target(self, redrive: _Redrive, record: Record) -> str | None:
        """Return the target of a dead letter; None if it has none, which the task reports."""
        if redrive.task.target is not None:
            return None if self._is_target_deleted(redrive) else redrive.task.target
        topic, _ = origin(record, redrive.task.source)
        if topic is None:
            redrive.note(FailureCause.ORIGIN_UNKNOWN, "their original topic is not recorded; name a target")
        elif (
            topic in INTERNAL_TOPICS
            or topic == redrive.task.source
            or TopicName(topic) not in self._topics.image.topics
        ):
            redrive.note(
                FailureCause.TARGET_MISSING, f"topic {topic!r}, which they came from, does not exist"
            )
        else:
            return topic
        return None
