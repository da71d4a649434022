"""The time of events: microseconds since 1970."""

import time


def now_us() -> int:
    return time.time_ns() // 1000
