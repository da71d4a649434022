"""What the throughput and latency questions ask of a client, and the settings all clients get.

Settings are librdkafka's, since both clients are built on it. What is not named here is as
librdkafka has it.
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
    """So many messages of such a size in one topic."""

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

    @property
    def count(self) -> int:
        return self.per_second * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Nanoseconds from each message's intended time of sending: the time it should have been
    sent at, not the time the client got round to it, so that a stall counts for every message it delays.
    """

    acked_ns: "array[int]"
    # Empty when nobody was watching.
    seen_ns: "array[int]"


class Client(Protocol):
    """A client that loads a server; every method checks that nothing was refused."""

    @property
    def name(self) -> str: ...

    def produce(self, address: str, load: Load, acks: str) -> float:
        """Seconds from the first message to the last acknowledgement."""
        ...

    def fetch(self, address: str, load: Load) -> float:
        """Seconds from the first message to the last, all partitions assigned."""
        ...

    def pace(self, address: str, pace: Pace, *, watched: bool) -> Latencies:
        """Publish at a rate with acks=1, with a consumer at the other end if `watched`."""
        ...


def percentile(values: "array[int]", share: float) -> float:
    """The smallest of `values` that `share` of them do not exceed."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
