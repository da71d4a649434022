"""Opening every partition when the broker starts: several at a time, with shared syncs.

Threads recover logs while one syncs what they have recovered so far. What is ready is handed over at once,
so that its clients need not wait for the rest: internal topics first, since groups need them.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain, islice

from alpacamq.model.topics import Topic

from .partition import Partition

# Most of the work holds the interpreter's lock; the rest is waiting for the file system.
THREADS = 4
SLICE = 16
# Slices that may be recovered or waiting for it while others are synced.
MAX_AHEAD = 128


class Loading:
    """Opens the partitions of all topics; `run` in a thread.

    `recover` makes a partition that nobody may use before `settle` has returned for it.
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

    def stop(self) -> None:
        """Have `run` return soon; from any thread."""
        self._stopped.set()

    def run(self, topics: Collection[Topic]) -> bool:
        """Return when every partition is ready, or false after `stop`. What one of them raises ends it."""
        internal = [topic for topic in topics if topic.is_internal]
        others = [topic for topic in topics if not topic.is_internal]
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
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    recovered = [each for future in done for each in future.result()]
                    self._settle([partition for _, partition in recovered])
                    self._hand_over(recovered)
            finally:
                self._stopped.set()
                threads.shutdown(cancel_futures=True)
        return False

    def _recover_slice(self, places: list[tuple[Topic, int]]) -> list[tuple[Topic, Partition]]:
        return [(topic, self._recover(topic, index)) for topic, index in places if not self._stopped.is_set()]

    def _hand_over(self, recovered: list[tuple[Topic, Partition]]) -> None:
        by_topic: dict[str, tuple[Topic, list[Partition]]] = {}
        for topic, partition in recovered:
            by_topic.setdefault(topic.name, (topic, []))[1].append(partition)
        for topic, partitions in by_topic.values():
            self._ready(topic, partitions)


def _slices(topics: Iterable[Topic]) -> Iterator[list[tuple[Topic, int]]]:
    places = ((topic, index) for topic in topics for index in range(topic.partitions))
    while taken := list(islice(places, SLICE)):
        yield taken
