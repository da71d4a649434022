"""The report of analytics: one page that needs nothing outside of it, light or dark as its reader has it."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from .figures import Figures, TopicFigures, WindowFigures
from .moments import show_moment, show_span
from .plots import Series, bar_plot, short, time_plot

_STYLE = Path(__file__).with_name("report.css")


def html_report(name: str, figures: Figures, now_ms: int) -> str:
    """The page."""
    window = show_span(figures.window_ms)
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="about">As of {show_moment(now_ms)}, in windows of {window}. Times are UTC.</p>',
        _topics(figures.topics),
        _figure("Records per second", _over_time(figures.windows, lambda each: each.records_per_s), ""),
        _figure("Bytes per second", _over_time(figures.windows, lambda each: each.bytes_per_s), "B"),
    ]
    for topic in figures.topics:
        body += _topic(topic, figures)
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE.read_text()}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _topics(topics: Sequence[TopicFigures]) -> str:
    head = (
        "topic", "records", "bytes", "records/s", "keys", "size p50", "size p99", "latency p50", "p99", "max",
    )  # fmt: skip
    rows = [
        (
            each.topic,
            f"{each.records:,}",
            short(each.size),
            short(each.records_per_s),
            f"{each.distinct_keys:,}",
            *_ends(each.sizes),
            *_ends(each.latencies, " ms"),
            "–" if each.slowest_ms is None else f"{each.slowest_ms:,} ms",
        )
        for each in topics
    ]
    return _table(head, rows)


def _topic(topic: TopicFigures, figures: Figures) -> list[str]:
    windows = [each for each in figures.windows if each.topic == topic.topic]
    parts = [f"<h2>{escape(topic.topic)}</h2>"]
    if topic.latencies:
        names = ("p50", "p90", "p99")
        lines = [
            Series(name, [(each.start_ms, each.latencies[at]) for each in windows if each.latencies])
            for at, name in enumerate(names)
        ]
        parts.append(_figure("Latency in milliseconds", lines, ""))
    sizes = [
        Series(name, [(each.start_ms, each.sizes[at]) for each in windows if each.sizes])
        for at, name in enumerate(("p50", "p90", "p99"))
    ]
    parts.append(_figure("Size of key and value in bytes", sizes, ""))
    keys = {each.key: each.share for each in figures.keys if each.topic == topic.topic}
    parts.append(
        _bars(f"Most frequent of about {topic.distinct_keys:,} keys, as shares of all records", keys)
    )
    loads = {
        f"partition {each.partition}": each.share for each in figures.partitions if each.topic == topic.topic
    }
    parts.append(_bars("Partitions, as shares of all records", loads))
    return parts


def _over_time(windows: Sequence[WindowFigures], value: Callable[[WindowFigures], float]) -> list[Series]:
    by_topic: dict[str, list[tuple[float, float]]] = {}
    for each in windows:
        by_topic.setdefault(each.topic, []).append((each.start_ms, value(each)))
    return [Series(topic, points) for topic, points in by_topic.items()]


def _figure(caption: str, series: Sequence[Series], unit: str) -> str:
    drawn = time_plot(caption, [each for each in series if each.points], unit)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>" if drawn else ""


def _bars(caption: str, bars: dict[str, float]) -> str:
    drawn = bar_plot(caption, bars)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>" if drawn else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _ends(found: Sequence[int], unit: str = "") -> tuple[str, str]:
    return (f"{found[0]:,}{unit}", f"{found[-1]:,}{unit}") if found else ("–", "–")
