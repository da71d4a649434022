"""`alpacactl trace`: shows the trace of a message, step by step."""

import argparse
import re
import time
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from .cells import Cell, Tint, age, printable, state
from .commands import connect_http, count, duration, topic_name
from .output import Output, Table
from .parsing import Parser, UsageError
from .yaml import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from alpacamq.client.http.connection import HttpApi
    from alpacamq.wire.messages import TraceOverview, TraceStep, TraceTimeline

LIST = "list"
STATUSES = ("published", "delayed", "in-flight", "acked", "dead-lettered", "expired", "cancelled")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_MESSAGE = re.compile(r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})/([0-9]{1,19})")
_PAUSE_S = 0.5
_BAR_COLUMNS = 16
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TINTS = {
    "consume.acked": Tint.GOOD,
    "consume.nacked": Tint.WARNING,
    "consume.rejected": Tint.BAD,
    "consume.expired": Tint.BAD,
    "visibility.timeout": Tint.WARNING,
    "dlq.routed": Tint.BAD,
    "dlq.redriven": Tint.ACCENT,
}
# Shown in their own column, or not useful to people.
_HIDDEN = frozenset({"topic_id", "deadline_ms"})
_EXAMPLES = (
    "alpacactl trace orders/0/17",
    "alpacactl trace 0af7651916cd43dd8448eb211c80319c -o json",
    "alpacactl trace list --topic orders --status dead-lettered --since 1h",
    "echo tea | alpacactl produce orders --trace",
)


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the trace of a message, step by step, with the time between the steps; or list traces."
    )
    parser.add_argument(
        "message",
        metavar="MESSAGE",
        help="TOPIC/PARTITION/OFFSET or a trace id; `list` lists traces, newest first",
    )
    parser.add_argument("--follow", action="store_true", help="wait for further steps, until Ctrl-C")
    listing = parser.add_argument_group("options of `trace list`")
    listing.add_argument("--topic", type=topic_name, metavar="NAME", help="only traces of this topic")
    listing.add_argument(
        "--status",
        choices=STATUSES,
        metavar="STATUS",
        help=f"only traces with this status: {', '.join(STATUSES)}",
    )
    listing.add_argument(
        "--since",
        type=duration,
        metavar="TIME",
        help="only traces with steps in this last period, such as 15m",
    )
    listing.add_argument(
        "--max", type=count, default=20, metavar="N", help="maximum number of traces (default: 20)"
    )
    parser.set_defaults(run=_trace)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


def _trace(parsed: argparse.Namespace, output: Output) -> None:
    if parsed.message == LIST:
        with connect_http(parsed) as api:
            _list(api, parsed, output)
        return
    if any(value is not None for value in (parsed.topic, parsed.status, parsed.since)):
        raise UsageError("--topic, --status and --since apply to `alpacactl trace list` only")
    with connect_http(parsed) as api:
        trace_id = _trace_id(api, parsed.message)
        if parsed.follow:
            _follow(api, trace_id, output)
        else:
            _show(api, trace_id, output)


def _trace_id(api: "HttpApi", message: str) -> str:
    from alpacamq.client.errors import NotFound
    from alpacamq.client.http.messages import NotTraced, trace_ids_of
    from alpacamq.client.http.names import topic_names

    if _TRACE_ID.fullmatch(message.lower()):
        return message.lower()
    if (place := _MESSAGE.fullmatch(message)) is None:
        raise UsageError(f"{message!r} is neither TOPIC/PARTITION/OFFSET nor the 32 digits of a trace id")
    topic, partition, offset = place[1], int(place[2]), int(place[3])
    if found := trace_ids_of(api, topic, partition, offset):
        return found[0]
    if topic not in (known := topic_names(api)):
        raise NotFound("topic", topic, known)
    raise NotTraced(message, topic)


def _show(api: "HttpApi", trace_id: str, output: Output) -> None:
    from alpacamq.client.http.messages import trace

    found = trace(api, trace_id)
    if output.form != "table":
        output.show(_plain(found))
        return
    times_s = [_seconds(each) for each in found.events]
    total_s = max(times_s) - min(times_s)
    print(f"trace {trace_id}: {found.status}, {_steps(len(found.events))} in {span(total_s)}\n")
    print("\n".join(timeline(found.events, total_s, is_coloured=output.is_coloured)))


def _follow(api: "HttpApi", trace_id: str, output: Output) -> None:
    from alpacamq.client.http.messages import trace

    shown = 0
    while True:
        found = trace(api, trace_id)
        if len(found.events) > shown:
            # Printed steps stay; steps that arrive late are printed with the new ones.
            if output.form == "table":
                lines = timeline(found.events, 0.0, is_coloured=output.is_coloured)
                print("\n".join(lines[shown:]), flush=True)
            else:
                output.show(_plain(found))
            shown = len(found.events)
        time.sleep(_PAUSE_S)


def _list(api: "HttpApi", parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.messages import recent_traces

    if parsed.follow:
        raise UsageError("--follow applies to a single trace")
    since_ms = None if parsed.since is None else max(time.time_ns() // 1_000_000 - parsed.since, 0)
    found = recent_traces(api, parsed.max, topic=parsed.topic, status=parsed.status, since_ms=since_ms)
    output.show(
        [_overview(each) for each in found],
        Table(
            ["trace", "message", "began", "took", "steps", "status"],
            [
                [
                    each.trace_id,
                    _place(each),
                    age(int(_moment(each.started_at) * 1000)),
                    span(each.duration_ms / 1000),
                    each.events,
                    _status(each.status),
                ]
                for each in found
            ],
        ),
    )


def timeline(events: "Sequence[TraceStep]", total_s: float, *, is_coloured: bool) -> list[str]:
    """Format one line per step: time, time since the previous step as text and bar, event, position."""
    times_s = [_seconds(each) for each in events]
    gaps_s = [0.0, *(later - earlier for earlier, later in pairwise(times_s))]
    after = ["" if not place else f"+{span(gap)}" for place, gap in enumerate(gaps_s)]
    bars = [_bar(gap, total_s) for gap in gaps_s]
    columns = [
        [datetime.fromisoformat(each.at).strftime("%H:%M:%S.%f")[:-3] for each in events],
        [text.rjust(max(map(len, after))) for text in after],
        *([bars] if any(bars) else []),
        [each.name for each in events],
        [each.api for each in events],
        [each.place for each in events],
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for place, each in enumerate(events):
        cells = [column[place].ljust(width) for column, width in zip(columns, widths, strict=True)]
        line = "  ".join([*cells, printable(_detail(each))]).rstrip()
        tint = _TINTS.get(each.name) if is_coloured else None
        lines.append(line.replace(each.name, tint.on(each.name), 1) if tint is not None else line)
    return lines


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _bar(gap_s: float, total_s: float) -> str:
    eighths = round(8 * _BAR_COLUMNS * gap_s / total_s) if total_s > 0 else 0
    if not eighths:
        return ""
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _detail(step: "TraceStep") -> str:
    parts = [f"group {step.group}"] if step.group else []
    if step.consumer:
        parts.append(f"consumer {step.consumer}")
    parts += [
        f"{name.replace('_', ' ')} {value}" for name, value in step.attributes.items() if name not in _HIDDEN
    ]
    return ", ".join(parts)


def _place(each: "TraceOverview") -> str:
    return each.topic if each.offset is None else f"{each.topic}/{each.partition}/{each.offset}"


def _status(text: str) -> Cell:
    tint = {"acked": Tint.GOOD, "dead-lettered": Tint.BAD, "expired": Tint.BAD}.get(text)
    return state(text) if tint is None else Cell(text, tint)


def _steps(number: int) -> str:
    return f"{number} step{'' if number == 1 else 's'}"


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _seconds(step: "TraceStep") -> float:
    return _moment(step.at)


def _plain(trace: "TraceTimeline") -> Plain:
    import msgspec

    plain: Plain = msgspec.to_builtins(trace)
    return plain


def _overview(trace: "TraceOverview") -> Plain:
    import msgspec

    plain: Plain = msgspec.to_builtins(trace)
    return plain
