"""Pipelines on a busy machine: workers that start too late for Spark, and batches that take long."""

from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines.archive import pipeline as archiving
from alpacamq_spark.pipelines.archive import table
from alpacamq_spark.pipelines.run import ProgressListener

from .pipeline_files import RecordedProgress, Workshop, send
from .test_pipeline_archive import ids, numbered
from .topics import make_topic


@pytest.mark.heavy  # Spark waits ten seconds for a worker
def test_a_run_goes_on_when_a_worker_was_too_slow(
    workshop: Workshop, cluster: Cluster, topic: str, slow_worker: Path
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 10))
    pipeline = workshop.pipeline(
        f'kind = "archive"\nsource = {{ topics = ["{topic}"] }}\nsink = {{ path = "archive" }}\n'
        'schema = "id BIGINT, name STRING"\n'
    )
    told = RecordedProgress()
    slow_worker.touch()
    try:
        assert workshop.run(pipeline, told).rows == 10
    finally:
        is_used = not slow_worker.exists()
        slow_worker.unlink(missing_ok=True)
    assert is_used
    assert "Spark gave up waiting for a Python worker; starting the query again" in told.sentences
    assert ids(workshop.spark, workshop.directory / "archive") == dict.fromkeys(range(10), 1)


def test_a_batch_that_takes_long_is_reported_while_it_runs(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 10))
    pipeline = workshop.pipeline(
        f'kind = "archive"\nsource = {{ topics = ["{topic}"] }}\nsink = {{ path = "archive" }}\n'
    )
    reported = Event()
    write_segment = table.write_segment

    def write_when_reported(frame: DataFrame, *rest: object) -> None:
        assert reported.wait(120)
        write_segment(frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(archiving, "write_segment", write_when_reported)

    def running(elapsed_s: float) -> None:
        if elapsed_s > 0:
            reported.set()

    listener = ProgressListener(running=running)
    assert pipeline.run(spark=workshop.spark, listener=listener).rows == 10
