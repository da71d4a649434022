"""The queue engine: every queue of a shard, as one state machine.

Requests come many at a time; what they change is written as one batch of few records, and the
replies leave once those are durable. An AlpacaError raised within a request means that nothing
changed, and becomes its answer. A ticket is any hashable object.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, assert_never

from alpacamq.model.errors import AlpacaError, GroupIdNotFound, TooManyInFlight, TooManyWaiting, UnknownTopic
from alpacamq.model.outcome import Change, Outcome, Reply
from alpacamq.model.topics import TopicConfig

from .chunks import NO_DEADLINE, Hold
from .deadlines import Deadlines, Timed
from .directory import QueueDirectory
from .messages import (
    ConfigureRequest,
    DeleteRequest,
    DescribeReply,
    DescribeRequest,
    EndedLease,
    EngineLimits,
    ListReply,
    ListRequest,
    Move,
    QueueId,
    QueueRequest,
    ReceiveReply,
    ReceiveRequest,
    ReleaseConsumerRequest,
    ResetRequest,
    SettleReply,
    SettleRequest,
    Start,
)
from .queue import Queue, check_overrides, describe
from .receiving import answer_at_once, check_partitions, check_receive, grant, has_any, room_for
from .settlement import end, release_consumer, settle, stale
from .views import LogView

# How soon to go on reading for those who wait when what was read so far held no message.
_READ_ON_MS = 1


@dataclass(slots=True, eq=False)
class WaitingReceive:
    """A receive that found nothing, and when it is answered all the same."""

    queue: Queue
    request: ReceiveRequest
    ticket: object
    due_ms: int


class WaitingLine:
    """All that wait, of every queue; within a queue the first come is the first served."""

    def __init__(self, deadlines: Deadlines[Timed], limits: EngineLimits) -> None:
        self._deadlines = deadlines
        self._limits = limits
        self._all: dict[object, WaitingReceive] = {}

    def park(self, queue: Queue, request: ReceiveRequest, ticket: object, now_ms: int) -> None:
        """Let a receive wait; TooManyWaiting if it cannot."""
        if len(self._all) >= self._limits.max_waiting_receives:
            raise TooManyWaiting(f"{len(self._all)} receives wait already")
        waiting = WaitingReceive(queue, request, ticket, now_ms + request.wait_ms)
        self._all[ticket] = waiting
        queue.waiting[ticket] = request
        self._deadlines.put(waiting)
        self._read_on_soon(queue, now_ms)

    def serve(self, queue: Queue, now_ms: int) -> list[Reply]:
        """Give those who wait what there is."""
        replies: list[Reply] = []
        full: set[str] = set()
        try:
            queue.refresh()
            for ticket, request in queue.waiting.items():
                if not queue.turns.lanes and not queue.unread:
                    break
                if request.consumer in full:
                    continue
                room = room_for(queue, request)
                if not room:
                    full.add(request.consumer)
                    continue
                if not request.max_messages:
                    if has_any(queue, request, self._limits):
                        replies.append(Reply(ticket, ReceiveReply()))
                elif found := grant(queue, request, min(room, request.max_messages), self._limits, now_ms):
                    replies.append(Reply(ticket, ReceiveReply(messages=tuple(found))))
                elif request.partitions is None:
                    break  # nobody behind it will find more
        except AlpacaError as error:
            answered = {reply.to for reply in replies}
            replies += [Reply(ticket, error) for ticket in queue.waiting if ticket not in answered]
        for reply in replies:
            self.remove(reply.to)
        if queue.waiting:
            self._read_on_soon(queue, now_ms)
        return replies

    def give_up(self, queue: Queue, error: AlpacaError) -> list[Reply]:
        """The queue is no more: answer everybody."""
        replies = [Reply(ticket, error) for ticket in queue.waiting]
        for reply in replies:
            self.remove(reply.to)
        self._deadlines.forget(queue)
        return replies

    def remove(self, ticket: object) -> bool:
        """Nobody waits under this ticket any more; whether somebody did."""
        if (waiting := self._all.pop(ticket, None)) is None:
            return False
        del waiting.queue.waiting[ticket]
        self._deadlines.forget(waiting)
        return True

    def _read_on_soon(self, queue: Queue, now_ms: int) -> None:
        """Much that holds no message is read a little at a time: see to it that it goes on."""
        is_behind, queue.is_behind = queue.is_behind, False
        if is_behind and queue.due_ms == NO_DEADLINE:
            queue.due_ms = now_ms + _READ_ON_MS
            self._deadlines.put(queue)


__all__ = ["EngineLimits", "QueueEngine", "QueueOutcome"]

# Leases and rests, by their messages, that end in one event: many more would hold up everybody else.
_ENDED_AT_ONCE = 2000


@dataclass(slots=True)
class QueueOutcome(Outcome):
    """`moves` are carried out once `changes` are durable; `ended` is told then."""

    moves: list[Move] = field(default_factory=list)
    ended: list[EndedLease] = field(default_factory=list)

    def __iadd__(self, other: Outcome) -> Self:
        Outcome.__iadd__(self, other)
        if isinstance(other, QueueOutcome):
            self.moves += other.moves
            self.ended += other.ended
        return self


class QueueEngine:
    """The state machine behind one partition of the internal topic of queues."""

    def __init__(self, log: LogView, take_producer_id: Callable[[], int], limits: EngineLimits) -> None:
        self._log = log
        self._limits = limits
        self._queues = QueueDirectory(log, take_producer_id, limits)
        self._waiting = WaitingLine(self._queues.deadlines, limits)
        # The queues in which something has happened since those who wait were last served.
        self._touched: dict[Queue, None] = {}

    def perform(self, requests: Sequence[tuple[QueueRequest, object]], now_ms: int) -> QueueOutcome:
        """Carry out (request, ticket) pairs in order: one outcome with every change and every reply due."""
        out = self._end_due(now_ms)
        for request, ticket in requests:
            try:
                answer = self._answer(request, ticket, out, now_ms)
            except AlpacaError as error:
                answer = error
            if answer is not None:
                out.replies.append(Reply(ticket, answer))
        return self._finished(out, now_ms)

    def records_arrived(self, topic: str, partition: int, now_ms: int) -> QueueOutcome:
        """More of a partition is known: serve receives that wait for it."""
        for queue in self._queues.of_topic(topic):
            if partition not in queue.partitions and queue.partitions and self._log.config(topic) is not None:
                queue.open_partitions(Start.EARLIEST)
            if partition in queue.partitions:
                queue.unread |= 1 << partition
                self._touched[queue] = None
        return self._finished(QueueOutcome(), now_ms)

    def moved(self, moves: Sequence[Move], now_ms: int) -> QueueOutcome:
        """These moves have been carried out: their messages are done."""
        for move in moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, hold = found
                partition.finish(hold, move.offset)
                self._touched[queue] = None
        return self._finished(QueueOutcome(), now_ms)

    def returned(self, moves: Sequence[Move], now_ms: int) -> QueueOutcome:
        """There is nowhere to carry these moves out to: their messages stay, as if nobody had had them."""
        for move in moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, hold = found
                partition.free(hold, move.offset, hold.count - 1)
                self._touched[queue] = None
        return self._finished(QueueOutcome(), now_ms)

    def topic_deleted(self, topic: str) -> QueueOutcome:
        """A topic is no more: forget its queues, and answer whoever waits on them."""
        out = QueueOutcome()
        for queue in self._queues.of_topic(topic):
            self._forget(queue, UnknownTopic(f"topic {topic!r} was deleted"), out)
        out.changes += self._queues.journal.take_changes()
        return out

    def settings(self, queue_id: QueueId) -> TopicConfig:
        """The settings of a topic with the group's own; UnknownTopic."""
        if (queue := self._queues.find(queue_id)) is not None:
            return queue.settings
        if (config := self._log.config(queue_id.topic)) is None:
            raise UnknownTopic(f"there is no topic {queue_id.topic!r}")
        return config

    def is_done(self, queue_id: QueueId, partition: int, offset: int) -> bool:
        """Whether a message has been acknowledged, or set aside for good."""
        queue = self._queues.find(queue_id)
        found = None if queue is None else queue.partitions.get(partition)
        return found is not None and found.progress.is_done(offset)

    def stats(self) -> list[DescribeReply]:
        """Every queue as it is."""
        return [describe(queue) for queue in self._queues]

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early, never late."""
        return self._queues.deadlines.next_ms

    def tick(self, now_ms: int) -> QueueOutcome:
        """End leases, rests and waits whose time has come."""
        return self._finished(self._end_due(now_ms), now_ms)

    def gone(self, ticket: object) -> None:
        """Nobody waits for the reply to this ticket any more."""
        self._waiting.remove(ticket)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a stored record; kinds of a later version are passed over."""
        self._queues.replay(key, value)

    def loaded(self, now_ms: int) -> QueueOutcome:
        """Everything stored has been replayed: every move that is not known to be done is to be done.

        The log view has to know all topics by now: queues of others are forgotten.
        """
        self._queues.loaded(now_ms)
        return self._finished(self._end_due(now_ms), now_ms)

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state as it is."""
        return self._queues.snapshot()

    def _answer(self, request: QueueRequest, ticket: object, out: QueueOutcome, now_ms: int) -> object:
        """The answer to a request, or None if it has to wait."""
        match request:
            case SettleRequest():
                return self._settle(request, now_ms)
            case ReceiveRequest():
                return self._receive(request, ticket, out, now_ms)
            case ReleaseConsumerRequest():
                if (queue := self._queues.find(request.queue)) is not None:
                    release_consumer(queue, request.consumer)
                    self._touched[queue] = None
                return SettleReply()
            case ResetRequest():
                return self._reset(request, now_ms)
            case ConfigureRequest():
                check_overrides(request.overrides)
                queue = self._queues.open(request.queue, now_ms)
                queue.configure(request.overrides)
                self._touched[queue] = None
                return describe(queue)
            case DeleteRequest():
                group, topic = request.queue
                deleted = GroupIdNotFound(f"group {group!r} was deleted from topic {topic!r}")
                self._forget(self._queues.get(request.queue), deleted, out)
                return SettleReply()
            case DescribeRequest():
                queue = self._queues.get(request.queue)
                self._touched[queue] = None  # it may find that leased messages are no longer in the log
                return describe(queue)
            case ListRequest():
                return ListReply(queues=tuple(queue.id for queue in self._queues))
            case _:
                assert_never(request)

    def _settle(self, request: SettleRequest, now_ms: int) -> SettleReply:
        queue = self._queues.find(request.queue)
        if queue is None:
            return SettleReply(results=stale(request.queue, request.settlements))
        self._touched[queue] = None
        return SettleReply(results=settle(queue, request.settlements, now_ms))

    def _receive(
        self, request: ReceiveRequest, ticket: object, out: QueueOutcome, now_ms: int
    ) -> ReceiveReply | None:
        check_receive(request, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(request.start)
        if queue.waiting:
            out.replies += self._waiting.serve(queue, now_ms)
        room = room_for(queue, request)
        if room and (reply := answer_at_once(queue, request, room, self._limits, now_ms)) is not None:
            return reply
        if request.wait_ms:
            self._waiting.park(queue, request, ticket, now_ms)
            return None
        if not room:
            held = f"consumer {request.consumer!r} or group {request.queue.group!r}"
            raise TooManyInFlight(f"{held} holds as many unacknowledged messages as it may")
        return ReceiveReply()

    def _reset(self, request: ResetRequest, now_ms: int) -> SettleReply:
        topic = request.queue.topic
        check_partitions(topic, request.offsets, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(Start.EARLIEST)
        for number, offset in request.offsets.items():
            log_start, log_end = self._log.bounds(topic, number)
            generation = self._queues.new_generation(now_ms)
            queue.reset(number, min(max(offset, log_start), log_end), generation)
        self._touched[queue] = None
        return SettleReply()

    def _forget(self, queue: Queue, error: AlpacaError, out: QueueOutcome) -> None:
        out.replies += self._waiting.give_up(queue, error)
        self._touched.pop(queue, None)
        self._queues.forget(queue)

    def _end_due(self, now_ms: int) -> QueueOutcome:
        """End what is due, and answer those for whom that changes something.

        What is too much for one event is left to the next tick, which is due at once.
        """
        out = QueueOutcome()
        late: list[WaitingReceive] = []
        ended = 0
        for thing in self._queues.deadlines.take_due(now_ms):
            if isinstance(thing, Hold):
                queue = self._queues.get(thing.chunk.partition.queue)
                ended += thing.mask.bit_count()
                end(queue, thing)
                self._touched[queue] = None
                if ended >= _ENDED_AT_ONCE:
                    break
            elif isinstance(thing, WaitingReceive):
                late.append(thing)
            else:
                assert isinstance(thing, Queue)
                self._touched[thing] = None
        self._serve_touched(out, now_ms)
        out.replies += [
            Reply(waiting.ticket, ReceiveReply()) for waiting in late if self._waiting.remove(waiting.ticket)
        ]
        return out

    def _serve_touched(self, out: QueueOutcome, now_ms: int) -> None:
        for queue in self._touched:
            if queue.waiting:
                out.replies += self._waiting.serve(queue, now_ms)
        self._touched.clear()

    def _finished(self, out: QueueOutcome, now_ms: int) -> QueueOutcome:
        self._serve_touched(out, now_ms)
        out.changes += self._queues.journal.take_changes()
        out.moves += self._queues.journal.take_moves()
        out.ended += self._queues.journal.take_ended()
        return out
