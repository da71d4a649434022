"""Redrives of any broker: one runs at the broker that hosts the dead-letter queue, and any broker answers.

Lists and cancellations go to all brokers, because a redrive stays where it ran when its queue has moved.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from alpacamq.broker.dlq.redrive import Redrives, RedriveTask
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.queue.host import QueueHost
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import AlpacaError, InvalidRequest, NotCoordinator, PeerUnavailable
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.queues.messages import BUILT_IN_GROUP, QueueId
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)
R = TypeVar("R")

CALL_MS: Final = 10_000
START_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 0.2


class StartRedrive(Request[RedriveTask], frozen=True, kw_only=True, tag="start-redrive"):
    """Starts a redrive. One with this id that was started before is returned as it is."""

    id: str
    source: str
    target: str | None = None
    messages_per_second: int | None = None
    max_messages: int | None = None


class ListRedrives(Request[tuple[RedriveTask, ...]], frozen=True, kw_only=True, tag="list-redrives"):
    """Lists the redrives of one broker, of one dead-letter topic or of all."""

    source: str | None = None


class CancelRedrive(Request[tuple[RedriveTask, ...]], frozen=True, kw_only=True, tag="cancel-redrive"):
    """Cancels a redrive; the reply is empty if the broker does not have it."""

    id: str


VALUES: tuple[type[msgspec.Struct], ...] = (StartRedrive, ListRedrives, CancelRedrive)


class RedriveCalls:
    """The redrives of all brokers."""

    def __init__(self, host: QueueHost, topics: Topics, here: Redrives, peers: Peers | None) -> None:
        self._host = host
        self._topics = topics
        self._here = here
        self._peers = peers

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {
            StartRedrive: self._on_start,
            ListRedrives: self._on_list,
            CancelRedrive: self._on_cancel,
        }

    async def start(
        self, source: str, *, target: str | None, messages_per_second: int | None, max_messages: int | None
    ) -> RedriveTask:
        """Start a redrive where its queue is hosted; raises UnknownTopic or InvalidRequest."""
        self._topics.image.topic(source)
        request = StartRedrive(
            id=uuid4().hex,
            source=source,
            target=target,
            messages_per_second=messages_per_second,
            max_messages=max_messages,
        )
        if self._peers is None:
            return await self._start(request)
        loop = asyncio.get_running_loop()
        until = loop.time() + START_SECONDS
        while True:
            try:
                broker_id = await self._host.broker_of(QueueId(BUILT_IN_GROUP, source))
                if broker_id == self._topics.node_id:
                    return await self._start(request)
                return await self._peers.call(broker_id, request, CALL_MS)
            except (NotCoordinator, PeerUnavailable):
                if loop.time() >= until:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def tasks(self, source: str | None) -> list[RedriveTask]:
        """List the redrives of all brokers that answer, newest first."""
        found = self._here.tasks(source)
        for tasks in await self._ask_others(ListRedrives(source=source)):
            found += tasks
        return sorted(found, key=lambda task: task.started_ms, reverse=True)

    async def cancel(self, task_id: str) -> RedriveTask:
        """Cancel a running redrive; messages already moved stay moved. Raises InvalidRequest."""
        if (task := self._here.cancel(task_id)) is not None:
            return task
        for tasks in await self._ask_others(CancelRedrive(id=task_id)):
            for task in tasks:
                return task
        raise InvalidRequest(f"unknown redrive {task_id!r}")

    async def _ask_others(self, request: Request[R]) -> list[R]:
        """Return the replies of the other brokers that answer."""
        if self._peers is None:
            return []
        brokers = self._topics.image.brokers.values()
        others = [each.id for each in brokers if each.id != self._topics.node_id and not each.is_fenced]
        replies = await asyncio.gather(*(self._try_to_ask(self._peers, each, request) for each in others))
        return [reply for some in replies for reply in some]

    async def _try_to_ask(self, peers: Peers, broker_id: BrokerId, request: Request[R]) -> list[R]:
        try:
            return [await peers.call(broker_id, request, CALL_MS)]
        except AlpacaError as error:
            log.warning("redrives_not_listed", broker=broker_id, reason=str(error))
            return []

    async def _start(self, request: StartRedrive) -> RedriveTask:
        return await self._here.start(
            request.id,
            request.source,
            target=request.target,
            messages_per_second=request.messages_per_second,
            max_messages=request.max_messages,
        )

    async def _on_start(self, request: StartRedrive, _peer: Peer) -> RedriveTask:
        return await self._start(request)

    async def _on_list(self, request: ListRedrives, _peer: Peer) -> tuple[RedriveTask, ...]:
        return tuple(self._here.tasks(request.source))

    async def _on_cancel(self, request: CancelRedrive, _peer: Peer) -> tuple[RedriveTask, ...]:
        task = self._here.cancel(request.id)
        return () if task is None else (task,)
