"""Generates the tables of tested clients; versions are those of the lock file, the tests and the quick starts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "guide"
COMPAT = ROOT / "tests" / "compat"


class Client(NamedTuple):
    """A client, its version here, what is tested with it, and the test."""

    name: str
    language: str
    version: str
    tested: str
    test: str


def kafka_clients() -> str:
    """Return the table of clients of the Kafka API."""
    java = _found(r'VERSION = "([\d.]+)"', ROOT / "benchmarks" / "apache_kafka.py")
    return _table(
        [
            Client("confluent-kafka (librdkafka)", "Python over C", _locked("confluent-kafka"),
                   "producers, both group protocols, share consumers, transactions, admin", "tests/compat"),
            Client("kafka-python", "Python", _locked("kafka-python"), "producers, consumer groups, admin", "tests/compat"),
            Client("aiokafka", "Python, asyncio", _locked("aiokafka"),
                   "producers, consumer groups, admin", "tests/compat"),
            Client("kcat (librdkafka)", "C", "of Debian", "producing and reading", "tests/compat/kcat.py"),
            Client("Apache Kafka's clients and tools", "Java", java,
                   "producers, consumers, Streams, every login, `kafka-configs.sh` and others", "tests/compat/test_kafka_tools.py"),
            Client("Apache Kafka's clients", "Java", _page("java.md", r"kafka-clients</artifactId>\s*<version>([\d.]+)"),
                   "the [quick start](java.md)", "tests/examples/test_quick_starts.py"),
            Client("franz-go", "Go", _page("go.md", r"franz-go/pkg/kgo@v([\d.]+)"),
                   "the [quick start](go.md)", "tests/examples/test_quick_starts.py"),
            Client("KafkaJS", "JavaScript", _page("javascript.md", r"kafkajs@([\d.]+)"),
                   "the [quick start](javascript.md)", "tests/examples/test_quick_starts.py"),
            Client("rust-rdkafka (librdkafka)", "Rust", _page("rust.md", r"rdkafka@([\d.]+)"),
                   "the [quick start](rust.md)", "tests/examples/test_quick_starts.py"),
            Client("Apache Spark", "Scala, Python", _locked("pyspark"), "`format(\"alpacamq\")`, pipelines", "tests/spark"),
        ]
    )  # fmt: skip


def other_clients() -> str:
    """Return the table of clients of the other APIs."""
    packages = json.loads((COMPAT / "schema_clients" / "package.json").read_text())["dependencies"]
    makefile = ROOT / "Makefile"
    return _table(
        [
            Client("boto3", "Python", _locked("boto3"), "SQS: every action, both protocols", "tests/compat/test_sqs.py"),
            Client("Celery", "Python", _locked("celery"), "workers over SQS", "tests/compat/test_sqs_celery.py"),
            Client("grpcio", "Python over C", _locked("grpcio"), "gRPC: every service", "tests/api/grpc"),
            Client("grpcurl", "Go", _found(r"grpcurl@v([\d.]+)", makefile), "gRPC, reflection", "tests/compat/test_grpc_tools.py"),
            Client("ghz", "Go", _found(r"ghz@v([\d.]+)", makefile), "gRPC under load", "tests/compat/test_grpc_tools.py"),
            Client("confluent-kafka", "Python", _locked("confluent-kafka"),
                   "schema registry, serializers", "tests/compat/test_schema_registry.py"),
            Client("@confluentinc/schemaregistry", "JavaScript", packages["@confluentinc/schemaregistry"],
                   "schema registry", "tests/compat/test_schema_clients.py"),
            Client("@kafkajs/confluent-schema-registry", "JavaScript", packages["@kafkajs/confluent-schema-registry"],
                   "schema registry", "tests/compat/test_schema_clients.py"),
            Client("franz-go sr", "Go", _found(r"pkg/sr v([\d.]+)", COMPAT / "schema_clients" / "go.mod"),
                   "schema registry", "tests/compat/test_schema_clients.py"),
            Client("httpx", "Python", _locked("httpx"), "HTTP", "tests/api/rest"),
        ]
    )  # fmt: skip


def _table(clients: list[Client]) -> str:
    return "\n".join(_rows(clients)) + "\n"


def _rows(clients: list[Client]) -> Iterator[str]:
    yield "| client | language | version | tested | tests |"
    yield "|---|---|---|---|---|"
    for each in clients:
        if not (ROOT / each.test).exists():
            raise FileNotFoundError(f"the test of {each.name} is not there: {each.test}")
        yield f"| {each.name} | {each.language} | {each.version} | {each.tested} | `{each.test}` |"


def _locked(package: str) -> str:
    return _found(rf"^{re.escape(package)}==(\S+)", ROOT / "requirements" / "dev.lock")


def _page(name: str, pattern: str) -> str:
    return _found(pattern, GUIDE / name)


def _found(pattern: str, path: Path) -> str:
    if (found := re.search(pattern, path.read_text(), re.MULTILINE)) is None:
        raise LookupError(f"{path} names no version: {pattern}")
    return found[1]
