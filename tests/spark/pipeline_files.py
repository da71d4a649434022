"""Pipelines for tests: files in a directory of their own, run on the session of all tests."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from alpacamq_spark.pipelines import Pipeline, load
from alpacamq_spark.pipelines.run import BatchDone, Interruption, ProgressListener, RunResult
from tests.brokers import Broker

HOUR_MS = 3_600_000
# A time that lies within an hour, so that records a little later are in the same directory.
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A record to be sent."""

    value: str
    key: str | None = None
    partition: int = 0
    timestamp_ms: int = NOON_MS
    headers: dict[str, str] = field(default_factory=dict)


def send(broker: Broker, topic: str, records: Iterable[Sent]) -> None:
    """Write records with a client that is not ours."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for record in records:
        producer.produce(
            topic,
            record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers.items()),
        )
    assert producer.flush(30) == 0


def json_of(outcome: RunResult) -> Any:
    """Return what `-o json` prints for a run."""
    return json.loads(json.dumps(outcome.report.data))


@dataclass
class RecordedProgress:
    """Records the progress of a run."""

    sentences: list[str] = field(default_factory=list)
    batches: list[BatchDone] = field(default_factory=list)

    @property
    def listener(self) -> ProgressListener:
        return ProgressListener(say=self.sentences.append, batch=self.batches.append)


@dataclass
class Workshop:
    """A directory with pipelines, a broker and a Spark session to run them."""

    directory: Path
    broker: Broker
    spark: SparkSession

    def pipeline(self, text: str, name: str = "pipeline.toml") -> Pipeline:
        path = self.directory / name
        path.write_text(text)
        return load(path, broker=self.broker.address)

    def example(self, name: str, **replaced: str) -> Pipeline:
        """An example of the documentation, with topics of this test's own."""
        text = (EXAMPLES / name).read_text()
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        return self.pipeline(text, name)

    def run(
        self,
        pipeline: Pipeline,
        told: RecordedProgress | None = None,
        interruption: Interruption | None = None,
    ) -> RunResult:
        listener = None if told is None else told.listener
        return pipeline.run(spark=self.spark, listener=listener, interruption=interruption)
