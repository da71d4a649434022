"""Kafka Streams with group.protocol=streams (KIP-1071): a word count in two processes, one of them killed.

Needs a JDK and the jars of Kafka Streams in the user's cache; `python -m tests.compat.test_streams` resolves
them with Maven. Tests never do.
"""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import which

import pytest
from benchmarks import jars
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from alpacamq.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tests.api.kafka.wire import wired
from tests.brokers import Broker, Output

from .client import Record
from .confluent import Confluent

VERSION = "4.1.0"
JARS = jars.CACHE / f"kafka-streams-{VERSION}"
SOURCE = Path(__file__).parent / "streams" / "WordCount.java"
GROUP_RESOURCE = 32
START_S = 60.0
PARTITIONS = 4
ALL_TASKS = "0_0,0_1,0_2,0_3,1_0,1_1,1_2,1_3"

pytestmark = [
    pytest.mark.skipif(which("java") is None or which("javac") is None, reason="there is no JDK"),
    pytest.mark.skipif(not JARS.exists(), reason=f"the jars of Kafka Streams {VERSION} are not in the cache"),
]


class WordCount:
    """One process of the application."""

    def __init__(self, classes: Path, *arguments: str) -> None:
        command = ["java", "-Xmx256m", "-cp", f"{classes}:{JARS}/*", "WordCount", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.output = Output(self._process.stdout)

    def has_tasks(self, pattern: str) -> None:
        """Wait until it runs these tasks."""
        self.output.wait_for(rf"^tasks {pattern} ", within_s=START_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it leave the group and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.output.wait_for("^closed true", within_s=START_S)
        self._process.wait()


Start = Callable[..., WordCount]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(found), str(SOURCE)], check=True)
    return found


@pytest.fixture
def start(broker: Broker, confluent: Confluent, topic: str, classes: Path, tmp_path: Path) -> Iterator[Start]:
    """Start processes of the application, which has the name of its input topic."""
    confluent.create_topic(topic, partitions=PARTITIONS)
    confluent.create_topic(f"{topic}-out", partitions=1)

    with ExitStack() as ending:

        def start(name: str, *settings: str) -> WordCount:
            started = WordCount(
                classes,
                topic,
                topic,
                f"{topic}-out",
                f"bootstrap.servers={broker.address}",
                f"state.dir={tmp_path / name}",
                f"client.id={name}",
                "commit.interval.ms=200",
                *settings,
            )
            ending.callback(started.kill)
            return started

        yield start


def configure(broker: Broker, group: str, **settings: str) -> None:
    """Set settings of a streams group; underscores stand for dots."""
    configs = [
        IncrementallyAlterableConfig(
            name=f"streams.{name.replace('_', '.')}", config_operation=0, value=value
        )
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=configs
    )
    with wired(broker.host_and_port) as wire:
        (result,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert result.error_code == 0, result.error_message


def say(client: Confluent, topic: str, word: str, times: int) -> None:
    """Produce lines with the word and another one, to all partitions."""
    client.produce(
        topic,
        [
            Record(value=f"{word} w{number % 50}".encode(), partition=number % PARTITIONS)
            for number in range(times)
        ],
    )


def counts(broker: Broker, topic: str, *, until: dict[str, int]) -> Counter[str]:
    """Read the last count of each word, until these counts are reached."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: Counter[str] = Counter()
    deadline = time.monotonic() + START_S
    while any(found[word] < times for word, times in until.items()):
        assert time.monotonic() < deadline, found
        if (message := consumer.poll(0.5)) is not None and message.error() is None:
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            found[key.decode()] = int.from_bytes(value, "big")
    consumer.close()
    return found


@pytest.mark.parametrize(
    "guarantee", [pytest.param("at_least_once", marks=pytest.mark.heavy), "exactly_once_v2"]
)
def test_a_word_count_survives_the_death_of_a_process(
    start: Start, broker: Broker, confluent: Confluent, topic: str, guarantee: str
) -> None:
    configure(broker, topic, session_timeout_ms="6000", heartbeat_interval_ms="500")
    setting = f"processing.guarantee={guarantee}"
    first = start("one", setting)
    first.has_tasks(ALL_TASKS)
    say(confluent, topic, "alpha", 400)
    counts(broker, f"{topic}-out", until={"alpha": 400})

    second = start("two", setting)
    second.has_tasks("0_.,0_.,1_.,1_.")
    first.has_tasks("0_.,0_.,1_.,1_.")
    say(confluent, topic, "beta", 400)
    counts(broker, f"{topic}-out", until={"alpha": 400, "beta": 400})

    first.kill()
    say(confluent, topic, "gamma", 400)
    second.has_tasks(ALL_TASKS)
    expected = {"alpha": 400, "beta": 400, "gamma": 400} | {f"w{each}": 24 for each in range(50)}
    found = counts(broker, f"{topic}-out", until=expected)
    if guarantee == "exactly_once_v2":
        # With at_least_once, words since the last commit of the killed process may be counted again.
        assert found == expected
    second.stop()


@pytest.mark.heavy
def test_standby_tasks_and_endpoints(start: Start, broker: Broker, topic: str) -> None:
    configure(
        broker,
        topic,
        session_timeout_ms="6000",
        heartbeat_interval_ms="500",
        num_standby_replicas="1",
    )
    first = start("one", "application.server=localhost:7001", "num.stream.threads=2")
    first.has_tasks(ALL_TASKS)
    second = start("two", "application.server=localhost:7002", "num.stream.threads=2")
    both = "(0_.,){2}(1_.s?,?){4} hosts localhost:7001/4,localhost:7002/4"
    for process in (first, second):
        process.output.wait_for(rf"^tasks {both}", within_s=START_S)
    first.kill()
    second.has_tasks(ALL_TASKS)
    second.stop()


if __name__ == "__main__":
    if not JARS.exists():
        jars.resolve(JARS, "org.apache.kafka", "kafka-streams", VERSION)
    print(JARS)
