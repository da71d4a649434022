"""Records events in memory, and if configured in the trace log and to the exporter."""

from pathlib import Path

import msgspec

from alpacamq.telemetry.logs import get_logger

from .events import Status, Step, TraceEvent
from .exporter import ExportSettings, OtlpExporter
from .recent import RecentTraces
from .store import TraceStore
from .trace_log import LogSettings, TraceLog, last_events

log = get_logger(__name__)


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
        self._traces_total += self._recent.summary(event.trace_id) is None
        self._recent.add(event)
        if self._log is not None:
            self._log.put(event)
        if self._exporter is not None:
            self._exporter.put(event)

    def knows(self, trace_id: str) -> bool:
        """Return whether the trace has recent events."""
        return self._recent.summary(trace_id) is not None

    def waiting(self, topic: str) -> list[TraceEvent]:
        """Return recent schedule events of delayed messages of a topic that are still pending."""
        found = (event for event in self._recent.events() if event.name == Step.SCHEDULED)
        return [event for event in found if event.topic == topic and self._is_delayed(event.trace_id)]

    def _is_delayed(self, trace_id: str) -> bool:
        summary = self._recent.summary(trace_id)
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
