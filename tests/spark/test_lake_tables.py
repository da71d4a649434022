"""What pipelines promise of tables of every format: each record once, whatever happens to a run."""

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")
pytest.importorskip("deltalake", reason="needs the extra `delta`")

from types import ModuleType

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.tables import writer
from alpacamq_spark.pipelines.tables.table import LakeTable
from alpacamq_spark.pipelines.tables.writer import read_files

from . import test_delta_tables as delta
from . import test_pipeline_tables as iceberg
from .pipeline_files import Sent, Workshop, json_of, send
from .table_process import steps
from .test_pipeline_tables import Cut, changes, cut_off, numbered, run_to_the_end, send_changes
from .topics import make_topic

# Each has the pipelines and reads the tables of its format.
FORMATS = {"iceberg": iceberg, "delta": delta}
BY_ID = 'mode = "upsert"\nkey = "id"'


def codec_of(file: str) -> str:
    """Return the compression of a Parquet file by its metadata."""
    codec: str = pyarrow.parquet.read_metadata(file).row_group(0).column(0).compression
    return codec


@pytest.fixture(params=list(FORMATS))
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def lake(form: str) -> ModuleType:
    return FORMATS[form]


def test_a_batch_that_is_cut_off_at_any_step_is_added_once(
    workshop: Workshop,
    cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    lake: ModuleType,
) -> None:
    make_topic(cluster, topic)
    pipeline = lake.archive(workshop, topic, most=8)
    send(workshop.broker, topic, numbered(0, 8))
    for name, step in steps(form).items():
        cut_off(workshop, pipeline, monkeypatch, step)
        assert max(lake.ids(lake.table(workshop)).values(), default=0) <= 1, name
    send(workshop.broker, topic, numbered(8, 20))
    run_to_the_end(workshop, pipeline)
    found = lake.table(workshop)
    assert lake.ids(found) == Counter(range(20))
    assert lake.files_on_disk(found) == lake.files_of(found)


def test_upserts_cut_off_at_any_step_hold_the_last_record_for_each_key(
    workshop: Workshop,
    cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    lake: ModuleType,
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(lake.UPSERT.format(topic=topic))
    random, model = Random(18), dict[str, str]()
    send_changes(workshop, topic, changes(random, 60, model))
    workshop.run(pipeline)
    for step in steps(form).values():
        send_changes(workshop, topic, changes(random, 30, model))
        cut_off(workshop, pipeline, monkeypatch, step)
    run_to_the_end(workshop, pipeline)
    found = lake.table(workshop, "latest")
    assert lake.state_of(found) == model
    assert lake.files_on_disk(found) == lake.files_of(found)
    assert {"_offset", "_tombstone"}.isdisjoint(field.name for field in found.schema().fields)


def test_files_have_the_compression_of_the_sink(
    workshop: Workshop, cluster: Cluster, topic: str, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    text = lake.ARCHIVE.format(topic=topic, most=100)
    known: set[str] = set()
    for line, codec in (("", "ZSTD"), ('compression = "gzip"\n', "GZIP")):
        send(workshop.broker, topic, numbered(0, 8))
        workshop.run(workshop.pipeline(text + line))
        files = set(lake.current_files(lake.table(workshop)))
        assert {codec_of(name) for name in files - known} == {codec}
        known = files
    merging = f'{text}compression = "snappy"\n[[steps]]\ndo = "compact"\nfan_in = 2\n'
    workshop.run(workshop.pipeline(merging))
    assert {codec_of(name) for name in lake.current_files(lake.table(workshop))} == {"SNAPPY"}


def test_only_rows_whose_tombstone_is_true_are_deleted(
    workshop: Workshop, cluster: Cluster, topic: str, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    # As outer joins make it: null instead of false.
    sql = "SELECT _key AS id, amount, _offset, nullif(_tombstone, false) AS _tombstone FROM orders"
    pipeline = workshop.pipeline(lake.TRANSFORM.format(topic=topic, sql=sql, sink=BY_ID))
    records = [Sent(value='{"amount": 1}', key=key) for key in "abc"]
    for sent in (records, [Sent(value='{"amount": 2}', key="a"), Sent(value="", key="b")]):
        send_changes(workshop, topic, sent)
        workshop.run(pipeline)
    rows = query_sink(pipeline, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [{"id": "a", "amount": 2.0}, {"id": "c", "amount": 1.0}]


def test_a_row_without_an_order_ends_an_upsert_and_is_named(
    workshop: Workshop, cluster: Cluster, topic: str, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    sql = "SELECT _key AS id, amount, if(_key = 'b', null, _offset) AS _offset FROM orders"
    pipeline = workshop.pipeline(lake.TRANSFORM.format(topic=topic, sql=sql, sink=BY_ID))
    send(workshop.broker, topic, [Sent(value="{}", key=key) for key in "aba"])
    with pytest.raises(PipelineFailed, match=r'by _offset, which is null in a row with the id \{"id":"b"\};'):
        workshop.run(pipeline)
    assert lake.count(lake.table(workshop, "orders")) == 0


def test_a_table_belongs_to_one_checkpoint_and_a_checkpoint_to_its_table(
    workshop: Workshop, cluster: Cluster, topic: str, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 2))
    pipeline = lake.archive(workshop, topic)
    workshop.run(pipeline)
    checkpoint = Path(pipeline.checkpoint_place)
    shutil.copytree(checkpoint, checkpoint.with_name("older"))
    for first in (2, 4):
        send(workshop.broker, topic, numbered(first, first + 2))
        workshop.run(pipeline)
    shutil.rmtree(checkpoint / "stream")
    with pytest.raises(ForeignTable, match=r"position .* does not contain"):
        workshop.run(pipeline)
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name("older"), checkpoint)
    with pytest.raises(ForeignTable, match=r"position .* does not contain"):
        workshop.run(pipeline)
    with pytest.raises(ForeignTable, match=r"up to batch 0, and table .*other has none of its batches"):
        workshop.run(workshop.pipeline(lake.ARCHIVE.format(topic=topic, most=9).replace("events", "other")))
    shutil.rmtree(checkpoint)
    with pytest.raises(ForeignTable, match="with another checkpoint"):
        workshop.run(lake.archive(workshop, topic))
    assert lake.ids(lake.table(workshop)) == Counter(range(6))


def ending_at_once(*_: object) -> None:
    raise Cut


def test_small_files_of_a_partition_are_merged(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    text = lake.ARCHIVE.format(topic=topic, most=100) + 'keep_snapshots = "0s"\n'
    for first in (0, 8, 16):
        send(workshop.broker, topic, numbered(first, first + 8))
        workshop.run(workshop.pipeline(text))
    text += '\n[[steps]]\ndo = "compact"\nfan_in = 3\n'
    # A driver that dies between the merged files and their commit leaves the table as it is.
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "commit_merge", ending_at_once)
        with pytest.raises(Cut):
            workshop.run(workshop.pipeline(text))
    assert len(lake.current_files(lake.table(workshop))) == 6
    assert lake.ids(lake.table(workshop)) == Counter(range(24))
    send(workshop.broker, topic, numbered(24, 25))
    outcome = workshop.run(workshop.pipeline(text))
    found = lake.table(workshop)
    assert json_of(outcome)["table"]["merged_files"] == 7
    assert lake.ids(found) == Counter(range(25))
    assert len(lake.current_files(found)) == 2
    assert len(lake.files_of_february(found)) == 1
    # Merged files that were never committed stay for some days.
    assert len(lake.files_on_disk(found) - lake.files_of(found)) == 2
    lake.delete_orphans(workshop, "events")
    assert lake.files_on_disk(found) == lake.current_files(found)


@pytest.mark.parametrize("replaces", [False, True], ids=["a batch", "an upsert"])
def test_a_batch_that_is_committed_during_a_merge_costs_neither(
    workshop: Workshop,
    cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    lake: ModuleType,
    replaces: bool,
) -> None:
    """A merge is committed after it, unless the batch has replaced some of the merged files."""
    make_topic(cluster, topic)
    text = lake.ARCHIVE.format(topic=topic, most=100) + 'keep_snapshots = "0s"\n'
    for first in (0, 8, 16):
        send(workshop.broker, topic, numbered(first, first + 8))
        workshop.run(workshop.pipeline(text))
    place: Any = delta.place(workshop, "events")
    if form == "iceberg":
        place = iceberg._place(workshop, "shop.events")
    original = writer.write_files
    batches: list[int] = []

    def overtaken(frame: Any, directory: str, *arguments: Any) -> None:
        original(frame, directory, *arguments)
        if "/merges/" not in directory:
            return
        table = place.open("pipeline")
        state = table.state()
        files = sorted(table.data_files(), key=lambda file: file.file_path)[:1]
        rows = read_files(workshop.spark, table, files)
        attempt = table.next_attempt(state, state.batch + 1)
        original(rows, table.attempt_directory(attempt), *arguments)
        table.commit(attempt, files if replaces else ())
        batches.append(attempt.batch)

    opened = type(place.open("pipeline"))
    cleaned: list[object] = []

    def cleaning(table: Any, *arguments: Any) -> int:
        cleaned.append(table)
        return int(clean(table, *arguments))

    clean = opened.clean
    monkeypatch.setattr(writer, "write_files", overtaken)
    monkeypatch.setattr(opened, "clean", cleaning)
    outcome = workshop.run(workshop.pipeline(text + '\n[[steps]]\ndo = "compact"\nfan_in = 3\n'))
    assert len(batches) == len(cleaned) == 1
    found = lake.table(workshop)
    state = place.open("pipeline").state()
    assert state is not None
    assert state.batch == batches[0]
    merged = json_of(outcome)["table"]["merged_files"]
    if replaces:
        assert merged == 0
        assert lake.ids(found) == Counter(range(24))
        assert len(lake.current_files(found)) == 6
    else:
        assert merged == 6
        assert lake.ids(found) == Counter(range(24)) + Counter(range(0, 8, 2))
        assert len(lake.current_files(found)) == 3
    assert lake.files_on_disk(found) <= lake.files_of(found)


def test_commits_of_others_cost_a_batch_nothing(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, lake: ModuleType
) -> None:
    make_topic(cluster, topic)
    original = writer.write_files
    others = 0

    def overtaken(*arguments: Any) -> None:
        nonlocal others
        original(*arguments)
        if others < 2:
            others += 1
            lake.change(lake.table(workshop, name))

    for text, name in ((lake.ARCHIVE.format(topic=topic, most=9), "events"), (lake.UPSERT, "latest")):
        others = 0
        send(workshop.broker, topic, numbered(0, 3))
        pipeline = workshop.pipeline(text.format(topic=topic), f"{name}.toml")
        with monkeypatch.context() as patched:
            patched.setattr(writer, "write_files", overtaken)
            workshop.run(pipeline)
        found = lake.table(workshop, name)
        assert lake.files_on_disk(found) >= lake.current_files(found)
        assert lake.count(found) == 3


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ('format = "iceberg"', "needs table = 'NAMESPACE.NAME'"),
        ('format = "iceberg"\ntable = "orders"', "is not a namespace and a name"),
        ('format = "iceberg"\ntable = "a.b"\npath = "c"', "path and format = 'iceberg' exclude each other"),
        ('format = "icberg"\ntable = "a.b"', "did you mean iceberg"),
        ('table = "a.b"', "table needs format = 'iceberg'"),
        ('path = "a"\nmode = "upsert"', "needs format = 'iceberg'"),
        ('path = "a"\nkeep_snapshots = "1d"', "keep_snapshots needs format"),
        (
            'format = "iceberg"\ntable = "a.b"\npartition_by = ["week(timestamp)"]',
            "'week\\(timestamp\\)' is neither",
        ),
        ('format = "iceberg"\ntable = "a.b"\nkeep_snapshots = "long"', "keep_snapshots: 'long' is not"),
        ('path = "a"\n[catalog]\nuri = "x"', "catalog is for sink.format = 'iceberg'"),
        ("", "lacks the key path"),
        ('format = "delta"', "format = 'delta' needs path"),
        ('format = "delta"\ntable = "a.b"', "set path instead of table"),
        ('format = "delta"\npath = "a"\npartition_by = ["day(timestamp)"]', "not by day\\(timestamp\\)"),
        ('format = "delta"\npath = "a"\nkeep_snapshots = "long"', "keep_snapshots: 'long' is not"),
        ('format = "delta"\npath = "a"\n[catalog]\nuri = "x"', "catalog is for sink.format = 'iceberg'"),
        ('path = "a"\nsort_by = ["offset"]', "sort_by needs format = 'iceberg' or 'delta'"),
        ('format = "delta"\npath = "a"\nsort_by = [" "]', "sort_by: ' ' is not a column"),
        ('path = "a"\nstorage_options = { a = "b" }', "storage_options needs format = 'delta'"),
    ],
)
def test_sinks_that_make_no_sense_are_refused_before_spark_starts(
    workshop: Workshop, sink: str, words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        workshop.pipeline(f'kind = "archive"\n[source]\ntopics = ["a"]\n[sink]\n{sink}\n')
