"""How far recovery is: for whoever asks, and told to people once it takes long enough for them to wonder."""

import threading
from collections.abc import Callable

from alpacamq.model.ids import TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

INTERVAL_SECONDS = 1.0


class RecoveryProgress:
    """Reports once a second, and not at all when opening takes less than that. Threads share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reported_at = clock.monotonic()
        self._opened = 0
        self._expected = 0
        self._scanned_bytes = 0
        self._total_bytes = 0

    def expect(self, partitions: int) -> None:
        self._expected = partitions

    def opening(self, identity: TopicPartition) -> Callable[[int, int], None]:
        """The next partition is opened; what is returned hears how many bytes of how many are checked."""
        with self._lock:
            self._opened += 1
        self._report(identity, 0, 0)
        return lambda scanned, total: self._report(identity, scanned, total)

    def __str__(self) -> str:
        if not self._expected:
            return "the list of topics is being read"
        text = f"partition {self._opened} of {self._expected}"
        if self._total_bytes:
            text += f", {self._scanned_bytes} of its {self._total_bytes} bytes are checked"
        return text

    def _report(self, identity: TopicPartition, scanned_bytes: int, total_bytes: int) -> None:
        self._scanned_bytes, self._total_bytes = scanned_bytes, total_bytes
        now = self._clock.monotonic()
        if now - self._reported_at < INTERVAL_SECONDS:
            return
        self._reported_at = now
        log.info(
            "recovering",
            partition=str(identity),
            opened=self._opened,
            partitions=self._expected,
            scanned_bytes=scanned_bytes,
            total_bytes=total_bytes,
        )
