"""Records events in memory, and if configured in the trace log and to the exporter."""

import threading
import time
from collections import deque
from pathlib import Path

import msgspec

from alpacamq.telemetry.logs import get_logger

from .events import Status, Step, TraceEvent, TraceKey, now_us, scope_of
from .exporter import ExportSettings, OtlpExporter
from .log_files import LogFile, expired_files, lines_of, log_files, read_event
from .store import RecentTraces, TraceStore

log = get_logger(__name__)

FILE_BYTES = 10 << 20
MAX_WAITING = 20_000
# Time for which events are collected before they are written.
GATHER_SECONDS = 0.01
# Interval of retention checks while idle.
IDLE_SECONDS = 60.0
_CLOSE_SECONDS = 10.0


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Directory and retention of the log."""

    directory: Path
    max_bytes: int
    retention_ms: int
    file_bytes: int = FILE_BYTES


class TraceLog:
    """Appends events. Its thread is started by `open` or by the first event, and ended by `close`."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._waiting: deque[TraceEvent] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="trace-log", daemon=True)
        self._file: LogFile | None = None
        self._size = 0
        self._is_torn = False
        self._is_failing = False
        self._encode = msgspec.json.Encoder().encode
        self.dropped = 0
        self.written = 0

    @property
    def files(self) -> list[LogFile]:
        """Files of the log, oldest first."""
        return log_files(self._settings.directory)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def open(self) -> None:
        """Continue after the last event before the restart. Blocking."""
        if files := self.files:
            self._file = files[-1]
            self._size = self._file.size_bytes
            self._is_torn = self._ends_torn(self._file)
            self._thread.start()

    def close(self) -> None:
        """Write the rest and stop the thread. Blocking."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def put(self, event: TraceEvent) -> None:
        """Queue an event to be written."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(event)
        if not self._wake.is_set():
            self._wake.set()
            if self._thread.ident is None:  # started with the first event
                self._thread.start()

    def _run(self) -> None:
        self._delete_old()
        while not self._is_closing or self._waiting:
            if not self._wake.wait(IDLE_SECONDS):
                self._delete_old()
                continue
            if not self._is_closing:
                # Events added from here on need not wake the thread again.
                time.sleep(GATHER_SECONDS)
            self._wake.clear()
            self._write_waiting()

    def _write_waiting(self) -> None:
        lines: list[bytes] = []
        size = 0
        for _ in range(len(self._waiting)):
            event = self._waiting.popleft()
            lines.append(self._encode(event))
            size += len(lines[-1]) + 1
            if size + self._size >= self._settings.file_bytes:
                self._write(lines)
                self._roll()
                lines, size = [], 0
        if lines:
            self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        data = b"\n".join(lines) + b"\n"
        if self._is_torn:
            data = b"\n" + data
        try:
            if self._file is None:
                self._begin()
            assert self._file is not None
            with self._file.path.open("ab", buffering=0) as stream:
                written = stream.write(data)
                if written != len(data):
                    raise OSError(f"wrote only {written} of {len(data)} bytes")
        except OSError as error:
            self._failed(len(lines), error)
            return
        self._is_torn = self._is_failing = False
        self._size += len(data)
        self.written += len(lines)

    def _failed(self, count: int, error: OSError) -> None:
        self.dropped += count
        self._is_torn = True
        if not self._is_failing:  # logged once, not for every batch
            log.warning("traces_not_written", directory=str(self._settings.directory), reason=str(error))
        self._is_failing = True

    def _begin(self) -> None:
        directory = self._settings.directory
        directory.mkdir(parents=True, exist_ok=True)
        last_us = max((file.begun_us for file in self.files), default=0)
        # File names increase even if the clock is set back.
        self._file = LogFile.named(directory, max(now_us(), last_us + 1))
        self._size = 0
        self._is_torn = False

    def _roll(self) -> None:
        self._file = None
        self._size = 0
        self._delete_old()

    def _delete_old(self) -> None:
        settings = self._settings
        oldest_us = now_us() - settings.retention_ms * 1000
        for file in expired_files(self.files, settings.max_bytes, oldest_us):
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("trace_file_not_deleted", path=str(file.path), reason=str(error))
            else:
                if file == self._file:
                    self._file = None

    @staticmethod
    def _ends_torn(file: LogFile) -> bool:
        try:
            with file.path.open("rb") as stream:
                stream.seek(max(file.size_bytes - 1, 0))
                return stream.read(1) not in (b"", b"\n")
        except OSError:
            return True


def last_events(files: list[LogFile], count: int) -> list[TraceEvent]:
    """Return the last `count` events of the log, in order. Blocking."""
    kept: deque[bytes] = deque(maxlen=count)
    for file in files[-2:]:
        kept.extend(lines_of(file))
    return [event for line in kept if (event := read_event(line)) is not None]


class RecorderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Destinations of events; without a log or an export they are in memory only."""

    directory: Path
    log_bytes: int  # 0: no log
    retention_ms: int
    export: ExportSettings | None = None


class RecorderStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals count since the broker started."""

    ring_events: int
    ring_size: int
    traces: int
    events_total: int
    traces_total: int
    dropped_total: int
    log_files: int
    log_bytes: int
    log_written_total: int
    exported_spans_total: int
    export_failed_spans_total: int
    export_dropped_events_total: int


class Recorder:
    """Records events on the event loop; blocking work runs in its own threads."""

    def __init__(self, settings: RecorderSettings) -> None:
        self._recent = RecentTraces()
        self._log: TraceLog | None = None
        if settings.log_bytes:
            self._log = TraceLog(
                LogSettings(
                    directory=settings.directory,
                    max_bytes=settings.log_bytes,
                    retention_ms=settings.retention_ms,
                )
            )
        self._exporter = None if settings.export is None else OtlpExporter(settings.export)
        self._events_total = self._traces_total = 0
        self.store = TraceStore(self._recent, lambda: [] if self._log is None else self._log.files)

    def open(self) -> list[TraceEvent]:
        """Start, and return the last events recorded before the restart. Blocking."""
        restored: list[TraceEvent] = []
        if self._log is not None:
            try:
                restored = last_events(self._log.files, self._recent.max_events)
                self._log.open()
            except OSError as error:
                log.error("trace_log_not_opened", reason=str(error))
                self._log = None
        self._recent.restore(restored)
        if self._exporter is not None:
            self._exporter.restore(restored)
            self._exporter.open()
        return restored

    def close(self) -> None:
        """Write and send the rest. Blocking."""
        if self._log is not None:
            self._log.close()
        if self._exporter is not None:
            self._exporter.close()

    def record(self, event: TraceEvent) -> None:
        self._events_total += 1
        self._traces_total += self._recent.summary(event.key) is None
        self._recent.add(event)
        if self._log is not None:
            self._log.put(event)
        if self._exporter is not None:
            self._exporter.put(event)

    def knows(self, trace_id: str, topic: str) -> bool:
        """Return whether the trace of a message in a topic has recent events."""
        return self._recent.summary(TraceKey(scope_of(topic), trace_id)) is not None

    def waiting(self, topic: str) -> list[TraceEvent]:
        """Return recent schedule events of delayed messages of a topic that are still pending."""
        found = (event for event in self._recent.events() if event.name == Step.SCHEDULED)
        return [event for event in found if event.topic == topic and self._is_delayed(event)]

    def _is_delayed(self, event: TraceEvent) -> bool:
        summary = self._recent.summary(event.key)
        return summary is not None and summary.status is Status.DELAYED

    def stats(self) -> RecorderStats:
        """Return stats. Reads the log's directory."""
        files = [] if self._log is None else self._log.files
        exporter = self._exporter
        return RecorderStats(
            ring_events=len(self._recent),
            ring_size=self._recent.max_events,
            traces=self._recent.traces,
            events_total=self._events_total,
            traces_total=self._traces_total,
            dropped_total=0 if self._log is None else self._log.dropped,
            log_files=len(files),
            log_bytes=sum(file.size_bytes for file in files),
            log_written_total=0 if self._log is None else self._log.written,
            exported_spans_total=0 if exporter is None else exporter.exported,
            export_failed_spans_total=0 if exporter is None else exporter.failed,
            export_dropped_events_total=0 if exporter is None else exporter.dropped,
        )
