"""The cluster image: every topic and counter, as the metadata log tells it.

The log holds keyed records, so that compaction keeps the newest of each. Whoever replays
it through `apply` arrives at the same image; nothing else changes one.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from alpacamq.model.errors import UnknownTopic
from alpacamq.model.ids import TopicId, TopicName
from alpacamq.model.topics import Topic

_TOPIC_PREFIX = b"topic/"
_PRODUCER_IDS_KEY = b"producer-ids"
_STARTS_KEY = b"starts"
_TIME_KEY = b"time"


class Change(NamedTuple):
    """One keyed record of the metadata log; no value means the thing is gone."""

    key: bytes
    value: bytes | None


class ClusterImage:
    """Topics by name and by id, and the first producer id nobody has been promised."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self.next_producer_id = 0
        # The number of the last start of the broker; 0 if starts have not been numbered yet.
        self.start_number = 0
        # When the broker last noted the time; 0 if it never did.
        self.time_ms = 0
        # Counts changes of topics, so that who depends on them notices one.
        self.version = 0

    @property
    def topics(self) -> Mapping[TopicName, Topic]:
        return MappingProxyType(self._topics)

    def topic(self, name: str) -> Topic:
        """The topic of this name, or UnknownTopic."""
        if (topic := self._topics.get(TopicName(name))) is None:
            raise UnknownTopic(f"no topic is named {name!r}")
        return topic

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._by_id.get(topic_id)

    @property
    def partition_count(self) -> int:
        return sum(topic.partitions for topic in self._topics.values())

    def apply(self, changes: Iterable[Change]) -> None:
        """Take in what the metadata log says; keys of a later version are passed over."""
        for key, value in changes:
            if key == _PRODUCER_IDS_KEY and value is not None:
                self.next_producer_id = int(value)
            elif key == _STARTS_KEY and value is not None:
                self.start_number = int(value)
            elif key == _TIME_KEY and value is not None:
                self.time_ms = int(value)
            elif key.startswith(_TOPIC_PREFIX):
                name = TopicName(key.removeprefix(_TOPIC_PREFIX).decode())
                if (former := self._topics.pop(name, None)) is not None:
                    del self._by_id[former.id]
                self.version += 1
                if value is not None:
                    topic = msgspec.json.decode(value, type=Topic)
                    self._topics[name] = self._by_id[topic.id] = topic


def topic_change(topic: Topic) -> Change:
    """The record that makes `topic` what it is."""
    return Change(_TOPIC_PREFIX + topic.name.encode(), msgspec.json.encode(topic))


def topic_removal(name: TopicName) -> Change:
    """The record that ends a topic."""
    return Change(_TOPIC_PREFIX + name.encode(), None)


def producer_ids_change(next_producer_id: int) -> Change:
    """The record that promises every id below `next_producer_id` away."""
    return Change(_PRODUCER_IDS_KEY, str(next_producer_id).encode())


def start_change(number: int) -> Change:
    """The record of a start of the broker."""
    return Change(_STARTS_KEY, str(number).encode())


def time_change(now_ms: int) -> Change:
    """The record that says what time it was when the broker still ran."""
    return Change(_TIME_KEY, str(now_ms).encode())
