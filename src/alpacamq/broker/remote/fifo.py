"""Publishes to FIFO queues of any broker: at the leader of the topic's first partition.

Only there messages are deduplicated and sequence numbers drawn. A call with an unknown outcome is made again:
what it has published is found in the window, or in the records that the next leader reads back.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.values import RemoteError, decode_error, encode_error
from alpacamq.broker.queue.fifo import (
    FIFO_SUFFIX,
    DeduplicationScope,
    FifoMessage,
    FifoPublished,
    FifoPublisher,
)
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, PeerFailed, UnknownTopicId
from alpacamq.model.ids import TopicId
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import Topic

from .routing import LeaderCalls

# How long a publish may take at the leader: some of its messages may wait for another leader.
PUBLISH_MS: Final = 30_000
FORGET_MS: Final = 10_000


class FifoOutcomes(msgspec.Struct, frozen=True):
    """The result of each message, in order: its place, or an error."""

    results: tuple[tuple[FifoPublished | None, RemoteError | None], ...]

    @classmethod
    def of(cls, outcomes: Iterable[FifoPublished | AlpacaError]) -> Self:
        """Encode outcomes."""
        return cls(
            tuple(
                (None, encode_error(each)) if isinstance(each, AlpacaError) else (each, None)
                for each in outcomes
            )
        )

    @property
    def outcomes(self) -> list[FifoPublished | AlpacaError]:
        """The outcomes, decoded."""
        found: list[FifoPublished | AlpacaError] = []
        for published, error in self.results:
            if published is not None:
                found.append(published)
            else:
                found.append(PeerFailed("a result is missing") if error is None else decode_error(error))
        return found


class PublishFifo(Request[FifoOutcomes], frozen=True, kw_only=True, tag="publish-fifo"):
    """Publishes messages to a FIFO queue."""

    topic: TopicId
    messages: tuple[FifoMessage, ...]
    scope: DeduplicationScope
    origin: Origin
    traceparent: bytes | None = None


class ForgetFifo(Request[None], frozen=True, kw_only=True, tag="forget-fifo"):
    """Forgets the messages of a FIFO queue before these offsets, by partition."""

    topic: TopicId
    starts: dict[int, int]


VALUES: tuple[type[msgspec.Struct], ...] = (PublishFifo, ForgetFifo)


class FifoQueues:
    """The FIFO queues of all brokers."""

    def __init__(self, topics: Topics, here: FifoPublisher, leaders: LeaderCalls) -> None:
        """`here` publishes to the queues whose first partition is led by this broker."""
        self._topics = topics
        self._here = here
        self._leaders = leaders

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {PublishFifo: self._on_publish, ForgetFifo: self._on_forget}

    async def publish(
        self,
        topic: Topic,
        messages: Sequence[FifoMessage],
        *,
        scope: DeduplicationScope,
        origin: Origin,
        traceparent: bytes | None = None,
    ) -> list[FifoPublished | AlpacaError]:
        """Return one result per message, in order. RateLimited if too many calls are pending."""
        if self._leaders.is_alone:
            return await self._here.publish(
                topic, messages, scope=scope, origin=origin, traceparent=traceparent
            )
        request = PublishFifo(
            topic=topic.id, messages=tuple(messages), scope=scope, origin=origin, traceparent=traceparent
        )
        place = PartitionId(topic.id, 0)
        reply = await self._leaders.ask(
            place, lambda _: self._publish(request), lambda _: request, PUBLISH_MS
        )
        return reply.outcomes

    async def forget(self, topic_name: str, starts: Mapping[int, int]) -> None:
        """Forget messages of a queue before these offsets, by partition: they were purged."""
        if not topic_name.endswith(FIFO_SUFFIX) or not starts:
            return
        topic = self._topics.image.topic(topic_name)
        if self._leaders.is_alone:
            await self._here.forget(topic, starts)
            return
        request = ForgetFifo(topic=topic.id, starts=dict(starts))
        await self._leaders.ask(
            PartitionId(topic.id, 0), lambda _: self._forget(request), lambda _: request, FORGET_MS
        )

    async def _publish(self, request: PublishFifo) -> FifoOutcomes:
        outcomes = await self._here.publish(
            self._topic(request.topic),
            request.messages,
            scope=request.scope,
            origin=request.origin,
            traceparent=request.traceparent,
        )
        return FifoOutcomes.of(outcomes)

    async def _forget(self, request: ForgetFifo) -> None:
        await self._here.forget(self._topic(request.topic), request.starts)

    async def _on_publish(self, request: PublishFifo, _peer: Peer) -> FifoOutcomes:
        return await self._publish(request)

    async def _on_forget(self, request: ForgetFifo, _peer: Peer) -> None:
        await self._forget(request)

    def _topic(self, topic_id: TopicId) -> Topic:
        if (topic := self._topics.image.topic_by_id(topic_id)) is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic
