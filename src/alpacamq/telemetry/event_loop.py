"""How promptly the event loop turns, and what held it up when it stood still.

A task measures how late it wakes. A stalled loop cannot tell what stalls it, so a thread looks after the
task: once a stall is long, it writes down where the loop's thread is. A process that was stopped as a
whole, or did not get a processor, was not stalled by its own code, and the thread knows that by having
been late itself.
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
    """Measures one event loop for as long as `run` does."""

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
        """Until cancelled."""
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
        """How long ago the loop last stood still; None if it never did."""
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
        """In a thread: say once for every long stall where the loop's thread is."""
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
                log.error("event_loop_stands_still", seconds=round(now - beat_at, 3), stack=where)
