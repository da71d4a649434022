"""Progress on standard error: one line that is written over on a terminal, else line by line."""

import sys
from typing import TYPE_CHECKING

from .output import say

if TYPE_CHECKING:
    from alpacamq_spark.pipelines.run import BatchDone

_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Batches as they are done, and sentences between them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self._is_open = False

    def batch(self, done: "BatchDone") -> None:
        lag = "" if done.lag is None else f"  lag {done.lag:,}"
        self.show(
            f"batch {done.batch}  {done.rows:,} rows  {_rate(done.rows_per_second)} rows/s{lag}  "
            f"{done.total_rows:,} in all"
        )

    def show(self, text: str) -> None:
        """How far things are now."""
        if not self.is_terminal:
            say(text)
            return
        sys.stderr.write(_CLEAR + text)
        sys.stderr.flush()
        self._is_open = True

    def say(self, text: str) -> None:
        self.end()
        say(text)

    def end(self) -> None:
        """Leave the line, so that what follows does not stand behind it."""
        if self._is_open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._is_open = False


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
