"""Measures the lag of the event loop, and logs the stack when it stalls.

A task measures how late it wakes. A stalled loop cannot report its own stall, so a watchdog thread
does: once a stall is long, it logs the stack of the loop's thread. If the whole process was stopped
or got no CPU time, the stall is not caused by its own code; the thread detects this by having been
late itself.
"""

import asyncio
import sys
import threading
import time
import traceback

from .logs import get_logger
from .metrics import LOOP_SECONDS, Histogram

log = get_logger(__name__)

INTERVAL_SECONDS = 0.1
STALL_SECONDS = 2.0
_LOOK_SECONDS = 0.25


class EventLoopWatch:
    """Measures one event loop while `run` runs."""

    def __init__(self, stall_seconds: float = STALL_SECONDS) -> None:
        self._stall_seconds = stall_seconds
        self.lag = Histogram(LOOP_SECONDS)
        self.stalls = 0
        self.last_stall_seconds = 0.0
        # By the monotonic clock.
        self.last_stall_at: float | None = None
        self._beat_at = time.monotonic()
        self._thread_id = 0
        self._ended = threading.Event()

    async def run(self) -> None:
        """Measure until cancelled."""
        self._thread_id = threading.get_ident()
        self._beat_at = time.monotonic()
        watcher = threading.Thread(target=self._watch, name="event-loop-watch", daemon=True)
        watcher.start()
        try:
            while True:
                due_at = time.monotonic() + INTERVAL_SECONDS
                await asyncio.sleep(INTERVAL_SECONDS)
                self._woke(due_at)
        finally:
            self._ended.set()

    def seconds_since_stall(self) -> float | None:
        """Return the time since the last stall; None if there was none."""
        return None if self.last_stall_at is None else time.monotonic() - self.last_stall_at

    def _woke(self, due_at: float) -> None:
        now = time.monotonic()
        late = max(now - due_at, 0.0)
        self.lag.observe(late)
        self._beat_at = now
        if late >= self._stall_seconds:
            self.stalls += 1
            self.last_stall_seconds = late
            self.last_stall_at = now
            log.warning("event_loop_stalled", seconds=round(late, 3))

    def _watch(self) -> None:
        """Log the stack of the loop's thread once for every long stall; runs in a thread."""
        told_of_beat = -1.0
        looked_at = time.monotonic()
        while not self._ended.wait(_LOOK_SECONDS):
            now = time.monotonic()
            was_late_too = now - looked_at >= _LOOK_SECONDS + self._stall_seconds / 2
            looked_at = now
            beat_at = self._beat_at
            if now - beat_at < self._stall_seconds or beat_at == told_of_beat or was_late_too:
                continue
            told_of_beat = beat_at
            if (frame := sys._current_frames().get(self._thread_id)) is not None:
                where = "".join(traceback.format_stack(frame))
                log.error("event_loop_blocked", seconds=round(now - beat_at, 3), stack=where)
