"""Numbers of partitions: how many tasks a topology has, and which internal topics are missing.

Each subtopology has as many tasks as the largest of its source topics has partitions. Repartition topics
without a number of their own have as many partitions as the subtopologies that write to them have tasks.
Changelog topics have one partition for each task.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from heapq import heapify, heappop, heappush

import msgspec

from alpacamq.coordinator.consumer.messages import TopicsView

from .messages import InternalTopic, Status, StatusCode, Subtopology, Topology

# Assignment takes time for each task, and a member's tasks are one record.
MAX_TASKS = 10_000
_NAMED = 10
_COMPACTED = ("cleanup.policy", "compact")


class ConfiguredTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A topology on the current topics. It has tasks only if all topics exist."""

    tasks: Mapping[str, int] = {}  # number by subtopology
    stateful: frozenset[str] = frozenset()
    missing: tuple[InternalTopic, ...] = ()
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    def digest(self, standbys: int) -> bytes:
        """Return a digest of all that determines an assignment, except the members."""
        parts = (self.is_ready, sorted(self.tasks.items()), sorted(self.stateful), standbys)
        return blake2b(repr(parts).encode(), digest_size=16).digest()


class _IncorrectlyPartitioned(Exception):
    """Topics have numbers of partitions that do not fit; the text names them."""


def configure(topology: Topology, topics: TopicsView) -> ConfiguredTopology:
    """Decide the numbers of partitions and tasks of a topology that passed its check."""
    subtopologies = topology.subtopologies
    missing = {name for each in subtopologies for name in each.source_topics if topics.get(name) is None}
    if missing:
        detail = f"missing source topics: {_names(missing)}"
        return ConfiguredTopology(problem=Status(StatusCode.MISSING_SOURCE_TOPICS, detail))
    counts = _PartitionCounts(subtopologies, topics)
    try:
        counts.decide_repartition_topics()
        for each in subtopologies:
            for group in each.copartition_groups:
                counts.copartition(group)
        tasks = {each.id: max(map(counts.of, each.inputs)) for each in subtopologies}
        if sum(tasks.values()) > MAX_TASKS:
            raise _IncorrectlyPartitioned(f"too many tasks: {sum(tasks.values())}, the limit is {MAX_TASKS}")
        absent = _absent(subtopologies, counts, tasks, topics)
    except _IncorrectlyPartitioned as error:
        return ConfiguredTopology(problem=Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, str(error)))
    if absent:
        detail = f"missing internal topics: {_names(topic.name for topic in absent)}"
        return ConfiguredTopology(missing=absent, problem=Status(StatusCode.MISSING_INTERNAL_TOPICS, detail))
    stateful = frozenset(each.id for each in subtopologies if each.changelog_topics)
    return ConfiguredTopology(tasks=tasks, stateful=stateful)


class _PartitionCounts:
    """Numbers of partitions: of source topics as they are, of repartition topics as they must be."""

    def __init__(self, subtopologies: Iterable[Subtopology], topics: TopicsView) -> None:
        self._subtopologies = tuple(subtopologies)
        self._topics = topics
        repartition = [topic for each in self._subtopologies for topic in each.repartition_source_topics]
        self._flexible = {topic.name for topic in repartition if not topic.partitions}
        self._decided = {topic.name: topic.partitions for topic in repartition if topic.partitions}

    def of(self, name: str) -> int:
        """Return the number of partitions of a topic that exists or is decided."""
        if (decided := self._decided.get(name)) is not None:
            return decided
        topic = self._topics.get(name)
        assert topic is not None, f"the number of partitions of {name} is unknown"
        return topic.partitions

    def decide_repartition_topics(self) -> None:
        """Give each repartition topic the largest number of tasks of the subtopologies that write to it."""
        readers: dict[str, list[int]] = {}
        tasks: list[int] = []
        for index, each in enumerate(self._subtopologies):
            tasks.append(
                max((self.of(name) for name in each.inputs if name not in self._flexible), default=0)
            )
            for topic in each.repartition_source_topics:
                if topic.name in self._flexible:
                    readers.setdefault(topic.name, []).append(index)
        # From the largest number down, so that each subtopology and topic is visited once.
        largest = [(-number, index) for index, number in enumerate(tasks) if number]
        heapify(largest)
        visited: set[int] = set()
        while largest:
            negative, index = heappop(largest)
            if index in visited:
                continue
            visited.add(index)
            for name in self._subtopologies[index].repartition_sink_topics:
                if name in self._flexible and name not in self._decided:
                    self._decided[name] = -negative
                    for reader in readers[name]:
                        heappush(largest, (negative, reader))

    def copartition(self, group: Iterable[str]) -> None:
        """Give the topics of a group the same number of partitions."""
        names = set(group)
        given = {name: self.of(name) for name in names - self._flexible}
        if len(set(given.values())) > 1:
            listed = ", ".join(f"{name} has {given[name]}" for name in sorted(given)[:_NAMED])
            raise _IncorrectlyPartitioned(f"topics must have the same number of partitions: {listed}")
        common = max(given.values()) if given else max(map(self.of, names), default=0)
        for name in names & self._flexible:
            self._decided[name] = common


def _absent(
    subtopologies: Iterable[Subtopology],
    counts: _PartitionCounts,
    tasks: Mapping[str, int],
    topics: TopicsView,
) -> tuple[InternalTopic, ...]:
    """Return the internal topics to create; raise if one exists with another number of partitions."""
    absent: dict[str, InternalTopic] = {}
    for each in subtopologies:
        wanted = {topic.name: (topic, counts.of(topic.name)) for topic in each.repartition_source_topics}
        inputs = set(each.inputs)
        for topic in each.changelog_topics:
            if topic.name not in inputs:  # a source topic can be its own changelog
                wanted[topic.name] = (_compacted(topic), tasks[each.id])
        for name, (topic, partitions) in wanted.items():
            if (existing := topics.get(name)) is None:
                absent[name] = msgspec.structs.replace(topic, partitions=partitions)
            elif existing.partitions != partitions:
                raise _IncorrectlyPartitioned(
                    f"topic {name!r} must have {partitions} partitions, but has {existing.partitions}"
                )
    return tuple(absent[name] for name in sorted(absent))


def _compacted(topic: InternalTopic) -> InternalTopic:
    """Return a changelog topic that is compacted, unless the application says otherwise."""
    if any(name == _COMPACTED[0] for name, _ in topic.configs):
        return topic
    return msgspec.structs.replace(topic, configs=(*topic.configs, _COMPACTED))


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more
