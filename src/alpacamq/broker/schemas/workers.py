"""Runs the processes that check large batches, so that the event loop serves other clients meanwhile.

A thread would not do: checks hold the interpreter's lock. Processes start when there is something to check,
and end with the broker. A process has the next batch at hand while it checks one. A batch during which a
process ends is checked once more by another one, and refused if that ends, too: then it is likely the batch.
A check that takes too long says nothing about the batch, so its producer may try again.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Final

import msgspec

from alpacamq.model.errors import InvalidRecord, SchemasUnavailable
from alpacamq.telemetry.logs import get_logger

from .worker import LENGTH, READY, CheckBatch, CheckedBatch

log = get_logger(__name__)

MAX_PROCESSES: Final = 4
# How long a process may take to start, and to check one batch.
START_SECONDS: Final = 30.0
CHECK_SECONDS: Final = 30.0
ATTEMPTS: Final = 2
# Batches that a process has been sent: the one it checks, and the next.
DEPTH: Final = 2

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CheckedBatch).decode


class _Ended(Exception):
    """A process ended, or had to be ended, before it replied."""


class _TimedOut(_Ended):
    """A process took too long to check a batch."""


class _NotBegun(Exception):
    """A process ended during an earlier batch."""


class _Worker:
    """A running process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin
        self._replies = process.stdout
        # Replies come in the order of requests, in which tasks get the lock.
        self._is_next = asyncio.Lock()
        self._has_ended = False
        self.under_way = 0

    @classmethod
    async def start(cls) -> "_Worker":
        """Start a process, and return once it is ready. Raises SchemasUnavailable."""
        process = None
        try:
            async with asyncio.timeout(START_SECONDS):
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "alpacamq.broker.schemas.worker"), stdin=PIPE, stdout=PIPE
                )
                worker = cls(process)
                if await worker._replies.readexactly(len(READY)) == READY:
                    return worker
                reason = "it does not reply as expected"
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            reason = str(error) or type(error).__name__
        except BaseException:
            if process is not None:
                await cls(process).end()
            raise
        if process is not None:
            await cls(process).end()
        log.error("schema_worker_not_started", reason=reason)
        raise SchemasUnavailable(f"the process that checks records could not be started: {reason}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: CheckBatch) -> CheckedBatch:
        """Return the reply to a request. Raises _Ended, or _NotBegun if it was not this one's turn."""
        message = _encode(request)
        # Without drain(): at most DEPTH requests are pending, and a worker that writes a reply does not read.
        self._requests.write(LENGTH.pack(len(message)))
        self._requests.write(message)
        async with self._is_next:
            if self._has_ended:
                raise _NotBegun
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    (length,) = LENGTH.unpack(await self._replies.readexactly(LENGTH.size))
                    return _decode(await self._replies.readexactly(length))
            except TimeoutError:
                self._has_ended = True
                raise _TimedOut(f"took more than {CHECK_SECONDS:.0f} seconds") from None
            except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
                self._has_ended = True
                raise _Ended(str(error)) from error

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        # A transport that is not closed keeps its pipe until it is collected.
        self._requests.close()
        await self._process.wait()


class Workers:
    """The processes of a broker."""

    def __init__(self, max_processes: int | None = None) -> None:
        self._max_processes = max_processes or max(1, min(MAX_PROCESSES, (os.cpu_count() or 1) - 1))
        self._turns = asyncio.Semaphore(self._max_processes * DEPTH)
        self._choosing = asyncio.Lock()
        self._running: set[_Worker] = set()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._running]

    async def run(self) -> None:
        """Own the processes until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    await asyncio.Event().wait()
                finally:
                    self._tasks = None
        finally:
            for worker in list(self._running):
                await self._end(worker)

    async def check(self, request: CheckBatch) -> CheckedBatch:
        """Check a batch in a process. Raises SchemasUnavailable, and InvalidRecord if none survives it."""
        if self._tasks is None:
            raise SchemasUnavailable("the broker is starting or stopping")
        # A client that leaves does not interrupt the exchange: the process goes on with the next batch.
        exchange = self._tasks.create_task(self._check(request))
        try:
            result = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            if exchange.cancelled():
                raise SchemasUnavailable("the broker is stopping") from None
            raise
        if isinstance(result, Exception):
            raise result
        return result

    async def _check(self, request: CheckBatch) -> CheckedBatch | Exception:
        """Return errors as values: raised, they would end the task group."""
        try:
            async with self._turns:
                attempts = 0
                while attempts < ATTEMPTS:
                    worker = await self._least_busy()
                    worker.under_way += 1
                    try:
                        return await worker.ask(request)
                    except _NotBegun:
                        pass
                    except _Ended as error:
                        attempts += 1
                        log.warning("schema_worker_ended", reason=str(error), batch_bytes=len(request.batch))
                        await self._end(worker)
                        if isinstance(error, _TimedOut):
                            return SchemasUnavailable("checking the batch takes too long; try again")
                    finally:
                        worker.under_way -= 1
            return InvalidRecord("the batch cannot be checked: the process that does it ended twice")
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error

    async def _least_busy(self) -> _Worker:
        # One task at a time: a process that is being started may do for the others.
        async with self._choosing:
            worker = min(self._running, key=lambda each: each.under_way, default=None)
            if worker is None or (worker.under_way and len(self._running) < self._max_processes):
                worker = await self._start()
            return worker

    async def _start(self) -> _Worker:
        worker = await _Worker.start()
        self._running.add(worker)
        log.info("schema_worker_started", pid=worker.pid)
        return worker

    async def _end(self, worker: _Worker) -> None:
        self._running.discard(worker)
        await worker.end()
