"""Worker applications: tasks, which are functions for the messages of a topic, and running them.

app = alpacamq.Worker("alpaca://localhost")

@app.task("emails", group="mailer", concurrency=20, retries=5, timeout="30s")
async def send_mail(mail: Mail) -> None: ...
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from alpacamq.client.aio.client import Client, codecs_of, connect
from alpacamq.client.codecs import Codec
from alpacamq.client.connect import parse_addresses
from alpacamq.client.errors import ClientError
from alpacamq.client.outcomes import Duration, duration_ms
from alpacamq.client.url import Token

from .task import Task, TaskMetrics, parameters_of, value_type_of

_REQUEST_S: Final = 5.0
_MAX_REQUEST_BYTES: Final = 8192
_DEFAULT_PORT: Final = 9100


_OUTCOMES: Final = ("succeeded", "retried", "rejected", "released", "unsettled")


def exposition(metrics: Mapping[str, TaskMetrics]) -> str:
    """Return the metrics in Prometheus' text format."""
    lines = [
        "# HELP alpacamq_worker_messages_total Messages by outcome.",
        "# TYPE alpacamq_worker_messages_total counter",
    ]
    for each in metrics.values():
        lines += [
            f'alpacamq_worker_messages_total{{{_labels(each)},outcome="{outcome}"}} {getattr(each, outcome)}'
            for outcome in _OUTCOMES
        ]
    for name, kind, text in (
        ("running", "gauge", "Messages that are being processed."),
        ("timed_out", "counter", "Messages that took longer than the timeout."),
        ("busy_ms", "counter", "Milliseconds spent in the function, of all messages together."),
    ):
        metric = f"alpacamq_worker_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
        lines += [f"{metric}{{{_labels(each)}}} {getattr(each, name)}" for each in metrics.values()]
    return "\n".join(lines) + "\n"


def _labels(metrics: TaskMetrics) -> str:
    return f'task="{metrics.task}",topic="{metrics.topic}",group="{metrics.group}"'


class MetricsServer:
    """Serves GET of any path with the metrics; does nothing without an address."""

    def __init__(self, address: str | None, metrics: Mapping[str, TaskMetrics]) -> None:
        self._address = None if address is None else parse_addresses(address, _DEFAULT_PORT)[0]
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if self._address is not None:
            self._server = await asyncio.start_server(
                self._serve, self._address.host, self._address.port, limit=_MAX_REQUEST_BYTES
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for each in self._connections:
                each.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(_REQUEST_S):
                await reader.readuntil(b"\r\n\r\n")
                body = exposition(self._metrics).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the scraper is gone, or is none
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("alpacamq.worker")

DEFAULT_CONCURRENCY: Final = 10
_MAX_CONCURRENCY: Final = 10_000


class Worker:
    """An application of tasks. `run` processes messages until SIGTERM or SIGINT, or `stop`.

    The options are those of `connect`. `grace` is how long tasks that run may take to end after a stop; the
    messages of those that do not end, and of those that have not begun, are delivered to others.
    """

    def __init__(
        self,
        url: str = "alpaca://localhost",
        *,
        token: Token | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        kafka: str | None = None,
        client_id: str = "alpacamq-worker",
        timeout: Duration = 30.0,
        grace: Duration = 30.0,
    ) -> None:
        self._connect: Callable[[], Client] = lambda: connect(
            url,
            token=token,
            ca=ca,
            certificate=certificate,
            key=key,
            kafka=kafka,
            client_id=client_id,
            timeout=timeout,
        )
        self._connect()  # raises InvalidUrl here, not when it runs
        self._grace_s = duration_ms(grace) / 1000
        self._tasks: dict[str, Task] = {}
        self._metrics: dict[str, TaskMetrics] = {}
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks of the application."""
        return tuple(self._tasks.values())

    @property
    def metrics(self) -> Mapping[str, TaskMetrics]:
        """Counters by task."""
        return self._metrics

    def task(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = DEFAULT_CONCURRENCY,
        prefetch: int = 0,
        retries: int | None = None,
        timeout: Duration | None = None,
        visibility: Duration = 30.0,
        value: type[Any] | Codec[Any] | None = None,
        key: type[Any] | Codec[Any] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> Callable[[F], F]:
        """Make a function process the messages of a topic in a group. The function itself is not changed.

        It gets the value, of the type of its first parameter unless `value` says otherwise, and the job if it
        has a second parameter. Coroutine functions run in the event loop, `concurrency` at a time; others in
        as many threads. Returning acknowledges the message; Reject makes it a dead letter; any other
        exception, and Retry, has it delivered again after a backoff. A value that cannot be decoded is
        rejected.

        With `retries`, a message that fails becomes a dead letter after so many further deliveries: the
        worker sets the limit of the queue when it starts. Otherwise the queue's own limit counts. `timeout`
        is the time that the function has; a thread cannot be stopped, and runs on. `visibility` is the lease,
        which is extended while the function runs. `prefetch` messages are leased beyond `concurrency`, so
        that short tasks need not wait for the broker.
        """
        if not 1 <= concurrency <= _MAX_CONCURRENCY or not 0 <= prefetch <= _MAX_CONCURRENCY - concurrency:
            raise ValueError(
                f"concurrency and prefetch are at most {_MAX_CONCURRENCY} together, and at least 1"
            )
        if retries is not None and retries < 0:
            raise ValueError("retries must not be negative")

        def register(function: F) -> F:
            name = f"{function.__module__}.{function.__qualname__}"
            if name in self._tasks:
                raise ValueError(f"the task {name} is defined twice")
            parameters = parameters_of(function)
            self._tasks[name] = Task(
                name=name,
                function=function,
                topic=topic,
                group=group,
                codecs=codecs_of(value_type_of(function, parameters) if value is None else value, key),
                concurrency=concurrency,
                prefetch=prefetch,
                retries=retries,
                timeout_s=None if timeout is None else duration_ms(timeout) / 1000,
                visibility_s=duration_ms(visibility) / 1000,
                start=start,
                takes_job=len(parameters) > 1,
            )
            self._metrics[name] = TaskMetrics(task=name, topic=topic, group=group)
            return function

        return register

    def run(self, *, metrics: str | None = None) -> None:
        """Process messages until SIGTERM, SIGINT or `stop`. `metrics` is HOST:PORT for Prometheus."""
        try:
            import uvloop
        except ImportError:
            asyncio.run(self.run_async(metrics=metrics, handle_signals=True))
        else:
            uvloop.run(self.run_async(metrics=metrics, handle_signals=True))

    async def run_async(self, *, metrics: str | None = None, handle_signals: bool = False) -> None:
        """Process messages until `stop`, or until this is cancelled."""
        if not self._tasks:
            raise ValueError("the worker has no tasks: decorate functions with @app.task(…)")
        from .runner import TaskRunner  # loads gRPC

        self._stopping = stopping = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        if handle_signals:
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(each, self._signalled)
        try:
            async with self._connect() as client, MetricsServer(metrics, self._metrics):
                runners = [
                    TaskRunner(client, task, self._metrics[task.name], grace_s=self._grace_s)
                    for task in self.tasks
                ]
                log.info("worker started: %s", ", ".join(self._tasks))
                try:
                    async with asyncio.TaskGroup() as group:
                        for runner in runners:
                            group.create_task(runner.run(stopping))
                except* ClientError as failed:
                    raise _first_of(failed) from None
                log.info("worker stopped")
        finally:
            self._stopping = self._loop = None
            if handle_signals:
                for each in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(each)

    def stop(self) -> None:
        """Take no more messages, let running tasks end within the grace, and stop. From any thread."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            loop.call_soon_threadsafe(stopping.set)

    def _signalled(self) -> None:
        assert self._stopping is not None
        if self._stopping.is_set():
            log.warning("stopping at once")
            for each in asyncio.all_tasks():
                each.cancel()
        self._stopping.set()


def _first_of(group: BaseExceptionGroup[ClientError]) -> ClientError:
    """Return the first error of a group: that of one task ended the others."""
    error: ClientError | BaseExceptionGroup[ClientError] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
