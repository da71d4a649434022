"""How many rows a second does a batch read bring into Spark, beside its file source and its own Kafka source?

Rows with a value of 100 B: from a topic by both sources, and the same rows from Parquet files, as many as the
topic has partitions. Every value is looked at (a sum of checksums). On one core and on two, with 1, 2 and 4
partitions. Spark and its Python workers are the client. The samples are taken in turns.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from . import topics
from .clients import Load
from .report import OURS, Report, counted
from .servers import AlpacaMQ, Server
from .session import Session
from .spark_sessions import OLDER, KafkaSource, Run, find_kafka_source, measure, report_runs, spark_on

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 100
PARTITIONS = (1, 2, 4)
CORES = (1, 2)
FILES = "Parquet files"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def run(session: Session, report: Report) -> None:
    source = find_kafka_source(report, OLDER)
    with session.server(AlpacaMQ()) as server:
        loads = [_written(session, server, partitions) for partitions in PARTITIONS]
        for cores in CORES:
            with spark_on(cores, source) as spark:
                for load in loads:
                    _measure(session, report, spark, server, source, load, cores)


def _written(session: Session, server: Server, partitions: int) -> Load:
    count = session.scaled(2_000_000, 100_000)
    load = Load(topic=f"read-{partitions}", partitions=partitions, size=SIZE, count=count)
    topics.create(server.address, load.topic, partitions)
    session.clients[-1].produce(server.address, load, "all")
    return load


def _measure(
    session: Session,
    report: Report,
    spark: SparkSession,
    server: Server,
    source: KafkaSource | None,
    load: Load,
    cores: int,
) -> None:
    files = session.directory / f"files-{load.partitions}"
    if not files.exists():
        _write_files(spark, server, load, files)
    readers: list[tuple[str, Callable[[], DataFrame]]] = [
        (OURS, lambda: _topic(spark, "alpacamq", server, load)),
        (FILES, lambda: spark.read.parquet(str(files))),
    ]
    if source is not None:
        readers.append((source.name, lambda: _topic(spark, "kafka", server, load)))
    runs: dict[str, list[Run]] = {name: [] for name, _ in readers}
    for sample in range(session.repeats + 1):
        for name, reader in readers:
            session.settle()
            each = measure(server, partial(_read, reader, load))
            if sample:  # the first lets Java compile what it runs
                runs[name].append(each)
    case = f"{counted(load.partitions, 'partition')}, {counted(cores, 'core')}"
    for name, found in runs.items():
        report_runs(report, case, name, found, broker=name != FILES)


def _topic(spark: SparkSession, kind: str, server: Server, load: Load) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", server.address)
    return reader.option("subscribe", load.topic).option("startingOffsets", "earliest").load()


def _write_files(spark: SparkSession, server: Server, load: Load, files: Path) -> None:
    draft = files.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    _topic(spark, "alpacamq", server, load).select(*COLUMNS).write.parquet(str(draft))
    draft.rename(files)


def _read(reader: "Callable[[], DataFrame]", load: Load) -> int:
    row = reader().selectExpr("count(*)", "sum(crc32(value))", "max(offset)").first()
    assert row[0] == load.count, row
    return load.count
