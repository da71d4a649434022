"""The system clock, clocks that ignore its jumps for a time or for good, and the clock of the cluster."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from alpacamq.model.ids import TimestampMs
from alpacamq.model.ports import Clock
from alpacamq.model.topics import DAY_MS
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

# A machine whose clock shows less has not set it yet; setting it does not count as a jump.
FIRST_PLAUSIBLE_MS = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
# Longest plausible downtime. A clock that shows more at start is taken for wrong.
MAX_DOWNTIME_MS = 30 * DAY_MS


class SystemClock:
    """The machine's time."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    monotonic = staticmethod(time.monotonic)


class _Jump(NamedTuple):
    """A jump that is not followed yet: the wall clock's lead over the monotonic clock, and its start."""

    ahead_ms: float
    since_ms: float


class CautiousClock:
    """Wall time that follows steps of up to `max_step_ms` at once and larger ones once they have lasted.

    Until a jump has lasted for `hold_ms`, the clock continues as if it had not happened. It protects
    irreversible work: a clock that is ten years ahead for a minute must not delete data that looks ten
    years old. Jumps are noticed when the clock is read, so read it often. Any thread may.
    """

    def __init__(self, clock: Clock, *, max_step_ms: int, hold_ms: int, purpose: str) -> None:
        self._clock = clock
        self._max_step_ms = max_step_ms
        self._hold_ms = hold_ms
        self._purpose = purpose
        self._ahead_ms = clock.now_ms() - clock.monotonic() * 1000
        self._jump: _Jump | None = None

    def resume(self, last_known_ms: int) -> None:
        """Continue from the last recorded time, unless the broker may have been down since then."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic() * 1000
        max_step_ms = max(self._max_step_ms, MAX_DOWNTIME_MS)
        if last_known_ms >= FIRST_PLAUSIBLE_MS and now_ms - last_known_ms > max_step_ms:
            self._ahead_ms = last_known_ms - monotonic_ms

    def now_ms(self) -> TimestampMs:
        wall_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic() * 1000
        ahead_ms = wall_ms - monotonic_ms
        if abs(ahead_ms - self._ahead_ms) > self._max_step_ms and self._is_held(ahead_ms, monotonic_ms):
            return TimestampMs(int(monotonic_ms + self._ahead_ms))
        self._ahead_ms = ahead_ms
        self._jump = None
        return wall_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def _is_held(self, ahead_ms: float, monotonic_ms: float) -> bool:
        if monotonic_ms + self._ahead_ms < FIRST_PLAUSIBLE_MS:
            return False
        jump = self._jump
        by_ms = int(ahead_ms - self._ahead_ms)
        if jump is None or abs(ahead_ms - jump.ahead_ms) > self._max_step_ms:
            self._jump = _Jump(ahead_ms, monotonic_ms)
            log.warning("clock_jumped", by_ms=by_ms, ignored_for_ms=self._hold_ms, by=self._purpose)
            return True
        if monotonic_ms - jump.since_ms < self._hold_ms:
            return True
        log.warning("clock_jump_followed", by_ms=by_ms, by=self._purpose)
        return False


class RetentionClock(CautiousClock):
    """A cautious clock for deletion by age: never ahead of the wall clock, so that no new data looks old."""

    def now_ms(self) -> TimestampMs:
        return min(super().now_ms(), self._clock.now_ms())


class SteadyClock:
    """Wall time that never jumps: the wall clock's time at the start plus the time elapsed since.

    For deadlines that are stored: they mean the same after a restart, and setting the machine's
    clock does not end every session at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000 + self._ahead_ms)


class ClusterClock:
    """Cluster time, for deadlines that another broker may have to keep; see `cluster.cluster_time`."""

    def __init__(self, cluster_time_ms: Callable[[], int], clock: Clock) -> None:
        self._cluster_time_ms = cluster_time_ms
        self._clock = clock

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._cluster_time_ms())

    def monotonic(self) -> float:
        return self._clock.monotonic()
