"""Telling shards of queues that records have arrived, where somebody waits for them.

Partitions are watched only while that is so: a topic nobody waits on costs its producers nothing.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from alpacamq.broker.statemachine.shard import Shard
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import CoordinatorUnavailable
from alpacamq.model.topics import TopicConfig
from alpacamq.queues.engine import QueueEngine, QueueOutcome
from alpacamq.queues.messages import Move, QueueId, QueueRequest

if TYPE_CHECKING:
    from alpacamq.broker.partition.leader import Partition

Ticket = asyncio.Future[Any]


class QueueShard:
    """Gathers requests, arrivals and finished moves for the engine of one shard."""

    def __init__(self, shard: Shard[QueueEngine]) -> None:
        self.shard = shard
        self._requests: list[tuple[QueueRequest, Ticket]] = []
        self._arrivals: dict[tuple[str, int], None] = {}
        self._moved: list[Move] = []
        self._returned: list[Move] = []
        self._is_due = False

    def submit(self, request: QueueRequest) -> Ticket:
        """Put a request in; the ticket's result is the reply or an AlpacaError."""
        ticket: Ticket = asyncio.get_running_loop().create_future()
        self._requests.append((request, ticket))
        self._hand_over_soon()
        return ticket

    def settings(self, queue: QueueId) -> TopicConfig:
        """A topic's settings with the group's own; UnknownTopic, CoordinatorUnavailable."""
        if (machine := self.shard.machine) is None:
            raise CoordinatorUnavailable(f"{self.shard.partition.identity} is being loaded")
        return machine.settings(queue)

    def withdraw(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more."""
        for place, (_, waiting) in enumerate(self._requests):
            if waiting is ticket:
                del self._requests[place]
                return
        self.shard.abandon(ticket)

    def arrived(self, topic: str, partition: int) -> None:
        """More of a partition is known."""
        self._arrivals[topic, partition] = None
        self._hand_over_soon()

    def moved(self, move: Move) -> None:
        """A move has been carried out."""
        self._moved.append(move)
        self._hand_over_soon()

    def returned(self, move: Move) -> None:
        """There is nowhere to carry a move out to."""
        self._returned.append(move)
        self._hand_over_soon()

    def _hand_over_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_due = False
        moved, returned, arrivals, requests = self._moved, self._returned, self._arrivals, self._requests
        self._moved, self._returned, self._arrivals, self._requests = [], [], {}, []

        def event(machine: QueueEngine, now_ms: int) -> QueueOutcome:
            outcome = machine.moved(moved, now_ms) if moved else QueueOutcome()
            if returned:
                outcome += machine.returned(returned, now_ms)
            for topic, partition in arrivals:
                outcome += machine.records_arrived(topic, partition, now_ms)
            # Those who were waiting are served before those who come now.
            if requests:
                outcome += machine.perform(requests, now_ms)
            return outcome

        # A machine that is being loaded sees by itself what arrived, and says again what is to be moved.
        self.shard.submit(event, [ticket for _, ticket in requests])


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
