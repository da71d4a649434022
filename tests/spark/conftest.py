"""One broker and one Spark session for all tests of a worker."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = spark_session("tests", master="local[2]", settings=SETTINGS)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def workshop(broker: Broker, spark: SparkSession, tmp_path: Path) -> Workshop:
    """A directory and a broker to write and run pipelines with."""
    return Workshop(tmp_path, broker, spark)
