"""The set-up of the exactly-once tests: a writer of input, applications that copy it, and the copy.

The input is numbered from 0 in each partition, so the copy is correct if and only if each of its
partitions holds 0, 1, 2 … without gap or repetition for a read_committed reader.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.sealed import unseal
from tests.waiting import eventually

from .processes import Program
from .traffic import DEADLINE_S, Writer
from .transformer import FATAL_EXIT, Settings

SOURCE, TARGET, GROUP = "input", "output", "copiers"
PARTITIONS = 3
# About 750 records a second: a process that has to start first must be able to catch up.
PAUSE_S = 0.004
START_AGAIN_S = 60.0


class Copy:
    """The output as a read_committed consumer sees it; every record is checked."""

    def __init__(self, address: str) -> None:
        # The number of copied inputs by partition.
        self.lengths = [0] * PARTITIONS
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])

    @property
    def total(self) -> int:
        return sum(self.lengths)

    def read_more(self) -> int:
        """Read what is available; return the number of copied inputs."""
        for message in self._consumer.consume(2000, 0.1):
            if (error := message.error()) is not None:
                assert error.retriable() or error.code() < 0, f"the output cannot be read: {error}"
                continue
            partition = message.partition()
            expected, found = self.lengths[partition], unseal(message.value())
            assert found == expected, (
                f"partition {partition} of the output, offset {message.offset()}: "
                f"the effect of input {found} where that of {expected} belongs"
            )
            self.lengths[partition] = expected + 1
        return self.total

    def close(self) -> None:
        self._consumer.close()


class Application:
    """One instance of the application, restarted whenever it ends."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.name = settings.transactional_id
        self.gave_up = 0
        self._program = Program(
            "tests.integration.transformer", msgspec.json.encode(settings).decode(), log=log
        )

    def keep_running(self) -> None:
        """Start it if it does not run; fail if it ended with an unexpected exit code."""
        if self._program.is_running:
            return
        code = self._program.exit_code
        if code is not None and code > 0:
            assert code == FATAL_EXIT, f"{self.name} ended with {code}:\n{self._program.last_output()}"
            self.gave_up += 1
        self._program.start()

    def kill(self) -> None:
        if self._program.is_running:
            self._program.kill()

    def suspend(self) -> None:
        if self._program.is_running:
            self._program.suspend()

    def resume(self) -> None:
        if self._program.is_running:
            self._program.resume()

    def stop(self) -> None:
        self._program.stop()

    def end(self) -> None:
        self._program.end()

    def count(self, word: str) -> int:
        """Return the number of its output lines that begin with a word."""
        return sum(line.startswith(word) for line in self._program.log.read_text().splitlines())

    def last_output(self) -> str:
        return self._program.last_output()


class Pipeline:
    """A broker, a writer of input, and applications that are kept running."""

    def __init__(self, broker: Broker, directory: Path, members: Sequence[bool], dice: Random) -> None:
        """Run one application per entry of `members`; true makes it a static member of the group."""
        self.broker = broker
        client = Confluent(broker.address)
        for topic in (SOURCE, TARGET):
            client.create_topic(topic, partitions=PARTITIONS, settings={"segment.bytes": "2000000"})
        places = [(SOURCE, partition) for partition in range(PARTITIONS)]
        self.writer = Writer(broker.address, places, pause_s=PAUSE_S)
        self.copy = Copy(broker.address)
        self.applications = [
            Application(
                Settings(
                    address=broker.address,
                    source=SOURCE,
                    target=TARGET,
                    group=GROUP,
                    transactional_id=f"copy-{number}",
                    instance_id=f"copy-{number}" if is_static else None,
                    session_timeout_ms=10_000 if is_static else 2_000,
                    seed=dice.randrange(1 << 32),
                ),
                log=directory / f"copy-{number}.log",
            )
            for number, is_static in enumerate(members)
        ]

    def start(self) -> None:
        self.writer.start()
        self.keep_running()

    def keep_running(self) -> None:
        """Restart whatever has ended."""
        if not self.broker.is_running:
            self.broker.start()
        for application in self.applications:
            application.keep_running()
        assert not self.writer.failures, self.writer.failures

    def copy_more(self, count: int) -> None:
        """Wait until `count` more inputs are copied."""
        goal = self.copy.total + count
        eventually(lambda: self._copied(goal), what=f"{count} more effects", within_s=START_AGAIN_S)

    def _copied(self, goal: int) -> bool:
        self.keep_running()
        return self.copy.read_more() >= goal

    def finish(self) -> None:
        """End the input, wait for the rest of the copy and check that it is complete."""
        self.writer.stop()
        self.copy_more(self.writer.total - self.copy.total)
        assert self.copy.lengths == list(self.writer.promised().values())
        for application in self.applications:
            application.stop()
        assert self._committed() == self.copy.lengths, "the group is not where the copy is"
        # Read everything once more: committed data must not change later.
        again = Copy(self.broker.address)
        try:
            eventually(lambda: again.read_more() >= self.copy.total, what="the copy read again", within_s=60)
            assert again.lengths == self.copy.lengths
        finally:
            again.close()

    def end(self) -> None:
        for application in self.applications:
            application.end()
        self.writer.abandon()
        self.copy.close()

    def _committed(self) -> list[int]:
        admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 0})
        asked = ConsumerGroupTopicPartitions(GROUP)
        (answer,) = admin.list_consumer_group_offsets([asked]).values()
        offsets = {place.partition: place.offset for place in answer.result(DEADLINE_S).topic_partitions}
        return [offsets[partition] for partition in range(PARTITIONS)]
