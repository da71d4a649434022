"""Telling shards of queues that records have arrived, where somebody waits for them.

Partitions are watched only while that is so: a topic nobody waits on costs its producers nothing.
"""

from collections import Counter
from functools import partial

from .partition import Partition
from .queue_shard import QueueShard
from .topics import Topics


class Arrivals:
    """Who waits on which topic."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._waiting: dict[str, Counter[QueueShard]] = {}
        self._watched: dict[str, list[Partition]] = {}

    def wait(self, topic: str, shard: QueueShard) -> None:
        """Tell the shard what arrives in the topic, until `leave`."""
        self._waiting.setdefault(topic, Counter())[shard] += 1
        if topic not in self._watched:
            self._watch(topic)

    def leave(self, topic: str, shard: QueueShard) -> None:
        waiting = self._waiting[topic]
        waiting[shard] -= 1
        if not waiting[shard]:
            del waiting[shard]
        if not waiting:
            # The watch stays until it is found useless: who polls comes back.
            del self._waiting[topic]

    def topic_grown(self, topic: str) -> None:
        """The topic has more partitions than before."""
        if topic in self._watched:
            before = len(self._watched[topic])
            self._watch(topic)
            for index in range(before, len(self._watched[topic])):
                self._wake(topic, index, 0)

    def topic_deleted(self, topic: str) -> None:
        """Nothing will arrive there any more."""
        self._watched.pop(topic, None)

    def _watch(self, topic: str) -> None:
        if not (partitions := list(self._topics.partitions_of(topic))):
            return  # being made or deleted: there is nothing to watch yet, and who comes next looks again
        self._watched[topic] = partitions
        for index, partition in enumerate(partitions):
            partition.watch(self, partial(self._wake, topic, index))

    def _wake(self, topic: str, index: int, _added_bytes: int) -> None:
        if (waiting := self._waiting.get(topic)) is None:
            for partition in self._watched.pop(topic, ()):
                partition.unwatch(self)
            return
        for shard in waiting:
            shard.arrived(topic, index)
