"""OpenTelemetry: spans of sends and jobs in one trace, if it is installed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import alpacamq
from alpacamq import aio
from alpacamq.client.telemetry import Tracer
from alpacamq.model.records import Header

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    provider = sdk.TracerProvider()
    exporter = memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    # Not set_tracer_provider: that is for good, and other tests have none.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def test_a_job_is_in_the_trace_of_its_send(mq: aio.Client, url: str, topic: str, exporter: Any) -> None:
    with trace.get_tracer("test").start_as_current_span("request") as request:
        await mq.topic(topic, value=str).send("traced")
    app = alpacamq.Worker(url)
    current: list[Any] = []

    @app.task(topic, group="workers")
    async def work(value: str) -> None:
        current.append(trace.get_current_span().get_span_context())
        app.stop()

    await asyncio.wait_for(app.run_async(), 60)
    spans = {each.name: each for each in exporter.get_finished_spans()}
    send, process = spans[f"send {topic}"], spans[f"process {topic}"]
    assert send.parent.span_id == request.get_span_context().span_id
    assert process.parent.span_id == send.context.span_id
    assert current[0].trace_id == request.get_span_context().trace_id
    assert process.attributes["messaging.consumer.group.name"] == "workers"


def test_a_trace_of_the_application_is_kept(exporter: Any) -> None:
    own = [Header("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    with trace.get_tracer("test").start_as_current_span("request"):
        assert Tracer().inject(own) == own
