"""The real clock."""

import time

from alpacamq.model.ids import TimestampMs


class SystemClock:
    """The machine's time."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()
