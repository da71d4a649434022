"""Descriptions of the broker itself."""

from pathlib import Path

from tests.brokers import Broker

from .client import Admin, Record
from .confluent import Confluent
from .kafka_python import KafkaPython


def test_every_client_sees_the_same_cluster(admin: Admin, confluent: Confluent, broker: Broker) -> None:
    cluster = admin.cluster()

    assert cluster.brokers == broker.by_id
    assert cluster.controller in broker.by_id
    assert cluster.id
    assert cluster == confluent.cluster()


def test_every_node_has_a_replica_of_a_topic(
    admin: Admin, confluent: Confluent, broker: Broker, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)

    assert confluent.replicas(topic) == [set(broker.by_id)] * 2


def test_every_log_directory_reports_the_size_of_a_topic(
    kafka_python: KafkaPython, broker: Broker, topic: str
) -> None:
    kafka_python.create_topic(topic, partitions=2)
    kafka_python.produce(topic, [Record(value=b"x" * 10_000, partition=1)])

    directories = kafka_python.log_dirs(topic)

    assert len(directories) == len(broker.directories)
    for expected in broker.directories:
        (directory,) = (
            each
            for each in directories
            if expected in [Path(each["log_dir"]), *Path(each["log_dir"]).parents]
        )
        assert directory["error_code"] == 0
        assert directory["total_bytes"] > directory["usable_bytes"] > 0
        (described,) = directory["topics"]
        sizes = {entry["partition_index"]: entry["partition_size"] for entry in described["partitions"]}
        assert described["name"] == topic
        assert sizes[0] == 0
        assert 10_000 < sizes[1] < 11_000


def test_a_long_list_of_partitions_is_paged(kafka_python: KafkaPython, topic: str) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    kafka_python.create_topic(first, partitions=7)
    kafka_python.create_topic(second, partitions=5)

    found = kafka_python.topic_partitions([second, first], limit=4)

    assert found == [(first, number) for number in range(7)] + [(second, number) for number in range(5)]
