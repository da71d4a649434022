"""What partitions take on disk."""

from collections import defaultdict

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse

from .cluster import Cluster
from .errors import Refused, check


def partition_bytes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Bytes on disk by partition, all replicas together; empty where brokers do not tell."""
    found: dict[TopicPartition, int] = defaultdict(int)
    for broker in cluster.everyone():
        try:
            answer = broker.call(DescribeLogDirsRequest(), DescribeLogDirsResponse)
            check(f"reading the sizes at {broker.address}", answer.error_code)
        except Refused:
            return {}
        for directory in answer.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    place = TopicPartition(TopicName(topic.name), each.partition_index)
                    found[place] += each.partition_size
    return dict(found)
