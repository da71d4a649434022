"""Pipelines with a broker whose clients need TLS, a certificate of their own and a password."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from alpacamq.cli.main import main
from alpacamq.client.connect import Tls, parse_addresses
from alpacamq.client.errors import Unreachable
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.errors import InvalidPipeline
from tests.brokers import Broker
from tests.cli.command import InProcess

from .topics import deliveries, make_topic

USER, PASSWORD = "ann", "of-ann"
FILES = ('ca_file = "ca.pem"', 'cert_file = "client.pem"', 'key_file = "client.key"')
LOGIN = (f'user = "{USER}"', 'password_file = "password"')


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with certificates and a password."""
    root = tmp_path_factory.mktemp("tls")
    assert main(["cert", "dev", "--dir", str(root), "-o", "json"]) == 0
    (root / "password").write_text(PASSWORD)
    return root


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[Broker]:
    users = root / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    config = (
        f"[security]\nauthentication = true\nusers_file = '{users}'\n"
        f"[tls]\ncertificate = '{root}/server.pem'\nkey = '{root}/server.key'\nclient_ca = '{root}/ca.pem'\n"
        "[kafka]\ntls = true\nclient_certificates = 'required'\n[sqs]\nenabled = false\n"
    )
    broker = Broker(root / "data", config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def cluster(broker: Broker, root: Path) -> Iterator[Cluster]:
    tls = Tls(ca=f"{root}/ca.pem", certificate=f"{root}/client.pem", key=f"{root}/client.key")
    login = Login(user=USER, password=PASSWORD)
    with Cluster(*parse_addresses(broker.address), login=login, tls=tls) as cluster:
        yield cluster


def publish(broker: Broker, root: Path, topic: str, value: bytes) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(root / "ca.pem"),
            "ssl.certificate.location": str(root / "client.pem"),
            "ssl.key.location": str(root / "client.key"),
        }
    )
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_the_security_options_of_kafkas_client_reach_the_broker(
    broker: Broker, cluster: Cluster, root: Path, topic: str, spark: SparkSession
) -> None:
    """Code for Spark's own Kafka source and sink needs only another format, whatever it sets."""
    make_topic(cluster, topic, partitions=1)
    own = root / "own.pem"
    own.write_text((root / "client.pem").read_text() + (root / "client.key").read_text())
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "kafka.bootstrap.servers": broker.address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(root / "ca.pem"),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(own),
        "kafka.request.timeout.ms": "5000",
        "kafka.client.id": "tea",
    }
    writer = spark.sql("SELECT 'tea' value").write.format("alpacamq").options(**options)
    writer = writer.option("kafka.acks", "all").option("kafka.linger.ms", "5").option("topic", topic)
    writer.mode("append").save()
    reader = spark.read.format("alpacamq").options(**options).option("subscribe", topic)
    frame = reader.option("kafka.fetch.max.bytes", "1000000").option("fetchOffset.numRetries", "3").load()
    assert [row.value for row in frame.collect()] == [b"tea"]
    wrong = reader.option("kafka.sasl.jaas.config", options["kafka.sasl.jaas.config"].replace(PASSWORD, "x"))
    with pytest.raises(PySparkException, match="wrong user name or password"):
        wrong.load().collect()


def transform(root: Path, broker: Broker, topic: str, *lines: str) -> Path:
    """Write a pipeline that reads a topic and writes another one."""
    file = root / f"{topic}.toml"
    settings = (
        'kind = "transform"',
        f'broker = "{broker.address}"',
        *lines,
        'sql = "SELECT upper(item) AS item FROM orders"',
        "[sources.orders]",
        f'topic = "{topic}"',
        "[sink]",
        f'topic = "{topic}-out"',
    )
    file.write_text("\n".join(settings))
    return file


def test_a_pipeline_reads_and_writes_over_tls(
    broker: Broker, root: Path, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    """Its files are relative to the pipeline's."""
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-out", partitions=1)
    publish(broker, root, topic, b'{"item": "tea"}')
    pipeline = load(transform(root, broker, topic, *FILES, *LOGIN))
    assert pipeline.run(spark=spark).rows == 1
    assert pipeline.status().data
    assert [each.record.value for each in deliveries(cluster, f"{topic}-out")] == [b'{"item":"TEA"}']


def test_a_pipeline_without_tls_does_not_reach_the_broker(broker: Broker, root: Path) -> None:
    for lines in (LOGIN, ("tls = true", *LOGIN), (FILES[0], *LOGIN)):
        with pytest.raises(Unreachable):
            load(transform(root, broker, "orders", *lines)).check_broker()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((FILES[2],), "key_file needs cert_file"),
        (("tls = false", FILES[0]), "ca_file and cert_file are for tls = true"),
    ],
)
def test_settings_that_contradict_are_named(
    broker: Broker, root: Path, lines: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(InvalidPipeline, match=expected):
        load(transform(root, broker, "orders", *lines))


def test_a_missing_file_is_named(broker: Broker, root: Path) -> None:
    pipeline = load(transform(root, broker, "orders", 'ca_file = "missing.pem"'))
    with pytest.raises(Exception, match=r"missing\.pem is not a file"):
        pipeline.check_broker()


def test_commands_use_the_files_of_the_pipeline_the_environment_or_the_command_line(
    broker: Broker, root: Path, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-out", partitions=1)
    command = InProcess("", "")
    own = str(transform(root, broker, topic, *FILES, *LOGIN))
    command.ok("pipeline", "status", own)
    assert "answers, 1 in its cluster" in command.ok("pipeline", "doctor", own)
    bare = str(transform(root, broker, topic, *LOGIN))
    assert "TLS" in command.fails(3, "pipeline", "status", bare)
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
    monkeypatch.chdir(root)
    given = [text for name, file in files.items() for text in (f"--{name}", file)]
    command.ok("pipeline", "status", bare, *given)
    for name, file in files.items():
        monkeypatch.setenv(f"ALPACAMQ_{name.upper()}", file)
    command.ok("pipeline", "status", bare)
    without = str(transform(root, broker, topic, "tls = false", *LOGIN))
    command.fails(3, "pipeline", "status", without)
