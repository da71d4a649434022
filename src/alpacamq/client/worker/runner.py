"""Runs one task: as many loops as its concurrency, which take jobs, call the function and settle."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from alpacamq.client.aio.client import Client
from alpacamq.client.aio.queue import Job, Receiver, Settlement
from alpacamq.client.codecs import InvalidValue
from alpacamq.client.errors import ClientError, Closed
from alpacamq.client.outcomes import Reject, Retry, SettlementError
from alpacamq.client.telemetry import tracer

from .task import Task, TaskMetrics

log = logging.getLogger("alpacamq.worker")

_MAX_DELIVERIES: Final = "queue.max.deliveries"
# Leases are extended when a third of them has passed.
_EXTENSIONS: Final = 3


class _Thread:
    """A thread that calls functions. It ends with the process: a function that hangs does not hold it up."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Whether no function runs: one that was not waited for to its end may.
        self._idle = asyncio.Event()
        self._idle.set()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until no function runs."""
        await self._idle.wait()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread and return its result. If this is cancelled, the function runs on."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        self._idle.clear()

        def finish(value: Any, error: BaseException | None) -> None:
            self._idle.set()
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def call() -> None:
            value: Any = None
            failure: Exception | None = None
            try:
                value = function()
            except Exception as error:  # noqa: BLE001 - raised in the event loop
                failure = error
                if isinstance(error, StopIteration):  # a future does not take it
                    failure = RuntimeError(f"the function raised {error!r}")
            except BaseException as error:  # noqa: BLE001 - as `sys.exit`, which must end neither thread nor worker
                failure = RuntimeError(f"the function raised {error!r}")
            try:
                loop.call_soon_threadsafe(finish, value, failure)
            except RuntimeError:
                log.warning("a function ended after the worker had stopped")

        self._calls.put(call)
        return await result

    def stop(self) -> None:
        """End the thread as soon as its function has ended."""
        self._calls.put(None)


class TaskRunner:
    """Processes the messages of one task."""

    def __init__(self, client: Client, task: Task, metrics: TaskMetrics, *, grace_s: float) -> None:
        self._client = client
        self._task = task
        self._metrics = metrics
        self._grace_s = grace_s
        self._active: set[Job[Any]] = set()
        # One for each slot, unless the function is a coroutine.
        self._threads: list[_Thread] = []
        # How many of them run functions whose time is over.
        self._overdue = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Process messages until `stopping`; then let functions end within the grace."""
        task = self._task
        # Creates the topic if the broker allows that: a worker may start before the first message is sent.
        await (await self._client.cluster()).topic(task.topic)
        queue_ = self._client.topic_with(task.topic, task.codecs).queue(task.group)
        if task.retries is not None:
            await self._limit_deliveries(task.retries + 1)
        if not task.is_async:
            self._threads = [_Thread(f"{task.name}-{number}") for number in range(task.concurrency)]
        try:
            async with queue_.receive(
                credit=task.concurrency + task.prefetch,
                visibility=task.visibility_s,
                start=task.start,
                consumer=task.name[:255],
            ) as receiver:
                await self._process(receiver, stopping)
        finally:
            for each in self._threads:
                each.stop()

    async def _limit_deliveries(self, deliveries: int) -> None:
        """Set the limit of the queue, so that a message is dead-lettered even if it kills its worker."""
        task = self._task
        queue_ = self._client.topic_with(task.topic, task.codecs).queue(task.group)
        try:
            await queue_.configure({_MAX_DELIVERIES: str(deliveries)})
        except ClientError as error:
            if error.retriable:
                raise
            log.warning(
                "%s: cannot set %s=%d for group %s, so that a lower limit of the queue counts: %s",
                task.name, _MAX_DELIVERIES, deliveries, task.group, error,
            )  # fmt: skip

    async def _process(self, receiver: Receiver[Any], stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        slots = [loop.create_task(self._slot(receiver, number)) for number in range(self._task.concurrency)]
        extending = loop.create_task(self._extend(receiver))
        stop = loop.create_task(stopping.wait())
        tasks: list[asyncio.Task[Any]] = [*slots, extending, stop]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done - {stop}:
                each.result()  # raises why it ended
            self._metrics.released += receiver.drain()
            if self._active:
                log.info("%s: waiting for %d messages", self._task.name, len(self._active))
            await asyncio.wait(slots, timeout=self._grace_s)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _slot(self, receiver: Receiver[Any], number: int) -> None:
        thread = self._threads[number] if self._threads else None
        while True:
            if thread is not None and not thread.is_idle:
                await self._until_idle(receiver, thread)
            try:
                job = await receiver.next()
            except Closed:
                return
            await self._handle(job, thread)

    async def _until_idle(self, receiver: Receiver[Any], thread: _Thread) -> None:
        """Wait for a function that runs on after its time; while all threads do, receive no messages."""
        self._overdue += 1
        if self._overdue == len(self._threads):
            log.warning("%s: all functions run on after their time: no message is received", self._task.name)
            self._metrics.released += receiver.pause()
        try:
            await thread.idle()
        finally:
            self._overdue -= 1
        receiver.resume()

    async def _handle(self, job: Job[Any], thread: _Thread | None) -> None:
        """Call the function and settle the message by how it ends."""
        metrics = self._metrics
        loop = asyncio.get_running_loop()
        started = loop.time()
        metrics.running += 1
        self._active.add(job)
        failure: Exception | None = None
        try:
            await self._call(job, thread)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                job.release()
                metrics.released += 1
                raise
            failure = RuntimeError(
                f"the function raised {error!r}"
            )  # it awaited something that was cancelled
        except Exception as error:  # noqa: BLE001 - a failed message is delivered again
            failure = error
        finally:
            metrics.running -= 1
            metrics.busy_ms += round((loop.time() - started) * 1000)
            self._active.discard(job)
        if job.is_settled:
            return  # by the function itself
        try:
            self._settle(job, failure).on_error(self._unsettled)
        except SettlementError as error:
            self._unsettled(error)

    async def _call(self, job: Job[Any], thread: _Thread | None) -> None:
        task = self._task
        try:
            arguments = (job.value, job) if task.takes_job else (job.value,)
        except InvalidValue as error:
            raise Reject(f"invalid value: {error}") from error
        if not tracer.is_enabled:
            await self._in_time(arguments, thread)
            return
        with tracer.processing(task.topic, task.group, job.raw_headers):
            await self._in_time(arguments, thread)

    async def _in_time(self, arguments: tuple[Any, ...], thread: _Thread | None) -> None:
        timeout_s = self._task.timeout_s
        if timeout_s is None:
            await self._run(arguments, thread)
            return
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                await self._run(arguments, thread)
        except TimeoutError:
            if not timeout.expired():
                raise
            self._metrics.timed_out += 1
            raise Retry(f"not done within {timeout_s:g} s") from None

    async def _run(self, arguments: tuple[Any, ...], thread: _Thread | None) -> None:
        if thread is None:
            await self._task.function(*arguments)
        else:
            await thread.call(partial(self._task.function, *arguments))

    def _settle(self, job: Job[Any], failure: Exception | None) -> Settlement:
        metrics = self._metrics
        if failure is None:
            metrics.succeeded += 1
            return job.ack()
        if isinstance(failure, Reject):
            log.warning("%s: %s is rejected: %s", self._task.name, job.place, failure.reason)
            metrics.rejected += 1
            return job.reject(failure.reason or "rejected")
        if isinstance(failure, Retry):
            reason = failure.reason or "retry"
            delay_s = None if failure.after_ms is None else failure.after_ms / 1000
        else:
            reason, delay_s = f"{type(failure).__name__}: {failure}", None
        # Of a Retry no traceback: it is no accident.
        trace = None if isinstance(failure, Retry) else failure
        log.warning("%s: %s failed: %s", self._task.name, job.place, reason, exc_info=trace)
        if self._task.retries is not None and job.delivery_count > self._task.retries:
            metrics.rejected += 1
            return job.reject(reason)
        metrics.retried += 1
        return job.nack(delay=delay_s, reason=reason)

    def _unsettled(self, error: SettlementError) -> None:
        self._metrics.unsettled += 1
        log.warning("%s: %s", self._task.name, error)

    async def _extend(self, receiver: Receiver[Any]) -> None:
        """Extend the leases of messages that are being processed or wait for it."""
        visibility_s = self._task.visibility_s
        while True:
            await asyncio.sleep(visibility_s / _EXTENSIONS)
            for job in (*self._active, *receiver.waiting):
                if job.is_leased:
                    job.extend(visibility_s).on_error(_ignored)


def _ignored(error: SettlementError) -> None:
    """Ignore the error: the settlement of the message will fail as well, and say so."""
    log.debug("%s", error)
