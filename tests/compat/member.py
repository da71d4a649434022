"""Runs one member of a group as a process, so that it can be killed like any application.

    python -m tests.compat.member confluent-kafka 127.0.0.1:9092 GROUP TOPIC --assignor cooperative-sticky

It reads, commits what it has read, and prints a line for each event: `owns`, `lost`, `read` and `refused`,
for a commit that failed. It tries such a commit again: during a rebalance its epoch can be one too old.
A signal makes it leave the group in its client's way.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

POLL_S = 0.05
# How soon a member learns that the group rebalances; a long session must not make it late.
MAX_HEARTBEAT_MS = 1000
# confluent-kafka selects assignors by name; this one stands for the group protocol of KIP-848.
KIP_848 = "kip-848"


def say(*words: object) -> None:
    # One write, so that a kill never leaves half a line.
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


class Report:
    """Prints the partitions the member owns when they change."""

    def __init__(self) -> None:
        self._owned: list[int] | None = None

    def owns(self, partitions: Iterable[int]) -> None:
        if (owned := sorted(partitions)) != self._owned:
            self._owned = owned
            say("owns", *owned)

    @staticmethod
    def lost(partitions: Iterable[int]) -> None:
        say("lost", *sorted(partitions))


class Commits:
    """Commits what was read, again after a failure, until there is nothing left to commit."""

    def __init__(self, *refusals: type[Exception]) -> None:
        self._refusals = refusals
        self.due = False

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Run the client's commit."""
        try:
            yield
        except self._refusals as refusal:
            self.due = not self._is_over(refusal)
            say("refused", refusal)
        else:
            self.due = False

    @staticmethod
    def _is_over(refusal: Exception) -> bool:
        """Return whether the partitions were lost, and with them the positions in them."""
        return "_NO_OFFSET" in str(refusal)


class Stop:
    """Set by the signals that tell the member to leave."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, *_: object) -> None:
        self.asked = True


def run_confluent(options: argparse.Namespace) -> None:
    from confluent_kafka import Consumer, KafkaException

    settings: dict[str, Any] = {
        "bootstrap.servers": options.address,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if options.instance:
        settings["group.instance.id"] = options.instance
    if options.assignor == KIP_848:
        settings["group.protocol"] = "consumer"
    else:
        settings["session.timeout.ms"] = options.session_ms
        settings["heartbeat.interval.ms"] = min(options.session_ms // 6, MAX_HEARTBEAT_MS)
        settings["partition.assignment.strategy"] = options.assignor
    consumer, report, stop, commits = Consumer(settings), Report(), Stop(), Commits(KafkaException)
    consumer.subscribe(
        [options.topic], on_revoke=lambda _, revoked: report.lost(each.partition for each in revoked)
    )
    while not stop.asked or commits.due:
        messages = consumer.consume(500, POLL_S)
        report.owns(each.partition for each in consumer.assignment())
        for message in messages:
            if message.error() is None:
                say("read", message.partition(), message.offset(), message.value().decode())
        if messages or commits.due:
            with commits.attempt():
                consumer.commit(asynchronous=False)
    consumer.close()


def run_kafka_python(options: argparse.Namespace) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    report, stop, commits = Report(), Stop(), Commits(KafkaError)

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            report.lost(each.partition for each in revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            pass

    assignors = {
        "range": RangePartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=min(options.session_ms // 6, MAX_HEARTBEAT_MS),
        partition_assignment_strategy=[assignors[options.assignor]],
    )
    consumer.subscribe([options.topic], listener=Listener())
    while not stop.asked or commits.due:
        polled = consumer.poll(POLL_S * 1000)
        report.owns(each.partition for each in consumer.assignment())
        for messages in polled.values():
            for message in messages:
                say("read", message.partition, message.offset, message.value.decode())
        if polled or commits.due:
            with commits.attempt():
                consumer.commit()
    consumer.close()


async def run_aiokafka(options: argparse.Namespace) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    report, stop, commits = Report(), Stop(), Commits(KafkaError)

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            report.lost(each.partition for each in revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            pass

    assignors = {"range": RangePartitionAssignor, "sticky": StickyPartitionAssignor}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=min(options.session_ms // 6, MAX_HEARTBEAT_MS),
        partition_assignment_strategy=[assignors[options.assignor]],
    )
    await consumer.start()
    consumer.subscribe([options.topic], listener=Listener())
    while not stop.asked or commits.due:
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        report.owns(each.partition for each in consumer.assignment())
        for messages in polled.values():
            for message in messages:
                say("read", message.partition, message.offset, message.value.decode())
        if polled or commits.due:
            with commits.attempt():
                await consumer.commit()
    await consumer.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=["confluent-kafka", "kafka-python", "aiokafka"])
    parser.add_argument("address")
    parser.add_argument("group")
    parser.add_argument("topic")
    parser.add_argument("--assignor", default="range")
    parser.add_argument("--instance")
    parser.add_argument("--session-ms", type=int, default=30_000)
    options = parser.parse_args()
    match options.client:
        case "confluent-kafka":
            run_confluent(options)
        case "kafka-python":
            run_kafka_python(options)
        case _:
            asyncio.run(run_aiokafka(options))


if __name__ == "__main__":
    main()
