"""Progress on standard error: one line that is overwritten on a terminal, otherwise line by line."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .output import print_message

if TYPE_CHECKING:
    from alpacamq_spark.pipelines.run import BatchDone

_CLEAR = "\r\x1b[K"


# Elsewhere than on a terminal, between two lines; and until a batch that runs is shown.
_LINE_EVERY_S = 5.0


class ProgressLine:
    """Shows completed batches, and messages between them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.is_terminal = sys.stderr.isatty()
        self._now = now
        self._is_open = False
        self._next_at = now()
        # The last text if it was not printed yet.
        self._waiting: str | None = None

    def batch(self, done: "BatchDone") -> None:
        """Show a batch: on a terminal at once, elsewhere as a line every few seconds."""
        lag = "" if done.lag is None else f"  lag {done.lag:,}"
        self._show_in_turn(
            f"batch {done.batch}  {done.rows:,} rows  {_rate(done.rows_per_second)} rows/s{lag}  "
            f"{done.total_rows:,} in all"
        )

    def running(self, elapsed_s: float) -> None:
        """Show that a batch has been running for some time."""
        if not self.is_terminal:
            if self._now() < self._next_at:
                return
            self._print_waiting()
        if elapsed_s >= _LINE_EVERY_S and (self.is_terminal or self._now() >= self._next_at):
            self._show_in_turn(f"a batch has been running for {elapsed_s:,.0f} s")

    def show(self, text: str) -> None:
        """Show the current progress."""
        if not self.is_terminal:
            print_message(text)
            return
        sys.stderr.write(_CLEAR + text)
        sys.stderr.flush()
        self._is_open = True

    def say(self, text: str) -> None:
        self.end()
        print_message(text)

    def end(self) -> None:
        """End the line, so that further output starts on a new one."""
        self._print_waiting()
        if self._is_open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._is_open = False

    def _show_in_turn(self, text: str) -> None:
        if self.is_terminal:
            self.show(text)
            return
        self._waiting = text
        if self._now() >= self._next_at:
            self._print_waiting()

    def _print_waiting(self) -> None:
        if self._waiting is not None:
            print_message(self._waiting)
            self._waiting = None
            self._next_at = self._now() + _LINE_EVERY_S


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


_EVERY_S = 0.1
_BAR = 24


class ProgressBar:
    """One line that is overwritten: a bar if the total is known, otherwise the amount done."""

    def __init__(self, what: str, total: int | None, show: Callable[[float], str] = "{:,.0f}".format) -> None:
        self._what = what
        self._total = total
        self._show = show
        self._is_shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next = self._started + _EVERY_S
        self._is_open = False

    def at(self, done: float) -> None:
        """Update the amount done."""
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _EVERY_S
        columns = shutil.get_terminal_size((80, 24)).columns
        sys.stderr.write(_CLEAR + self._text(done, now)[: columns - 1])
        sys.stderr.flush()
        self._is_open = True

    def end(self) -> None:
        """Clear the line; the result follows."""
        if self._is_open:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_open = False

    def _text(self, done: float, now: float) -> str:
        rate = done / max(now - self._started, 1e-9)
        so_far = f"{self._show(done)}, {self._show(rate)}/s"
        if not self._total:
            return f"{so_far}  {self._what}"
        share = min(done / self._total, 1.0)
        bar = ("#" * int(share * _BAR)).ljust(_BAR, ".")
        left_s = (self._total - done) / rate if rate > 0 else 0.0
        # The least important part comes last, where narrow terminals truncate the line.
        return f"[{bar}] {share:4.0%}  {so_far}, {max(left_s, 0):.0f} s left  {self._what}"
