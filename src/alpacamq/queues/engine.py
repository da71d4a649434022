"""The queue engine: a state machine for the queues of one partition of the internal queue topic. Pure.

Reading a log is an effect (ReadBacklog) whose result is an event (BacklogRead). A receive that
needs more of the log than is indexed waits for that event.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from alpacamq.model.deadlines import NO_DEADLINE, Deadlines, Timed
from alpacamq.model.errors import AlpacaError, GroupIdNotFound, TooManyInFlight, TooManyWaiting, UnknownTopic
from alpacamq.model.ids import TopicId
from alpacamq.model.state_machine import Change, Outcome, Pending, Reply, Request
from alpacamq.model.topics import INT64_MAX, TopicConfig

from .chunks import LeaseGroup
from .directory import QueueDirectory
from .messages import (
    BacklogRead,
    ConfigureRequest,
    DeleteRequest,
    DescribeAllReply,
    DescribeAllRequest,
    DescribeReply,
    DescribeRequest,
    EngineLimits,
    FinishedReply,
    FinishedRequest,
    ListReply,
    ListRequest,
    LostTail,
    MovesDone,
    MovesReturned,
    OverridesReply,
    OverridesRequest,
    PartitionsView,
    QueueId,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    ReleaseConsumerRequest,
    ResetRequest,
    SettleReply,
    SettleRequest,
    Start,
    TopicsChanged,
    unreadable,
)
from .queue import (
    PendingReceive,
    Queue,
    QueueLevels,
    check_overrides,
    describe,
    describe_gradually,
    levels_gradually,
)
from .receiving import (
    check_partitions,
    check_receive,
    drop_deleted,
    load_backlog,
    mask_of,
    read_ahead,
    read_cold,
    room_for,
    serve,
)
from .settlement import end_leases, release_consumer, settle, stale_receipts

__all__ = ["EngineLimits", "QueueEngine"]

# How long a receive with `wait_ms` 0 may wait for reads.
_POLL_MS = 2000
# How long a receive waits for more reads while there are messages for it.
_READ_MS = 20
# How long the first receives of a queue wait for reads while there are messages for them.
_COLD_MS = 250
# Messages whose leases and backoffs end in one event; more would delay all other requests.
_MAX_ENDED_PER_EVENT = 2000

_Handler = Callable[["QueueEngine", Any, object, Outcome, int], object]


class PendingReceives:
    """The receives of all queues that have no reply yet; within a queue the oldest is served first."""

    def __init__(self, deadlines: Deadlines[Timed], limits: EngineLimits) -> None:
        self._deadlines = deadlines
        self._limits = limits
        self._all: dict[object, PendingReceive] = {}

    def add(self, receive: PendingReceive, now_ms: int) -> None:
        """Add a waiting receive; raise TooManyWaiting if there are too many."""
        if not receive.is_poll and len(self._all) >= self._limits.max_waiting_receives:
            raise TooManyWaiting(
                f"too many waiting receives: queues.max_waiting_receives={self._limits.max_waiting_receives}"
            )
        self._all[receive.reply_to] = receive
        (receive.queue.polls if receive.is_poll else receive.queue.waiting)[receive.reply_to] = receive
        self._schedule(receive, now_ms)

    def serve(self, queue: Queue, now_ms: int) -> list[Reply]:
        """Reply to the receives of a queue that can be served."""
        replies: list[Reply] = []
        try:
            queue.refresh()
            if queue.is_cold(now_ms):
                read_cold(queue, self._limits)
                if queue.reading:
                    return []
            self._serve_polls(queue, replies, now_ms)
            self._serve_waiting(queue, replies, now_ms)
        except AlpacaError as error:
            answered = {reply.to for reply in replies}
            pending = (*queue.polls, *queue.waiting)
            replies += [Reply(reply_to, error) for reply_to in pending if reply_to not in answered]
        for reply in replies:
            self.remove(reply.to)
        return replies

    def _serve_polls(self, queue: Queue, replies: list[Reply], now_ms: int) -> None:
        for receive in queue.polls.values():
            is_reading = queue.reading & receive.partitions
            if is_reading and not queue.ready_partitions.active(receive.partitions):
                continue
            room = room_for(queue, receive.request)
            if room and (reply := serve(queue, receive, room, self._limits, now_ms)) is not None:
                replies.append(Reply(receive.reply_to, reply))
            elif room and queue.reading & receive.partitions:
                self._schedule(receive, now_ms)
            else:
                answer = ReceiveReply() if room else _no_room(queue, receive.request)
                replies.append(Reply(receive.reply_to, answer))

    def _serve_waiting(self, queue: Queue, replies: list[Reply], now_ms: int) -> None:
        full: set[str] = set()
        for receive in queue.waiting.values():
            if not (queue.ready_partitions.lanes or queue.unread or queue.reading):
                break
            request = receive.request
            if request.consumer in full:
                continue
            if not (room := room_for(queue, request)):
                full.add(request.consumer)
                continue
            if (reply := serve(queue, receive, room, self._limits, now_ms)) is not None:
                replies.append(Reply(receive.reply_to, reply))
                continue
            self._schedule(receive, now_ms)
            if request.partitions is None and not queue.ready_partitions.lanes:
                break  # the other receives cannot be served either

    def expire(self, receive: PendingReceive, now_ms: int) -> list[Reply]:
        """Serve a receive that has waited long enough for reads, or reply to one whose wait has ended."""
        if receive.reply_to not in self._all:
            return []
        reply: ReceiveReply | None = None
        if receive.request.max_messages:
            with suppress(AlpacaError):  # its topic is being deleted
                if room := room_for(receive.queue, receive.request):
                    reply = serve(receive.queue, receive, room, self._limits, now_ms, is_last=True)
        if reply is None and now_ms < receive.end_ms:
            receive.reads_left, receive.has_ready = 0, False
            self._schedule(receive, now_ms)
            return []
        self.remove(receive.reply_to)
        return [Reply(receive.reply_to, reply or ReceiveReply())]

    def fail(self, queue: Queue, error: AlpacaError) -> list[Reply]:
        """Reply with an error to every receive of a queue that is deleted."""
        replies = [Reply(reply_to, error) for reply_to in (*queue.polls, *queue.waiting)]
        for reply in replies:
            self.remove(reply.to)
        return replies

    def remove(self, reply_to: object) -> None:
        """Remove a receive."""
        if (receive := self._all.pop(reply_to, None)) is not None:
            del (receive.queue.polls if receive.is_poll else receive.queue.waiting)[reply_to]
            self._deadlines.remove(receive)

    def _schedule(self, receive: PendingReceive, now_ms: int) -> None:
        """Set the time at which a receive is served again, whatever happens."""
        due_ms = receive.end_ms
        if receive.queue.is_cold(now_ms):
            due_ms = min(receive.queue.cold_until_ms, due_ms)
        elif receive.has_ready:
            due_ms = min(now_ms + _READ_MS, due_ms)
        if receive.due_ms == NO_DEADLINE or due_ms < receive.due_ms:
            self._deadlines.remove(receive)
            receive.due_ms = due_ms
            self._deadlines.put(receive)


def _no_room(queue: Queue, request: ReceiveRequest) -> TooManyInFlight:
    settings = queue.settings
    return TooManyInFlight(
        f"too many unacknowledged messages: consumer {request.consumer!r} has reached "
        f"queue.max.in.flight={settings.queue_max_in_flight}, or group {request.queue.group!r} "
        f"queue.max.in.flight.total={settings.queue_max_in_flight_total}"
    )


class QueueEngine:
    """The state machine of one partition of the internal queue topic."""

    def __init__(
        self, log: PartitionsView, take_producer_id: Callable[[], int], limits: EngineLimits
    ) -> None:
        self._log = log
        self._limits = limits
        self._queues = QueueDirectory(log, take_producer_id, limits)
        self._receives = PendingReceives(self._queues.deadlines, limits)
        # Queues that have changed since their waiting receives were last served.
        self._dirty: dict[Queue, None] = {}
        self._topics_version: int | None = None

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
        """Return the settings of a topic with the overrides of the group. Raises UnknownTopic."""
        if (queue := self._queues.find(queue_id)) is not None:
            return queue.settings
        if (config := self._log.config(queue_id.topic)) is None:
            raise unreadable(queue_id.topic, self._log)
        return config

    def is_committed(self, queue_id: QueueId) -> bool:
        """Return whether a queue reads committed records only."""
        queue = self._queues.find(queue_id)
        return queue is None or queue.is_committed

    def refers_to(self, lost: Sequence[LostTail]) -> bool:
        """Return whether a queue has state of records that were lost."""
        ends = {(tail.topic_id, tail.partition): tail.end_offset for tail in lost}
        return any(
            partition.progress.delivered_end > ends.get((queue.topic_id, number), INT64_MAX)
            for queue in self._queues
            for number, partition in queue.partitions.items()
        )

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def stats(self) -> Iterator[DescribeReply | None]:
        """Describe all queues in small steps, between which they may change: see `describe_gradually`."""
        return describe_gradually(self._queues)

    def levels(self) -> Iterator[QueueLevels | None]:
        """Count the messages of all queues in small steps, between which they may change."""
        return levels_gradually(self._queues)

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`; may be early, never late."""
        return self._queues.deadlines.next_ms

    def tick(self, now_ms: int) -> Outcome:
        """End the leases, backoffs and waits that are due."""
        return self._finish(self._end_due(now_ms), now_ms)

    def cancel(self, reply_to: object) -> None:
        """Remove a waiting receive."""
        self._receives.remove(reply_to)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record; ignore unknown kinds."""
        self._queues.replay(key, value)

    def check_loadable(self, former_id: Callable[[str], TopicId]) -> None:
        """Raise PartitionNotReady if a partition that a queue has state of is led here and not open yet.

        To be called before `loaded`, which needs their ends. Queues without a topic id, as version 0.1
        stored them, get that which `former_id` returns for their topic.
        """
        self._queues.adopt_topic_ids(former_id)
        self._queues.check_loadable()

    def loaded(self, now_ms: int) -> Outcome:
        """Resume after replay; repeat moves that are not known to be done.

        Queues of deleted topics are deleted.
        """
        self._queues.loaded(now_ms)
        return self._finish(self._end_due(now_ms), now_ms)

    def snapshot(self) -> Iterator[Change]:
        """Return changes that lead to the durable state."""
        return self._queues.snapshot()

    def _settle(self, request: SettleRequest, _reply_to: object, _out: Outcome, now_ms: int) -> SettleReply:
        queue = self._queues.find(request.queue)
        if queue is None:
            return SettleReply(results=stale_receipts(request.queue, request.settlements))
        self._dirty[queue] = None
        return SettleReply(results=settle(queue, request.settlements, now_ms))

    def _receive(
        self, request: ReceiveRequest, reply_to: object, out: Outcome, now_ms: int
    ) -> ReceiveReply | None:
        check_receive(request, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(request.start)
        if request.share is not None:
            queue.share(request.share)
        if queue.cold_until_ms == NO_DEADLINE:
            queue.cold_until_ms = now_ms + _COLD_MS
        if (queue.waiting or queue.polls) and queue.ready_partitions.lanes and not queue.is_cold(now_ms):
            out.replies += self._receives.serve(queue, now_ms)  # the older ones first
        partitions = mask_of(request)
        wait_ms = request.wait_ms or _POLL_MS
        receive = PendingReceive(queue, request, reply_to, partitions, now_ms + wait_ms)
        if not (room := room_for(queue, request)):
            drop_deleted(queue)
            room = room_for(queue, request)
        if room:
            read_ahead(queue, partitions, self._limits, now_ms)
            if (reply := serve(queue, receive, room, self._limits, now_ms)) is not None:
                return reply
        if request.wait_ms or (room and queue.reading & partitions):
            self._receives.add(receive, now_ms)
            return None
        if not room:
            raise _no_room(queue, request)
        return ReceiveReply()

    def _release_consumer(
        self, request: ReleaseConsumerRequest, _reply_to: object, _out: Outcome, now_ms: int
    ) -> SettleReply:
        if (queue := self._queues.find(request.queue)) is not None:
            release_consumer(queue, request.consumer, request.partitions, now_ms)
            self._dirty[queue] = None
        return SettleReply()

    def _reset(self, request: ResetRequest, _reply_to: object, _out: Outcome, now_ms: int) -> SettleReply:
        topic = request.queue.topic
        check_partitions(topic, request.offsets, self._log)
        queue = self._queues.open(request.queue, now_ms)
        queue.open_partitions(Start.EARLIEST)
        starts = {number: queue.bounds(number)[0] for number in request.offsets}
        for number, offset in request.offsets.items():
            generation = self._queues.new_generation(now_ms)
            queue.reset(number, max(offset, starts[number]), generation)
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
        return ListReply(queues=tuple((queue.id, dict(queue.overrides)) for queue in self._queues))

    def _describe_all(
        self, _request: DescribeAllRequest, _reply_to: object, _out: Outcome, _now_ms: int
    ) -> DescribeAllReply:
        return DescribeAllReply(queues=tuple(map(describe, self._queues)))

    def _overrides(
        self, request: OverridesRequest, _reply_to: object, _out: Outcome, _now_ms: int
    ) -> OverridesReply:
        queue = self._queues.find(request.queue)
        return OverridesReply(overrides={} if queue is None else dict(queue.overrides))

    def _finished(
        self, request: FinishedRequest, _reply_to: object, _out: Outcome, _now_ms: int
    ) -> FinishedReply:
        queue = self._queues.find(request.queue)
        partition = None if queue is None else queue.partitions.get(request.partition)
        if partition is None:
            return FinishedReply(offsets=())
        progress = partition.progress
        return FinishedReply(offsets=tuple(offset for offset in request.offsets if progress.is_done(offset)))

    def _records_arrived(self, event: RecordsArrived, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        topic, partition = event.topic, event.partition
        for queue in self._queues.of_topic(topic):
            if partition not in queue.partitions and queue.partitions and self._log.config(topic) is not None:
                queue.open_partitions(Start.EARLIEST)
            if (found := queue.partitions.get(partition)) is not None:
                # A consumer at its limit has room again if retention has deleted messages that it leases.
                found.drop_before(queue.bounds(partition)[0])
                queue.unread |= 1 << partition
                self._dirty[queue] = None

    def _backlog_read(self, event: BacklogRead, _reply_to: object, _out: Outcome, now_ms: int) -> None:
        if (queue := self._queues.find(event.read.queue)) is not None:
            load_backlog(queue, event.read, event.outline, now_ms)
            self._dirty[queue] = None

    def _moves_done(self, event: MovesDone, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        for move in event.moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, leases = found
                partition.finish(leases, move.offset)
                self._dirty[queue] = None

    def _moves_returned(self, event: MovesReturned, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        for move in event.moves:
            if (found := self._queues.moving(move)) is not None:
                queue, partition, leases = found
                partition.release(leases, move.offset, leases.count - 1)
                self._dirty[queue] = None

    def _topics_changed(self, _event: TopicsChanged, _reply_to: object, _out: Outcome, _now_ms: int) -> None:
        """Do nothing more than before any other event: see `_forget_deleted`."""

    def _forget_deleted(self) -> Outcome:
        """Delete the queues of deleted topics, because topics have changed since the last event.

        That a topic of the same name exists makes no difference: its queues start with nothing.
        """
        out = Outcome()
        self._topics_version = self._log.version
        for queue in [*self._queues]:
            if not queue.is_of(self._log.topic(queue.id.topic)):
                self._forget(queue, UnknownTopic(f"topic {queue.id.topic!r} was deleted"), out)
        return out

    def _forget(self, queue: Queue, error: AlpacaError, out: Outcome) -> None:
        out.replies += self._receives.fail(queue, error)
        self._dirty.pop(queue, None)
        self._queues.forget(queue)

    def _end_due(self, now_ms: int) -> Outcome:
        """End what is due, and serve the receives of the affected queues.

        What exceeds the limit of one event is left to the next tick, which is due at once.
        """
        out = Outcome() if self._log.version == self._topics_version else self._forget_deleted()
        next_ms = self._queues.deadlines.next_ms
        if next_ms is None or next_ms > now_ms:
            if self._dirty:
                self._serve_dirty(out, now_ms)
            return out
        late: list[PendingReceive] = []
        ended = 0
        for due in self._queues.deadlines.take_due(now_ms):
            if isinstance(due, LeaseGroup):
                queue = self._queues.get(due.chunk.partition.queue)
                ended += due.mask.bit_count()
                end_leases(queue, due, now_ms)
                self._dirty[queue] = None
                if ended >= _MAX_ENDED_PER_EVENT:
                    break
            else:
                assert isinstance(due, PendingReceive)
                late.append(due)
        self._serve_dirty(out, now_ms)
        for receive in late:
            out.replies += self._receives.expire(receive, now_ms)
        return out

    def _serve_dirty(self, out: Outcome, now_ms: int) -> None:
        for queue in self._dirty:
            if queue.waiting or queue.polls:
                out.replies += self._receives.serve(queue, now_ms)
        self._dirty.clear()

    def _finish(self, out: Outcome, now_ms: int) -> Outcome:
        if self._dirty:
            self._serve_dirty(out, now_ms)
        output = self._queues.output
        out.changes += output.take_changes()
        out.effects += output.take_effects()
        out.reads += output.take_reads()
        return out


_HANDLERS: Mapping[type[Request[Any]], _Handler] = {
    ReceiveRequest: QueueEngine._receive,
    SettleRequest: QueueEngine._settle,
    ReleaseConsumerRequest: QueueEngine._release_consumer,
    ResetRequest: QueueEngine._reset,
    ConfigureRequest: QueueEngine._configure,
    DeleteRequest: QueueEngine._delete,
    DescribeRequest: QueueEngine._describe,
    DescribeAllRequest: QueueEngine._describe_all,
    ListRequest: QueueEngine._list,
    OverridesRequest: QueueEngine._overrides,
    FinishedRequest: QueueEngine._finished,
    RecordsArrived: QueueEngine._records_arrived,
    BacklogRead: QueueEngine._backlog_read,
    MovesDone: QueueEngine._moves_done,
    MovesReturned: QueueEngine._moves_returned,
    TopicsChanged: QueueEngine._topics_changed,
}
# The requests and events that an engine handles.
REQUESTS: Final = tuple(_HANDLERS)
