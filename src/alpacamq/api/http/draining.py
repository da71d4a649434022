"""How a client takes its answers."""

from .limits import MIN_ANSWER_BYTES_PER_SECOND


class Draining:
    """What is seen, every now and then, of the answers of one connection that are still to be sent."""

    __slots__ = ("_began_at", "_began_bytes", "_last_bytes", "_moved_at")

    def __init__(self) -> None:
        self._last_bytes = 0
        self._began_bytes = 0
        self._began_at = self._moved_at = 0.0

    def restart(self) -> None:
        """There are new answers: the client has taken enough of the others."""
        self._last_bytes = 0

    def is_too_slow(self, unsent_bytes: int, now: float, grace: float) -> bool:
        """Whether nothing has been taken for `grace` seconds, or that and a fair rate were not enough."""
        if not unsent_bytes:
            self._last_bytes = 0
            return False
        if not self._last_bytes:
            self._began_at = self._moved_at = now
            self._began_bytes = unsent_bytes
        elif unsent_bytes != self._last_bytes:
            self._moved_at = now
        self._last_bytes = unsent_bytes
        fair = grace + self._began_bytes / MIN_ANSWER_BYTES_PER_SECOND
        return now - self._moved_at > grace or now - self._began_at > fair
