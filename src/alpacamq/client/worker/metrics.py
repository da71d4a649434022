"""Counters of tasks, as text for Prometheus on an optional port."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from alpacamq.client.connect import parse_addresses

from .task import TaskMetrics

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
