"""Committed offsets of a group, against a real broker."""

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.groups import list_groups
from alpacamq.client.kafka.offsets import commit_offsets, committed_offsets, delete_offsets
from alpacamq.client.kafka.topics import create_topic
from alpacamq.model.ids import TopicName, TopicPartition
from tests.conftest import NewBroker


def test_offsets_are_committed_read_and_deleted(new_broker: NewBroker) -> None:
    broker = new_broker()
    broker.start()
    first, second, third = (
        TopicPartition(TopicName(name), partition) for name, partition in [("a", 0), ("a", 1), ("b", 0)]
    )
    with Cluster(parse_address(broker.address)) as cluster:
        create_topic(cluster, "a", partitions=2, replicas=-1, settings={})
        create_topic(cluster, "b", partitions=1, replicas=-1, settings={})
        assert committed_offsets(cluster, "readers") == {}
        commit_offsets(cluster, "readers", {third: 9, first: 3, second: 0})
        assert committed_offsets(cluster, "readers") == {first: 3, second: 0, third: 9}
        assert [group.name for group in list_groups(cluster)] == ["readers"]
        delete_offsets(cluster, "readers", [first, third])
        assert committed_offsets(cluster, "readers") == {second: 0}
