"""Message tracing: records the steps of messages in memory and in the trace log, and exports them.

Imports no other package of AlpacaMQ: its interface uses strings and numbers.
"""

from .events import Attribute, ClientApi, Status, Step, TraceEvent, TraceSummary, now_us
from .exporter import ExportSettings
from .recorder import Recorder, RecorderSettings, RecorderStats
from .store import Page, Place, TraceFilter, TraceStore, joined_events
from .trace_context import TraceContext, derived_span_id, derived_trace_id, read_traceparent, read_xray

__all__ = [
    "Attribute",
    "ClientApi",
    "ExportSettings",
    "Page",
    "Place",
    "Recorder",
    "RecorderSettings",
    "RecorderStats",
    "Status",
    "Step",
    "TraceContext",
    "TraceEvent",
    "TraceFilter",
    "TraceStore",
    "TraceSummary",
    "derived_span_id",
    "derived_trace_id",
    "joined_events",
    "now_us",
    "read_traceparent",
    "read_xray",
]
