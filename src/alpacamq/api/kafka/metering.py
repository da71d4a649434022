"""What one connection uses of its client's quotas.

Connections share quotas. A request takes from credits of its own connection, which is a few integer
operations; the quotas are charged when a credit is used up, or a short time after it was taken from.
"""

from math import inf

from alpacamq.broker.quotas import ClientLimits, TrafficLimit
from alpacamq.model.topics import INT64_MAX
from alpacamq.security.quotas import TokenBucket

# Credits of small requests end, and quotas are charged, this long after the first one.
SETTLE_SECONDS = 0.1
# Time is charged when it adds up to this, or to the grain of the quota; below the second, with every request.
CHARGED_SECONDS = 0.004
SCARCE_SECONDS = 0.001
# The most that is taken before it is charged: integers up to here are the fastest.
_MOST = (1 << 30) - 1
# What those without a quota use: nothing that has to be waited for.
_UNLIMITED = TokenBucket(1.0, 1.0, 1.0, 0.0)


class Meter:
    """The use of the quotas of one connection. Requests take from the credits directly."""

    __slots__ = (
        "_read_grant",
        "_read_message_grant",
        "_write_grant",
        "_write_message_grant",
        "burst_bytes",
        "client_id",
        "epoch",
        "fetch_bucket",
        "is_time_due",
        "is_time_scarce",
        "limits",
        "read_credit",
        "read_message_credit",
        "time_grain",
        "used_seconds",
        "write_credit",
        "write_message_credit",
    )

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        # Those of the limits, which are checked with every request.
        self.epoch = limits.epoch
        self.client_id = limits.client_id
        # What is used of the quota of fetches; None if there are several quotas.
        self.fetch_bucket = _UNLIMITED if limits.fetch is None else limits.fetch.only_bucket
        # The bytes that one fetch should not exceed.
        self.burst_bytes = INT64_MAX if limits.fetch is None else limits.fetch.burst_bytes
        self._write_grant, self._write_message_grant = _grants(limits.produce)
        self._read_grant, self._read_message_grant = _grants(limits.fetch)
        # Bytes and messages that may be written and read before the quotas are charged for them.
        self.write_credit, self.write_message_credit = self._write_grant, self._write_message_grant
        self.read_credit, self.read_message_credit = self._read_grant, self._read_message_grant
        # The time of its turns, and how much of it may be charged together.
        self.used_seconds = 0.0
        self.time_grain = inf if limits.request is None else min(CHARGED_SECONDS, limits.request.grain)
        # Whether every request is charged for its time, and whether the next one is.
        self.is_time_due = self.is_time_scarce = self.time_grain < SCARCE_SECONDS

    def charge_due(self) -> int:
        """Charge what is due; return how long the client has to be throttled, in milliseconds."""
        throttle_ms = self.charge_time() if self.is_time_due else 0
        if self.write_credit <= 0 or self.write_message_credit <= 0:
            throttle_ms = max(throttle_ms, self._charge_written())
        if self.read_credit <= 0 or self.read_message_credit <= 0:
            throttle_ms = max(throttle_ms, self._charge_read())
        return throttle_ms

    def settle(self) -> int:
        """Charge everything; return how long the client has to be throttled, in milliseconds."""
        throttle_ms = self.charge_time()
        if self.write_credit < self._write_grant or self.write_message_credit < self._write_message_grant:
            throttle_ms = max(throttle_ms, self._charge_written())
        if self.read_credit < self._read_grant or self.read_message_credit < self._read_message_grant:
            throttle_ms = max(throttle_ms, self._charge_read())
        return throttle_ms

    def charge_time(self) -> int:
        """Charge the time; return how long the client has to be throttled, in milliseconds."""
        seconds = self.used_seconds
        self.used_seconds = 0.0
        self.is_time_due = self.is_time_scarce
        request = self.limits.request
        return 0 if request is None or not seconds else request.charge(seconds)

    def _charge_written(self) -> int:
        size = self._write_grant - self.write_credit
        messages = self._write_message_grant - self.write_message_credit
        self.write_credit, self.write_message_credit = self._write_grant, self._write_message_grant
        return 0 if self.limits.produce is None else self.limits.produce.charge(size, messages)

    def _charge_read(self) -> int:
        size = self._read_grant - self.read_credit
        messages = self._read_message_grant - self.read_message_credit
        self.read_credit, self.read_message_credit = self._read_grant, self._read_message_grant
        if (limit := self.limits.fetch) is None:
            return 0
        throttle_ms = limit.charge(size, messages)
        self.burst_bytes = limit.burst_bytes
        return throttle_ms

    def fetch_wait_ms(self) -> int:
        """Return how long the client has to wait for what has been fetched."""
        return 0 if self.limits.fetch is None else self.limits.fetch.wait_ms()


def _grants(limit: TrafficLimit | None) -> tuple[int, int]:
    """Return the bytes and messages that may be charged together."""
    if limit is None:
        return _MOST, _MOST
    return min(_MOST, limit.grain_bytes), min(_MOST, limit.grain_messages)
