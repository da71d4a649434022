"""A member that uses confluent-kafka: the classic protocol, eager or incremental, or KIP-848."""

from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .group_member import HEARTBEAT_MS, POLL_S, CommitTimer, Kind, Settings, StopSignal, numbers
from .journal import Journal


class Member:
    """One consumer, polled record by record."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._topic = settings.topic
        self._journal = journal
        self._consumer: Any = Consumer({**_consumer_settings(settings), "on_commit": self._on_commit})

    def run(self) -> None:
        ending, timer = StopSignal(), CommitTimer()
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not ending.is_set:
            message = self._consumer.poll(POLL_S)
            if message is not None:
                self._take(message)
            if timer.is_due():
                self._commit(self._journal.positions, waiting=False)
        self._consumer.close()

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            self._journal.refused(message.error())
        else:
            self._journal.delivered(message.partition(), message.offset(), message.timestamp()[1])

    def _commit(self, positions: dict[int, int], *, waiting: bool) -> None:
        self._journal.flush()
        if not positions:
            return
        places = [TopicPartition(self._topic, *position) for position in positions.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=not waiting)
        except KafkaException as error:
            self._journal.refused(f"commit: {error}")

    def _on_commit(self, error: Any, places: list[Any]) -> None:
        if error is not None:
            self._journal.refused(f"commit: {error}")
        else:
            self._journal.committed({place.partition: place.offset for place in places})

    def _on_assign(self, consumer: Any, places: list[Any]) -> None:
        # The group metadata is documented as opaque; its generation follows a fixed prefix.
        generation = int.from_bytes(consumer.consumer_group_metadata()[7:11], "little", signed=True)
        self._journal.assigned(generation, numbers(places))

    def _on_revoke(self, _consumer: Any, places: list[Any]) -> None:
        given_up = numbers(places)
        positions = self._journal.positions
        self._commit({each: positions[each] for each in given_up if each in positions}, waiting=True)
        self._journal.revoked(given_up)

    def _on_lost(self, _consumer: Any, places: list[Any]) -> None:
        self._journal.revoked(numbers(places), was_lost=True)


def _consumer_settings(settings: Settings) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "bootstrap.servers": settings.address,
        "group.id": settings.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }
    if settings.instance_id is not None:
        shared["group.instance.id"] = settings.instance_id
    if settings.kind is Kind.CONSUMER:
        # The broker decides on sessions and heartbeats.
        return {**shared, "group.protocol": "consumer"}
    return {
        **shared,
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": (
            "cooperative-sticky" if settings.kind is Kind.COOPERATIVE else "range"
        ),
    }
