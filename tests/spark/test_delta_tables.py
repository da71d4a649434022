"""Delta tables: each record once, or the last one for each key, wherever a run is cut off."""

import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

pytest.importorskip("deltalake", reason="needs the extra `delta`")

from deltalake import DeltaTable, write_deltalake

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.doctor import examine_pipeline
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.tables.delta import DeltaPlace

from .pipeline_files import HOUR_MS, NOON_MS, RecordedProgress, Sent, Workshop, json_of, send
from .test_pipeline_tables import (
    changes,
    numbered,
    send_changes,
)
from .topics import make_topic

ARCHIVE = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = {most}

[sink]
format = "delta"
path = "lake/events"
"""
UPSERT = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = 40

[sink]
format = "delta"
path = "lake/latest"
mode = "upsert"
"""
TRANSFORM = """
kind = "transform"
sql = "{sql}"

[sources.orders]
topic = "{topic}"
schema = "id BIGINT, customer STRING, amount DOUBLE"

[sink]
format = "delta"
path = "lake/orders"
{sink}
"""


def archive(workshop: Workshop, topic: str, *, most: int = 1000, more: str = "") -> Pipeline:
    return workshop.pipeline(ARCHIVE.format(topic=topic, most=most) + more)


def table(workshop: Workshop, name: str = "events") -> DeltaTable:
    """Load a table as any user of delta-rs does."""
    return DeltaTable(workshop.directory / "lake" / name)


def rows_of(found: DeltaTable, *columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found.to_pyarrow_table(columns=list(columns) or None).to_pylist()
    return rows


def ids(found: DeltaTable) -> Counter[int]:
    """Count the occurrences of each record."""
    return Counter(row["data"]["id"] for row in rows_of(found, "data"))


def files_on_disk(found: DeltaTable) -> set[str]:
    root = Path(found.table_uri.removeprefix("file://"))
    return {str(path) for path in (root / "data").rglob("*.parquet")}


def files_of(found: DeltaTable) -> set[str]:
    """Return the files of all versions that are not vacuumed."""
    root = found.table_uri.removeprefix("file://").rstrip("/")
    removed = found.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
    return {*found.file_uris(), *(f"{root}/{path}" for path in removed)}


def current_files(found: DeltaTable) -> set[str]:
    return set(found.file_uris())


def files_of_february(found: DeltaTable) -> list[str]:
    """Return the files that a reader needs for the later of the two days."""
    return list(found.file_uris(file_pruning_predicate=[("date", "=", "2026-02-01")]))


def count(found: DeltaTable) -> int:
    return len(rows_of(found))


def change(found: DeltaTable) -> None:
    """Commit something, as another writer does."""
    found.alter.set_table_properties({"other": str(found.version())}, raise_if_not_exists=False)


def delete_orphans(workshop: Workshop, name: str) -> None:
    """Clean up as some days later."""
    place(workshop, name).open("pipeline").clean(timedelta(0), datetime.now(UTC) + timedelta(days=4))


def test_records_are_added_to_a_table_that_any_engine_can_read(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 10))
    pipeline = archive(workshop, topic)
    outcome = workshop.run(pipeline)
    assert outcome.rows == 10
    found = table(workshop)
    assert ids(found) == Counter(range(10))
    assert found.metadata().partition_columns == ["topic", "date"]
    # The partitions are true: this reads one of the two files.
    assert len(files_of_february(found)) == 1
    rows = found.to_pyarrow_table(filters=[("date", "=", datetime(2026, 2, 1, tzinfo=UTC).date())])
    assert sorted(row["id"] for row in rows.column("data").to_pylist()) == [1, 3, 5, 7, 9]
    assert json_of(outcome)["table"] == {
        "table": str(workshop.directory / "lake" / "events"),
        "location": str(workshop.directory / "lake" / "events"),
        "rows": 10,
        "files": 2,
        "bytes": sum(Path(name).stat().st_size for name in files_on_disk(found)),
        "merged_files": 0,
        "deleted_files": 0,
    }
    send(workshop.broker, topic, numbered(10, 14))
    assert workshop.run(pipeline).rows == 4
    found = table(workshop)
    assert ids(found) == Counter(range(14))
    batches = [each["alpacamq.batch"] for each in found.history() if "alpacamq.batch" in each]
    assert batches == ["1", "0"]
    assert files_on_disk(found) == files_of(found)
    sql = "SELECT count(*) AS n, max(data.id) AS last FROM events"
    assert query_sink(pipeline, sql, spark=workshop.spark).data["rows"] == [{"n": 14, "last": 13}]


def test_bounds_of_files_are_those_of_their_rows(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    sql = (
        "SELECT id, customer, amount, timestamp_micros(1769860800000001 + id) AS at, "
        "date_add(DATE '2026-01-31', CAST(id AS INT)) AS day FROM orders"
    )
    send(workshop.broker, topic, [Sent(value=f'{{"id": {n}, "customer": "c{n}"}}') for n in (3, 5, 4)])
    send(workshop.broker, topic, [Sent(value="{}")])
    workshop.run(workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink="")))
    found = table(workshop, "orders")
    [action] = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    assert action["num_records"] == 4
    assert [action[f"{end}.{name}"] for name in ("id", "customer") for end in ("min", "max")] == [
        3,
        5,
        "c3",
        "c5",
    ]
    assert [action[f"null_count.{name}"] for name in ("id", "customer", "amount")] == [1, 1, 4]
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (action["min.at"], action["max.at"]) == (noon, noon + timedelta(milliseconds=1))
    assert (str(action["min.day"]), str(action["max.day"])) == ("2026-02-03", "2026-02-05")


def state_of(found: DeltaTable) -> dict[str, str]:
    rows = rows_of(found, "key", "value")
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"].decode(): row["value"].decode() for row in rows}


def test_a_query_keeps_a_table_by_key_and_tombstones_delete(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    sql = "SELECT _key AS id, customer, amount, _offset, _tombstone FROM orders"
    sink = 'mode = "upsert"\nkey = "id"\npartition_by = ["customer"]'
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink=sink))
    amounts = [("1", "ann", 1.0), ("2", "a/b c%d=é", 2.0), ("3", "", 3.0), ("1", "a/b c%d=é", 4.0)]
    send_changes(
        workshop,
        topic,
        [Sent(value=json.dumps({"customer": who, "amount": what}), key=key) for key, who, what in amounts],
    )
    workshop.run(pipeline)
    send_changes(workshop, topic, [Sent(value="", key="2"), Sent(value='{"amount": 5}', key="4")])
    workshop.run(pipeline)
    rows = query_sink(pipeline, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [
        {"id": "1", "customer": "a/b c%d=é", "amount": 4.0},
        # Delta tables keep an empty text as no value, in columns that partition them.
        {"id": "3", "customer": None, "amount": 3.0},
        {"id": "4", "customer": None, "amount": 5.0},
    ]
    assert sorted(rows_of(table(workshop, "orders")), key=lambda row: row["id"]) == rows


def test_rows_are_sorted_inside_files_also_after_a_merge(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    random = Random(3)
    sink = 'sort_by = ["data.id desc", "offset"]\n'
    text = ARCHIVE.format(topic=topic, most=100).replace("[sink]", f"[sink]\n{sink}")
    steps = '\n[[steps]]\ndo = "compact"\nfan_in = 3\n'

    def check(number: int) -> None:
        files = table(workshop).file_uris()
        assert len(files) == number
        for file in files:
            rows = pyarrow.parquet.read_table(file).to_pylist()
            order = [(-row["data"]["id"], row["offset"]) for row in rows]
            assert len(order) > 10
            assert order == sorted(order)

    for run in range(3):
        values = [Sent(value=f'{{"id": {random.randrange(9)}}}', timestamp_ms=NOON_MS) for _ in range(20)]
        values += [Sent(value=each.value, timestamp_ms=NOON_MS + 24 * HOUR_MS) for each in values]
        random.shuffle(values)
        send(workshop.broker, topic, values)
        workshop.run(workshop.pipeline(text + steps if run == 2 else text))
        check(2 if run == 2 else 2 * (run + 1))
    with pytest.raises(InvalidPipeline, match=r"sort_by: no column 'data\.size'"):
        workshop.run(workshop.pipeline(text.replace("data.id", "data.size")))


def test_new_columns_are_added_also_inside_others(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    text = TRANSFORM.format(topic=topic, sql="SELECT id, struct(customer) AS who FROM orders", sink="")
    send(workshop.broker, topic, [Sent(value='{"id": 1, "customer": "ann"}')])
    workshop.run(workshop.pipeline(text))
    send(workshop.broker, topic, [Sent(value='{"id": 2, "customer": "bob", "amount": 2}')])
    told = RecordedProgress()
    wider = "SELECT CAST(id AS INT) AS id, amount, struct(customer, amount) AS who FROM orders"
    later = workshop.pipeline(text.replace("SELECT id, struct(customer) AS who FROM orders", wider))
    workshop.run(later, told)
    place = workshop.directory / "lake" / "orders"
    assert f"added to table {place}: amount" in told.sentences
    rows = query_sink(later, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [
        {"id": 1, "who": {"customer": "ann", "amount": None}, "amount": None},
        {"id": 2, "who": {"customer": "bob", "amount": 2.0}, "amount": 2.0},
    ]
    assert sorted(rows_of(table(workshop, "orders")), key=lambda row: row["id"]) == rows
    # Without the column again, rows are as the table wants them.
    send(workshop.broker, topic, [Sent(value='{"id": 3, "amount": 4}')])
    workshop.run(workshop.pipeline(text))
    rows = query_sink(later, "SELECT id, amount FROM orders WHERE id = 3", spark=workshop.spark).data["rows"]
    assert rows == [{"id": 3, "amount": None}]
    with pytest.raises(ForeignTable, match=r"other types .*: id is bigint there and string"):
        workshop.run(workshop.pipeline(text.replace("SELECT id", "SELECT CAST(id AS STRING) AS id")))


def test_times_without_a_zone_are_kept_over_runs(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    sql = "SELECT id, CAST('2026-01-31 12:00:00.000001' AS TIMESTAMP_NTZ) AS at FROM orders"
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink=""))
    for number in range(3):
        send(workshop.broker, topic, [Sent(value=f'{{"id": {number}}}')])
        workshop.run(pipeline)
    noon = datetime(2026, 1, 31, 12, 0, 0, 1)  # noqa: DTZ001 - it has no zone
    assert sorted(rows_of(table(workshop, "orders")), key=lambda row: row["id"]) == [
        {"id": number, "at": noon} for number in range(3)
    ]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT id AS `a b` FROM orders", "the column 'a b' has ' ' in its name"),
        ("SELECT id, amount AS ID FROM orders", "the column .* exists more than once"),
        ("SELECT make_dt_interval(id) AS i FROM orders", "which Delta tables cannot have"),
    ],
)
def test_columns_that_delta_tables_cannot_have_are_named(
    workshop: Workshop, cluster: Cluster, topic: str, sql: str, words: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, [Sent(value='{"id": 1}')])
    with pytest.raises(InvalidPipeline, match=words):
        workshop.run(workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink="")))


def place(workshop: Workshop, name: str) -> DeltaPlace:
    return DeltaPlace(name=str(workshop.directory / "lake" / name), options={})


def test_files_of_old_versions_are_deleted_and_the_log_expires(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(UPSERT.format(topic=topic) + 'keep_snapshots = "0s"\n')
    random, model = Random(5), dict[str, str]()
    for _ in range(3):
        send_changes(workshop, topic, changes(random, 20, model))
        outcome = workshop.run(pipeline)
    found = table(workshop, "latest")
    assert json_of(outcome)["table"]["deleted_files"] > 0
    assert state_of(found) == model
    assert files_on_disk(found) == set(found.file_uris())
    properties = found.metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 0 seconds"
    # The batches are known when the log has been replaced by a checkpoint.
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    before = place(workshop, "latest").open("pipeline").state()
    found.create_checkpoint()
    found.cleanup_metadata()
    logs = list((workshop.directory / "lake" / "latest" / "_delta_log").glob("*.json"))
    assert len(logs) == 1
    assert place(workshop, "latest").open("pipeline").state() == before
    send_changes(workshop, topic, changes(random, 20, model))
    workshop.run(pipeline)
    assert state_of(table(workshop, "latest")) == model


def test_files_of_another_engine_are_queried_merged_and_changed(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 4))
    text = ARCHIVE.format(topic=topic, most=100)
    pipeline = workshop.pipeline(text)
    workshop.run(pipeline)
    found = table(workshop)
    # Without the columns of the partition in its files.
    write_deltalake(found, found.to_pyarrow_table(), mode="append")
    sql = "SELECT topic, date, count(*) AS n FROM events GROUP BY topic, date ORDER BY date"
    rows = query_sink(pipeline, sql, spark=workshop.spark)
    days = ["2026-01-31", "2026-02-01"]
    assert rows.data["rows"] == [{"topic": topic, "date": day, "n": 4} for day in days]
    send(workshop.broker, topic, numbered(4, 6))
    outcome = workshop.run(workshop.pipeline(text + '\n[[steps]]\ndo = "compact"\nfan_in = 3\n'))
    assert json_of(outcome)["table"]["merged_files"] == 6
    assert sorted(ids(table(workshop)).values()) == [1, 1, 2, 2, 2, 2]
    assert query_sink(pipeline, sql, spark=workshop.spark).data["rows"] == [
        {"topic": topic, "date": day, "n": 5} for day in days
    ]


def test_upserts_replace_files_of_another_engine(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    sql = "SELECT _key AS id, customer, amount, _offset, _tombstone FROM orders"
    sink = 'mode = "upsert"\nkey = "id"\npartition_by = ["customer"]'
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink=sink))
    workshop.run(pipeline)
    rows = [{"id": each, "customer": f"{each}/ %", "amount": 1.0} for each in ("1", "2", "3")]
    found = table(workshop, "orders")
    write_deltalake(found, pa.Table.from_pylist(rows), mode="append")
    changed = [Sent(value="", key="2"), Sent(value='{"customer": "3/ %", "amount": 5}', key="3")]
    send_changes(workshop, topic, changed)
    workshop.run(pipeline)
    expected = [rows[0], {**rows[2], "amount": 5.0}]
    assert sorted(rows_of(table(workshop, "orders")), key=lambda row: row["id"]) == expected
    read = query_sink(pipeline, "SELECT * FROM orders ORDER BY id", spark=workshop.spark)
    assert read.data["rows"] == expected


def test_upserts_of_a_table_for_appends_only_are_refused(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(UPSERT.format(topic=topic))
    send_changes(workshop, topic, [Sent(value="{}", key="a")])
    workshop.run(pipeline)
    table(workshop, "latest").alter.set_table_properties({"delta.appendOnly": "true"})
    send_changes(workshop, topic, [Sent(value="{}", key="a")])
    with pytest.raises(PipelineFailed, match=r"delta\.appendOnly = true, so an upsert cannot replace rows"):
        workshop.run(pipeline)


def test_tables_with_rules_of_other_engines_are_refused(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 4))
    pipeline = archive(workshop, topic)
    workshop.run(pipeline)
    table(workshop).alter.add_constraint({"low": "offset < 1000"})
    with pytest.raises(ForeignTable, match=r"has the property delta\.constraints\.low"):
        workshop.run(pipeline)


def test_a_directory_with_other_files_is_no_table(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 1))
    other = workshop.directory / "lake" / "events" / "notes.txt"
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(InvalidPipeline, match="is not empty, and not a Delta table"):
        workshop.run(archive(workshop, topic))


def test_the_doctor_looks_at_the_table(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    pipeline = archive(workshop, topic)

    def finding() -> tuple[bool, str]:
        findings = examine_pipeline(pipeline, workshop.broker.address, start_spark=False)
        [found] = [each for each in findings if each.subject == "Table"]
        return found.is_well, found.detail + found.advice

    name = workshop.directory / "lake" / "events"
    assert finding() == (True, f"{name}, which the first run creates")
    assert not name.exists()
    workshop.run(pipeline)
    assert finding() == (True, f"{name}, with 11 columns")


def test_without_deltalake_one_sentence_says_how_to_install_it(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(
        InvalidPipeline, match=r"needs deltalake; install it with `pip install '\.\[delta\]'`"
    ):
        workshop.run(archive(workshop, topic))


def test_a_query_before_the_first_run_says_so(workshop: Workshop, topic: str) -> None:
    with pytest.raises(PipelineFailed, match="there is no Delta table"):
        query_sink(archive(workshop, topic), "SELECT 1", spark=workshop.spark)
