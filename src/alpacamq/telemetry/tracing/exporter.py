"""Export over OTLP/HTTP: a thread that turns events into spans and sends them in batches.

The queue and the number of retries are bounded: an unavailable collector loses spans, which are counted,
and has no other effect.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import msgspec

from alpacamq.telemetry.logs import get_logger

from .events import Attribute, TraceEvent
from .otlp import export_request
from .spans import Span, SpanAssembler

log = get_logger(__name__)

PATH = "/v1/traces"
MAX_WAITING = 20_000
BATCH_SPANS = 512
GATHER_SECONDS = 0.5
TIMEOUT_SECONDS = 10.0
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
# Status codes that OTLP declares retriable.
_PASSING = frozenset({429, 502, 503, 504})
_CLOSE_SECONDS = 5.0
_MAX_ANSWER_BYTES = 64 << 10


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoint, headers and resource attributes."""

    endpoint: str  # http:// or https://, without /v1/traces
    headers: Mapping[str, str] = {}
    resource: Mapping[str, Attribute] = {}


class OtlpExporter:
    """Sends spans. `open` starts its thread and `close` ends it."""

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._waiting: deque[TraceEvent] = deque()
        self._assembler = SpanAssembler()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
        self._is_failing = False
        self.exported = 0
        self.failed = 0  # spans given up
        self.dropped = 0  # events dropped because the queue was full

    def restore(self, events: Iterable[TraceEvent]) -> None:
        """Restore open spans after a restart. Ended spans were exported before."""
        for event in events:
            for _ in self._assembler.add(event):
                pass

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the rest, without retries, and stop the thread. Blocking."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    def put(self, event: TraceEvent) -> None:
        """Queue an event for export once its span is complete."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set() or self._waiting:
            self._wake.wait()
            self._closing.wait(GATHER_SECONDS)
            self._wake.clear()
            spans: list[Span] = []
            for _ in range(len(self._waiting)):
                spans += self._assembler.add(self._waiting.popleft())
                if len(spans) >= BATCH_SPANS:
                    self._send(spans)
                    spans = []
            if spans:
                self._send(spans)

    def _send(self, spans: list[Span]) -> None:
        body = export_request(spans, self._settings.resource)
        pause_seconds = FIRST_PAUSE_SECONDS
        reason = ""
        for attempt in range(ATTEMPTS):
            try:
                status, retry_after = self._post(body)
            except (OSError, HTTPException) as error:
                reason, retry_after = f"{type(error).__name__}: {error}", None
            else:
                if 200 <= status < 300:
                    self.exported += len(spans)
                    self._is_failing = False
                    return
                reason = f"the collector responded with {status}"
                if status not in _PASSING:
                    break
            if attempt == ATTEMPTS - 1 or self._closing.wait(_pause(retry_after, pause_seconds)):
                break
            pause_seconds = min(pause_seconds * 2, MAX_PAUSE_SECONDS)
        self.failed += len(spans)
        if not self._is_failing:  # logged once, not for every batch
            log.warning("spans_not_exported", endpoint=self._settings.endpoint, reason=reason)
        self._is_failing = True

    def _post(self, body: bytes) -> tuple[int, str | None]:
        url = urlsplit(self._settings.endpoint)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        try:
            headers = {**self._settings.headers, "Content-Type": "application/x-protobuf"}
            connection.request("POST", url.path.rstrip("/") + PATH, body, headers)
            response = connection.getresponse()
            response.read(_MAX_ANSWER_BYTES)
            return response.status, response.getheader("Retry-After")
        finally:
            connection.close()


def _pause(retry_after: str | None, otherwise: float) -> float:
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after[:9]), MAX_PAUSE_SECONDS)
    return otherwise
