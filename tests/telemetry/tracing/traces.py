"""Sample events for tests."""

from alpacamq.telemetry.tracing import Attribute, Step, TraceEvent


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


def event(
    step: Step = Step.RECEIVED,
    *,
    trace: int = 0,
    at_us: int = 1_000_000,
    span: int = 1,
    offset: int = 0,
    topic: str = "orders",
    **attributes: Attribute,
) -> TraceEvent:
    return TraceEvent(
        trace_id=trace_id(trace),
        span_id=f"{span:016x}",
        at_us=at_us,
        name=step.value,
        topic=topic,
        partition=0,
        offset=offset,
        attributes=attributes,
    )
