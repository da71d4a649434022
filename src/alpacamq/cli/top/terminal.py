"""Full-screen terminal: reads keys, overwrites the screen, and restores it at the end.

The terminal is restored in all cases: at the end, after an exception or a signal, and while suspended.
"""

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import FrameType
from typing import Any, TypeVar

from alpacamq.cli.cells import Cell, Tint, printable, size_text, span_text, width
from alpacamq.cli.commands import connect_http
from alpacamq.cli.output import Output, json_text
from alpacamq.cli.yaml import yaml
from alpacamq.client.http.connection import HttpApi
from alpacamq.model.errors import AlpacaError

from .snapshot import GroupRow, QueueRow, Snapshot, SnapshotHistory, TopicRow, sample

PARTS = ("all", "topics", "groups", "queues")
_FILTER_CHARACTERS = 100


class Sort(StrEnum):
    """The order of rows: largest first, but names by letter."""

    RATE = "rate"
    SIZE = "size"
    NAME = "name"


class Key(StrEnum):
    """Special keys."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    HOME = "home"
    ESCAPE = "escape"
    ENTER = "enter"
    BACKSPACE = "backspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """State of the view: sort order, filter, scroll position; each key produces a new one."""

    sort: Sort = Sort.RATE
    filter: str = ""
    part: str = PARTS[0]
    scroll: int = 0
    is_paused: bool = False
    is_help: bool = False
    is_typing: bool = False
    is_over: bool = False

    def after(self, key: str, page: int) -> "View":
        """Return the view after a key; `page` is the number of lines of a page."""
        if self.is_typing:
            return self._typed(key)
        if self.is_help and key != "q":
            return replace(self, is_help=False)
        match key:
            case "q":
                return replace(self, is_over=True)
            case "?" | "h":
                return replace(self, is_help=True)
            case "p" | " ":
                return replace(self, is_paused=not self.is_paused)
            case "s":
                order = list(Sort)
                return replace(self, sort=order[(order.index(self.sort) + 1) % len(order)], scroll=0)
            case "/":
                return replace(self, is_typing=True, filter="", scroll=0)
            case Key.ESCAPE:
                return replace(self, filter="", scroll=0)
            case Key.LEFT | Key.RIGHT:
                step = 1 if key == Key.RIGHT else -1
                part = PARTS[(PARTS.index(self.part) + step) % len(PARTS)]
                return replace(self, part=part, scroll=0)
            case Key.UP | Key.DOWN | Key.PAGE_UP | Key.PAGE_DOWN | Key.HOME | "j" | "k":
                return replace(self, scroll=max(0, self.scroll + _steps(key, page)))
            case _:
                return self

    def _typed(self, key: str) -> "View":
        match key:
            case Key.ENTER:
                return replace(self, is_typing=False)
            case Key.ESCAPE:
                return replace(self, is_typing=False, filter="")
            case Key.BACKSPACE:
                return replace(self, filter=self.filter[:-1])
            case _ if len(key) == 1 and key.isprintable() and len(self.filter) < _FILTER_CHARACTERS:
                return replace(self, filter=self.filter + key)
            case _:
                return self


def _steps(key: str, page: int) -> int:
    return {
        Key.UP: -1,
        "k": -1,
        Key.DOWN: 1,
        "j": 1,
        Key.PAGE_UP: -page,
        Key.PAGE_DOWN: page,
        Key.HOME: -(1 << 30),
    }[key]


R = TypeVar("R")

_BARS = "▁▂▃▄▅▆▇█"
_MIN_NAME = 8
HELP = (
    "q            quit",
    "s            sort by rate, size (lag, ready), name",
    "/            show only names with this text; Enter keeps it, Esc clears it",
    "left, right  all, topics, groups or queues only",
    "up, down     scroll; also Page Up, Page Down, Home, j, k",
    "p, space     pause and resume",
    "?            this help; any key leaves it",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the terminal."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class _Column:
    """A column, and the minimum terminal width at which it is shown."""

    title: str
    is_name: bool = False
    from_columns: int = 0


_TOPICS = (
    _Column("topic", is_name=True), _Column("in/s"), _Column("out/s"), _Column("in bytes/s", from_columns=90),
    _Column("messages"), _Column("size"), _Column("partitions", from_columns=80),
)  # fmt: skip
_GROUPS = (
    _Column("group", is_name=True), _Column("topic", is_name=True), _Column("lag"), _Column("trend"),
    _Column("done/s"),
)  # fmt: skip
_QUEUES = (
    _Column("queue", is_name=True), _Column("topic", is_name=True), _Column("ready"), _Column("in flight"),
    _Column("backoff", from_columns=80), _Column("dead", from_columns=90),
    _Column("received/s", from_columns=100), _Column("acked/s"),
)  # fmt: skip


def frame(
    snapshot: Snapshot | None, view: View, size: Size, *, notice: str = "", is_coloured: bool = False
) -> list[str]:
    """Render the whole screen; `notice` is a connection error, if any."""
    head = _head(snapshot, view, notice)
    body = [[Cell(line)] for line in HELP] if view.is_help else _body(snapshot, view, size.columns)
    room = max(size.lines - len(head) - 1, 0)
    scroll = min(view.scroll, max(len(body) - room, 0))
    shown = body[scroll : scroll + room]
    shown += [[] for _ in range(room - len(shown))]
    lines = [*head, *shown, _foot(view)]
    return [_line(cells, size.columns, is_coloured) for cells in lines[: size.lines]]


def whole(snapshot: Snapshot, view: View, columns: int, *, is_coloured: bool) -> list[str]:
    """Render all rows, without a height limit."""
    lines = [*_head(snapshot, view, ""), *_body(snapshot, view, columns)]
    return [_line(cells, columns, is_coloured).rstrip() for cells in lines]


def _head(snapshot: Snapshot | None, view: View, notice: str) -> list[list[Cell]]:
    if snapshot is None:
        return [[Cell(printable(notice) or "connecting …", Tint.BAD if notice else None)], []]
    stats = snapshot.stats
    first = [
        Cell("alpacamq", Tint.STRONG),
        Cell(f" up {span_text(stats.uptime_ms)}  in "),
        Cell(f"{number(snapshot.in_rate)}/s", Tint.ACCENT),
        Cell("  out "),
        Cell(f"{number(snapshot.out_rate)}/s", Tint.ACCENT),
        Cell(f"  {size_text(stats.size_bytes)}  {number(stats.messages)} messages"),
    ]
    trouble = notice or snapshot.trouble
    if trouble:
        return [first, [Cell(printable(trouble), Tint.BAD)]]
    parts = [f"{stats.topics} topics", f"{number(stats.groups)} groups", f"{stats.queues} queues"]
    parts += [f"{number(stats.delayed)} delayed"] if stats.delayed else []
    second = [Cell(", ".join(parts), Tint.FAINT)]
    if view.is_paused:
        second.append(Cell("  paused", Tint.WARNING))
    return [first, second]


def _foot(view: View) -> list[Cell]:
    if view.is_typing:
        return [Cell(f"/{view.filter}", Tint.STRONG), Cell("_  Enter keeps it, Esc clears it", Tint.FAINT)]
    text = f"q quit  s sort: {view.sort}  / filter{f': {view.filter}' if view.filter else ''}"
    return [Cell(f"{text}  <> {view.part}  p pause  ? help", Tint.FAINT)]


def _body(snapshot: Snapshot | None, view: View, columns: int) -> list[list[Cell]]:
    if snapshot is None:
        return []
    parts = {
        "topics": _part("no topics", _TOPICS, _topics(snapshot.topics, view), columns),
        "groups": _part("no groups", _GROUPS, _groups(snapshot.groups, view), columns),
        "queues": _part("no queues", _QUEUES, _queues(snapshot.queues, view), columns),
    }
    return [line for name, lines in parts.items() if view.part in ("all", name) for line in [[], *lines]]


def _topics(rows: Sequence[TopicRow], view: View) -> list[list[Cell]]:
    chosen = _chosen(
        rows,
        view,
        name=lambda each: each.topic,
        rate=lambda each: (each.in_rate or 0) + (each.out_rate or 0),
        size=lambda each: each.size_bytes,
    )
    return [
        [
            Cell(printable(each.topic)),
            _rate(each.in_rate),
            _rate(each.out_rate),
            Cell("-" if each.in_bytes_rate is None else size_text(each.in_bytes_rate)),
            Cell(number(each.messages)),
            Cell(size_text(each.size_bytes)),
            Cell(str(each.partitions)),
        ]
        for each in chosen
    ]


def _groups(rows: Sequence[GroupRow], view: View) -> list[list[Cell]]:
    chosen = _chosen(
        rows,
        view,
        name=lambda each: f"{each.group} {each.topic}",
        rate=lambda each: each.rate or 0,
        size=lambda each: each.lag,
    )
    return [
        [
            Cell(printable(each.group)),
            Cell(printable(each.topic)),
            Cell(number(each.lag), Tint.WARNING if each.lag else Tint.GOOD),
            _trend(each.trend),
            _rate(each.rate),
        ]
        for each in chosen
    ]


def _queues(rows: Sequence[QueueRow], view: View) -> list[list[Cell]]:
    chosen = _chosen(
        rows,
        view,
        name=lambda each: f"{each.group} {each.topic}",
        rate=lambda each: (each.received_rate or 0) + (each.acked_rate or 0),
        size=lambda each: each.ready + each.in_flight,
    )
    return [
        [
            Cell(printable(each.group)),
            Cell(printable(each.topic)),
            Cell(number(each.ready)),
            Cell(number(each.in_flight)),
            Cell(number(each.resting)),
            Cell(number(each.dead_lettered), Tint.BAD if each.dead_lettered else None),
            _rate(each.received_rate),
            _rate(each.acked_rate),
        ]
        for each in chosen
    ]


def _chosen(
    rows: Sequence[R],
    view: View,
    *,
    name: Callable[[R], str],
    rate: Callable[[R], float],
    size: Callable[[R], float],
) -> list[R]:
    found = [each for each in rows if view.filter.lower() in name(each).lower()]
    match view.sort:
        case Sort.NAME:
            return sorted(found, key=name)
        case Sort.RATE:
            return sorted(found, key=lambda each: (-rate(each), name(each)))
        case Sort.SIZE:
            return sorted(found, key=lambda each: (-size(each), name(each)))


def _part(nothing: str, columns: Sequence[_Column], rows: list[list[Cell]], total: int) -> list[list[Cell]]:
    """Render a heading and rows, with names truncated to fit."""
    if not rows:
        return [[Cell(nothing, Tint.FAINT)]]
    shown = [place for place, column in enumerate(columns) if not total or total >= column.from_columns]
    widths = {
        place: max(len(columns[place].title), *(width(row[place].text) for row in rows)) for place in shown
    }
    names = [place for place in shown if columns[place].is_name]
    taken = sum(widths[place] for place in shown if place not in names) + 2 * (len(shown) - 1)
    if total:
        room = max(total - taken, _MIN_NAME * len(names))
        for place in names:
            # The last name gets the width that the others do not need.
            share = room // (len(names) - names.index(place))
            widths[place] = min(widths[place], share)
            room -= widths[place]
    heading = [Cell(columns[place].title.upper(), Tint.STRONG) for place in shown]
    return [_fitted(heading, shown, columns, widths)] + [
        _fitted([row[place] for place in shown], shown, columns, widths) for row in rows
    ]


def _fitted(
    cells: Sequence[Cell], places: Sequence[int], columns: Sequence[_Column], widths: dict[int, int]
) -> list[Cell]:
    line: list[Cell] = []
    for cell, place in zip(cells, places, strict=True):
        text = _cut(cell.text, widths[place])
        gap = Cell(" " * (widths[place] - width(text)))
        padded = [Cell(text, cell.tint), gap] if columns[place].is_name else [gap, Cell(text, cell.tint)]
        line += [*padded, Cell("  ")]
    return line[:-1]


def _line(cells: Sequence[Cell], columns: int, is_coloured: bool) -> str:
    """Join cells to a line, truncated to `columns`; 0 is unlimited."""
    parts = []
    left = columns or 1 << 30
    for cell in cells:
        text = _cut(cell.text, left)
        left -= width(text)
        parts.append(cell.tint.on(text) if is_coloured and cell.tint is not None else text)
    return "".join(parts)


def _cut(text: str, most: int) -> str:
    if width(text) <= most:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > most - 1:
            break
        kept += character
    return f"{kept}…" if most > 0 else ""


def _rate(per_second: float | None) -> Cell:
    if per_second is None:
        return Cell("-", Tint.FAINT)
    return Cell(number(per_second), Tint.ACCENT if per_second else Tint.FAINT)


def _trend(lags: Sequence[int]) -> Cell:
    """Render lag over time as bars, coloured if it grows."""
    most = max(lags)
    bars = "".join(_BARS[lag * (len(_BARS) - 1) // most if most else 0] for lag in lags)
    if lags[-1] > lags[0]:
        return Cell(f"{bars} +", Tint.WARNING)
    return Cell(f"{bars} -" if lags[-1] < lags[0] else f"{bars} =", Tint.GOOD)


def number(value: float | None) -> str:
    """Format a number in at most seven characters: 12,345 or 1.23M."""
    if value is None:
        return "-"
    if value < 100_000:
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    for unit, factor in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if value < factor * 1000 or unit == "T":
            break
    return f"{value / factor:.1f}{unit}"


# Alternate screen without cursor; and back.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE = "\x1b[K"
_CLEAR_REST = "\x1b[J"
_READ_BYTES = 1024
_SEQUENCES = {
    "\x1b[A": Key.UP, "\x1b[B": Key.DOWN, "\x1b[C": Key.RIGHT, "\x1b[D": Key.LEFT,
    "\x1bOA": Key.UP, "\x1bOB": Key.DOWN, "\x1bOC": Key.RIGHT, "\x1bOD": Key.LEFT,
    "\x1b[5~": Key.PAGE_UP, "\x1b[6~": Key.PAGE_DOWN, "\x1b[H": Key.HOME, "\x1b[1~": Key.HOME,
    "\r": Key.ENTER, "\n": Key.ENTER, "\x7f": Key.BACKSPACE, "\b": Key.BACKSPACE,
}  # fmt: skip


class Terminated(Exception):
    """The process received a termination signal."""


class Terminal:
    """Standard input and output on a terminal."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno()
        self._before: list[Any] | None = None
        # Signal handlers write here to wake the wait for keys.
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take over the screen, and restore it afterwards."""
        handlers = {
            signal.SIGWINCH: self._resized,
            signal.SIGTSTP: self._suspended,
            signal.SIGTERM: _end,
            signal.SIGHUP: _end,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take()
        try:
            yield
        finally:
            self._give_back()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_in)
            os.close(self._wake_out)

    @property
    def size(self) -> Size:
        found = shutil.get_terminal_size((80, 24))
        return Size(found.columns, found.lines)

    def show(self, lines: Sequence[str]) -> None:
        """Overwrite the screen without clearing it first, which would flicker."""
        text = f"{_CLEAR_LINE}\r\n".join(lines)
        sys.stdout.write(f"{_HOME}{text}{_CLEAR_LINE}{_CLEAR_REST}")
        sys.stdout.flush()

    def keys(self, within_s: float) -> list[str]:
        """Wait for keys up to a timeout; empty also if the terminal was resized."""
        ready, _, _ = select.select([self._keys, self._wake_in], [], [], max(within_s, 0.0))
        if self._wake_in in ready:
            os.read(self._wake_in, _READ_BYTES)
        if self._keys not in ready:
            return []
        data = os.read(self._keys, _READ_BYTES)
        if not data:
            raise Terminated
        return list(keys_in(data.decode(errors="replace")))

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _give_back(self) -> None:
        if self._before is not None:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
            self._before = None

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        os.write(self._wake_out, b".")

    def _suspended(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Resumed by SIGCONT.
        signal.signal(signal.SIGTSTP, self._suspended)
        self._take()
        self._resized(0, None)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def keys_in(text: str) -> Iterator[str]:
    """Decode keys from the terminal's input."""
    at = 0
    while at < len(text):
        for length in (4, 3, 1):
            if found := _SEQUENCES.get(text[at : at + length]):
                yield found
                at += length
                break
        else:
            if text[at] != "\x1b":
                yield text[at]
                at += 1
            elif at + 1 < len(text) and text[at + 1] in "[O":
                at = _behind_sequence(text, at + 2)
            else:
                yield Key.ESCAPE
                at += 1


def _behind_sequence(text: str, at: int) -> int:
    """Return the end of an unknown escape sequence: after its first letter or tilde."""
    while at < len(text) and not (text[at].isalpha() or text[at] == "~"):
        at += 1
    return at + 1


# Longest wait between the two samples of --once.
_ONCE_S = 1.0
_HEAD_LINES = 3
# Redraw interval when no key is pressed.
_TICK_S = 0.25


def print_snapshots(parsed: argparse.Namespace, output: Output) -> None:
    """Print one snapshot, or one per interval."""
    history = SnapshotHistory()
    interval_s = parsed.interval / 1000
    with connect_http(parsed) as api:
        history.add(sample(api, time.monotonic()))
        while True:
            time.sleep(min(interval_s, _ONCE_S) if parsed.once else interval_s)
            _print(history.add(sample(api, time.monotonic())), parsed, output)
            if parsed.once:
                return
            sys.stdout.flush()


def _print(snapshot: Snapshot, parsed: argparse.Namespace, output: Output) -> None:
    match output.form:
        case "json":
            print(json_text(snapshot.plain(), indent=2 if parsed.once else None))
        case "yaml":
            print(yaml(snapshot.plain()) if parsed.once else f"---\n{yaml(snapshot.plain())}")
        case _:
            columns = shutil.get_terminal_size((0, 0)).columns
            view = View(sort=Sort(parsed.sort), filter=parsed.filter)
            print("\n".join(whole(snapshot, view, columns, is_coloured=output.is_coloured)))


def watch(parsed: argparse.Namespace, output: Output) -> None:
    """Show a live view until the user quits."""
    interval_s = parsed.interval / 1000
    with connect_http(parsed) as api:
        # Before taking over the screen, so that a connection error is printed normally.
        first = SnapshotHistory().add(sample(api, time.monotonic()))
    terminal = Terminal()
    observer = _Observer(parsed, interval_s, first)
    observer.start()
    view = View(sort=Sort(parsed.sort), filter=parsed.filter)
    snapshot: Snapshot | None = first
    try:
        with terminal.taken():
            while not view.is_over:
                if not view.is_paused:
                    snapshot = observer.snapshot
                size = terminal.size
                terminal.show(
                    frame(snapshot, view, size, notice=observer.notice, is_coloured=output.is_coloured)
                )
                for key in terminal.keys(min(interval_s, _TICK_S)):
                    view = view.after(key, max(size.lines - _HEAD_LINES, 1))
    except Terminated:
        pass
    finally:
        observer.stop()


class _Observer:
    """Samples the broker in a thread, so that keys work while the broker does not answer."""

    def __init__(self, parsed: argparse.Namespace, interval_s: float, first: Snapshot) -> None:
        self.snapshot = first
        self.notice = ""
        self._parsed = parsed
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._observe, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _observe(self) -> None:
        history = SnapshotHistory()
        with connect_http(self._parsed) as api:
            while not self._stopped.is_set():
                self._look(api, history)
                self._stopped.wait(self._interval_s)

    def _look(self, api: HttpApi, history: SnapshotHistory) -> None:
        try:
            seen = history.add(sample(api, time.monotonic()))
        except AlpacaError as error:
            self.notice = str(error)
        else:
            self.snapshot, self.notice = seen, ""
