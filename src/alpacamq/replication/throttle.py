"""Limits the rate at which replicas outside the in-sync set are filled.

A leader limits what it sends to them, a follower what it fetches for them. Replicas in sync are never
limited: acknowledgements wait for them.
"""

from collections.abc import Collection

from alpacamq.model.ids import BrokerId

# The bytes of so much time may be copied at once after a pause.
BURST_MS = 1000
# Less is not worth a read, unless the rate is low.
MIN_ROOM = 256 << 10
# The longest wait before the rate is read again: it may have changed.
MAX_WAIT_MS = 1000

_ALL = "*"


class Throttle:
    """A token bucket of bytes; the caller passes the time.

    What is copied may exceed the room, because a batch is not divided: the next copy waits for it. So in any
    time the bytes are at most those of the rate, those of `BURST_MS` and one batch.
    """

    def __init__(self) -> None:
        # Bytes a second; None: no limit.
        self.rate: int | None = None
        # Bytes copied while there was a limit.
        self.copied_bytes = 0
        # Thousandths of bytes, so that no fraction is lost; negative if more was copied than there was room.
        self._credit = 0
        self._filled_ms = 0
        self._per_ms = 0

    def set_rate(self, rate: int | None, now_ms: int) -> None:
        """Change the limit; what was copied before counts."""
        if self.rate is None:
            self._credit, self._filled_ms = 0, now_ms
        else:
            self._fill(now_ms)
        self.rate = rate
        if rate is not None:
            self._per_ms = rate  # bytes a second are thousandths of bytes a millisecond

    def room(self, now_ms: int) -> int:
        """Return the bytes that may be copied now; 0 if it is too early. There must be a limit."""
        self._fill(now_ms)
        return self._credit // 1000 if self._credit >= self._enough else 0

    def wait_ms(self, now_ms: int) -> int:
        """Return after how long to ask for room again."""
        self._fill(now_ms)
        if not self._per_ms:
            return MAX_WAIT_MS
        missing = self._enough - self._credit
        return max(1, min(-(-missing // self._per_ms), MAX_WAIT_MS))

    def copied(self, size: int) -> None:
        """Count bytes that were copied. There must be a limit."""
        self.copied_bytes += size
        self._credit -= size * 1000

    @property
    def _capacity(self) -> int:
        return self._per_ms * BURST_MS

    @property
    def _enough(self) -> int:
        return max(1000, min(MIN_ROOM * 1000, self._capacity // 4))

    def _fill(self, now_ms: int) -> None:
        elapsed_ms, self._filled_ms = now_ms - self._filled_ms, now_ms
        self._credit = min(self._credit + elapsed_ms * self._per_ms, self._capacity)


def is_throttled(
    broker_id: BrokerId,
    isr: Collection[int],
    adding: Collection[int],
    listed: Collection[str],
    place: str,
) -> bool:
    """Return whether a limit applies to a replica: it is being added, or listed, and in neither case in sync.

    `listed` is the list of the topic that counts, with `place` for this replica: PARTITION:BROKER. For
    a leader's list the broker in it is the leader.
    """
    return broker_id not in isr and (broker_id in adding or place in listed or _ALL in listed)
