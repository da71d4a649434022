"""Elements of a dashboard, and queries shared by panels."""

from collections.abc import Mapping
from typing import NamedTuple

# In every selector: the brokers selected at the top of the dashboard.
BROKERS = 'job=~"$job", instance=~"$instance"'


class Query(NamedTuple):
    """A query and the legend of its lines."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A panel: title, Grafana unit and queries."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"


class Row(NamedTuple):
    """A row of panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(NamedTuple):
    """One dashboard file."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    # Label by which panels can be filtered, and a metric that has all its values.
    filters: Mapping[str, str]


def rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{BROKERS}{more}}}[$__rate_interval]))"


def quantile(quantile: float, metric: str, by: str = "", more: str = "") -> str:
    labels = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({quantile}, {rate(f'{metric}_bucket', labels, more)})"


def total(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) ({metric}{{{BROKERS}{more}}})"


def one(title: str, unit: str, expression: str, legend: str) -> Panel:
    return Panel(title, unit, (Query(expression, legend),))


def stat(title: str, unit: str, expression: str) -> Panel:
    return Panel(title, unit, (Query(expression, ""),), "stat")


def latency(title: str, metric: str, more: str = "") -> Panel:
    return Panel(
        title,
        "s",
        tuple(Query(quantile(each, metric, "", more), f"p{each * 100:g}") for each in (0.5, 0.95, 0.99)),
    )


TOPIC = ', topic=~"$topic"'
GROUP = ', group=~"$group", topic=~"$topic"'
USERS = ', topic!~"__.*"'
