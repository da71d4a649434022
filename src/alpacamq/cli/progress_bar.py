"""How far long work has come: a bar on standard error, where that is a terminal, and nothing elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable

_EVERY_S = 0.1
_BAR = 24
_CLEAR = "\r\x1b[K"


class ProgressBar:
    """One line that is written over: a bar where the total is known, what is done so far otherwise."""

    def __init__(self, what: str, total: int | None, show: Callable[[float], str] = "{:,.0f}".format) -> None:
        self._what = what
        self._total = total
        self._show = show
        self._is_shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next = self._started + _EVERY_S
        self._is_open = False

    def at(self, done: float) -> None:
        """So much is done."""
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _EVERY_S
        columns = shutil.get_terminal_size((80, 24)).columns
        sys.stderr.write(_CLEAR + self._text(done, now)[: columns - 1])
        sys.stderr.flush()
        self._is_open = True

    def end(self) -> None:
        """Take the line away: the result follows."""
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
        # What is cut off where there is little room comes last.
        return f"[{bar}] {share:4.0%}  {so_far}, {max(left_s, 0):.0f} s left  {self._what}"
