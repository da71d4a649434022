"""How long is a record on its way through a Spark query, from its producer to a consumer of the sink topic?

A micro-batch query from topic to topic without a pause between batches, exactly-once; beside it the same with
Spark's own Kafka source and sink, which writes at least once. 100 records a second; the consumer reads what
is committed. The samples of both are taken in turns.
"""

import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from . import topics
from .clients import percentile
from .report import OURS, Report
from .server_cost import cpu_ns
from .servers import AlpacaMQ, Server
from .session import Session
from .spark_sessions import find_kafka_source, query_cpu_s, spark_on

PER_SECOND = 100
PARTITIONS = 2
CORES = 2
PERCENTILES = {"p50": 0.5, "p99": 0.99}
# Java compiles what it runs, and Python workers start.
WARM_UP_S = 30
MEASURED_S = 60
LATE_S = 120.0


def run(session: Session, report: Report) -> None:
    source = find_kafka_source(report)
    kinds = {"alpacamq": OURS, **({} if source is None else {"kafka": source.name})}
    with session.server(AlpacaMQ()) as server, spark_on(CORES, source) as spark:
        runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
        for sample in range(session.repeats):
            for kind, found in runs.items():
                found.append(_measured(session, spark, server, kind, f"{kind}-{sample}"))
    for kind, name in kinds.items():
        for label, share in PERCENTILES.items():
            report(
                case=f"{PER_SECOND} records/s, {label}",
                server=name,
                unit="ms",
                samples=[percentile(each.latencies, share) / 1e6 for each in runs[kind]],
            )
        report(case="a batch", server=name, unit="ms", samples=[each.batch_ms for each in runs[kind]])
        report(
            case="a batch, Spark's and its workers' CPU",
            server=name,
            unit="ms",
            samples=[each.client_ms for each in runs[kind]],
        )
        report(
            case="a batch, the broker's CPU",
            server=name,
            unit="ms",
            samples=[each.server_ms for each in runs[kind]],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One sample: nanoseconds of each record, and milliseconds of a batch with records."""

    latencies: "array[int]"
    batch_ms: float
    client_ms: float
    server_ms: float


def _measured(session: Session, spark: SparkSession, server: Server, kind: str, topic: str) -> Run:
    for each in (topic, f"{topic}-sink"):
        topics.create(server.address, each, PARTITIONS)
    query = _start(spark, server, kind, topic, session.new_directory())
    session.settle()
    try:
        return _run(query, server, topic, session.scaled(WARM_UP_S, 5), session.scaled(MEASURED_S, 5))
    finally:
        query.stop()


def _start(spark: SparkSession, server: Server, kind: str, topic: str, directory: Path) -> StreamingQuery:
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", server.address)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    writer = frame.select("value").writeStream.format(kind)
    writer = writer.option("kafka.bootstrap.servers", server.address).option("topic", f"{topic}-sink")
    return writer.option("checkpointLocation", str(directory)).start()


def _run(query: StreamingQuery, server: Server, topic: str, warm_up_s: int, measured_s: int) -> Run:
    """From the intended sending of each record to its arrival, after the warm-up."""
    total = PER_SECOND * (warm_up_s + measured_s)
    found = array("q")
    before: tuple[int, float, int] | None = None
    sender = threading.Thread(target=_send, args=(server.address, topic, total), daemon=True)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": f"latency-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.subscribe([f"{topic}-sink"])
        sender.start()
        seen = 0
        deadline = time.monotonic() + warm_up_s + measured_s + LATE_S
        while seen < total:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{seen} of {total} records arrived"
            for message in consumer.consume(1000, timeout=0.5):
                number, _, sent_ns = message.value().partition(b" ")
                seen += 1
                if int(number) >= PER_SECOND * warm_up_s:
                    found.append(time.monotonic_ns() - int(sent_ns))
            if found and before is None:
                before = query.lastProgress["batchId"], query_cpu_s(), cpu_ns(server.pid)
    finally:
        consumer.close()
    assert before is not None
    first, client_s, server_ns = before
    client_s, server_ns = query_cpu_s() - client_s, cpu_ns(server.pid) - server_ns
    batches = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] > first]
    sender.join(LATE_S)
    return Run(
        latencies=found,
        batch_ms=sum(each["durationMs"]["triggerExecution"] for each in batches) / len(batches),
        client_ms=client_s * 1e3 / len(batches),
        server_ms=server_ns / 1e6 / len(batches),
    )


def _send(address: str, topic: str, total: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    began_ns = time.monotonic_ns()
    for number in range(total):
        due_ns = began_ns + number * 1_000_000_000 // PER_SECOND
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        producer.produce(topic, b"%d %d" % (number, due_ns))
        producer.poll(0)
    producer.flush(LATE_S)
