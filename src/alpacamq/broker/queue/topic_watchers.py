"""Wakes queue engines that have waiting receives when records arrive.

Partitions are watched only while receives wait: a topic without them costs its producers nothing.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.topics import Topics
from alpacamq.queues.engine import QueueEngine
from alpacamq.queues.messages import RecordsArrived

if TYPE_CHECKING:
    from alpacamq.broker.partition.leader import Partition

Host = StateMachineHost[QueueEngine]


class TopicWatchers:
    """The engines that have waiting receives, by topic."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._waiting: dict[str, Counter[Host]] = {}
        self._watched: dict[str, list[Partition]] = {}

    def wait(self, topic: str, host: Host) -> None:
        """Post arrivals in the topic to the host, until `leave`."""
        self._waiting.setdefault(topic, Counter())[host] += 1
        if topic not in self._watched:
            self._watch(topic)

    def leave(self, topic: str, host: Host) -> None:
        waiting = self._waiting[topic]
        waiting[host] -= 1
        if not waiting[host]:
            del waiting[host]
        if not waiting:
            # The watch stays until the next arrival: a consumer that polls comes back.
            del self._waiting[topic]

    def topic_grown(self, topic: str) -> None:
        """Watch partitions that were added to a topic."""
        if topic in self._watched:
            before = len(self._watched[topic])
            self._watch(topic)
            for index in range(before, len(self._watched[topic])):
                self._wake(topic, index, 0)

    def topic_deleted(self, topic: str) -> None:
        """Stop watching a deleted topic."""
        self._watched.pop(topic, None)

    def _watch(self, topic: str) -> None:
        if not (partitions := list(self._topics.partitions_of(topic))):
            return  # being created or deleted; the next receive tries again
        self._watched[topic] = partitions
        for index, partition in enumerate(partitions):
            partition.watch(self, partial(self._wake, topic, index))

    def _wake(self, topic: str, index: int, _added_bytes: int) -> None:
        if (waiting := self._waiting.get(topic)) is None:
            for partition in self._watched.pop(topic, ()):
                partition.unwatch(self)
            return
        event = RecordsArrived(topic=topic, partition=index)
        for host in waiting:
            host.post_once(event)
