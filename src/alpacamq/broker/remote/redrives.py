"""Redrives of all brokers: one runs at the broker that was asked for it; any broker lists and cancels it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from alpacamq.broker.dlq.redrive import Redrives, RedriveTask
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)
R = TypeVar("R")

CALL_MS: Final = 10_000


class ListRedrives(Request[tuple[RedriveTask, ...]], frozen=True, kw_only=True, tag="list-redrives"):
    """Lists the redrives of one broker, of one dead-letter topic or of all."""

    source: str | None = None


class CancelRedrive(Request[tuple[RedriveTask, ...]], frozen=True, kw_only=True, tag="cancel-redrive"):
    """Cancels a redrive; the reply is empty if the broker does not have it."""

    id: str


VALUES: tuple[type[msgspec.Struct], ...] = (ListRedrives, CancelRedrive)


class RedriveCalls:
    """The redrives of all brokers."""

    def __init__(self, topics: Topics, here: Redrives, peers: Peers | None) -> None:
        self._topics = topics
        self._here = here
        self._peers = peers

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {
            ListRedrives: self._on_list,
            CancelRedrive: self._on_cancel,
        }

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

    async def _on_list(self, request: ListRedrives, _peer: Peer) -> tuple[RedriveTask, ...]:
        return tuple(self._here.tasks(request.source))

    async def _on_cancel(self, request: CancelRedrive, _peer: Peer) -> tuple[RedriveTask, ...]:
        task = self._here.cancel(request.id)
        return () if task is None else (task,)
