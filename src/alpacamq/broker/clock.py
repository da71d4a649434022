"""The real clock, and one made of it that does not jump."""

import time

from alpacamq.model.ids import TimestampMs
from alpacamq.model.ports import Clock


class SystemClock:
    """The machine's time."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()


class SteadyClock:
    """Wall time that never jumps: what the wall said at the start, plus what has passed since.

    For deadlines that are stored: they mean the same after a restart, and setting the machine's
    clock does not end every session at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000 + self._ahead_ms)
