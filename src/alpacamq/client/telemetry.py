"""OpenTelemetry, when it is installed: a span per send and per job, and the trace in a header of messages.

Without the package `opentelemetry-api`, or without a tracer provider, nothing happens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from alpacamq.model.records import Header

TRACEPARENT: Final = "traceparent"
_SCOPE: Final = "alpacamq"


class Tracer:
    """Makes spans with the application's tracer provider."""

    @cached_property
    def _api(self) -> Any:
        """The module `opentelemetry`, None if it is not installed."""
        try:
            import opentelemetry.propagate
            import opentelemetry.trace
        except ImportError:
            return None
        return opentelemetry

    @property
    def is_enabled(self) -> bool:
        """Whether OpenTelemetry is installed, and the application has set a tracer provider."""
        if self._api is None:
            return False
        trace = self._api.trace
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    def inject(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return headers with the current trace, unless they name one."""
        if not self.is_enabled or any(each[0] == TRACEPARENT for each in headers):
            return headers
        carrier: dict[str, str] = {}
        self._api.propagate.inject(carrier)
        if not carrier:
            return headers
        return [*headers, *(Header(name, value.encode()) for name, value in carrier.items())]

    @contextmanager
    def sending(self, topic: str) -> Iterator[None]:
        """Span of a send; it is the current one in the block."""
        if not self.is_enabled:
            yield
            return
        trace = self._api.trace
        with trace.get_tracer(_SCOPE).start_as_current_span(
            f"send {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=_attributes(topic, "send"),
        ):
            yield

    @contextmanager
    def processing(
        self, topic: str, group: str, headers: Sequence[tuple[str, bytes | None]]
    ) -> Iterator[None]:
        """Span of a job, in the trace of its message."""
        if not self.is_enabled:
            yield
            return
        carrier = {name: value.decode(errors="replace") for name, value in headers if value is not None}
        parent = self._api.propagate.extract(carrier)
        trace = self._api.trace
        with trace.get_tracer(_SCOPE).start_as_current_span(
            f"process {topic}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes={**_attributes(topic, "process"), "messaging.consumer.group.name": group},
        ):
            yield


def _attributes(topic: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": "alpacamq",
        "messaging.destination.name": topic,
        "messaging.operation.type": operation,
    }


tracer: Final = Tracer()
