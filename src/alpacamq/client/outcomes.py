"""What handlers of jobs raise to settle them, and the errors of settlement."""

from datetime import timedelta
from typing import TypeAlias

from alpacamq.model.durations import parse_duration

from .errors import ClientError

# A text such as "30s" or "10m", seconds, or a timedelta.
Duration: TypeAlias = str | float | timedelta


def duration_ms(duration: Duration) -> int:
    """Return a duration in milliseconds. Raises ValueError."""
    if isinstance(duration, str):
        return parse_duration(duration)
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not seconds >= 0:
        raise ValueError(f"a duration must not be negative, and {duration!r} is")
    return round(seconds * 1000)


class Retry(Exception):
    """Raised by a handler: redeliver the message `after` this time, or after the queue's backoff."""

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_ms = None if after is None else duration_ms(after)


class Reject(Exception):
    """Raised by a handler: do not retry the message; it becomes a dead letter with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class SettlementError(ClientError):
    """A message could not be settled, or it is not known whether it was.

    Repeating the call is of no use: unless the settlement took effect, the message is delivered again.
    """


class LeaseLost(SettlementError):
    """The lease has ended, or its stream has; the message is delivered again. It was not settled."""


class SettlementUnknown(SettlementError):
    """The connection was cut after the settlement was sent and before its result arrived.

    If it took effect, the message is not delivered again; otherwise it is.
    """


class AlreadySettled(SettlementError):
    """The job has been settled before."""
