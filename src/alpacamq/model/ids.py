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

NO_TIMESTAMP = TimestampMs(-1)
NO_PRODUCER = ProducerId(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as the name of its directory."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
