"""Archives: each record once, whatever is repeated, merged or interrupted."""

import fcntl
import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import committed_offsets
from alpacamq_spark.pipelines import Pipeline, read_archive
from alpacamq_spark.pipelines.archive.pipeline import archived
from alpacamq_spark.pipelines.archive.segments import Segment
from alpacamq_spark.pipelines.archive.table import ArchiveTable
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import ForeignArchive, InvalidPipeline, PipelineBusy
from alpacamq_spark.pipelines.run import Interruption, ProgressListener
from alpacamq_spark.pipelines.storage import SparkStorage
from tests.brokers import Broker

from .pipeline_files import HOUR_MS, NOON_MS, RecordedProgress, Sent, Workshop, json_of, send
from .topics import make_topic

TEXT = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = {most}

[sink]
path = "archive"

[[steps]]
do = "compact"
fan_in = {fan_in}
"""


def archive(workshop: Workshop, topic: str, *, most: int = 1000, fan_in: int = 100) -> Pipeline:
    return workshop.pipeline(TEXT.format(topic=topic, most=most, fan_in=fan_in))


def numbered(first: int, last: int) -> list[Sent]:
    return [
        Sent(
            value=json.dumps({"id": number, "name": f"n{number}"}), key=f"k{number % 3}", partition=number % 2
        )
        for number in range(first, last)
    ]


def ids(spark: SparkSession, path: Path) -> Counter[int]:
    """Count the occurrences of each record in an archive."""
    return Counter(row.id for row in read_archive(spark, str(path)).select("data.id").collect())


def test_records_are_archived_with_all_that_belongs_to_them(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic)
    late = Sent(value='{"id": 1, "name": "tea"}', key="k", timestamp_ms=NOON_MS + HOUR_MS, headers={"a": "b"})
    send(workshop.broker, topic, [Sent(value="no json"), late])
    told = RecordedProgress()
    outcome = workshop.run(archive(workshop, topic), told)
    assert (outcome.rows, outcome.is_stopped) == (2, False)
    assert [each.rows for each in told.batches] == [2]
    place = {"topic": topic, "partition": 0, "offset": 0}
    handled = "archived without their columns"
    assert json_of(outcome)["malformed"] == {"values": {"count": 1, "handled": handled, "first": place}}
    rows = read_archive(spark, str(workshop.directory / "archive")).orderBy("offset").collect()
    assert [(row.topic, str(row.date), row.hour, row.partition, row.offset) for row in rows] == [
        (topic, "2026-01-31", 12, 0, 0),
        (topic, "2026-01-31", 13, 0, 1),
    ]
    assert [bytes(row.value) for row in rows] == [b"no json", b'{"id": 1, "name": "tea"}']
    assert rows[0].data is None
    assert rows[1].data.asDict() == {"id": 1, "name": "tea"}
    assert bytes(rows[1].key) == b"k"
    assert [(header.key, bytes(header.value)) for header in rows[1].headers] == [("a", b"b")]
    assert rows[1].timestamp.astimezone(UTC) == datetime(2026, 1, 31, 13, tzinfo=UTC)
    files = sorted(path.parent for path in (workshop.directory / "archive").rglob("*.parquet"))
    assert [path.parts[-3:] for path in files] == [
        (f"topic={topic}", "date=2026-01-31", "hour=12"),
        (f"topic={topic}", "date=2026-01-31", "hour=13"),
    ]
    # Operators see that nothing is left to do.
    committed = committed_offsets(cluster, "pipeline-pipeline")
    assert sum(offset for place, offset in committed.items() if place.topic == topic) == 2


def test_the_hour_is_in_utc_in_every_session_time_zone(spark: SparkSession) -> None:
    # The clocks of New York went from two to three on 8 March; the last one is of a record without a time.
    moments = ["2026-03-08T02:30:00Z", "2026-03-08T07:30:00Z", "1969-12-31T23:59:59.999Z"]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        records = spark.createDataFrame([(time,) for time in moments], "moment STRING").selectExpr(
            "CAST(moment AS TIMESTAMP) timestamp",
            *(f"NULL AS {name}" for name in ("key", "value", "headers", "partition", "offset", "topic")),
        )
        found = [(str(row.date), row.hour) for row in archived(records, None).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert found == [("2026-03-08", 2), ("2026-03-08", 7), ("1969-12-31", 23)]


def test_every_run_adds_new_records_and_a_repeated_batch_replaces_itself(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic)
    pipeline = archive(workshop, topic)
    send(workshop.broker, topic, numbered(0, 10))
    assert workshop.run(pipeline).rows == 10
    # As if Spark had died before it recorded the batch as done.
    commits = Path(pipeline.checkpoint_place) / "stream" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    send(workshop.broker, topic, numbered(10, 15))
    workshop.run(pipeline)
    assert ids(spark, workshop.directory / "archive") == Counter(range(15))


def test_merging_small_files_loses_and_doubles_nothing(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 40))
    pipeline = archive(workshop, topic, most=8, fan_in=2)
    told = RecordedProgress()
    outcome = workshop.run(pipeline, told)
    assert len(told.batches) >= 5
    path = workshop.directory / "archive"
    table = ArchiveTable(str(path), spark)
    whole, rest = table.segments()
    assert not rest
    assert max(segment.width for segment in whole) >= 4
    assert outcome.report.data["merged_segments"]
    assert ids(spark, path) == Counter(range(40))
    # Tools that know nothing of segments see the same.
    assert spark.read.parquet(str(path)).count() == 40

    # A merge that died half way does not count, and is cleared away by the next.
    half = path / "batches=00000000-0000000000-0000000001" / f"topic={topic}" / "date=2026-01-31" / "hour=12"
    half.mkdir(parents=True)
    source = next(path.rglob("*.parquet"))
    (half / "part-0.parquet").write_bytes(source.read_bytes())
    assert ids(spark, path) == Counter(range(40))
    send(workshop.broker, topic, numbered(40, 42))
    workshop.run(pipeline)
    assert not half.exists()
    assert ids(spark, path) == Counter(range(42))


def test_a_stop_request_ends_a_pipeline_after_its_batch(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 30))
    text = TEXT.format(topic=topic, most=10, fan_in=10).replace("[source]", 'trigger = "100ms"\n\n[source]')
    pipeline = workshop.pipeline(text)
    interruption = Interruption()
    outcome = pipeline.run(
        spark=spark,
        listener=ProgressListener(batch=lambda _: interruption.request()),
        interruption=interruption,
    )
    assert outcome.is_stopped
    assert pipeline.status().data["state"] == "stopped"
    assert set(ids(spark, workshop.directory / "archive").values()) == {1}
    workshop.run(workshop.pipeline(text.replace("100ms", "available-now")))
    assert ids(spark, workshop.directory / "archive") == Counter(range(30))


def test_an_archive_belongs_to_one_checkpoint(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 2))
    workshop.run(archive(workshop, topic))
    other = workshop.pipeline(TEXT.format(topic=topic, most=10, fan_in=10), "other.toml")
    with pytest.raises(ForeignArchive, match="another checkpoint"):
        workshop.run(other)
    assert other.status().data["state"] == "failed"


def test_an_archive_can_be_begun_again_where_the_first_run_died(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "._alpacamq.json.77").write_bytes(b"{")
    table, checkpoint = ArchiveTable(str(tmp_path), spark), Checkpoint(str(tmp_path / ".checkpoint"))
    assert table.claim(checkpoint, {}) == table.owner()
    (tmp_path / "_alpacamq.json").unlink()
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(ForeignArchive, match="is not empty and not an archive"):
        table.claim(checkpoint, {})


def done(checkpoint: Checkpoint, *batches: int, query: str = "a-query") -> None:
    """Write the files that Spark leaves for completed batches."""
    checkpoint.storage.write("stream/metadata", f'{{"id":"{query}"}}'.encode())
    for batch in batches:
        checkpoint.storage.write(f"stream/offsets/{batch}", b"v1\n{}\n{}")
        checkpoint.storage.write(f"stream/commits/{batch}", b"v1\n{}")


def written(table: ArchiveTable, writer: str, first: int, last: int) -> None:
    table.storage.write(f"{Segment(writer, first, last).name}/_SUCCESS", b"")


def test_an_archive_that_lacks_batches_of_its_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint, table = Checkpoint(str(tmp_path / "memory")), ArchiveTable(str(tmp_path / "archive"), None)
    writer = table.claim(checkpoint, {}).writer
    for batch in range(2):
        written(table, writer, batch, batch)
        done(checkpoint, batch)
        shutil.copytree(table.place, tmp_path / f"copy-{batch}")
    for place in ("new", "copy-0"):
        other = ArchiveTable(str(tmp_path / place), None)
        with pytest.raises(ForeignArchive, match=r"up to batch 1, which is not in .*sink\.path was changed"):
            other.claim(checkpoint, {})
    assert not (tmp_path / "new").exists()
    shutil.rmtree(table.place)
    with pytest.raises(ForeignArchive, match="Restore the archive"):
        table.claim(checkpoint, {})
    assert ArchiveTable(str(tmp_path / "copy-1"), None).claim(checkpoint, {}).writer == writer


def test_a_position_behind_the_archive_is_refused(tmp_path: Path) -> None:
    """Its batches would be taken for those that were merged, and be lost."""
    checkpoint, table = Checkpoint(str(tmp_path / "memory")), ArchiveTable(str(tmp_path / "archive"), None)
    writer = table.claim(checkpoint, {}).writer
    written(table, writer, 0, 0)
    # As after a first run: the archive does not name the query yet.
    with pytest.raises(ForeignArchive, match=r"batches that the position in .*stream does not contain"):
        table.claim(checkpoint, {})
    done(checkpoint, 0)
    assert table.claim(checkpoint, {}).query == "a-query"

    done(checkpoint, 0, query="another")
    with pytest.raises(ForeignArchive, match="Restore the position"):
        table.claim(checkpoint, {})

    done(checkpoint, 0)
    written(table, writer, 1, 1)  # Spark will write it again
    table.claim(checkpoint, {})
    written(table, writer, 0, 1)
    written(table, writer, 2, 2)
    with pytest.raises(ForeignArchive, match="an older copy"):
        table.claim(checkpoint, {})


def test_a_deleted_position_does_not_restart_an_archive(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 2))
    pipeline = archive(workshop, topic)
    workshop.run(pipeline)
    shutil.rmtree(Path(pipeline.checkpoint_place) / "stream")
    with pytest.raises(ForeignArchive, match="Restore the position"):
        workshop.run(pipeline)


def test_a_batch_without_rows_after_filters_is_completed(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 2))
    text = TEXT.format(topic=topic, most=10, fan_in=10)
    workshop.run(workshop.pipeline(f'{text}[[steps]]\ndo = "filter"\nwhere = "offset > 100"\n'))
    send(workshop.broker, topic, numbered(2, 4))
    workshop.run(archive(workshop, topic))
    assert ids(spark, workshop.directory / "archive") == Counter(range(2, 4))


def test_remains_of_an_undone_merge_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ArchiveTable(str(tmp_path), None)
    batches, undone = [Segment("0a1b2c3d", 0, 0), Segment("0a1b2c3d", 1, 1)], Segment("0a1b2c3d", 0, 1)
    for each in (*batches, undone):
        table.storage.write(f"{each.name}/_SUCCESS", b"")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("alpacamq_spark.pipelines.storage.shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        table.discard(undone)
    assert table.segments() == (batches, [undone])


def test_a_pipeline_runs_once_at_a_time(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    pipeline = archive(workshop, topic)
    with Checkpoint(pipeline.checkpoint_place).held():
        assert pipeline.status().data["state"] == "running"
        with pytest.raises(PipelineBusy, match="is already running"):
            workshop.run(pipeline)


def test_checking_whether_a_pipeline_runs_does_not_block_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    with (tmp_path / "lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with checkpoint.held():
            assert checkpoint.is_held()


def test_a_filter_that_makes_no_sense_is_named(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    text = TEXT.format(topic=topic, most=10, fan_in=10) + '[[steps]]\ndo = "filter"\nwhere = "no_such > 1"\n'
    with pytest.raises(InvalidPipeline, match=r"steps\[2\]\.where.*no_such"):
        workshop.run(workshop.pipeline(text))


def test_storage_through_spark_behaves_like_local_storage(
    spark: SparkSession, tmp_path: Path, broker: Broker
) -> None:
    storage = SparkStorage(spark, tmp_path.as_uri())
    assert storage.names("nothing") == []
    assert storage.read("a/b.json") is None
    storage.write("a/b.json", b"one")
    storage.write("a/b.json", b"two")
    assert storage.read("a/b.json") == b"two"
    assert storage.names("a") == ["b.json"]
    assert storage.content("").files == 1
    assert storage.content("").size == 3
    storage.delete("a")
    assert not storage.exists("a/b.json")
