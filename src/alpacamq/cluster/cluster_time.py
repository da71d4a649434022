"""Cluster time: one clock for the deadlines that state machines store and other brokers may have to keep.

It is the controller's. The other brokers learn it from replies to their heartbeats: at some time between the
request and its reply the controller's clock showed what the reply says. A broker that takes over a machine
then ends leases and delivers messages when its predecessor would have, whatever its own clock shows.

The time of a node never goes back, and it runs at most MAX_SLEW faster or slower than the node's monotonic
clock while it is corrected. A node that is far behind was suspended: it is set forward at once. A new
controller goes on from the time that it knows. It corrects it by the clocks of all brokers, of which the one
in the middle counts: a single wrong clock, be it the controller's own, moves nothing.
"""

from collections.abc import Iterable

# Share of the elapsed time by which a correction may change it.
MAX_SLEW = 0.02
# A node that is further behind is set forward instead of running faster for minutes.
MAX_SLEWED_MS = 10_000
# All times are in whole milliseconds: the controller's clock may have shown almost one more, and the round
# trip may have taken that much longer.
ROUNDING_MS = 2
# By how much the clocks of brokers may differ from cluster time before it is corrected.
TOLERATED_MS = 100


class ClusterTime:
    """Cluster time as one node knows it. `now_ms` is always the node's monotonic clock."""

    def __init__(self, time_ms: float, now_ms: float) -> None:
        # The time at `_anchor_ms`, and the correction that is still to be made from there on.
        self._time_ms = float(time_ms)
        self._anchor_ms = now_ms
        self._correction_ms = 0.0
        # Whether the time is that of a controller; before, it is a guess that nothing may depend on.
        self.is_synchronised = False

    def at(self, now_ms: float) -> int:
        """Return the cluster time."""
        return int(self._exact(now_ms))

    def observe(self, time_ms: int, sent_ms: float, received_ms: float) -> None:
        """Learn that the controller's clock showed `time_ms` between two times of this node."""
        earliest_ms = time_ms
        latest_ms = time_ms + (received_ms - sent_ms) + ROUNDING_MS
        if not self.is_synchronised:
            # In the middle the error is at most half of the round trip.
            self._set((earliest_ms + latest_ms) / 2, received_ms)
            self.is_synchronised = True
            return
        corrected_ms = self._exact_corrected(received_ms)
        self._correct(min(max(corrected_ms, earliest_ms), latest_ms), received_ms)

    def lead(self, time_ms: int, recorded_ms: int, now_ms: float) -> None:
        """Go on as the controller: from `time_ms`, the node's own clock, if no other controller was heard.

        Never from before `recorded_ms`, which a former controller has reached.
        """
        if not self.is_synchronised:
            self._set(time_ms, now_ms)
            self.is_synchronised = True
        if self._exact(now_ms) < recorded_ms:
            self._set(recorded_ms, now_ms)

    def follow_clocks(self, ahead_ms: Iterable[int], now_ms: float) -> None:
        """Correct the time, as the controller, by how far the clocks of brokers are ahead of it."""
        middle_ms = middle(ahead_ms)
        is_right = abs(middle_ms) <= TOLERATED_MS
        self._correct(self._exact(now_ms) + (0 if is_right else middle_ms), now_ms, steps=False)

    def _exact(self, now_ms: float) -> float:
        elapsed_ms = max(now_ms - self._anchor_ms, 0)
        limit_ms = elapsed_ms * MAX_SLEW
        return self._time_ms + elapsed_ms + min(max(self._correction_ms, -limit_ms), limit_ms)

    def _exact_corrected(self, now_ms: float) -> float:
        return self._time_ms + max(now_ms - self._anchor_ms, 0) + self._correction_ms

    def _correct(self, wanted_ms: float, now_ms: float, *, steps: bool = True) -> None:
        """Approach another time from now on."""
        current_ms = self._exact(now_ms)
        if steps and must_step(current_ms, wanted_ms):
            current_ms = wanted_ms
        self._set(current_ms, now_ms)
        self._correction_ms = wanted_ms - current_ms

    def _set(self, time_ms: float, now_ms: float) -> None:
        self._time_ms, self._anchor_ms, self._correction_ms = time_ms, max(now_ms, self._anchor_ms), 0.0


def must_step(current_ms: float, wanted_ms: float) -> bool:
    """Return whether a node is so far behind that it was suspended: its time is set, never back."""
    return wanted_ms - current_ms > MAX_SLEWED_MS


def middle(ahead_ms: Iterable[int]) -> int:
    """Return the median; of an even number, what is closest to 0 between the two in the middle."""
    ordered = sorted(ahead_ms)
    if not ordered:
        return 0
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(lower, 0), upper)
