"""Queue mode over gRPC: a stream that delivers jobs and settles them.

A receiver keeps one stream `Queue.Work` open and opens it again when it is cut. Settlements of one turn of
the event loop are sent as one message. What was sent and not confirmed before a cut is unknown; what was not
sent is certainly not settled. A stream that ends returns the leases of its jobs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, assert_never

from grpclib.client import Stream
from grpclib.const import Status

from alpacamq.client.errors import ClientError, Closed, Unreachable
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
from alpacamq.v1 import messages_pb2, queue_pb2
from alpacamq.v1.queue_grpc import QueueStub

from .cluster import Backoff
from .grpc import FAILURES, MAX_BACKOFF_S, failure_of, is_transient
from .session import Session

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

_MAX_RETRIES: Final = 10
# Codes of results after which a settlement is sent again: the broker that has the queue is not known or busy.
_RETRIED: Final = frozenset(
    {
        Status.UNAVAILABLE.value,
        Status.ABORTED.value,
        Status.DEADLINE_EXCEEDED.value,
        Status.RESOURCE_EXHAUSTED.value,
    }
)
WorkCall: TypeAlias = "Stream[queue_pb2.WorkRequest, queue_pb2.WorkResponse]"

_PRIORITIES: Final = {
    messages_pb2.PRIORITY_CRITICAL: "critical",
    messages_pb2.PRIORITY_HIGH: "high",
    messages_pb2.PRIORITY_LOW: "low",
    messages_pb2.PRIORITY_BACKGROUND: "background",
}
_STARTS: Final = {"earliest": messages_pb2.START_EARLIEST, "latest": messages_pb2.START_LATEST}


class _Kind(Enum):
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    RELEASE = "release"


class Settlement:
    """A settlement on its way. Await it for its result; it is sent whether it is awaited or not.

    A failure that is not awaited is logged.
    """

    __slots__ = (
        "_delay_ms", "_delivery_id", "_error", "_is_done", "_is_sent", "_kind", "_on_error", "_place",
        "_reason", "_retries", "_waiters",
    )  # fmt: skip

    def __init__(self, job: "Job[Any]", kind: _Kind, delay_ms: int | None, reason: str) -> None:
        self._place = (job.topic, job.partition, job.offset)
        self._delivery_id = job._delivery_id
        self._kind = kind
        # Of a nack or an extension.
        self._delay_ms = delay_ms
        self._reason = reason
        self._is_sent = False
        self._retries = 0
        self._is_done = False
        self._error: SettlementError | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._on_error: Callable[[SettlementError], object] | None = None

    def done(self) -> bool:
        """Return whether the result is known, or known to be lost."""
        return self._is_done

    def on_error(self, callback: Callable[[SettlementError], object]) -> None:
        """Call this if the settlement fails, instead of logging it."""
        if self._error is not None:
            callback(self._error)
        else:
            self._on_error = callback

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            yield from waiter
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        self._is_done = True
        if self._waiters is not None:
            for each in self._waiters:
                if not each.done():
                    each.set_result(None)

    def _fail(self, kind: type[SettlementError], why: str) -> None:
        topic, partition, offset = self._place
        self._error = kind(f"{self._kind.value} of {topic}-{partition}@{offset}: {why}")
        if self._on_error is not None:
            self._on_error(self._error)
        elif self._waiters is None:
            log.warning("%s", self._error)
        self._finish()


class Job(Message[T]):
    """A leased message. `async with job:` acknowledges it, or returns it if the block raises.

    An exception of the block is raised on, except Retry and Reject, which only say how to settle the message.
    """

    __slots__ = (
        "_delivery_id",
        "_extension",
        "_is_settled",
        "_stream",
        "deadline_ms",
        "delivery_count",
        "priority",
    )

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
        self._is_settled = False
        self._extension: Settlement | None = None
        # 1 for the first delivery.
        self.delivery_count = delivery.delivery_count
        # When the lease ends, in milliseconds since 1970.
        self.deadline_ms = delivery.deadline_ms
        self.priority = _PRIORITIES.get(delivery.priority, "normal")

    @property
    def is_settled(self) -> bool:
        """Whether a settlement was sent, or is about to be."""
        return self._is_settled

    @property
    def is_leased(self) -> bool:
        """Whether the job is neither settled nor lost with its connection."""
        return not self._is_settled and self._stream.is_open

    def ack(self) -> Settlement:
        """Mark the message as done. Await the result to know that it will not be delivered again."""
        return self._settle(_Kind.ACK)

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> Settlement:
        """Have the message delivered again, after `delay` or the queue's backoff."""
        return self._settle(_Kind.NACK, None if delay is None else duration_ms(delay), reason)

    def reject(self, reason: str = "") -> Settlement:
        """Make the message a dead letter."""
        return self._settle(_Kind.REJECT, None, reason)

    def extend(self, by: Duration) -> Settlement:
        """End the lease this long from now, instead of at its deadline."""
        self._check()
        if self._extension is not None and not self._extension.done():
            return self._extension
        self._extension = Settlement(self, _Kind.EXTEND, duration_ms(by), "")
        self._stream.add(self._extension)
        return self._extension

    def release(self) -> None:
        """Give the message back: it is available to others at once."""
        if self.is_leased:
            self._settle(_Kind.RELEASE)

    @property
    def codecs(self) -> Codecs[T]:
        """The codecs of the topic."""
        return self._codecs

    def _check(self) -> None:
        if self._is_settled:
            raise AlreadySettled(f"{self.place} is settled already")
        if not self._stream.is_open:
            raise LeaseLost(f"{self.place}: its connection was cut, and the message is delivered again")

    def _settle(self, kind: _Kind, delay_ms: int | None = None, reason: str = "") -> Settlement:
        self._check()
        self._is_settled = True
        settlement = Settlement(self, kind, delay_ms, reason[:_MAX_REASON])
        self._stream.add(settlement)
        return settlement

    async def settle_after(self, error: BaseException | None) -> bool:
        """Settle the message as the error of its handler says; return whether the error is dealt with."""
        if self._is_settled:
            return isinstance(error, Retry | Reject)
        match error:
            case None:
                await self.ack()
                return False
            case Reject():
                await self.reject(error.reason or "rejected")
                return True
            case Retry():
                await self._settle(_Kind.NACK, error.after_ms, error.reason)
                return True
            case asyncio.CancelledError() | GeneratorExit() | KeyboardInterrupt() | SystemExit():
                # Not a failure of the handler.
                self.release()
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
        # Of the next message.
        self._next: list[Settlement] = []
        self._credit: int | None = None
        # Without a result, by delivery id. An extension and a settlement of one delivery are never in flight
        # together, because results name deliveries only.
        self._pending: dict[int, Settlement] = {}
        # Settlements that wait for the result of an extension of the same delivery.
        self._after: dict[int, Settlement] = {}
        self._backoff = Backoff(cap_s=MAX_BACKOFF_S)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, settlement: Settlement) -> None:
        """Send a settlement with the next message."""
        self._idle.clear()
        delivery_id = settlement._delivery_id
        if delivery_id in self._pending:
            self._after[delivery_id] = settlement
            return
        self._pending[delivery_id] = settlement
        self._next.append(settlement)
        self._wake.set()

    def set_credit(self, credit: int) -> None:
        """Change the number of unsettled messages."""
        self._credit = credit
        self._wake.set()

    async def send(self, stream: WorkCall) -> None:
        """Send settlements, those of one turn of the event loop together, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._next or self._credit is not None:
                await stream.send_message(self._message())

    def _message(self) -> queue_pb2.WorkRequest:
        request = queue_pb2.WorkRequest()
        if self._credit is not None:
            request.credit, self._credit = self._credit, None
        added, self._next = self._next[:_MAX_FRAME], self._next[_MAX_FRAME:]
        request.ack.extend([each._delivery_id for each in added if each._kind is _Kind.ACK])
        for each in added:
            each._is_sent = True
            match each._kind:
                case _Kind.ACK:
                    pass
                case _Kind.NACK:
                    nack = request.nack.add(delivery_id=each._delivery_id, reason=each._reason)
                    if each._delay_ms is not None:
                        nack.delay_ms = each._delay_ms
                case _Kind.REJECT:
                    request.reject.add(delivery_id=each._delivery_id, reason=each._reason)
                case _Kind.EXTEND | _Kind.RELEASE:  # a lease that ends now is released
                    request.extend.add(delivery_id=each._delivery_id, visibility_ms=each._delay_ms or 0)
                case _:
                    assert_never(each._kind)
        return request

    def results(self, response: queue_pb2.WorkResponse) -> None:
        """Pass results on to those that wait for them."""
        pop = self._pending.pop
        for delivery_id in response.settled:
            if (settlement := pop(delivery_id, None)) is not None:
                settlement._finish()
                self._continue(delivery_id)
        for failure in response.errors:
            if (settlement := pop(failure.delivery_id, None)) is None:
                continue
            if failure.status.code in _RETRIED and settlement._retries < _MAX_RETRIES:
                self._retry(settlement)
                continue
            settlement._fail(LeaseLost, failure.status.message or f"status {failure.status.code}")
            self._continue(failure.delivery_id)
        if not self._pending and not self._after:
            self._idle.set()

    def _continue(self, delivery_id: int) -> None:
        if self._after and (waiting := self._after.pop(delivery_id, None)) is not None:
            self.add(waiting)

    def _retry(self, settlement: Settlement) -> None:
        """Send a settlement again that a broker could not take yet; it was certainly not settled."""
        settlement._retries += 1
        settlement._is_sent = False
        self._pending[settlement._delivery_id] = settlement

        def again() -> None:
            if self.is_open:
                self._next.append(settlement)
                self._wake.set()

        asyncio.get_running_loop().call_later(self._backoff.next_s(), again)

    async def settled(self) -> None:
        """Wait until every settlement has its result."""
        await self._idle.wait()

    def end(self, why: str) -> None:
        """End all settlements that have no result: what was sent is unknown, the rest was not settled."""
        self.is_open = False
        for each in (*self._pending.values(), *self._after.values()):
            if each._is_sent:
                each._fail(SettlementUnknown, f"{why} before the result arrived")
            else:
                each._fail(LeaseLost, f"{why} before it was sent")
        self._pending.clear()
        self._after.clear()
        self._next.clear()
        self._idle.set()


class Receiver(Generic[T]):
    """Delivers the jobs of a queue.

    Iterate over it, best inside `async with`. Leaving the loop or the block returns the leases of jobs
    that are not settled at once. Results of settlements that are on their way are awaited before.
    """

    def __init__(self, session: Session, request: queue_pb2.WorkOpen, codecs: Codecs[T]) -> None:
        self._session = session
        self._nodes = session.nodes
        self._request = request
        self._codecs = codecs
        self._name = f"queue {request.group} of topic {request.topic}"
        self._ready: deque[Job[T]] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._opened = asyncio.Event()
        self._failure: ClientError | None = None
        self._stream: _WorkStream | None = None
        # Whether the broker has answered on the stream that is or was open.
        self._has_heard = False
        self._credit = request.credit
        self._is_paused = False
        self._is_draining = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError(f"{self._name}: a receiver is used once")
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"alpacamq {self._name}")
        self._session.track(self)
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
            async for job in self._jobs():
                yield job
            return
        async with self:
            async for job in self._jobs():
                yield job

    async def _jobs(self) -> AsyncIterator[Job[T]]:
        """Yield jobs until the receiver is drained or closed."""
        while True:
            try:
                job = await self.next()
            except Closed:
                return
            yield job

    async def next(self) -> Job[T]:
        """Return the next job; wait for it. Raises the error that ended the stream."""
        while not self._ready or self._is_draining:
            if self._failure is not None:
                raise self._failure
            if self._closing.is_set() or self._is_draining:
                raise Closed(f"{self._name}: the receiver is closed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and self._ready:
                    self._wake(1)  # another one gets the job
                raise
        return self._ready.popleft()

    def _wake(self, count: int) -> None:
        """Wake so many of those that wait for a job."""
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def take(self, max_jobs: int) -> list[Job[T]]:
        """Return jobs that have arrived already, perhaps none."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(max_jobs, len(ready)))]

    def set_credit(self, credit: int) -> None:
        """Change how many jobs may be unsettled at a time; 0 pauses deliveries."""
        if not 0 <= credit <= MAX_CREDIT:
            raise ValueError(f"credit must be from 0 to {MAX_CREDIT}, and {credit} is not")
        self._credit = credit
        self._send_credit()

    def _send_credit(self) -> None:
        if self._stream is not None:
            self._stream.set_credit(self._current_credit)

    @property
    def _current_credit(self) -> int:
        return 0 if self._is_paused or self._is_draining else self._credit

    def pause(self) -> int:
        """Receive no jobs until `resume`: give back those that were not taken, and return their number."""
        self._is_paused = True
        self._send_credit()
        return self._give_back()

    def resume(self) -> None:
        """Receive jobs again after `pause`."""
        if self._is_paused:
            self._is_paused = False
            self._send_credit()

    def _give_back(self) -> int:
        released = self.take(len(self._ready))
        for each in released:
            each.release()
        return len(released)

    def drain(self) -> int:
        """Take no more jobs: give back those that were not taken, and return their number.

        `next` raises Closed from now on. Jobs that were taken can be settled until the receiver is closed.
        """
        self._is_draining = True
        self._send_credit()
        released = self._give_back()
        self._wake(len(self._waiters))
        return released

    @property
    def waiting(self) -> Sequence[Job[T]]:
        """The jobs that have arrived and were not taken yet."""
        return self._ready

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
        self._wake(len(self._waiters))
        self._session.forget(self)
        if (task := self._task) is None:
            return
        try:
            if self._stream is not None and not task.done():
                # Bounded by the run itself, see `_finish`.
                await asyncio.wait([task])
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # a bug of ours, if it raises

    async def _run(self) -> None:
        """Keep a stream open until the receiver is closed or the broker refuses it."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + OPEN_S
        backoff = Backoff(cap_s=MAX_BACKOFF_S)
        try:
            while not self._closing.is_set():
                try:
                    await self._work()
                except (*FAILURES, TimeoutError) as error:
                    failure = failure_of(error, self._name)
                    # One that has worked may be refused because its token has expired: try with a new one.
                    if not is_transient(error) and not self._has_heard:
                        self._failure = failure
                        return
                    if not self._opened.is_set() and loop.time() >= give_up_at:
                        self._failure = Unreachable(str(failure))
                        return
                    if self._has_heard:
                        backoff.reset()
                    log.info("%s: connecting again: %s", self._name, failure)
                except ClientError as error:  # of the schema registry
                    if not error.retriable:
                        self._failure = error
                        return
                    log.info("%s: connecting again: %s", self._name, error)
                finally:
                    self._cut()
                try:
                    async with asyncio.timeout(backoff.next_s()):
                        await self._closing.wait()
                except TimeoutError:
                    await self._session.refresh_nodes()
        finally:
            if self._failure is None:
                self._failure = Closed(f"{self._name}: the receiver has ended")
            self._opened.set()
            self._wake(len(self._waiters))

    def _cut(self) -> None:
        """Drop jobs whose stream is gone: the broker delivers them again."""
        if self._stream is not None:
            self._stream.end("the connection was cut")
            self._stream = None
        self._ready.clear()

    async def _work(self) -> None:
        """Open a stream and serve it to its end."""
        self._has_heard = False
        async with self._nodes.connection() as connection:
            method = QueueStub(connection).Work
            async with method.open(metadata=self._nodes.metadata) as stream:
                opening = queue_pb2.WorkRequest(open=self._request)
                if credit := self._current_credit:
                    opening.open.credit = credit
                else:  # which no stream opens with
                    opening.credit = 0
                await stream.send_message(opening)
                # The broker answers with the first message, or with an error: `next` raises it.
                self._stream = work = _WorkStream()
                self._opened.set()
                await self._serve(stream, work)

    async def _serve(self, stream: WorkCall, work: _WorkStream) -> None:
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
        stream: WorkCall,
        work: _WorkStream,
        receiving: "asyncio.Task[None]",
        sending: "asyncio.Task[None]",
    ) -> None:
        """Wait for results of settlements; then end the stream and wait for the broker to do so."""
        self._ready.clear()
        settled = asyncio.get_running_loop().create_task(work.settled())
        try:
            await asyncio.wait(
                {settled, receiving, sending}, timeout=CLOSE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if settled.done() and not receiving.done() and not sending.done():
                sending.cancel()
                await asyncio.wait({sending})
                work.end("the receiver was closed")
                await stream.end()
                await asyncio.wait({receiving}, timeout=CLOSE_S)
            if not receiving.done():
                await stream.cancel()
        finally:
            settled.cancel()

    async def _receive(self, stream: WorkCall, work: _WorkStream) -> None:
        topic, codecs, ready = self._request.topic, self._codecs, self._ready
        while (response := await stream.recv_message()) is not None:
            self._has_heard = True
            if response.settled or response.errors:
                work.results(response)
            if response.messages and not self._closing.is_set():
                jobs = [Job(work, topic, each, codecs) for each in response.messages]
                await self._session.prepare_decoding(codecs, jobs)
                if self._is_draining:
                    for each in jobs:
                        each.release()
                    continue
                ready.extend(jobs)
                self._wake(len(jobs))


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
