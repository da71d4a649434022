"""Which partitions share consumers may name."""

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition import Partition
from alpacamq.model.errors import PolicyViolation, UnknownTopic, UnknownTopicId
from alpacamq.model.ids import TopicId
from alpacamq.model.topics import INTERNAL_TOPICS


def find_shared(broker: Broker, topic_id: TopicId, index: int) -> Partition:
    """A partition that may be shared, or what is wrong with it."""
    if (partition := broker.topics.find(topic_id.bytes, index)) is None:
        if (topic := broker.topics.image.topic_by_id(topic_id)) is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        raise UnknownTopic(f"topic {topic.name!r} has no partition {index}")
    if partition.identity.topic in INTERNAL_TOPICS:
        raise PolicyViolation(f"topic {partition.identity.topic!r} is internal and cannot be shared")
    return partition
