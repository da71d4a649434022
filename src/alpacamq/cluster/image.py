"""The cluster image: all topics, broker settings and counters, built from the metadata log.

The log has keyed records, of which compaction keeps the newest. Replaying it through `apply` always
gives the same image; nothing else changes an image.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from alpacamq.model.errors import UnknownTopic
from alpacamq.model.ids import TopicId, TopicName
from alpacamq.model.topics import Topic

_TOPIC_PREFIX = b"topic/"
_BROKER_CONFIG_PREFIX = b"broker-config/"
_PRODUCER_IDS_KEY = b"producer-ids"
_STARTS_KEY = b"starts"
_TIME_KEY = b"time"


class Change(NamedTuple):
    """One keyed record of the metadata log; without a value it deletes the key."""

    key: bytes
    value: bytes | None


class ClusterImage:
    """Topics by name and by id, settings of brokers, and the next unreserved producer id."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        # Names by their form in metrics, where dots are underscores.
        self._by_metric_name: dict[str, set[TopicName]] = {}
        self._broker_overrides: dict[str, Mapping[str, str]] = {}
        self.next_producer_id = 0
        # The number of the broker's last start; 0 if starts have not been numbered yet.
        self.start_number = 0
        # The last time that the broker recorded; 0 if it never did.
        self.time_ms = 0
        # Incremented with every change of topics, so that dependents can detect one.
        self.version = 0

    @property
    def topics(self) -> Mapping[TopicName, Topic]:
        return MappingProxyType(self._topics)

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises UnknownTopic."""
        if (topic := self._topics.get(TopicName(name))) is None:
            raise UnknownTopic(f"no topic is named {name!r}")
        return topic

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._by_id.get(topic_id)

    def collision(self, name: str) -> TopicName | None:
        """Return another topic whose name differs from `name` in dots and underscores only."""
        return min(self._by_metric_name.get(_metric_name(name), set()) - {name}, default=None)

    def broker_overrides(self, name: str) -> Mapping[str, str]:
        """Return the settings changed at run time of a broker, by its id, or of all, by an empty name."""
        return self._broker_overrides.get(name, {})

    @property
    def partition_count(self) -> int:
        return sum(topic.partitions for topic in self._topics.values())

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply records of the metadata log; skip keys of a later version."""
        for key, value in changes:
            if key == _PRODUCER_IDS_KEY and value is not None:
                self.next_producer_id = int(value)
            elif key == _STARTS_KEY and value is not None:
                self.start_number = int(value)
            elif key == _TIME_KEY and value is not None:
                self.time_ms = int(value)
            elif key.startswith(_BROKER_CONFIG_PREFIX):
                name = key.removeprefix(_BROKER_CONFIG_PREFIX).decode()
                self._broker_overrides.pop(name, None)
                if value is not None:
                    self._broker_overrides[name] = msgspec.json.decode(value, type=dict[str, str])
            elif key.startswith(_TOPIC_PREFIX):
                topic_name = TopicName(key.removeprefix(_TOPIC_PREFIX).decode())
                if (former := self._topics.pop(topic_name, None)) is not None:
                    del self._by_id[former.id]
                    self._remove_metric_name(topic_name)
                self.version += 1
                if value is not None:
                    topic = msgspec.json.decode(value, type=Topic)
                    self._topics[topic_name] = self._by_id[topic.id] = topic
                    self._by_metric_name.setdefault(_metric_name(topic_name), set()).add(topic_name)

    def _remove_metric_name(self, name: TopicName) -> None:
        metric_name = _metric_name(name)
        names = self._by_metric_name[metric_name]
        names.discard(name)
        if not names:
            del self._by_metric_name[metric_name]


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def topic_change(topic: Topic) -> Change:
    """Return the record that creates or updates `topic`."""
    return Change(_TOPIC_PREFIX + topic.name.encode(), msgspec.json.encode(topic))


def topic_removal(name: TopicName) -> Change:
    """Return the record that deletes a topic."""
    return Change(_TOPIC_PREFIX + name.encode(), None)


def broker_config_change(name: str, overrides: Mapping[str, str]) -> Change:
    """Return the record of the settings of a broker, or of all brokers if `name` is empty."""
    return Change(
        _BROKER_CONFIG_PREFIX + name.encode(), msgspec.json.encode(dict(overrides)) if overrides else None
    )


def producer_ids_change(next_producer_id: int) -> Change:
    """Return the record that reserves every id below `next_producer_id`."""
    return Change(_PRODUCER_IDS_KEY, str(next_producer_id).encode())


def start_change(number: int) -> Change:
    """Return the record of a broker start."""
    return Change(_STARTS_KEY, str(number).encode())


def time_change(now_ms: int) -> Change:
    """Return the record of the time at which the broker was still running."""
    return Change(_TIME_KEY, str(now_ms).encode())
