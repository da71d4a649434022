"""traceparent (W3C), AWSTraceHeader, and derived ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.telemetry.tracing import (
    TraceContext,
    derived_span_id,
    derived_trace_id,
    read_traceparent,
    read_xray,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEX = st.integers(min_value=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True), id="sampled"),
        pytest.param(f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False), id="not sampled"),
        pytest.param(f"00-{TRACE}-{SPAN}-ff", TraceContext(TRACE, SPAN, True), id="flags not known yet"),
        pytest.param(f"cc-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True), id="a later version"),
        pytest.param(
            f"cc-{TRACE}-{SPAN}-01-what", TraceContext(TRACE, SPAN, True), id="a longer later version"
        ),
        pytest.param(f"00-{TRACE}-{SPAN}-01-what", None, id="version 00 has no more parts"),
        pytest.param(f"cc-{TRACE}-{SPAN}-01.what", None, id="parts are divided by dashes"),
        pytest.param(f"ff-{TRACE}-{SPAN}-01", None, id="version ff is forbidden"),
        pytest.param(f"00-{TRACE.upper()}-{SPAN}-01", None, id="upper case is forbidden"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", None, id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", None, id="no span"),
        pytest.param(f"00-{TRACE[1:]}-{SPAN}-01", None, id="too short"),
        pytest.param(f"00-{TRACE}-{SPAN}-1", None, id="half a flag"),
        pytest.param(f" 00-{TRACE}-{SPAN}-01", None, id="a space before"),
        pytest.param(f"00-{TRACE}-{SPAN}-01\n", None, id="a line end behind"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_traceparent(value: str, expected: TraceContext | None) -> None:
    assert read_traceparent(value.encode()) == expected


@given(st.binary(max_size=80))
def test_any_header_value_parses_to_a_context_or_none(value: bytes) -> None:
    assert read_traceparent(value) is None or len(value) >= 55


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_reads_back_as_it_was_written(trace: int, span: int, is_sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", f"{span:016x}", is_sampled)
    assert read_traceparent(context.traceparent) == context


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1",
            TraceContext("5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8", True),
        ),
        (
            "Parent=53995c3f42cd8ad8;Lineage=a:1; Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=0",
            TraceContext("5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8", False),
        ),
        ("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1", None),
        ("Root=2-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1", None),
        ("", None),
        (";" * 2000, None),
    ],
    ids=["in order", "in any order, with more", "no parent", "another version", "nothing", "all separators"],
)
def test_the_trace_header_of_aws(value: str, expected: TraceContext | None) -> None:
    assert read_xray(value) == expected


def test_derived_ids_depend_on_their_inputs_only() -> None:
    assert derived_trace_id(b"topic", 0, 17) == derived_trace_id(b"topic", 0, 17)
    ids = {
        derived_trace_id(source, *place)
        for source in (b"topic", b"other")
        for place in ((0, 17), (0, 18), (1, 17), (11, 7), ("delayed", 0, 17))
    }
    assert len(ids) == 10
    assert all(read_traceparent(TraceContext(each, SPAN).traceparent) is not None for each in ids)
    assert derived_span_id(TRACE, "a", "bc") != derived_span_id(TRACE, "ab", "c")
