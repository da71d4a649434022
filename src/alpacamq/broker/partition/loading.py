"""Opens every partition when the broker starts: several in parallel, with shared syncs.

Threads recover logs while one thread syncs those recovered so far. Partitions are handed over as they become
ready, internal topics first, since groups need them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice

from alpacamq.model.ids import TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.topics import Topic
from alpacamq.telemetry.logs import get_logger

from .leader import Partition

log = get_logger(__name__)

INTERVAL_SECONDS = 1.0


class RecoveryProgress:
    """Logs the progress once a second; silent if opening takes less. Thread-safe."""

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
        """Count the next partition; the returned callback takes the scanned and total bytes of its log."""
        with self._lock:
            self._opened += 1
        self._report(identity, 0, 0)
        return lambda scanned, total: self._report(identity, scanned, total)

    def __str__(self) -> str:
        if not self._expected:
            return "reading the list of topics"
        text = f"partition {self._opened} of {self._expected}"
        if self._total_bytes:
            text += f", {self._scanned_bytes} of its {self._total_bytes} bytes checked"
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


THREADS = 4
SLICE = 16
# Threads take turns, a slice each: if every system call passed the interpreter's lock to another thread,
# 10,000 near-empty partitions would take twice as long. If nothing was recovered for this long, the thread
# whose turn it is waits for the disk or scans a long tail, and the others stop waiting for it.
STALLED_SECONDS = 0.02
# How long recovered partitions wait for more, to share their syncs.
SETTLE_EVERY_SECONDS = 0.05
# Slices that may be recovered or queued while others are synced.
MAX_AHEAD = 128


class LoadingStopped(Exception):
    """Ends the recovery of a partition because the broker stops."""


class Loading:
    """Opens the partitions of all topics. `run` blocks; run it in a thread.

    `recover` opens a partition, which must not be used before `settle` has returned for it. It calls
    `check_stopped` periodically while it scans a long tail.
    """

    def __init__(
        self,
        recover: Callable[[Topic, int], Partition],
        settle: Callable[[list[Partition]], None],
        ready: Callable[[Topic, list[Partition]], None],
    ) -> None:
        self._recover = recover
        self._settle = settle
        self._ready = ready
        self._stopped = threading.Event()
        self._turn = threading.Lock()
        self._recovered_count = 0

    def stop(self) -> None:
        """Make `run` return soon. Thread-safe."""
        self._stopped.set()

    def check_stopped(self) -> None:
        """Raise LoadingStopped after `stop`."""
        if self._stopped.is_set():
            raise LoadingStopped

    def run(self, partitions: Iterable[tuple[Topic, Sequence[int]]]) -> bool:
        """Return true when every partition is ready, or false after `stop`. Raises the first error of any."""
        everything = list(partitions)
        internal = [each for each in everything if each[0].is_internal]
        others = [each for each in everything if not each[0].is_internal]
        slices = chain(_slices(internal), _slices(others))
        pending: set[Future[list[tuple[Topic, Partition]]]] = set()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="recovery") as threads:
            try:
                while not self._stopped.is_set():
                    pending |= {
                        threads.submit(self._recover_slice, each)
                        for each in islice(slices, MAX_AHEAD - len(pending))
                    }
                    if not pending:
                        return True
                    done, pending = wait(pending, timeout=SETTLE_EVERY_SECONDS)
                    recovered = [each for future in done for each in future.result()]
                    self._settle([partition for _, partition in recovered])
                    self._hand_over(recovered)
            finally:
                self._stopped.set()
                threads.shutdown(cancel_futures=True)
        return False

    def _recover_slice(self, partitions: list[tuple[Topic, int]]) -> list[tuple[Topic, Partition]]:
        recovered: list[tuple[Topic, Partition]] = []
        has_turn = self._await_turn()
        try:
            for topic, index in partitions:
                self.check_stopped()
                recovered.append((topic, self._recover(topic, index)))
                self._recovered_count += 1
        except LoadingStopped:
            pass  # return what is recovered so far
        finally:
            if has_turn:
                self._turn.release()
        return recovered

    def _await_turn(self) -> bool:
        """Wait for the turn; false if the thread that has it stalls, and the caller may run in parallel."""
        while True:
            before = self._recovered_count
            if self._turn.acquire(timeout=STALLED_SECONDS):
                return True
            if self._recovered_count == before:
                return False

    def _hand_over(self, recovered: list[tuple[Topic, Partition]]) -> None:
        by_topic: dict[str, tuple[Topic, list[Partition]]] = {}
        for topic, partition in recovered:
            by_topic.setdefault(topic.name, (topic, []))[1].append(partition)
        for topic, partitions in by_topic.values():
            self._ready(topic, partitions)


def _slices(topics: Iterable[tuple[Topic, Sequence[int]]]) -> Iterator[list[tuple[Topic, int]]]:
    partitions = ((topic, index) for topic, indexes in topics for index in indexes)
    while taken := list(islice(partitions, SLICE)):
        yield taken
