"""Being asked to stop: a first Ctrl-C or SIGTERM asks, a second ends whatever is being done.

Spark's own handler would cancel the jobs of the batch that is being written; ours lets it end.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether a run was asked to end, and by what."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """End when the batch that is being written is done."""
        self._asked.set()

    def wait(self, timeout_s: float) -> bool:
        """Pause; True as soon as the run is asked to end."""
        return self._asked.wait(timeout_s)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take signals for it, where this thread is one that gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            self.signal = number
            if self.is_asked:
                raise KeyboardInterrupt
            self.ask()

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
