"""The application of the exactly-once tests: reads one topic, writes another, in transactions.

`python -m tests.integration.transformer '{…}'`, with the fields of `Settings`. Every input record is
written to the partition of the same number with the same value, in the way that confluent-kafka's
documentation recommends: input offsets are part of the transaction, an abortable error is followed by an
abort and a seek back, a fatal one by the end of the process.
"""

import os
import signal
import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

CALL_S = 20.0
FATAL_EXIT = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one instance of the application."""

    address: str
    source: str
    target: str
    transactional_id: str
    seed: int
    group: str
    # A static member gets its partitions back as soon as it is restarted.
    instance_id: str | None = None
    session_timeout_ms: int = 6000
    records_per_transaction: int = 200


class Transformer:
    """One running instance."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dice = Random(settings.seed ^ os.getpid())
        self._is_ending = False
        self._consumer: Any = Consumer(_consumer_settings(settings))
        self._producer: Any = Producer(_producer_settings(settings))

    def run(self) -> None:
        self._producer.init_transactions(CALL_S)
        self._consumer.subscribe([self._settings.source])
        while not self._is_ending:
            # Requested before the records: if these belong to another generation, or to none, the commit is
            # refused, and nothing is done twice.
            membership = self._consumer.consumer_group_metadata()
            messages = self._consumer.consume(
                self._dice.randrange(1, self._settings.records_per_transaction), 0.1
            )
            if messages:
                self._transform(messages, membership)
        self._consumer.close()

    def end(self, _number: int, _frame: FrameType | None) -> None:
        self._is_ending = True

    def _transform(self, messages: list[Any], membership: Any) -> None:
        try:
            self._producer.begin_transaction()
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
                self._producer.produce(self._settings.target, message.value(), partition=message.partition())
            if self._dice.random() < 0.1:
                self._abort("of its own will")
                return
            self._producer.send_offsets_to_transaction(_next_offsets(messages), membership, CALL_S)
            self._retry_ending(self._producer.commit_transaction)
        except KafkaException as failure:
            error = failure.args[0]
            if not error.txn_requires_abort():
                raise
            self._abort(str(error))
        else:
            print(f"committed {len(messages)}", flush=True)

    def _abort(self, reason: str) -> None:
        print(f"aborted: {reason}", flush=True)
        self._retry_ending(self._producer.abort_transaction)
        self._seek_to_committed()

    def _retry_ending(self, end: Callable[[float], None]) -> None:
        """End the transaction; retries while the outcome is unknown."""
        while True:
            try:
                end(CALL_S)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                print(f"asked again: {failure}", flush=True)
            else:
                return

    def _seek_to_committed(self) -> None:
        """Seek to the committed offsets, which is where the aborted transaction started."""
        while assigned := self._consumer.assignment():
            try:
                committed = self._consumer.committed(assigned, CALL_S)
            except KafkaException as failure:
                print(f"committed offsets: {failure}", flush=True)
                continue
            for place in committed:
                place.offset = max(place.offset, 0)
                try:
                    self._consumer.seek(place)
                except KafkaException as failure:
                    # Revoked meanwhile: the new owner reads from the committed offset.
                    print(f"seek {place}: {failure}", flush=True)
            return


def _next_offsets(messages: list[Any]) -> list[Any]:
    last = {(message.topic(), message.partition()): message.offset() for message in messages}
    return [TopicPartition(*place, offset + 1) for place, offset in last.items()]


def _consumer_settings(settings: Settings) -> dict[str, Any]:
    static = {} if settings.instance_id is None else {"group.instance.id": settings.instance_id}
    return {
        "bootstrap.servers": settings.address,
        "group.id": settings.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": 300,
        "fetch.wait.max.ms": 50,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "check.crcs": True,
        **static,
    }


def _producer_settings(settings: Settings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.address,
        "transactional.id": settings.transactional_id,
        "transaction.timeout.ms": 60_000,
        "linger.ms": 1,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 100,
        # When the only broker disconnects, librdkafka would forget it and then wait for the forgotten one
        # to name the group's coordinator (librdkafka issue 5511).
        "metadata.recovery.strategy": "none",
    }


def main() -> int:
    transformer = Transformer(msgspec.json.decode(sys.argv[1], type=Settings))
    signal.signal(signal.SIGTERM, transformer.end)
    try:
        transformer.run()
    except KafkaException as failure:
        # Fenced, or in a state that only a new producer can leave.
        print(f"fatal: {failure}", flush=True)
        return FATAL_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
