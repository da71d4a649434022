"""Spark for the benchmarks: sessions on a number of cores, and its own Kafka source if available."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from alpacamq_spark.session import spark_session

from .jars import CACHE, Unavailable, resolve
from .report import Report
from .server_cost import cpu_ns
from .servers import Server

# Published later than Spark itself in some mirrors of Maven Central. The streams of this version run on 4.3.
_NEWEST = "4.2.0"
# An older version, whose batch reads also run on later versions of Spark; its streams do not.
OLDER = "4.0.0"
# Its tokens are not used here, so any version will do where the one that is asked for is not published.
_TOKENS = {"spark-token-provider-kafka-0-10_2.13": OLDER}
_NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
_SETTINGS = {
    "spark.log.level": "OFF",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
}


class KafkaSource:
    """Spark's own source and sink for Kafka, as jars for a session."""

    def __init__(self, jars: Path, version: str) -> None:
        self.name = f"Spark's Kafka source {version}"
        self.sink = f"Spark's Kafka sink {version}"
        self.jars = sorted(str(jar) for jar in jars.glob("*.jar") if jar.name.startswith(_NEEDED))


def kafka_source(*others: str) -> KafkaSource:
    """Return the source of the running version or of another one. Raises Unavailable."""
    failures = []
    for version in (pyspark.__version__, _NEWEST, *others):
        jars = CACHE / f"spark-sql-kafka-{version}"
        try:
            if not jars.exists():
                resolve(jars, "org.apache.spark", "spark-sql-kafka-0-10_2.13", version, _TOKENS)
            return KafkaSource(jars, version)
        except Unavailable as error:
            failures.append(f"{version}: {error}")
    raise Unavailable("; ".join(failures))


def find_kafka_source(report: Report, *others: str) -> KafkaSource | None:
    """Return the source, or None and say in the report why there is none."""
    try:
        return kafka_source(*others)
    except Unavailable as error:
        report.skip("Spark's Kafka source", str(error))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One sample: rows a second, and seconds of CPU for each million."""

    rows_per_s: float
    client_s: float
    server_s: float


def measure(server: Server, work: Callable[[], int]) -> Run:
    """Do some work, which returns its number of rows."""
    client_s, server_ns, began_at = query_cpu_s(), cpu_ns(server.pid), time.monotonic()
    rows = work()
    took_s = time.monotonic() - began_at
    return Run(
        rows_per_s=rows / took_s,
        client_s=(query_cpu_s() - client_s) / rows * 1e6,
        server_s=(cpu_ns(server.pid) - server_ns) / 1e3 / rows,
    )


def report_runs(report: Report, case: str, name: str, runs: Sequence[Run], broker: bool = True) -> None:
    """Add the measurements of a case; without those of the broker if it had no part in it."""
    spent = "s of CPU per million rows"
    report(case=case, server=name, unit="rows/s", samples=[each.rows_per_s for each in runs])
    report(
        case=f"{case}: Spark and its workers",
        server=name,
        unit=spent,
        samples=[each.client_s for each in runs],
    )
    if broker:
        report(case=f"{case}: the broker", server=name, unit=spent, samples=[each.server_s for each in runs])


def query_cpu_s() -> float:
    """Return the CPU time of Spark and its Python workers so far; workers that have ended count as well."""
    return sum(map(_cpu_s, [own for own in psutil.Process().children() if "java" in own.name()]))


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        spent = process.cpu_times()
        ended = spent.children_user + spent.children_system
        return spent.user + spent.system + ended + sum(map(_cpu_s, process.children()))
    return 0.0


@contextmanager
def spark_on(cores: int, source: KafkaSource | None) -> Iterator[SparkSession]:
    """Create a session in a new Java process: a running one does not load more jars."""
    jars = {"spark.jars": ",".join(source.jars)} if source is not None else {}
    spark = spark_session("benchmark", master=f"local[{cores}]", settings={**_SETTINGS, **jars})
    try:
        yield spark
    finally:
        spark.stop()
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
