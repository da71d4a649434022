"""Receives that wait in line for messages, and are answered when there are some or their time is up."""

from dataclasses import dataclass

from alpacamq.model.errors import AlpacaError, TooManyWaiting
from alpacamq.model.outcome import Reply

from .chunks import NO_DEADLINE
from .deadlines import Deadlines, Timed
from .limits import EngineLimits
from .messages import ReceiveReply, ReceiveRequest
from .queue import Queue
from .receiving import grant, has_any, room_for

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
