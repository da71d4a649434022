"""Finds the leaders of partitions, and repeats calls whose leader moved or was not reached.

For calls that may be repeated: reads, and changes that have the same effect twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.topics import Topics
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    LeaderNotAvailable,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request

R = TypeVar("R")
T = TypeVar("T")

# How long to look for a leader that answers.
RETRY_MS: Final = 10_000
# How long one call may take, beyond the time that it is to wait for records.
CALL_MS: Final = 5000
# Partitions that one call names at most.
MAX_PLACES: Final = 10_000
FIRST_PAUSE_SECONDS: Final = 0.01
MAX_PAUSE_SECONDS: Final = 0.2

# The leader moved, starts or is not reachable. A leader that does not know a topic which this broker knows
# has an older image; if it is this broker's that is older, retries end when it learns of the deletion.
RETRIED: Final = (
    NotLeader,
    LeaderNotAvailable,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    UnknownTopic,
    UnknownTopicId,
)


class CallPeers(Protocol):
    """Calls other brokers: `Peers`."""

    async def call(self, node_id: BrokerId, value: Request[R], timeout_ms: int) -> R: ...


class _Hint(NamedTuple):
    leader: BrokerId
    leader_epoch: int


class Retries:
    """The pauses of one request, and the leaders that others named."""

    __slots__ = ("_deadline", "_loop", "_pause_seconds", "hints")

    def __init__(self, retry_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + retry_ms / 1000
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self.hints: dict[PartitionId, _Hint] = {}

    def note(self, place: PartitionId, error: AlpacaError) -> None:
        """Use the leader that an error names."""
        if isinstance(error, NotLeader) and error.leader is not None:
            self.hints[place] = _Hint(BrokerId(error.leader), error.leader_epoch)

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._deadline

    async def pause(self) -> None:
        await asyncio.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)


class LeaderCalls:
    """Asks the leaders of partitions."""

    def __init__(
        self,
        topics: Topics,
        node_id: BrokerId,
        peers: CallPeers | None,
        retry_ms: int = RETRY_MS,
    ) -> None:
        """`peers` is None for a cluster of this broker only."""
        self.topics = topics
        self.node_id = node_id
        self._peers = peers
        self._retry_ms = retry_ms

    @property
    def is_alone(self) -> bool:
        """Whether there are no other brokers."""
        return self._peers is None

    def led(self, place: PartitionId) -> Partition | None:
        """Return a partition that is led here."""
        return self.topics.find(place.topic_id.bytes, place.partition)

    def led_or_raise(self, place: PartitionId) -> Partition:
        """Return a partition that is led here; raise why it is not."""
        if (found := self.led(place)) is None:
            raise self.absence(place)
        return found

    def absence(self, place: PartitionId) -> AlpacaError:
        """Return why a partition is not led here."""
        return self.topics.absence(place.topic_id.bytes, place.partition)

    def leader(self, place: PartitionId, retries: Retries) -> BrokerId:
        """Return the broker to ask, this one or another. Raises why there is none."""
        if self.led(place) is not None:
            return self.node_id
        state = self.topics.image.partition(place)
        if self._peers is None or state is None or state.leader in (None, self.node_id):
            raise self.absence(place)
        hint = retries.hints.get(place)
        if hint is not None and hint.leader_epoch > state.leader_epoch:
            return hint.leader
        return BrokerId(state.leader)

    def _final(self, place: PartitionId, error: AlpacaError) -> AlpacaError:
        """Return the error for clients: that a broker does not know what this one knows is temporary."""
        is_unknown = isinstance(error, UnknownBroker | UnknownTopic | UnknownTopicId)
        if is_unknown and self.topics.exists(place.topic_id.bytes, place.partition):
            return LeaderNotAvailable(str(error))
        return error.with_traceback(None)

    def _may_retry(self, place: PartitionId, error: AlpacaError, retries: Retries) -> bool:
        """Return whether to look for a leader again: there is one to be found, and time left."""
        return (
            self._peers is not None
            and isinstance(error, RETRIED)
            and self.topics.exists(place.topic_id.bytes, place.partition)
            and not retries.is_over
        )

    async def call(self, leader: BrokerId, request: Request[R], timeout_ms: int) -> R:
        """Call another broker, once."""
        assert self._peers is not None
        return await self._peers.call(leader, request, timeout_ms)

    async def ask(
        self,
        place: PartitionId,
        local: Callable[[int], Awaitable[R]],
        request: Callable[[int], Request[R]],
        wait_ms: int,
    ) -> R:
        """Ask the leader of a partition, with the time that is left to wait; ask again if it moved."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        retries = Retries(self._retry_ms)
        while True:
            left_ms = max(int((deadline - loop.time()) * 1000), 0)
            try:
                leader = self.leader(place, retries)
                if leader == self.node_id:
                    return await local(left_ms)
                return await self.call(leader, request(left_ms), left_ms + CALL_MS)
            except AlpacaError as error:
                if not self._may_retry(place, error, retries):
                    raise self._final(place, error) from None
                retries.note(place, error)
            await retries.pause()

    async def ask_each(
        self,
        places: Sequence[PartitionId],
        local: Callable[[Partition], Awaitable[T]],
        call: Callable[[BrokerId, Sequence[PartitionId]], Awaitable[list[T | AlpacaError | None]]],
        retry_ms: int | None = None,
    ) -> list[Any]:
        """Ask for something of many partitions, with one call per leader and attempt."""
        results: dict[PartitionId, T | AlpacaError | None] = {}
        retries = Retries(self._retry_ms if retry_ms is None else retry_ms)
        open_places = list(dict.fromkeys(places))
        while open_places:
            by_leader: dict[BrokerId, list[PartitionId]] = {}
            for place in open_places:
                try:
                    by_leader.setdefault(self.leader(place, retries), []).append(place)
                except AlpacaError as error:
                    results[place] = error.with_traceback(None)
            groups = [
                (leader, some[first : first + MAX_PLACES])
                for leader, some in by_leader.items()
                for first in range(0, len(some), MAX_PLACES)
            ]
            answers = await asyncio.gather(
                *(self._answers(leader, some, local, call) for leader, some in groups)
            )
            for (_, some), found in zip(groups, answers, strict=True):
                results.update(zip(some, found, strict=True))
            again = []
            for place in open_places:
                result = results[place]
                if isinstance(result, AlpacaError) and self._may_retry(place, result, retries):
                    retries.note(place, result)
                    again.append(place)
            if open_places := again:
                await retries.pause()
        return [results[place] for place in places]

    async def _answers(
        self,
        leader: BrokerId,
        places: Sequence[PartitionId],
        local: Callable[[Partition], Awaitable[T]],
        call: Callable[[BrokerId, Sequence[PartitionId]], Awaitable[list[T | AlpacaError | None]]],
    ) -> list[T | AlpacaError | None]:
        if leader != self.node_id:
            try:
                return await call(leader, places)
            except AlpacaError as error:
                return [error.with_traceback(None)] * len(places)
        answers: list[T | AlpacaError | None] = []
        for place in places:
            try:
                answers.append(await local(self.led_or_raise(place)))
            except AlpacaError as error:
                answers.append(error.with_traceback(None))
        return answers


class OtherBrokers:
    """Asks all other brokers for what each of them has by itself."""

    def __init__(self, topics: Topics, node_id: BrokerId, peers: CallPeers | None) -> None:
        """`peers` is None for a cluster of this broker only."""
        self._topics = topics
        self._node_id = node_id
        self._peers = peers

    @property
    def is_alone(self) -> bool:
        return self._peers is None

    async def ask(self, request: Request[R], timeout_ms: int) -> tuple[list[R], list[BrokerId]]:
        """Return the answers, and the brokers that did not answer."""
        peers = self._peers
        if peers is None:
            return [], []

        async def asked(broker: BrokerId) -> list[R]:
            try:
                return [await peers.call(broker, request, timeout_ms)]
            except AlpacaError:
                return []

        others = sorted(each for each in self._topics.image.brokers if each != self._node_id)
        answers = await asyncio.gather(*map(asked, others))
        missing = [broker for broker, answer in zip(others, answers, strict=True) if not answer]
        return [each for answer in answers for each in answer], missing
