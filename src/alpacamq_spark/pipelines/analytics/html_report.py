"""The HTML report of analytics: one self-contained page, in the reader's light or dark theme."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import floor, log10
from pathlib import Path

from alpacamq_spark.pipelines.timestamps import format_duration, format_timestamp

from .results import AnalyticsResults, TopicStats, WindowStats

WIDTH, HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
COLOURS = 6
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name and its points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]


def time_plot(title: str, series: Sequence[Series], unit: str) -> str:
    """Draw lines over time, from milliseconds since 1970 to a non-negative value."""
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    left, right = min(at for at, _ in points), max(at for at, _ in points)
    scale = _Scale(left, right if right > left else left + 1, _round_up(max(value for _, value in points)))
    parts = [_open(title), *_grid(scale, unit), *_time_marks(scale)]
    for index, each in enumerate(series):
        path = " ".join(f"{scale.x(at):.1f},{scale.y(value):.1f}" for at, value in each.points)
        colour = f"c{index % COLOURS}"
        if len(each.points) == 1:
            at, value = each.points[0]
            parts.append(f'<circle class="{colour}" cx="{scale.x(at):.1f}" cy="{scale.y(value):.1f}" r="3"/>')
        else:
            parts.append(f'<polyline class="{colour}" points="{path}"/>')
    parts.append("</svg>")
    return "".join(parts) + _legend([each.name for each in series])


def bar_plot(title: str, bars: Mapping[str, float]) -> str:
    """Draw horizontal bars of shares, in the given order."""
    if not bars:
        return ""
    line = 24
    height = line * len(bars) + 8
    most = max(bars.values()) or 1
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">',
    ]
    for index, (name, share) in enumerate(bars.items()):
        y = 4 + index * line
        width = (WIDTH - 320) * share / most
        parts.append(f'<text class="name" x="212" y="{y + 15}">{escape(_cut(name))}</text>')
        parts.append(f'<rect class="c0" x="220" y="{y + 3}" width="{width:.1f}" height="{line - 8}" rx="2"/>')
        parts.append(f'<text x="{226 + width:.1f}" y="{y + 15}">{share:.1%}</text>')
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to coordinates."""

    left: float
    right: float
    top: float

    def x(self, at: float) -> float:
        return _LEFT + (at - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - max(0.0, value) / self.top * (HEIGHT - _TOP - _BOTTOM)


def _open(title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'


def _grid(scale: _Scale, unit: str) -> list[str]:
    parts = []
    for step in range(5):
        value = scale.top * step / 4
        y = scale.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="name" x="{_LEFT - 6}" y="{y + 4:.1f}">{short(value)}{escape(unit)}</text>'
        )
    return parts


def _time_marks(scale: _Scale) -> list[str]:
    form = "%m-%d %H:%M" if scale.right - scale.left < 7 * _DAY_MS else "%Y-%m-%d"
    marks: list[str] = []
    last = ""
    for step in range(5):
        at = scale.left + (scale.right - scale.left) * step / 4
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"
        text = datetime.fromtimestamp(at / 1000, UTC).strftime(form)
        if text != last:  # the range is shorter than the resolution of the marks
            marks.append(f'<text x="{scale.x(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{text}</text>')
        last = text
    return marks


def _legend(names: Sequence[str]) -> str:
    entries = (
        f'<span><i class="c{index % COLOURS}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _round_up(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999_999)


def short(value: float) -> str:
    """Format a number in few characters: 950, 1.5k, 20M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _cut(name: str, length: int = 28) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


_STYLE = Path(__file__).with_name("report.css")


def html_report(name: str, stats: AnalyticsResults, now_ms: int) -> str:
    """Return the page."""
    window = format_duration(stats.window_ms)
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="about">As of {format_timestamp(now_ms)}, in windows of {window}. Times are UTC.</p>',
        _topics(stats.topics),
        _figure("Records per second", _over_time(stats.windows, lambda each: each.records_per_s), ""),
        _figure("Bytes per second", _over_time(stats.windows, lambda each: each.bytes_per_s), "B"),
    ]
    for topic in stats.topics:
        body += _topic(topic, stats)
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE.read_text()}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _topics(topics: Sequence[TopicStats]) -> str:
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


def _topic(topic: TopicStats, stats: AnalyticsResults) -> list[str]:
    windows = [each for each in stats.windows if each.topic == topic.topic]
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
    keys = {each.key: each.share for each in stats.keys if each.topic == topic.topic}
    parts.append(
        _bars(f"Most frequent of about {topic.distinct_keys:,} keys, as shares of all records", keys)
    )
    loads = {
        f"partition {each.partition}": each.share for each in stats.partitions if each.topic == topic.topic
    }
    parts.append(_bars("Partitions, as shares of all records", loads))
    return parts


def _over_time(windows: Sequence[WindowStats], value: Callable[[WindowStats], float]) -> list[Series]:
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
