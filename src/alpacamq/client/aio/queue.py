"""Queue mode over gRPC: a stream that delivers jobs and settles them.

A receiver keeps one stream `Queue.Work` open and opens it again when it is cut. Settlements of one turn of
the event loop are sent as one message. What was sent and not confirmed before a cut is unknown; what was not
sent is certainly not settled. A stream that ends returns the leases of its jobs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Generator, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from grpclib.client import Stream
from grpclib.exceptions import GRPCError

from alpacamq.client.errors import Unreachable
from alpacamq.client.messages import Codecs, Message
from alpacamq.client.outcomes import (
    AlreadySettled,
    Duration,
    LeaseLost,
    Reject,
    Retry,
    SettlementError,
    SettlementUnknown,
    duration_ms,
)
from alpacamq.model.errors import AlpacaError
from alpacamq.v1 import messages_pb2, queue_pb2
from alpacamq.v1.queue_grpc import QueueStub

from .grpc import FAILURES, Nodes, backoff_s, failure_of, is_transient

T = TypeVar("T")

log = logging.getLogger("alpacamq.queue")

DEFAULT_CREDIT: Final = 100
MAX_CREDIT: Final = 10_000
# Until the first stream is open; later ones are retried for as long as the receiver is used.
OPEN_S: Final = 30.0
# How long leaving a receiver waits for results of settlements, and for the broker to end the stream.
CLOSE_S: Final = 5.0
_MAX_FRAME: Final = 1000  # settlements per message
_MAX_REASON: Final = 1000  # characters

_PRIORITIES: Final = {
    messages_pb2.PRIORITY_CRITICAL: "critical",
    messages_pb2.PRIORITY_HIGH: "high",
    messages_pb2.PRIORITY_LOW: "low",
    messages_pb2.PRIORITY_BACKGROUND: "background",
}
_STARTS: Final = {"earliest": messages_pb2.START_EARLIEST, "latest": messages_pb2.START_LATEST}


class _State(Enum):
    LEASED = "leased"
    SETTLED = "settled"


class Settlement:
    """A settlement on its way. Await it for its result; it is sent whether it is awaited or not.

    A failure that nobody awaits is logged.
    """

    __slots__ = ("_error", "_is_done", "_place", "_waiters", "is_sent")

    def __init__(self, place: str) -> None:
        self._place = place
        self._is_done = False
        self._error: SettlementError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.is_sent = False

    def done(self) -> bool:
        """Return whether the result is known, or known to be lost."""
        return self._is_done

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        if self._error is not None:
            raise self._error

    def _finish(self, error: SettlementError | None = None) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._error = error
        if error is not None and not self._waiters:
            log.warning("%s: %s", self._place, error)
        for each in self._waiters:
            if not each.done():
                each.set_result(None)
        self._waiters.clear()


class Job(Message[T]):
    """A leased message. `async with job:` acknowledges it, or returns it if the block raises.

    An exception of the block is raised on, except Retry and Reject, which only say how to settle the message.
    """

    __slots__ = ("_delivery_id", "_extension", "_state", "_stream", "deadline_ms", "delivery_count", "priority")

    def __init__(
        self, stream: "_WorkStream", topic: str, delivery: queue_pb2.Delivery, codecs: Codecs[T]
    ) -> None:
        record = delivery.record
        super().__init__(
            topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.key if record.HasField("key") else None,
            record.value if record.HasField("value") else None,
            (),
            codecs,
        )
        if record.headers:
            self._headers = [
                (each.key, each.value if each.HasField("value") else None) for each in record.headers
            ]
        self._stream = stream
        self._delivery_id = delivery.delivery_id
        self._state = _State.LEASED
        self._extension: Settlement | None = None
        # 1 for the first delivery.
        self.delivery_count = delivery.delivery_count
        # When the lease ends, in milliseconds since 1970.
        self.deadline_ms = delivery.deadline_ms
        self.priority = _PRIORITIES.get(delivery.priority, "normal")

    @property
    def is_leased(self) -> bool:
        """Whether the job is neither settled nor lost with its connection."""
        return self._state is _State.LEASED and self._stream.is_open

    def ack(self) -> Settlement:
        """Mark the message as done. Await the result to know that it will not be delivered again."""
        return self._settle("ack", None, "")

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> Settlement:
        """Have the message delivered again, after `delay` or the queue's backoff."""
        return self._settle("nack", None if delay is None else duration_ms(delay), reason)

    def reject(self, reason: str = "") -> Settlement:
        """Make the message a dead letter."""
        return self._settle("reject", None, reason)

    def extend(self, by: Duration) -> Settlement:
        """End the lease this long from now, instead of at its deadline."""
        self._check()
        if self._extension is not None and not self._extension.done():
            return self._extension
        self._extension = self._stream.extend(self, duration_ms(by))
        return self._extension

    def _check(self) -> None:
        if self._state is _State.SETTLED:
            raise AlreadySettled(f"{self.place} is settled already")
        if not self._stream.is_open:
            raise LeaseLost(f"{self.place}: its connection was cut, and the message is delivered again")

    def _settle(self, kind: str, delay_ms: int | None, reason: str) -> Settlement:
        self._check()
        self._state = _State.SETTLED
        return self._stream.settle(self, kind, delay_ms, reason[:_MAX_REASON])

    async def settle_after(self, error: BaseException | None) -> bool:
        """Settle the message as the error of its handler says; return whether the error is dealt with."""
        if self._state is _State.SETTLED:
            return isinstance(error, Retry | Reject)
        match error:
            case None:
                await self.ack()
                return False
            case Reject():
                await self.reject(error.reason or "rejected")
                return True
            case Retry():
                await self._settle("nack", error.after_ms, error.reason)
                return True
            case asyncio.CancelledError() | GeneratorExit() | KeyboardInterrupt():
                # Not a failure of the handler: available to others at once.
                if self.is_leased:
                    self._settle("nack", 0, "cancelled")
                return False
            case _:
                await self.nack(reason=f"{type(error).__name__}: {error}")
                return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return await self.settle_after(None)
        try:
            return await self.settle_after(error)
        except SettlementError as unsettled:
            # The handler's own error matters more.
            log.warning("%s", unsettled)
            return isinstance(error, Retry | Reject)


class _WorkStream:
    """One stream `Queue.Work`: from its opening to its end."""

    def __init__(self) -> None:
        self.is_open = True
        # By delivery id. An extension and a settlement of one delivery are never in flight together.
        self._pending: dict[int, Settlement] = {}
        self._next = queue_pb2.WorkRequest()
        self._next_size = 0
        self._in_next: list[Settlement] = []
        # Settlements that wait for the result of an extension of the same delivery.
        self._after: dict[int, tuple[Settlement, str, int | None, str]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def settle(self, job: Job[Any], kind: str, delay_ms: int | None, reason: str) -> Settlement:
        settlement = Settlement(job.place)
        delivery_id = job._delivery_id
        if delivery_id in self._pending:
            self._after[delivery_id] = settlement, kind, delay_ms, reason
            self._idle.clear()
        else:
            self._queue(delivery_id, settlement, kind, delay_ms, reason)
        return settlement

    def extend(self, job: Job[Any], visibility_ms: int) -> Settlement:
        settlement = Settlement(job.place)
        self._queue(job._delivery_id, settlement, "extend", visibility_ms, "")
        return settlement

    def _queue(
        self, delivery_id: int, settlement: Settlement, kind: str, delay_ms: int | None, reason: str
    ) -> None:
        request = self._next
        match kind:
            case "ack":
                request.ack.append(delivery_id)
            case "nack":
                nack = request.nack.add(delivery_id=delivery_id, reason=reason)
                if delay_ms is not None:
                    nack.delay_ms = delay_ms
            case "reject":
                request.reject.add(delivery_id=delivery_id, reason=reason)
            case _:
                request.extend.add(delivery_id=delivery_id, visibility_ms=delay_ms or 0)
        self._pending[delivery_id] = settlement
        self._in_next.append(settlement)
        self._next_size += 1
        self._idle.clear()
        self._wake.set()

    def set_credit(self, credit: int) -> None:
        """Change the number of unsettled messages."""
        self._next.credit = credit
        self._wake.set()

    async def send(self, stream: "Stream[queue_pb2.WorkRequest, queue_pb2.WorkResponse]") -> None:
        """Send what is queued, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._next_size > _MAX_FRAME:
                for part in self._split():
                    await stream.send_message(part)
                continue
            request, self._next, self._next_size = self._next, queue_pb2.WorkRequest(), 0
            for each in self._in_next:
                each.is_sent = True
            self._in_next.clear()
            await stream.send_message(request)

    def _split(self) -> Sequence[queue_pb2.WorkRequest]:
        """Take what is queued, in messages of a bounded size."""
        whole, self._next, self._next_size = self._next, queue_pb2.WorkRequest(), 0
        for each in self._in_next:
            each.is_sent = True
        self._in_next.clear()
        parts = []
        for field in ("ack", "nack", "reject", "extend"):
            entries = list(getattr(whole, field))
            for start in range(0, len(entries), _MAX_FRAME):
                parts.append(queue_pb2.WorkRequest(**{field: entries[start : start + _MAX_FRAME]}))
        if whole.HasField("credit"):
            parts.append(queue_pb2.WorkRequest(credit=whole.credit))
        return parts

    def results(self, response: queue_pb2.WorkResponse) -> None:
        """Pass results on to those that wait for them."""
        pending = self._pending
        for delivery_id in response.settled:
            self._result(delivery_id, pending.pop(delivery_id, None), None)
        for failure in response.errors:
            settlement = pending.pop(failure.delivery_id, None)
            if settlement is not None:
                text = failure.status.message or f"status {failure.status.code}"
                error = LeaseLost(f"{settlement._place} was not settled: {text}")
                self._result(failure.delivery_id, settlement, error)
        if not pending and not self._after:
            self._idle.set()

    def _result(self, delivery_id: int, settlement: Settlement | None, error: SettlementError | None) -> None:
        if settlement is not None:
            settlement._finish(error)
        if self._after and (waiting := self._after.pop(delivery_id, None)) is not None:
            self._queue(delivery_id, *waiting)

    async def settled(self) -> None:
        """Wait until every settlement has its result."""
        await self._idle.wait()

    def end(self, why: str) -> None:
        """End all settlements that have no result: what was sent is unknown, the rest was not settled."""
        self.is_open = False
        for each in self._pending.values():
            if each.is_sent:
                each._finish(
                    SettlementUnknown(f"{each._place}: {why} before the result of its settlement arrived")
                )
            else:
                each._finish(LeaseLost(f"{each._place}: {why} before it was settled"))
        for each, *_ in self._after.values():
            each._finish(LeaseLost(f"{each._place}: {why} before it was settled"))
        self._pending.clear()
        self._after.clear()
        self._idle.set()


class Receiver(Generic[T]):
    """Delivers the jobs of a queue.

    Iterate over it, best inside `async with`. Leaving the loop or the block returns the leases of jobs that are
    not settled at once. Results of settlements that are on their way are awaited before.
    """

    def __init__(self, nodes: Nodes, request: queue_pb2.WorkOpen, codecs: Codecs[T]) -> None:
        self._nodes = nodes
        self._request = request
        self._codecs = codecs
        self._name = f"queue {request.group} of topic {request.topic}"
        self._ready: deque[Job[T]] = deque()
        self._arrived = asyncio.Event()
        self._opened = asyncio.Event()
        self._failure: AlpacaError | None = None
        self._stream: _WorkStream | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError(f"{self._name}: a receiver is used once")
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"alpacamq {self._name}")
        try:
            await self._opened.wait()
        except BaseException:
            await self.close()
            raise
        if self._failure is not None:
            await self.close()
            raise self._failure
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Job[T]]:
        if self._task is not None:
            while True:
                yield await self.next()
        async with self:
            while True:
                yield await self.next()

    async def next(self) -> Job[T]:
        """Return the next job; wait for it. Raises the error that ended the stream."""
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._closing.is_set():
                raise LeaseLost(f"{self._name}: the receiver is closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._ready.popleft()

    def take(self, max_jobs: int) -> list[Job[T]]:
        """Return jobs that have arrived already, perhaps none."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(max_jobs, len(ready)))]

    def set_credit(self, credit: int) -> None:
        """Change how many jobs may be unsettled at a time; 0 pauses deliveries."""
        if not 0 <= credit <= MAX_CREDIT:
            raise ValueError(f"credit must be from 0 to {MAX_CREDIT}, and {credit} is not")
        self._request.credit = credit
        if self._stream is not None:
            self._stream.set_credit(credit)

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open now."""
        return self._stream is not None

    async def settled(self) -> None:
        """Wait for the results of all settlements so far."""
        if self._stream is not None:
            await self._stream.settled()

    async def close(self) -> None:
        """Wait for the results of settlements, return all other leases and close the stream."""
        self._closing.set()
        self._arrived.set()
        task, self._task = self._task, self._task
        if task is None:
            return
        try:
            if not task.done():
                # Bounded by the run itself, see `_finish`.
                await asyncio.shield(asyncio.wait([task]))
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        """Keep a stream open until the receiver is closed or the broker refuses it."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + OPEN_S
        attempt = 0
        try:
            while not self._closing.is_set():
                try:
                    await self._work()
                    attempt = 0
                except (*FAILURES, TimeoutError) as error:
                    failure = failure_of(error, self._name)
                    if not is_transient(error):
                        self._failure = failure
                        return
                    if not self._opened.is_set() and loop.time() >= give_up_at:
                        self._failure = Unreachable(str(failure))
                        return
                    if self._stream is not None:
                        attempt = 0
                    log.info("%s: connecting again: %s", self._name, failure)
                finally:
                    self._cut()
                attempt += 1
                try:
                    async with asyncio.timeout(backoff_s(attempt)):
                        await self._closing.wait()
                except TimeoutError:
                    continue
        finally:
            self._opened.set()
            self._arrived.set()

    def _cut(self) -> None:
        """Drop jobs whose stream is gone: the broker delivers them again."""
        if self._stream is not None:
            self._stream.end("the connection was cut")
            self._stream = None
        self._ready.clear()

    async def _work(self) -> None:
        """Open a stream and serve it to its end."""
        async with self._nodes.connection() as connection:
            method = QueueStub(connection).Work
            async with method.open(metadata=self._nodes.metadata) as stream:
                await stream.send_message(queue_pb2.WorkRequest(open=self._request))
                # The broker sends headers once the queue is open.
                await stream.recv_initial_metadata()
                self._stream = work = _WorkStream()
                self._opened.set()
                await self._serve(stream, work)

    async def _serve(
        self, stream: "Stream[queue_pb2.WorkRequest, queue_pb2.WorkResponse]", work: _WorkStream
    ) -> None:
        loop = asyncio.get_running_loop()
        sending = loop.create_task(work.send(stream))
        receiving = loop.create_task(self._receive(stream, work))
        closing = loop.create_task(self._closing.wait())
        tasks = {sending, receiving, closing}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if closing in done and not receiving.done() and not sending.done():
                await self._finish(stream, work, receiving, sending)
                done = {each for each in (sending, receiving) if each.done()}
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for each in done - {closing}:
            if not each.cancelled() and (error := each.exception()) is not None:
                raise error
        if not self._closing.is_set():
            raise ConnectionError("the broker ended the stream")

    async def _finish(
        self,
        stream: "Stream[queue_pb2.WorkRequest, queue_pb2.WorkResponse]",
        work: _WorkStream,
        receiving: "asyncio.Task[None]",
        sending: "asyncio.Task[None]",
    ) -> None:
        """Wait for results of settlements; then end the stream and wait for the broker to do so."""
        self._ready.clear()
        settled = asyncio.get_running_loop().create_task(work.settled())
        try:
            await asyncio.wait({settled, receiving, sending}, timeout=CLOSE_S, return_when=asyncio.FIRST_COMPLETED)
            if settled.done() and not receiving.done() and not sending.done():
                sending.cancel()
                await asyncio.wait({sending})
                work.end("the receiver was closed")
                await stream.end()
                await asyncio.wait({receiving}, timeout=CLOSE_S)
        finally:
            settled.cancel()

    async def _receive(
        self, stream: "Stream[queue_pb2.WorkRequest, queue_pb2.WorkResponse]", work: _WorkStream
    ) -> None:
        topic, codecs, ready = self._request.topic, self._codecs, self._ready
        while (response := await stream.recv_message()) is not None:
            if response.settled or response.errors:
                work.results(response)
            if response.messages and not self._closing.is_set():
                ready.extend(Job(work, topic, each, codecs) for each in response.messages)
                self._arrived.set()


def work_open(
    topic: str,
    group: str,
    *,
    credit: int,
    visibility: Duration | None,
    consumer: str,
    start: str,
) -> queue_pb2.WorkOpen:
    """Return the request that opens a stream. Raises ValueError."""
    if not 1 <= credit <= MAX_CREDIT:
        raise ValueError(f"credit must be from 1 to {MAX_CREDIT}, and {credit} is not")
    if start not in _STARTS:
        raise ValueError(f"start is 'earliest' or 'latest', not {start!r}")
    request = queue_pb2.WorkOpen(
        topic=topic, group=group, credit=credit, consumer=consumer, start=_STARTS[start]
    )
    if visibility is not None:
        request.visibility_ms = duration_ms(visibility)
    return request


def is_refusal(error: BaseException) -> bool:
    """Return whether the broker refused a stream, so that opening it again is of no use."""
    return isinstance(error, GRPCError) and not is_transient(error)
