"""Generates load on a broker from several clients, at full speed or at a fixed rate, and measures it.

A client with a rate follows a schedule that does not depend on the broker: latency is measured from the
scheduled time, not from the time of sending. Without a rate a client sends as soon as it has its
response, and only response times are measured.
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
# Below 256 microseconds one bucket each; above, 128 per doubling.
_LINEAR_BITS = 8
_HALF = 1 << (_LINEAR_BITS - 1)
# At most a day; longer durations count as a day.
_MAX_US = 86_400 * 1_000_000


class Histogram:
    """Histogram of durations in microseconds, of constant size."""

    __slots__ = ("_counts", "max_us", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_bucket(_MAX_US) + 1)
        self.total = 0
        self.max_us = 0

    def add(self, duration_us: int, count: int = 1) -> None:
        """Add `count` samples of a duration."""
        self._counts[_bucket(min(max(duration_us, 0), _MAX_US))] += count
        self.total += count
        self.max_us = max(self.max_us, duration_us)

    def merge(self, other: "Histogram") -> None:
        self._counts = [ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total
        self.max_us = max(self.max_us, other.max_us)

    def at(self, quantile: float) -> float:
        """Return a quantile in milliseconds."""
        wanted = quantile * self.total
        reached = 0
        for bucket, count in enumerate(self._counts):
            reached += count
            if count and reached >= wanted:
                return min(_highest_us(bucket), self.max_us) / 1000
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return the usual quantiles and the maximum, in milliseconds."""
        return {name: self.at(quantile) for name, quantile in QUANTILES} | {"max": self.max_us / 1000}


def _bucket(duration_us: int) -> int:
    shift = max(0, duration_us.bit_length() - _LINEAR_BITS)
    return shift * _HALF + (duration_us >> shift)


def _highest_us(bucket: int) -> int:
    """Return the longest duration of a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1


_LOOK_EVERY_S = 0.1
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of all clients together."""

    clients: int
    messages: int | None
    duration_s: float | None
    rate: int | None
    size_bytes: int
    batch: int
    acks: Acks
    codec: Codec

    def share(self, client: int) -> int | None:
        """Return the number of messages of this client."""
        if self.messages is None:
            return None
        return self.messages // self.clients + (client < self.messages % self.clients)

    @property
    def planned(self) -> int | None:
        """Total number of messages, if it is known in advance."""
        if self.rate is None or self.duration_s is None:
            return self.messages
        return int(self.rate * self.duration_s)

    def plan(self, client: int, stop: threading.Event) -> Iterator[tuple[int, int]]:
        """Yield how many messages to send next and their scheduled time in nanoseconds."""
        left = self.share(client)
        began = time.monotonic_ns()
        until = None if self.duration_s is None else began + int(self.duration_s * 1e9)
        number = 0
        due = began
        while left is None or left > 0:
            now = time.monotonic_ns()
            if self.rate is not None:
                # Clients take turns. Computed from the start, so that rounding errors do not accumulate.
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
    """Counters of one client, read concurrently by the progress bar."""

    messages: int = 0
    size_bytes: int = 0
    times: dict[str, Histogram] = field(default_factory=dict)

    def done(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes

    def took(self, what: str, since_ns: int, count: int = 1) -> None:
        """Record `count` samples that started, or were scheduled, at `since_ns`."""
        histogram = self.times.get(what)
        if histogram is None:
            histogram = self.times[what] = Histogram()
        histogram.add((time.monotonic_ns() - since_ns) // 1000, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of all clients together."""

    messages: int
    size_bytes: int
    seconds: float
    times: dict[str, Histogram]
    is_interrupted: bool


# Connects, waits at the gate, works until it is done or stopped.
Client = Callable[[int, Meter, "Gate"], None]


class Gate:
    """Starts all clients together and signals them to stop."""

    def __init__(self, clients: int) -> None:
        self.stop = threading.Event()
        self._ready = threading.Barrier(clients + 1)

    def wait(self) -> None:
        self._ready.wait(_CONNECT_S)

    def give_up(self) -> None:
        self.stop.set()
        self._ready.abort()


def measure(client: Client, clients: int, bar: ProgressBar) -> Measured:
    """Run clients in threads until all are done; the first failure stops all."""
    meters = [Meter() for _ in range(clients)]
    failures: list[BaseException] = []
    gate = Gate(clients)

    def work(number: int) -> None:
        try:
            client(number, meters[number], gate)
        except threading.BrokenBarrierError:
            pass  # another client failed and reports the reason
        except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
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
