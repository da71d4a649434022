"""Limits of HTTP connections: configured ones, fixed ones, and memory shared by all connections."""

from typing import Protocol

KIB = 1 << 10

MAX_TARGET_BYTES = 16 * KIB
MAX_HEADER_BYTES = 32 * KIB
MAX_HEADERS = 100
# Bytes passed to the parser per call: it cannot be stopped before the end of its input.
PORTION_BYTES = 8 * KIB
# What one connection may send while an earlier request is being answered; then reading pauses.
MAX_UNREAD_BYTES = 64 * KIB
MAX_UNREAD_PORTIONS = 64
# Requests answered per turn before other connections get theirs.
TURN_REQUESTS = 64
# A body may take longer than the timeout of the head if it arrives at this rate.
MIN_BODY_BYTES_PER_SECOND = 64 * KIB
# Unread responses; beyond this no further request is started.
MAX_UNSENT_BYTES = 64 * KIB
MIN_ANSWER_BYTES_PER_SECOND = 64 * KIB
# How long a client may continue sending after its last response, so that it can read that.
LINGER_SECONDS = 2.0
RETRY_AFTER_SECONDS = 1


class HttpLimits(Protocol):
    """The configured limits of one listener."""

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
    """Memory for requests, shared by all connections of a listener."""

    __slots__ = ("_free_bytes",)

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes

    @property
    def is_exhausted(self) -> bool:
        return self._free_bytes < 0

    def take(self, size: int) -> bool:
        """Reserve memory for a request that can still be refused; return whether there was enough."""
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def occupy(self, size: int) -> None:
        """Reserve memory that is in use already, even beyond the limit."""
        self._free_bytes -= size

    def give(self, size: int) -> None:
        self._free_bytes += size
