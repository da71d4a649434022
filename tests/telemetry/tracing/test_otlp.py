"""Spans as decoded by OpenTelemetry, and their export to a collector that may be unavailable."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status as WireStatus

from alpacamq.telemetry.tracing import ExportSettings, Step, TraceEvent, exporter
from alpacamq.telemetry.tracing.exporter import OtlpExporter, Span, SpanAssembler
from tests.waiting import eventually

from .collector import Collector, attributes, collecting
from .traces import event, trace_id

PUBLISH = [
    event(Step.RECEIVED, at_us=1_000_000, client="shop", key="k"),
    event(Step.PARTITIONED, at_us=1_000_000),
    event(Step.PERSISTED, at_us=1_000_250),
]


def spans(events: list[TraceEvent], assembler: SpanAssembler | None = None) -> list[Span]:
    made = assembler or SpanAssembler()
    return [span for each in events for span in made.add(each)]


@contextmanager
def exporting(collector: Collector, **headers: str) -> Iterator[OtlpExporter]:
    sending = OtlpExporter(
        ExportSettings(
            endpoint=collector.endpoint,
            headers=headers,
            resource={"service.name": "alpacamq", "service.instance.id": "1"},
        )
    )
    sending.open()
    try:
        yield sending
    finally:
        sending.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(exporter, "FIRST_PAUSE_SECONDS", 0.01)


def test_a_publish_is_a_span_from_its_receipt_to_its_being_durable() -> None:
    with collecting() as collector, exporting(collector) as sending:
        for each in PUBLISH:
            sending.put(each)
        eventually(lambda: collector.spans)
    (span,) = collector.spans
    assert span.trace_id.hex() == trace_id(0)
    assert span.span_id.hex() == f"{1:016x}"
    assert span.name == "publish orders"
    assert span.kind == WireSpan.SPAN_KIND_SERVER
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_000_000_000, 1_000_250_000)
    assert [each.name for each in span.events] == [
        "publish.received", "publish.partitioned", "publish.persisted",
    ]  # fmt: skip
    assert attributes(span) == {
        "messaging.system": "alpacamq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "orders/0/0",
        "messaging.kafka.offset": 0,
        "messaging.client.id": "shop",
        "alpacamq.door": "broker",
    }
    (request,) = collector.requests
    assert attributes(request.resource_spans[0].resource)["service.name"] == "alpacamq"
    assert request.resource_spans[0].scope_spans[0].scope.name == "alpacamq.tracing"


@pytest.mark.parametrize(
    ("end", "is_failure"),
    [(Step.ACKED, False), (Step.NACKED, True), (Step.REJECTED, True), (Step.TIMED_OUT, True)],
)
def test_a_delivery_is_a_span_from_the_fetch_to_its_end(end: Step, is_failure: bool) -> None:
    with collecting() as collector, exporting(collector) as sending:
        sending.put(event(Step.FETCHED, at_us=1_000_000, span=2, delivery_count=3))
        sending.put(event(Step.EXTENDED, at_us=1_000_100, span=2, delivery_count=3))
        sending.put(event(end, at_us=1_000_300, span=2, delivery_count=3, reason="no tea"))
        eventually(lambda: collector.spans)
    (span,) = collector.spans
    assert span.name == "receive orders"
    assert [each.name for each in span.events] == ["consume.fetched", "visibility.extended", end.value]
    assert span.end_time_unix_nano - span.start_time_unix_nano == 300_000
    assert attributes(span)["alpacamq.delivery_count"] == 3
    assert (span.status.code == WireStatus.STATUS_CODE_ERROR) is is_failure
    assert (span.status.message == "no tea") is is_failure


def test_moves_and_reads_are_spans_of_no_length() -> None:
    made = spans(
        [event(Step.FETCHED, span=2), event(Step.DEAD_LETTERED, span=3), event(Step.REDRIVEN, span=4)]
    )
    assert [(span.span_id, len(span.events)) for span in made] == [
        (f"{number:016x}", 1) for number in (2, 3, 4)
    ]


def test_a_late_settlement_is_a_child_span() -> None:
    delivery = [event(step, span=2, delivery_count=1) for step in (Step.FETCHED, Step.TIMED_OUT, Step.ACKED)]
    ended, late = spans(delivery)
    assert late.parent_span_id == ended.span_id
    assert late.span_id != ended.span_id


def test_a_restart_in_the_middle_of_a_delivery_leaves_it_one_span() -> None:
    fetched, acked = (event(step, span=2, delivery_count=1) for step in (Step.FETCHED, Step.ACKED))
    with collecting() as collector:
        sending = OtlpExporter(ExportSettings(endpoint=collector.endpoint))
        sending.restore([*PUBLISH, fetched])
        sending.open()
        sending.put(acked)
        eventually(lambda: collector.spans)
        sending.close()
    (span,) = collector.spans
    assert [each.name for each in span.events] == ["consume.fetched", "consume.acked"]


def test_spans_that_never_end_are_evicted() -> None:
    assembler = SpanAssembler(max_open=5)
    made = spans([event(Step.FETCHED, span=number, delivery_count=1) for number in range(1, 9)], assembler)
    assert [span.span_id for span in made] == [f"{number:016x}" for number in (1, 2, 3)]


def test_a_busy_collector_is_retried() -> None:
    with collecting() as collector, exporting(collector, **{"x-key": "secret"}) as sending:
        collector.refusals = [503, 429, 502]
        for each in PUBLISH:
            sending.put(each)
        eventually(lambda: sending.exported == 1)
    assert len(collector.spans) == 1
    assert collector.headers[0]["x-key"] == "secret"
    assert sending.failed == 0


@pytest.mark.parametrize("refusals", [[400], [503] * exporter.ATTEMPTS], ids=["refused", "busy for too long"])
def test_rejected_spans_are_dropped_and_counted(refusals: list[int]) -> None:
    with collecting() as collector, exporting(collector) as sending:
        collector.refusals = refusals
        for each in PUBLISH:
            sending.put(each)
        eventually(lambda: sending.failed == 1)
        for each in PUBLISH:
            sending.put(each)
        eventually(lambda: sending.exported == 1)


def test_an_unavailable_collector_loses_only_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MAX_WAITING", 100)
    with collecting() as collector:
        pass  # its port is closed now
    with exporting(collector) as sending:
        for _ in range(100):
            for each in PUBLISH:
                sending.put(each)
        eventually(lambda: sending.failed > 0)
        assert len(sending._waiting) <= 100
    assert sending.exported == 0
    assert sending.dropped > 0


def test_remaining_spans_are_sent_on_close() -> None:
    with collecting() as collector:
        with exporting(collector) as sending:
            for each in PUBLISH:
                sending.put(each)
        assert len(collector.spans) == 1
