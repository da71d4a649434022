"""The interface of clients in throughput and latency benchmarks, and their common settings.

Settings are librdkafka's, because both clients are built on it. Others have librdkafka's defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from array import array

Settings = Mapping[str, str | int]

PRODUCER: Settings = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "compression.type": "none",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
    # One report per message is the client's cost; failures are still reported.
    "delivery.report.only.error": True,
}
CONSUMER: Settings = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.message.max.bytes": 4_194_304,
}
PACED_PRODUCER: Settings = {"linger.ms": 0, "compression.type": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A number of messages of one size in one topic."""

    topic: str
    partitions: int
    size: int
    count: int

    @property
    def bytes(self) -> int:
        return self.size * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A fixed rate for a fixed time, whatever the server does, on partition 0 of one topic."""

    topic: str
    size: int
    per_second: int
    seconds: int
    acks: str = "1"

    @property
    def count(self) -> int:
        return self.per_second * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Nanoseconds from each message's intended send time, not from its actual one, so that a stall counts
    for every message that it delays.
    """

    acked_ns: "array[int]"
    # Empty without a consumer.
    seen_ns: "array[int]"


class Client(Protocol):
    """A client that loads a server; every method checks that no request failed."""

    @property
    def name(self) -> str: ...

    def produce(self, address: str, load: Load, acks: str) -> float:
        """Return seconds from the first message to the last acknowledgement."""
        ...

    def fetch(self, address: str, load: Load) -> float:
        """Return seconds from the first message to the last, with all partitions assigned."""
        ...

    def pace(self, address: str, pace: Pace, *, watched: bool) -> Latencies:
        """Publish at a rate with acks=1; with a consumer if `watched`."""
        ...


def percentile(values: "array[int]", share: float) -> float:
    """Return the smallest of `values` that `share` of them do not exceed."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
