"""Reading from a broker whose clients must authenticate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from alpacamq.client.errors import Refused
from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.errors import InvalidPipeline
from tests.brokers import Broker
from tests.cli.command import As, InProcess

from .driving import Stream, read, values

USER, PASSWORD = "ann", "of-ann"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    users = tmp_path / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    config = f"[security]\nauthentication = true\nusers_file = '{users}'\n"
    broker = Broker(tmp_path / "data", config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


def publish(broker: Broker, topic: str, value: bytes) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_batches_and_streams_are_read_by_a_user(broker: Broker, tmp_path: Path, topic: str) -> None:
    publish(broker, topic, b"tea")
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    login = {"user": USER, "passwordFile": str(password)}
    assert values(read(broker, subscribe=topic, **login)) == ["tea"]
    assert values(Stream(broker, subscribe=topic, **login).batch()) == ["tea"]
    password.write_text("wrong")
    with pytest.raises(Refused, match="wrong user name or password"):
        read(broker, subscribe=topic, **login)


def archive(directory: Path, broker: Broker, topic: str, *lines: str) -> Path:
    """Write a pipeline that copies a topic to files."""
    file = directory / "archive.toml"
    settings = (
        'kind = "archive"',
        f'broker = "{broker.address}"',
        *lines,
        "[source]",
        f'topics = ["{topic}"]',
        "[sink]",
        'path = "archive"',
    )
    file.write_text("\n".join(settings))
    return file


def test_a_pipeline_needs_both_a_user_and_a_password_file(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="user and password_file belong together"):
        load(archive(tmp_path, broker, "orders", f'user = "{USER}"'))


def test_a_pipeline_logs_in_with_the_user_of_its_file(
    broker: Broker, tmp_path: Path, topic: str, spark: SparkSession
) -> None:
    """The path of the password is relative to the file."""
    publish(broker, topic, b"tea")
    (tmp_path / "password").write_text(PASSWORD)
    pipeline = load(archive(tmp_path, broker, topic, f'user = "{USER}"', 'password_file = "password"'))
    assert PASSWORD not in repr(pipeline)
    assert pipeline.run(spark=spark).rows == 1
    assert pipeline.status().data
    (tmp_path / "password").write_text("wrong")
    with pytest.raises(Refused, match="wrong user name or password"):
        pipeline.check_broker()


def test_the_user_of_the_command_line_runs_a_pipeline(broker: Broker, tmp_path: Path, topic: str) -> None:
    publish(broker, topic, b"tea")
    file = str(archive(tmp_path, broker, topic))
    assert As(broker, tmp_path, USER, PASSWORD)("pipeline", "status", file).code == 0
    refused = As(broker, tmp_path, USER, "wrong")("pipeline", "status", file)
    assert refused.code != 0
    assert "wrong user name or password" in refused.errors
    without = InProcess(broker.address)("--user", USER, "pipeline", "status", file)
    assert "from a file" in without.errors
