"""How much CPU time does a million rows of a streaming read cost, beside Spark's own Kafka source?

Rows with a value of 100 B of a topic with two partitions, in micro-batches of 250,000 rows, to a sink that
drops them. Spark and its Python workers are the client. The first queries of each source let Java compile
what it runs; of the others, the first two batches do not count. The samples of both are taken in turns.
"""

import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from . import topics
from .clients import Load
from .report import OURS, Report, counted
from .servers import AlpacaMQ, Server
from .session import Session
from .spark_sessions import Run, find_kafka_source, measure, report_runs, spark_on

SIZE = 100
PARTITIONS = 2
CORES = 2
BATCH = 250_000
SKIPPED = 2
QUERIES_TO_WARM_UP = 3
LATE_S = 600.0
POLL_S = 0.02


def run(session: Session, report: Report) -> None:
    source = find_kafka_source(report)
    kinds = {"alpacamq": OURS, **({} if source is None else {"kafka": source.name})}
    count = session.scaled(4_000_000, 1_000_000)
    load = Load(topic="streamed", partitions=PARTITIONS, size=SIZE, count=count)
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    with session.server(AlpacaMQ()) as server, spark_on(CORES, source) as spark:
        topics.create(server.address, load.topic, load.partitions)
        session.clients[-1].produce(server.address, load, "all")
        warm_up = session.scaled(QUERIES_TO_WARM_UP, 1)
        for sample in range(warm_up + session.repeats):
            for kind, found in runs.items():
                session.settle()
                each = _measured(session, spark, server, kind, load)
                if sample >= warm_up:
                    found.append(each)
    for kind, name in kinds.items():
        report_runs(report, f"{counted(PARTITIONS, 'partition')}, {counted(CORES, 'core')}", name, runs[kind])


def _measured(session: Session, spark: SparkSession, server: Server, kind: str, load: Load) -> Run:
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", server.address)
    reader = reader.option("subscribe", load.topic).option("startingOffsets", "earliest")
    writer = reader.option("maxOffsetsPerTrigger", BATCH).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(session.new_directory())).start()
    deadline = time.monotonic() + LATE_S
    try:
        skipped = _rows_after(query, deadline, batches=SKIPPED)
        return measure(server, lambda: _rows_after(query, deadline, rows=load.count) - skipped)
    finally:
        query.stop()


def _rows_after(query: StreamingQuery, deadline: float, *, batches: int = 0, rows: int = 0) -> int:
    """Wait for batches and rows, and return the number of rows so far."""
    while True:
        done = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        if len(done) >= batches and sum(done) >= rows:
            return sum(done)
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{sum(done)} rows in {len(done)} batches"
        time.sleep(POLL_S)
