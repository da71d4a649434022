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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from alpacamq.cli.commands import connect_http
from alpacamq.cli.output import Output, json_text
from alpacamq.cli.yaml import yaml
from alpacamq.client.http.connection import HttpApi
from alpacamq.model.errors import AlpacaError

from .frame import Key, Size, Sort, View, frame, whole
from .snapshot import Snapshot, SnapshotHistory, sample

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
