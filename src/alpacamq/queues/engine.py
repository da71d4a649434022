"""The queue engine: the queues of one partition of the queues topic, as one state machine. Pure.

Reading a log is an effect (ReadBacklog) whose result comes back as an event (BacklogRead). A receive that
needs more of the log than is indexed waits for that event.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alpacamq.model.errors import AlpacaError, GroupIdNotFound, TooManyInFlight, TooManyWaiting, UnknownTopic
from alpacamq.model.state_machine import Change, Outcome, Pending, Reply, Request
from alpacamq.model.topics import TopicConfig

from .chunks import LeaseGroup
from .deadlines import Deadlines, Timed
from .directory import QueueDirectory
from .messages import (
    BacklogRead,
    ConfigureRequest,
    DeleteRequest,
    DescribeReply,
    DescribeRequest,
    EngineLimits,
    ListReply,
    ListRequest,
    MovesDone,
    MovesReturned,
    QueueId,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    ReleaseConsumerRequest,
    ResetRequest,
    SettleReply,
    SettleRequest,
    Start,
    TopicDeleted,
)
from .queue import PendingReceive, Queue, check_overrides, describe
from .receiving import (
    check_partitions,
    check_receive,
    load_backlog,
    mask_of,
    prepare,
    room_for,
    serve,
)
from .settlement import end, release_consumer, settle, stale
from .views import TopicsView

__all__ = ["EngineLimits", "QueueEngine"]

# How long a receive that does not wait for messages may wait for reads.
_POLL_MS = 2000
# Leases and backoffs, by their messages, that end in one event: many more would delay all other requests.
_ENDED_AT_ONCE = 2000

_Handler = Callable[["QueueEngine", Any, object, Outcome, int], object]


class PendingReceives:
    """The receives of every queue that have no reply yet; within a queue the oldest is served first."""

    def __init__(self, deadlines: Deadlines[Timed], limits: EngineLimits) -> None:
        self._deadlines = deadlines
        self._limits = limits
        self._all: dict[object, PendingReceive] = {}

    def add(self, receive: PendingReceive) -> None:
        """Let a receive wait; TooManyWaiting if there are too many."""
        if not receive.is_poll and len(self._all) >= self._limits.max_waiting_receives:
            raise TooManyWaiting(f"{len(self._all)} receives are waiting already")
        self._all[receive.reply_to] = receive
        receive.queue.waiting[receive.reply_to] = receive
        receive.queue.polls += receive.is_poll
        self._deadlines.put(receive)

    def serve(self, queue: Queue, now_ms: int) -> list[Reply]:
        """Reply to the receives of a queue that can be served."""
        replies: list[Reply] = []
        try:
            queue.refresh()
            self._serve(queue, replies, now_ms)
        except AlpacaError as error:
            answered = {reply.to for reply in replies}
            replies += [Reply(reply_to, error) for reply_to in queue.waiting if reply_to not in answered]
        for reply in replies:
            self.remove(reply.to)
        return replies

    def _serve(self, queue: Queue, replies: list[Reply], now_ms: int) -> None:
        full: set[str] = set()
        polls = queue.polls
        for receive in queue.waiting.values():
            is_something_left = queue.turns.lanes or queue.unread or queue.reading
            if not is_something_left and not polls:
                break
            polls -= receive.is_poll
            request = receive.request
            if request.consumer in full:
                room = 0
            elif not (room := room_for(queue, request)):
                full.add(request.consumer)
            if room and (reply := serve(queue, receive, room, self._limits, now_ms)) is not None:
                replies.append(Reply(receive.reply_to, reply))
                continue
            is_waiting = not receive.is_poll and request.partitions is None
            if room and is_waiting and not polls and not queue.turns.lanes:
                break  # the others will not find more
            if receive.is_poll and not (room and queue.reading & receive.partitions):
                replies.append(Reply(receive.reply_to, ReceiveReply() if room else _no_room(request)))

    def end(self, receive: PendingReceive, now_ms: int) -> list[Reply]:
        """Reply to a receive whose time is over, with what there is."""
        if receive.reply_to not in self._all:
            return []
        reply: ReceiveReply | None = None
        if receive.request.max_messages and (room := room_for(receive.queue, receive.request)):
            reply = serve(receive.queue, receive, room, self._limits, now_ms, is_last=True)
        self.remove(receive.reply_to)
        return [Reply(receive.reply_to, reply or ReceiveReply())]

    def fail(self, queue: Queue, error: AlpacaError) -> list[Reply]:
        """Reply with an error to every receive of a queue that is deleted."""
        replies = [Reply(reply_to, error) for reply_to in queue.waiting]
        for reply in replies:
            self.remove(reply.to)
        return replies

    def remove(self, reply_to: object) -> None:
        """Forget a receive."""
        if (receive := self._all.pop(reply_to, None)) is not None:
            del receive.queue.waiting[reply_to]
            receive.queue.polls -= receive.is_poll
            self._deadlines.forget(receive)


def _no_room(request: ReceiveRequest) -> TooManyInFlight:
    return TooManyInFlight(
        f"consumer {request.consumer!r} or group {request.queue.group!r} has as many messages in flight as "
        "queue.max.in.flight and queue.max.in.flight.total allow"
    )


class QueueEngine:
    """The state machine behind one partition of the internal topic of queues."""

    def __init__(self, log: TopicsView, take_producer_id: Callable[[], int], limits: EngineLimits) -> None:
        self._log = log
        self._limits = limits
        self._queues = QueueDirectory(log, take_producer_id, limits)
        self._receives = PendingReceives(self._queues.deadlines, limits)
        # Queues that have changed since their pending receives were last served.
        self._dirty: dict[Queue, None] = {}

    def handle(self, batch: Sequence[Pending], now_ms: int) -> Outcome:
        """Handle requests in order; everything they change is one outcome."""
        out = self._end_due(now_ms)
        for request, reply_to in batch:
            try:
                answer = _HANDLERS[type(request)](self, request, reply_to, out, now_ms)
            except AlpacaError as error:
                answer = error.with_traceback(None)
            if answer is not None:
                out.replies.append(Reply(reply_to, answer))
        return self._finish(out, now_ms)

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

    def tick(self, now_ms: int) -> Outcome:
        """End leases, backoffs and waits that are due."""
        return self._finish(self._end_due(now_ms), now_ms)

    def cancel(self, reply_to: object) -> None:
        """Forget a pending receive."""
        self._receives.remove(reply_to)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a stored record; kinds of a later version are passed over."""
        self._queues.replay(key, value)

    def loaded(self, now_ms: int) -> Outcome:
        """Resume: moves that are not known to be done are repeated.

        The view has to know all topics by now: queues of others are deleted.
        """
        self._queues.loaded(now_ms)
        return self._finish(self._end_due(now_ms), now_ms)

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state as it is."""
        return self._queues.snapshot()

    def _settle(self, request: SettleRequest, _reply_to: object, _out: Outcome, now_ms: int) -> SettleReply:
        queue = self._queues.find(request.queue)
        if queue is None:
            return SettleReply(results=stale(request.queue, request.settlements))
        self._dirty[queue] = None
        return SettleReply(results=settle(queue, request.settlements, now_ms))

    def _receive(
        self, request: ReceiveRequest, reply_to: object, out: Outcome, now_ms: int
    ) -> ReceiveReply | None:
        check_receive(request, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(request.start)
        if queue.waiting:
            out.replies += self._receives.serve(queue, now_ms)
        partitions = mask_of(request)
        wait_ms = request.wait_ms or _POLL_MS
        receive = PendingReceive(queue, request, reply_to, partitions, now_ms + wait_ms)
        if room := room_for(queue, request):
            prepare(queue, partitions, self._limits, now_ms)
            if (reply := serve(queue, receive, room, self._limits, now_ms)) is not None:
                return reply
        if request.wait_ms or (room and queue.reading & partitions):
            self._receives.add(receive)
            return None
        if not room:
            raise _no_room(request)
        return ReceiveReply()

    def _release_consumer(
        self, request: ReleaseConsumerRequest, _reply_to: object, _out: Outcome, _now_ms: int
    ) -> SettleReply:
        if (queue := self._queues.find(request.queue)) is not None:
            release_consumer(queue, request.consumer)
            self._dirty[queue] = None
        return SettleReply()

    def _reset(self, request: ResetRequest, _reply_to: object, _out: Outcome, now_ms: int) -> SettleReply:
        topic = request.queue.topic
        check_partitions(topic, request.offsets, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(Start.EARLIEST)
        for number, offset in request.offsets.items():
            log_start, log_end = self._log.bounds(topic, number)
            generation = self._queues.new_generation(now_ms)
            queue.reset(number, min(max(offset, log_start), log_end), generation)
        self._dirty[queue] = None
        return SettleReply()

    def _configure(
        self, request: ConfigureRequest, _reply_to: object, _out: Outcome, now_ms: int
    ) -> DescribeReply:
        check_overrides(request.overrides)
        queue = self._queues.open(request.queue, now_ms)
        queue.configure(request.overrides)
        self._dirty[queue] = None
        return describe(queue)

    def _delete(self, request: DeleteRequest, _reply_to: object, out: Outcome, _now_ms: int) -> SettleReply:
        group, topic = request.queue
        deleted = GroupIdNotFound(f"group {group!r} was deleted from topic {topic!r}")
        self._forget(self._queues.get(request.queue), deleted, out)
        return SettleReply()

    def _describe(
        self, request: DescribeRequest, _reply_to: object, _out: Outcome, _now_ms: int
    ) -> DescribeReply:
        return describe(self._queues.get(request.queue))

    def _list(self, _request: ListRequest, _reply_to: object, _out: Outcome, _now_ms: int) -> ListReply:
        return ListReply(queues=tuple(queue.id for queue in self._queues))

    def _records_arrived(self, event: RecordsArrived, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        topic, partition = event.topic, event.partition
        for queue in self._queues.of_topic(topic):
            if partition not in queue.partitions and queue.partitions and self._log.config(topic) is not None:
                queue.open_partitions(Start.EARLIEST)
            if partition in queue.partitions:
                queue.unread |= 1 << partition
                self._dirty[queue] = None

    def _backlog_read(self, event: BacklogRead, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        if (queue := self._queues.find(event.read.queue)) is not None:
            load_backlog(queue, event.read, event.outline)
            self._dirty[queue] = None

    def _moves_done(self, event: MovesDone, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        for move in event.moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, hold = found
                partition.finish(hold, move.offset)
                self._dirty[queue] = None

    def _moves_returned(self, event: MovesReturned, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        for move in event.moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, hold = found
                partition.free(hold, move.offset, hold.count - 1)
                self._dirty[queue] = None

    def _topic_deleted(self, event: TopicDeleted, _reply_to: object, out: Outcome, _now_ms: int) -> None:
        for queue in self._queues.of_topic(event.topic):
            self._forget(queue, UnknownTopic(f"topic {event.topic!r} was deleted"), out)

    def _forget(self, queue: Queue, error: AlpacaError, out: Outcome) -> None:
        out.replies += self._receives.fail(queue, error)
        self._dirty.pop(queue, None)
        self._queues.forget(queue)

    def _end_due(self, now_ms: int) -> Outcome:
        """End what is due and reply to the receives for which that changes something.

        What is too much for one event is left to the next tick, which is due at once.
        """
        out = Outcome()
        late: list[PendingReceive] = []
        ended = 0
        for due in self._queues.deadlines.take_due(now_ms):
            if isinstance(due, LeaseGroup):
                queue = self._queues.get(due.chunk.partition.queue)
                ended += due.mask.bit_count()
                end(queue, due)
                self._dirty[queue] = None
                if ended >= _ENDED_AT_ONCE:
                    break
            else:
                assert isinstance(due, PendingReceive)
                late.append(due)
        self._serve_dirty(out, now_ms)
        for receive in late:
            out.replies += self._receives.end(receive, now_ms)
        return out

    def _serve_dirty(self, out: Outcome, now_ms: int) -> None:
        for queue in self._dirty:
            if queue.waiting:
                out.replies += self._receives.serve(queue, now_ms)
        self._dirty.clear()

    def _finish(self, out: Outcome, now_ms: int) -> Outcome:
        self._serve_dirty(out, now_ms)
        journal = self._queues.journal
        out.changes += journal.take_changes()
        out.effects += journal.take_effects()
        out.reads += journal.take_reads()
        return out


_HANDLERS: Mapping[type[Request[Any]], _Handler] = {
    ReceiveRequest: QueueEngine._receive,
    SettleRequest: QueueEngine._settle,
    ReleaseConsumerRequest: QueueEngine._release_consumer,
    ResetRequest: QueueEngine._reset,
    ConfigureRequest: QueueEngine._configure,
    DeleteRequest: QueueEngine._delete,
    DescribeRequest: QueueEngine._describe,
    ListRequest: QueueEngine._list,
    RecordsArrived: QueueEngine._records_arrived,
    BacklogRead: QueueEngine._backlog_read,
    MovesDone: QueueEngine._moves_done,
    MovesReturned: QueueEngine._moves_returned,
    TopicDeleted: QueueEngine._topic_deleted,
}
