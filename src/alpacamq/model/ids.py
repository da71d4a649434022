"""Identifier types, so that a producer id is never passed as an offset."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TimestampMs = NewType("TimestampMs", int)
TopicName = NewType("TopicName", str)
TopicId = UUID

# Of no topic: of records that were written before they had topic ids, and in requests about unknown topics.
NO_TOPIC_ID = TopicId(int=0)
NO_TIMESTAMP = TimestampMs(-1)
NO_PRODUCER = ProducerId(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as the name of its directory."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
