"""Prometheus' text format, read back by Prometheus' own client."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from alpacamq.api.metrics.exposition import Exposition
from alpacamq.telemetry.metrics import Histogram
from alpacamq.telemetry.metrics_catalogue import Kind, Metric

GAUGE = Metric("some_gauge", Kind.GAUGE, "Says something.", ("one", "two"))
HISTOGRAM = Metric("some_seconds", Kind.HISTOGRAM, "Takes time.", ("api",))
# Any text but what cannot be encoded; the reader splits lines at \r and the like, which is its own affair.
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")) | st.just("\n"))


@given(st.dictionaries(st.tuples(TEXTS, TEXTS), st.integers() | st.floats(allow_nan=False), max_size=5))
def test_numbers_are_read_back_whatever_the_labels_are(samples: dict[tuple[str, ...], float]) -> None:
    text = Exposition()
    text.add(GAUGE, samples)
    families = [*text_string_to_metric_families(text.encode().decode())]
    read = {tuple(each.labels.values()): each.value for family in families for each in family.samples}
    assert read == samples


def test_a_histogram_is_cumulative_and_ends_with_everything() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.75, 0.75, 8.0):
        histogram.observe(value)
    text = Exposition()
    text.histograms(HISTOGRAM, [(("Fetch",), histogram)])
    assert text.encode().decode() == (
        "# HELP some_seconds Takes time.\n"
        "# TYPE some_seconds histogram\n"
        'some_seconds_bucket{api="Fetch",le="0.5"} 1\n'
        'some_seconds_bucket{api="Fetch",le="1.0"} 3\n'
        'some_seconds_bucket{api="Fetch",le="+Inf"} 4\n'
        'some_seconds_sum{api="Fetch"} 9.75\n'
        'some_seconds_count{api="Fetch"} 4\n'
    )


def test_a_metric_without_samples_is_left_out() -> None:
    text = Exposition()
    text.add(GAUGE, {})
    text.histograms(HISTOGRAM, [])
    assert text.encode() == b"\n"
