"""How many rows a second does Spark write to a topic and copy between topics, beside its own Kafka sink?

Batch writes of rows with a value of 100 B to a topic with two partitions: rows that Spark makes, and those
of another topic. Ours are exactly-once, with a transaction for each write; Spark's own sink writes at least
once. Spark and its Python workers are the client. The samples of both are taken in turns.
"""

from functools import partial

from pyspark.sql import DataFrame, SparkSession

from . import topics
from .clients import Load
from .report import OURS, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .spark_sessions import Run, find_kafka_source, measure, report_runs, spark_on

SIZE = 100
PARTITIONS = 2
CORES = 2
MADE = "rows of Spark to a topic"
COPIED = "topic to topic"
# The first writes of each let Java compile what it runs.
WRITES_TO_WARM_UP = 2


def run(session: Session, report: Report) -> None:
    source = find_kafka_source(report)
    kinds = {"alpacamq": OURS, **({} if source is None else {"kafka": source.sink})}
    count = session.scaled(2_000_000, 100_000)
    load = Load(topic="written", partitions=PARTITIONS, size=SIZE, count=count)
    warm_up = session.scaled(WRITES_TO_WARM_UP, 1)
    with session.server(AlpacaMQ()) as server, spark_on(CORES, source) as spark:
        topics.create(server.address, load.topic, load.partitions)
        session.clients[-1].produce(server.address, load, "all")
        for case in (MADE, COPIED):
            runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
            for sample in range(warm_up + session.repeats):
                for kind, found in runs.items():
                    sink = f"{case.replace(' ', '-')}-{kind}-{sample}"
                    topics.create(server.address, sink, PARTITIONS)
                    session.settle()
                    frame = _made(spark, load) if case == MADE else _read(spark, server, kind, load)
                    each = measure(server, partial(_write, frame, server, kind, sink, load))
                    if sample >= warm_up:
                        found.append(each)
            for kind, name in kinds.items():
                report_runs(report, case, name, runs[kind])


def _made(spark: SparkSession, load: Load) -> DataFrame:
    rows = spark.range(0, load.count, 1, load.partitions)
    return rows.selectExpr(f"lpad(string(id), {load.size}, 'x') AS value")


def _read(spark: SparkSession, server: Server, kind: str, load: Load) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", server.address)
    return reader.option("subscribe", load.topic).load().select("value")


def _write(frame: DataFrame, server: Server, kind: str, sink: str, load: Load) -> int:
    writer = frame.write.format(kind).option("kafka.bootstrap.servers", server.address)
    writer.option("topic", sink).mode("append").save()
    return load.count
