"""Load on a broker: how much, from how many clients, at which pace, and what was measured.

A client with a pace keeps to a plan that does not depend on the broker: what a slow answer holds up counts
from when it was due, not from when it could be sent. Without a pace a client sends as soon as it has
its answer, and then only the answers are timed.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from alpacamq.cli.progress import ProgressBar
from alpacamq.client.kafka.producer import Acks
from alpacamq.model.batch import Codec

QUANTILES: Sequence[tuple[str, float]] = (
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
)
# Below 256 microseconds a bucket for each; above, 128 for every doubling.
_LINEAR_BITS = 8
_HALF = 1 << (_LINEAR_BITS - 1)
# Up to a day; whatever takes longer counts as that.
_MAX_US = 86_400 * 1_000_000


class Histogram:
    """Durations in microseconds; its size does not depend on how many there are."""

    __slots__ = ("_counts", "max_us", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_bucket(_MAX_US) + 1)
        self.total = 0
        self.max_us = 0

    def add(self, duration_us: int, count: int = 1) -> None:
        """`count` things took this long each."""
        self._counts[_bucket(min(max(duration_us, 0), _MAX_US))] += count
        self.total += count
        self.max_us = max(self.max_us, duration_us)

    def merge(self, other: "Histogram") -> None:
        self._counts = [ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total
        self.max_us = max(self.max_us, other.max_us)

    def at(self, quantile: float) -> float:
        """What this share of all things did not exceed, in milliseconds."""
        wanted = quantile * self.total
        reached = 0
        for bucket, count in enumerate(self._counts):
            reached += count
            if count and reached >= wanted:
                return min(_highest_us(bucket), self.max_us) / 1000
        return 0.0

    def summary(self) -> dict[str, float]:
        """The quantiles people ask for, and the worst, in milliseconds."""
        return {name: self.at(quantile) for name, quantile in QUANTILES} | {"max": self.max_us / 1000}


def _bucket(duration_us: int) -> int:
    shift = max(0, duration_us.bit_length() - _LINEAR_BITS)
    return shift * _HALF + (duration_us >> shift)


def _highest_us(bucket: int) -> int:
    """The longest duration that falls into a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1


_LOOK_EVERY_S = 0.1
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is wanted of all clients together."""

    clients: int
    messages: int | None
    duration_s: float | None
    rate: int | None
    size_bytes: int
    batch: int
    acks: Acks
    codec: Codec

    def share(self, client: int) -> int | None:
        """How many messages are this client's."""
        if self.messages is None:
            return None
        return self.messages // self.clients + (client < self.messages % self.clients)

    @property
    def planned(self) -> int | None:
        """How many messages a pace and a duration come to."""
        if self.rate is None or self.duration_s is None:
            return self.messages
        return int(self.rate * self.duration_s)

    def plan(self, client: int, stop: threading.Event) -> Iterator[tuple[int, int]]:
        """How many messages to send next and when that is due, in nanoseconds, until there is enough."""
        left = self.share(client)
        began = time.monotonic_ns()
        until = None if self.duration_s is None else began + int(self.duration_s * 1e9)
        number = 0
        due = began
        while left is None or left > 0:
            now = time.monotonic_ns()
            if self.rate is not None:
                # Clients take turns. Reckoned from the beginning, so that nothing is lost by rounding.
                turn = number * self.clients + client
                due = began + turn * self.batch * 1_000_000_000 // self.rate
            if due > now and stop.wait((due - now) / 1e9):
                return
            if stop.is_set() or (until is not None and max(due, now) >= until):
                return
            count = self.batch if left is None else min(self.batch, left)
            yield count, due if self.rate is not None else time.monotonic_ns()
            number += 1
            left = None if left is None else left - count


@dataclass(slots=True)
class Meter:
    """What one client has done; read by others while it works."""

    messages: int = 0
    size_bytes: int = 0
    times: dict[str, Histogram] = field(default_factory=dict)

    def done(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes

    def took(self, what: str, since_ns: int, count: int = 1) -> None:
        """`count` things are over that began, or were due, at `since_ns`."""
        histogram = self.times.get(what)
        if histogram is None:
            histogram = self.times[what] = Histogram()
        histogram.add((time.monotonic_ns() - since_ns) // 1000, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all clients have done together."""

    messages: int
    size_bytes: int
    seconds: float
    times: dict[str, Histogram]
    is_interrupted: bool


# Connects, waits at the gate, works until it is done or told to stop.
Client = Callable[[int, Meter, "Gate"], None]


class Gate:
    """Lets all clients begin together, and tells them when to stop."""

    def __init__(self, clients: int) -> None:
        self.stop = threading.Event()
        self._ready = threading.Barrier(clients + 1)

    def wait(self) -> None:
        self._ready.wait(_CONNECT_S)

    def give_up(self) -> None:
        self.stop.set()
        self._ready.abort()


def measure(client: Client, clients: int, bar: ProgressBar) -> Measured:
    """Run clients in threads until all are done; the first that fails ends all."""
    meters = [Meter() for _ in range(clients)]
    failures: list[BaseException] = []
    gate = Gate(clients)

    def work(number: int) -> None:
        try:
            client(number, meters[number], gate)
        except threading.BrokenBarrierError:
            pass  # another one failed, and says why
        except BaseException as error:  # noqa: BLE001 - raised again below, where somebody reads it
            failures.append(error)
            gate.give_up()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(clients)]
    is_interrupted = False
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        gate.wait()
        began = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(_LOOK_EVERY_S / len(threads))
            bar.at(sum(meter.messages for meter in meters))
    except threading.BrokenBarrierError:
        pass
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        seconds = time.monotonic() - began
        gate.stop.set()
        for thread in threads:
            thread.join(_CONNECT_S)
        bar.end()
    if failures:
        raise failures[0]
    times: dict[str, Histogram] = {}
    for meter in meters:
        for what, histogram in meter.times.items():
            times.setdefault(what, Histogram()).merge(histogram)
    return Measured(
        messages=sum(meter.messages for meter in meters),
        size_bytes=sum(meter.size_bytes for meter in meters),
        seconds=seconds,
        times=times,
        is_interrupted=is_interrupted,
    )
