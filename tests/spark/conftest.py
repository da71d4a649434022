"""One broker and one Spark session for all tests of a worker."""

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from alpacamq.client.connect import parse_addresses
from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.session import spark_session
from tests.broker_cluster import make_broker
from tests.brokers import Broker

from .pipeline_files import Workshop

CONFIG = """
[topics]
auto_create = false

[log]
retention_check_ms = 200
"""
SETTINGS = {
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Close the connection to Java when a test ends at its timeout.

    The answer that it waited for would be taken for that of the next call.
    """
    try:
        return (yield)
    except pytest.fail.Exception:
        gateway = SparkContext._gateway
        connection = None if gateway is None else gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close()
        raise


@pytest.fixture(scope="session")
def node_count(request: pytest.FixtureRequest) -> int:
    count: int = request.config.getoption("nodes")
    return count


@pytest.fixture(scope="session")
def broker(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = make_broker(tmp_path_factory.mktemp("spark") / "data", node_count, config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(*parse_addresses(broker.address)) as cluster:
        yield cluster


# A Python whose next process for the source of a stream starts late, if a test asks for that.
PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
    if [ -e {slow} ]; then rm {slow}; sleep 15; fi;;
esac
exec {python} "$@"
"""


@pytest.fixture(scope="session")
def slow_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that makes the next worker for the source of a stream slow, if it exists."""
    return tmp_path_factory.mktemp("python") / "slow"


@pytest.fixture(scope="session")
def spark(slow_worker: Path) -> Iterator[SparkSession]:
    python = slow_worker.with_name("python")
    python.write_text(PYTHON.format(slow=slow_worker, python=sys.executable))
    python.chmod(0o700)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(python)
    session = spark_session("tests", master="local[2]", settings=SETTINGS)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def workshop(broker: Broker, spark: SparkSession, tmp_path: Path) -> Workshop:
    """A directory and a broker to write and run pipelines with."""
    return Workshop(tmp_path, broker, spark)
