"""What HTTP clients may use: the limits that are configured, those that are fixed, and the room all share."""

from typing import Protocol

KIB = 1 << 10

MAX_TARGET_BYTES = 16 * KIB
MAX_HEADER_BYTES = 32 * KIB
MAX_HEADERS = 100
# What the parser is given at once: it cannot be stopped before the end of what it is given.
PORTION_BYTES = 8 * KIB
# What one connection may send while an earlier request of its is being answered; then it is not read from.
MAX_UNREAD_BYTES = 64 * KIB
MAX_UNREAD_PORTIONS = 64
# Requests answered in one go before other connections get their turn.
TURN_REQUESTS = 64
# A body may take longer than the time every head has, as long as it comes at this rate.
MIN_BODY_BYTES_PER_SECOND = 64 * KIB
# Of answers that the client does not take; beyond it no further request is started on.
MAX_UNSENT_BYTES = 64 * KIB
MIN_ANSWER_BYTES_PER_SECOND = 64 * KIB
# How long a client may go on sending after its last answer, so that it gets to read that.
LINGER_SECONDS = 2.0
RETRY_AFTER_SECONDS = 1


class HttpLimits(Protocol):
    """What is configured for one listener."""

    @property
    def max_connections(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def header_timeout_ms(self) -> int: ...
    @property
    def max_body_bytes(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...


class Room:
    """The bytes that all connections of a listener together may hold."""

    __slots__ = ("_free_bytes",)

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes

    @property
    def is_exhausted(self) -> bool:
        return self._free_bytes < 0

    def take(self, size: int) -> bool:
        """Whether there was room for something that can still be refused."""
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def occupy(self, size: int) -> None:
        """Count something that is there already; what comes next may find no room."""
        self._free_bytes -= size

    def give(self, size: int) -> None:
        self._free_bytes += size
