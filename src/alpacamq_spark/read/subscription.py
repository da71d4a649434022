"""Selects the partitions of a read: by topic names, by a pattern, or by partition numbers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import list_topics
from alpacamq.model.errors import InvalidTopicName
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.pipelines import PIPELINES_TOPIC
from alpacamq.model.topics import check_topic_name
from alpacamq_spark.errors import InvalidOption

_SHOWN = 60
_AROUND = 20


def parse_json(option: str, text: str, example: str) -> Any:
    """Parse the JSON value of an option. Raises InvalidOption."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - _AROUND) : error.pos + _AROUND]
        raise InvalidOption(
            f"{option} is not JSON: {error.msg} at character {error.pos + 1}, near {around!r}; "
            f"the format is {example}"
        ) from None


def parse_by_partition(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    """Parse a number for each partition from {"topic":{"0":number}}. Raises InvalidOption."""
    parsed = parse_json(option, text, example)
    if not isinstance(parsed, dict):
        raise InvalidOption(f"{option} must be an object of topics like {example}, not {show(parsed)}")
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise InvalidOption(
                f"{option}: {topic!r} has {show(numbers)} where partitions belong, like {example}"
            )
        for partition, number in numbers.items():
            if not (partition.isascii() and partition.isdigit()):
                raise InvalidOption(f"{option}: {partition!r} is not a partition of {topic!r}")
            if not isinstance(number, int) or isinstance(number, bool) or not -2 <= number < 2**63:
                raise InvalidOption(
                    f"{option}: {topic}-{partition} has {show(number)}, which is not a number"
                )
            found[TopicPartition(TopicName(topic), int(partition))] = number
    return dict(sorted(found.items()))


def show(value: Any) -> str:
    """Format a parsed value as JSON, shortened if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# The topic in which the connector stores committed batches.
COMMITS_TOPIC = TopicName("alpacamq-spark-commits")
# Excluded from patterns; a pipeline that read its own reports would never end.
_OWN = frozenset({COMMITS_TOPIC, PIPELINES_TOPIC})
_WAYS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A selection by names, pattern or partitions; the other two are empty."""

    topics: tuple[TopicName, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def partitions(self, cluster: Cluster) -> list[TopicPartition]:
        """Return the existing partitions, in order. Raises NotFound if a named one does not exist."""
        named: Sequence[TopicName] = [*self.topics, *dict.fromkeys(each.topic for each in self.assigned)]
        every = {topic.name: topic for topic in list_topics(cluster, named or None)}
        if self.pattern is not None:
            # Match the whole name, as Java's matcher in Spark does.
            matches = re.compile(self.pattern).fullmatch
            hidden = {*_OWN, *(name for name, topic in every.items() if topic.is_internal)}
            named = [name for name in every if name not in hidden and matches(name)]
        there = [partition for name in sorted(named) for partition in every[name].all_partitions()]
        if not self.assigned:
            return there
        for partition in self.assigned:
            if partition not in there:
                raise NotFound("partition", str(partition), map(str, there))
        return sorted(self.assigned)


def read_subscription(get: Callable[[str], str | None]) -> Subscription:
    """Parse the options. Raises InvalidOption."""
    given = {way: text for way in _WAYS if (text := get(way)) is not None}
    if len(given) != 1:
        found = f"{' and '.join(given)} were given" if given else "none was given"
        raise InvalidOption(f"give exactly one of {', '.join(_WAYS)}; {found}")
    [(way, text)] = given.items()
    if way == "subscribe":
        return Subscription(topics=tuple(dict.fromkeys(_topic(way, name) for name in text.split(","))))
    if way == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOption(f"subscribePattern={text!r} is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = '{"orders":[0,1]}'
    parsed = parse_json("assign", text, example)
    if not isinstance(parsed, Mapping) or not parsed:
        raise InvalidOption(f"assign must be an object of topics like {example}, not {show(parsed)}")
    assigned = []
    for name, numbers in parsed.items():
        topic = _topic("assign", name)
        if not isinstance(numbers, list) or not numbers:
            raise InvalidOption(f"assign: {name!r} has {show(numbers)} where a list of partitions belongs")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidOption(f"assign: {show(number)} is not a partition of {name!r}")
            assigned.append(TopicPartition(topic, number))
    return tuple(sorted(set(assigned)))


def _topic(option: str, name: str) -> TopicName:
    try:
        return check_topic_name(name.strip())
    except InvalidTopicName as error:
        raise InvalidOption(f"{option}: {error}") from None
