"""Trace contexts: W3C's `traceparent`, AWS's `AWSTraceHeader`, and derived ids.

A derived id depends on its inputs only: later steps find the trace without stored state and without
writing into the record.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

TRACEPARENT = "traceparent"

_VERSION_0_LENGTH = 55
_SAMPLED = 1
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
# Strict: lower-case hexadecimal only. Later versions may have more fields after the flags.
_PARTS = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]*)?")
_XRAY_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_XRAY_PARENT = re.compile(r"[0-9a-f]{16}")
_MAX_XRAY_FIELDS = 16


class TraceContext(NamedTuple):
    """A trace id and the parent span of the next step."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> bytes:
        """Return the value of the header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}".encode()

    def child(self, *parts: str | int) -> "TraceContext":
        """Return the context of a child span with a derived id."""
        return TraceContext(self.trace_id, derived_span_id(self.trace_id, self.span_id, *parts))


def read_traceparent(value: bytes | None) -> TraceContext | None:
    """Parse a traceparent header; None if W3C's rules say to ignore it."""
    if value is None or (found := _PARTS.fullmatch(value)) is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = trace.decode(), span.decode()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def read_xray(value: str) -> TraceContext | None:
    """Parse an `AWSTraceHeader`: Root, Parent and Sampled, in any order."""
    fields = dict(part.strip().partition("=")[::2] for part in value.split(";", _MAX_XRAY_FIELDS))
    root = _XRAY_ROOT.fullmatch(fields.get("Root", ""))
    parent = fields.get("Parent", "")
    if root is None or _XRAY_PARENT.fullmatch(parent) is None or parent == _NO_SPAN:
        return None
    if (trace_id := root[1] + root[2]) == _NO_TRACE:
        return None
    return TraceContext(trace_id, parent, fields.get("Sampled") == "1")


def derived_trace_id(source: bytes, *parts: str | int) -> str:
    """Return the trace id derived from these parts."""
    return blake2b(_joined(parts), digest_size=16, key=source[:64], person=b"alpacamq.trace").hexdigest()


def derived_span_id(trace_id: str, *parts: str | int) -> str:
    """Return the span id derived from these parts."""
    return blake2b(_joined(parts), digest_size=8, key=trace_id.encode(), person=b"alpacamq.span").hexdigest()


def _joined(parts: tuple[str | int, ...]) -> bytes:
    return "\0".join(map(str, parts)).encode(errors="surrogatepass")
