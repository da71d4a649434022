"""Hosts a queue engine in memory: stores its changes, delivers its replies and performs its reads."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from alpacamq.model.errors import AlpacaError
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change, Outcome, Pending, Reply, Request
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import (
    Acquired,
    Action,
    BacklogRead,
    DescribeReply,
    DescribeRequest,
    Move,
    MovesDone,
    MovesReturned,
    QueueId,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    Settlement,
    SettleReply,
    SettleRequest,
    Start,
)
from tests.slow_snapshot import SlowSnapshot

from .fake_log import Entry, FakeLog

START_MS = 1_000_000
MAX_READS = 10_000
QUEUE = QueueId("workers", "orders")


def contents(changes: Iterable[Change]) -> dict[bytes, bytes]:
    """Return the contents of a compacted log of `changes`."""
    latest = {change.key: change.value for change in changes}
    return {key: value for key, value in latest.items() if value is not None}


def moves_of(outcome: Outcome) -> list[Move]:
    return [effect for effect in outcome.effects if isinstance(effect, Move)]


class QueueHost:
    """An engine with its log and clock, the replies so far and the pending moves."""

    def __init__(self, log: FakeLog, limits: EngineLimits | None = None) -> None:
        self.now_ms = START_MS
        self.log = log
        self.changes: list[Change] = []
        self.waiting: dict[object, Request[Any]] = {}  # requests without a reply
        self.answers: dict[object, object] = {}
        self.moves: list[Move] = []
        self._limits = limits or EngineLimits()
        self._handles = count(1)
        self._producer_ids = count(100)
        self._slow_snapshot = SlowSnapshot()
        self._reads: list[ReadBacklog] = []
        self._is_reading = False
        self.engine = self._new_engine()

    def publish(
        self, count: int = 1, lane: Lane = Lane.NORMAL, key: bytes | None = None, partition: int = 0
    ) -> int:
        """Append `count` messages; return the offset of the first."""
        return self.append(*[Entry(lane, key)] * count, partition=partition)

    def append(self, *entries: Entry | None, partition: int = 0, topic: str = QUEUE.topic) -> int:
        first = self.log.topics[topic].partitions[partition].append(*entries, time_ms=self.now_ms)
        self.post(RecordsArrived(topic=topic, partition=partition))
        return first

    def send(self, *requests: Request[Any]) -> list[Any]:
        """Pass requests to the engine as one batch; return the handles of their replies."""
        batch = [Pending(request, next(self._handles)) for request in requests]
        self.waiting |= {handle: request for request, handle in batch}
        self.take(self.engine.handle(batch, self.now_ms))
        return [handle for _, handle in batch]

    def post(self, event: Request[Any]) -> None:
        """Pass an event to the engine."""
        self.take(self.engine.handle([Pending(event, None)], self.now_ms))

    def ask(self, request: Request[Any]) -> object:
        """Return the reply to a request, None if it waits."""
        (handle,) = self.send(request)
        return self.answers.get(handle)

    def error_of(self, request: Request[Any]) -> AlpacaError:
        """Return the error that a request gets."""
        answer = self.ask(request)
        assert isinstance(answer, AlpacaError), answer
        return answer

    def receive(
        self,
        max_messages: int = 10,
        consumer: str = "c1",
        *,
        visibility_ms: int | None = None,
        partitions: tuple[int, ...] | None = None,
        start: Start = Start.EARLIEST,
        key_runs: bool = False,
        queue: QueueId = QUEUE,
    ) -> tuple[Acquired, ...]:
        """Return the messages that a receive leases at once."""
        request = ReceiveRequest(
            queue=queue, consumer=consumer, max_messages=max_messages, visibility_ms=visibility_ms,
            partitions=partitions, start=start, key_runs=key_runs,
        )  # fmt: skip
        reply = self.ask(request)
        assert isinstance(reply, ReceiveReply), reply
        return reply.messages

    def wait(self, max_messages: int = 10, consumer: str = "c1", wait_ms: int = 20_000) -> int:
        """Send a receive that may wait; return the handle of its reply."""
        request = ReceiveRequest(queue=QUEUE, consumer=consumer, max_messages=max_messages, wait_ms=wait_ms)
        handle: int
        (handle,) = self.send(request)
        return handle

    def received(self, handle: int) -> list[int] | None:
        """Return the offsets that a receive got, None if it still waits."""
        reply = self.answers.get(handle)
        if reply is None:
            return None
        assert isinstance(reply, ReceiveReply), reply
        return [message.offset for message in reply.messages]

    def settle(
        self,
        action: Action,
        *messages: Acquired,
        delay_ms: int | None = None,
        reason: str = "",
        target: str = "",
    ) -> list[AlpacaError | None]:
        """Settle deliveries by receipt."""
        settlements = tuple(
            Settlement(
                message.partition, message.offset, action, message.delivery_count, message.generation,
                delay_ms=delay_ms, reason=reason, target=target,
            )
            for message in messages
        )  # fmt: skip
        return self.settle_all(*settlements)

    def settle_all(self, *settlements: Settlement) -> list[AlpacaError | None]:
        reply = self.ask(SettleRequest(queue=QUEUE, settlements=settlements))
        assert isinstance(reply, SettleReply), reply
        return [*reply.results]

    def ack(self, *messages: Acquired) -> None:
        """Acknowledge messages; all must succeed."""
        assert self.settle(Action.ACK, *messages) == [None] * len(messages)

    def describe(self, queue: QueueId = QUEUE) -> DescribeReply:
        reply = self.ask(DescribeRequest(queue=queue))
        assert isinstance(reply, DescribeReply), reply
        return reply

    def perform_moves(self, count: int | None = None) -> list[Move]:
        """Perform the first pending moves, and post MovesDone."""
        done, self.moves = self.moves[:count], self.moves[len(self.moves[:count]) :]
        self.post(MovesDone(moves=done))
        return done

    def return_moves(self) -> None:
        """Post MovesReturned for all pending moves."""
        moves, self.moves = self.moves, []
        self.post(MovesReturned(moves=moves))

    def advance(self, duration_ms: int) -> None:
        """Advance the clock, with a tick at every deadline of the engine."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.engine.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.engine.tick(self.now_ms))
        self.now_ms = end_ms

    def restart(self) -> None:
        """Rebuild the engine from the stored changes, as after a crash."""
        self.check_changes()
        self._slow_snapshot.give_up()
        self.engine = self._rebuilt(self.changes)
        self._reads.clear()
        self.moves.clear()
        self.waiting.clear()
        self.take(self.engine.loaded(self.now_ms))

    def compact(self) -> None:
        """Replace the stored changes by a snapshot."""
        self.check_changes()
        self.changes = [*self.engine.snapshot()]

    def check_changes(self) -> None:
        """Check that the stored changes lead to the state of the engine, in every form."""
        durable = contents(self.engine.snapshot())
        assert contents(self.changes) == durable
        for changes in (
            self.changes,
            [Change(key, value) for key, value in contents(self.changes).items()],
            [*self.engine.snapshot()],
            [*self.engine.snapshot()][::-1],
        ):
            assert contents(self._rebuilt(changes).snapshot()) == durable

    def take(self, outcome: Outcome) -> None:
        self.changes += outcome.changes
        whole = self._slow_snapshot.after_event(self.engine, outcome.changes)
        if whole is not None:
            assert contents(self._rebuilt(whole).snapshot()) == contents(self.engine.snapshot())
        self.moves += moves_of(outcome)
        for reply in outcome.replies:
            self.answer(self.waiting.pop(reply.to), reply)
        self._reads += outcome.reads
        self._read()

    def _read(self) -> None:
        """Perform the reads that the engine requests, and those that follow from them."""
        if self._is_reading:
            return
        self._is_reading = True
        for _ in range(MAX_READS):
            if not self._reads:
                break
            read = self._reads.pop(0)
            queue, partition, offset, with_keys, _, _ = read
            outline = self.log.outline(queue.topic, partition, offset, with_keys=with_keys)
            self.post(BacklogRead(read=read, outline=outline))
        else:
            raise AssertionError("the engine requests reads endlessly")
        self._is_reading = False

    def answer(self, _request: Request[Any], reply: Reply) -> None:
        self.answers[reply.to] = reply.answer

    def _rebuilt(self, changes: Iterable[Change]) -> QueueEngine:
        engine = self._new_engine()
        for key, value in changes:
            engine.replay(key, value)
        return engine

    def _new_engine(self) -> QueueEngine:
        return QueueEngine(self.log, lambda: next(self._producer_ids), self._limits)
