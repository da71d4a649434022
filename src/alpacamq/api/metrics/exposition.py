"""Formats metrics as text in Prometheus' format."""

from collections.abc import Iterable, Mapping

from alpacamq.telemetry.metrics import Histogram
from alpacamq.telemetry.metrics_catalogue import Kind, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

# Label values of a metric, in order.
Labels = tuple[str, ...]


class Exposition:
    """Collects metrics, each with all its samples together: HELP and TYPE may occur only once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, metric: Metric, samples: Mapping[Labels, float]) -> None:
        """Add a metric with a number for each combination of labels."""
        assert metric.kind is not Kind.HISTOGRAM
        if samples:
            self._begin(metric)
            self._lines += [
                f"{metric.name}{_labelled(metric.labels, values)} {_number(number)}"
                for values, number in samples.items()
            ]

    def one(self, metric: Metric, number: float | None) -> None:
        """Add a metric without labels, unless its number is None."""
        if number is not None:
            self.add(metric, {(): number})

    def histograms(self, metric: Metric, samples: Iterable[tuple[Labels, Histogram]]) -> None:
        """Add a metric with a histogram for each combination of labels."""
        assert metric.kind is Kind.HISTOGRAM
        found = list(samples)
        if found:
            self._begin(metric)
        for values, histogram in found:
            self._lines += _histogram(metric, values, histogram)

    def encode(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _begin(self, metric: Metric) -> None:
        self._lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]


def _histogram(metric: Metric, values: Labels, histogram: Histogram) -> Iterable[str]:
    below = 0
    names = (*metric.labels, "le")
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        yield f"{metric.name}_bucket{_labelled(names, (*values, bound))} {below}"
    labels = _labelled(metric.labels, values)
    yield f"{metric.name}_sum{labels} {_number(histogram.total)}"
    yield f"{metric.name}_count{labels} {below}"


def _number(number: float) -> str:
    """Format whole numbers without exponent, for human readers."""
    return str(int(number)) if isinstance(number, int) or number.is_integer() else repr(number)


def _labelled(names: tuple[str, ...], values: Labels) -> str:
    if not names:
        return ""
    return (
        "{"
        + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
        + "}"
    )
