"""A writer that survives crashes of the broker, and a reader that checks every acknowledged record.

Both rely on one invariant: an idempotent producer that numbers its records from 0 in each partition
gets every number at the offset of the same value, despite crashes.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.sealed import seal, unseal

DEADLINE_S = 60.0

Place = tuple[str, int]


def value_of(number: int) -> bytes:
    """Return values of many sizes, so that kills happen at all positions."""
    return seal(number, 40 + number % 400)


class Writer:
    """Writes consecutive numbers to every partition until it is stopped; retries across crashes.

    As fast as it can, or with a pause after each round over all partitions.
    """

    def __init__(self, address: str, places: Sequence[Place], *, pause_s: float = 0, **settings: Any) -> None:
        self.acknowledged: dict[Place, int] = dict.fromkeys(places, 0)
        self.failures: list[str] = []
        self._sent: dict[Place, int] = dict.fromkeys(places, 0)
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "queue.buffering.max.messages": 5000,
                "message.timeout.ms": 300_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "error_cb": self._note_error,
                # Lost connections are expected here.
                "log_level": 0,
                **settings,
            }
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def total(self) -> int:
        return sum(self.acknowledged.values())

    def promised(self) -> dict[Place, int]:
        """Return the number of acknowledged records by partition."""
        return dict(self.acknowledged)

    def stop(self) -> None:
        """Stop writing, and wait until everything written is acknowledged."""
        self._stopped.set()
        self._thread.join(DEADLINE_S)
        unreported = self._producer.flush(DEADLINE_S)
        assert not self.failures, self.failures
        assert unreported == 0, f"{unreported} records were never answered"
        assert self.acknowledged == self._sent

    def abandon(self) -> None:
        """Drop the records in flight; afterwards `acknowledged` no longer changes."""
        self._stopped.set()
        self._thread.join(DEADLINE_S)
        self._producer.purge(in_queue=True, in_flight=True)
        self._producer.flush(DEADLINE_S)

    def _write(self) -> None:
        while not self._stopped.is_set():
            for topic, partition in self._sent:
                number = self._sent[topic, partition]
                try:
                    self._producer.produce(
                        topic, value_of(number), partition=partition, on_delivery=self._note_report
                    )
                except BufferError:
                    self._producer.poll(0.01)
                    continue
                self._sent[topic, partition] = number + 1
            self._producer.poll(0)
            if self._pause_s:
                self._stopped.wait(self._pause_s)

    def _note_report(self, error: Any, message: Any) -> None:
        if self._stopped.is_set() and error is not None and error.name().startswith("_PURGE"):
            return
        place = message.topic(), message.partition()
        expected = self.acknowledged[place]
        if error is not None:
            self.failures.append(f"{place} refused number {expected}: {error}")
        elif message.offset() != expected:
            self.failures.append(f"{place} gave number {expected} offset {message.offset()}")
        self.acknowledged[place] = expected + 1

    def _note_error(self, error: Any) -> None:
        if error.fatal():
            self.failures.append(f"the producer failed: {error}")


class Reader:
    """Continues from where it stopped and checks that each record matches its offset."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.position: dict[Place, int] = dict.fromkeys(places, 0)

    def check(self, address: str, promised: Mapping[Place, int]) -> None:
        """Read at least all `promised` records."""
        deadline = time.monotonic() + DEADLINE_S
        with consumer_of(address) as consumer:
            for place, count in promised.items():
                end = consumer.get_watermark_offsets(TopicPartition(*place), timeout=DEADLINE_S)[1]
                assert end >= count, f"{place} ends at {end} although {count} records were acknowledged"
            consumer.assign(
                [TopicPartition(*place, offset) for place, offset in self.position.items()],
            )
            while any(self.position[place] < count for place, count in promised.items()):
                assert time.monotonic() < deadline, f"read to {self.position}, promised {promised}"
                for message in consumer.consume(2000, 0.1):
                    assert message.error() is None, message.error()
                    place = message.topic(), message.partition()
                    expected = self.position[place]
                    assert message.offset() == expected, f"{place}: a gap before {message.offset()}"
                    number = unseal(message.value())
                    assert number == expected, (
                        f"{place}: offset {expected} has the value of {number}, promised {promised[place]}"
                    )
                    self.position[place] = expected + 1


def ends(address: str, places: Sequence[Place]) -> dict[Place, int]:
    """Return the end offset of each partition."""
    with consumer_of(address) as consumer:
        return {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=DEADLINE_S)[1]
            for place in places
        }


@contextmanager
def consumer_of(address: str, **settings: Any) -> Iterator[Any]:
    """Open a consumer for manual assignment; it joins no group."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 20,
            "log_level": 0,
            **settings,
        }
    )
    with closing(consumer):
        yield consumer
