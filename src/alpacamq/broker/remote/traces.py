"""Finds traces on all brokers: each keeps the events of the partitions and queues that it leads."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.tracing.tracing import Tracing
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.tracing import TraceEvent, TraceFilter, joined_events

from .routing import OtherBrokers

# How long to wait for the other brokers. They search files, one question after another.
TIMEOUT_MS: Final = 5000
# Traces of one message at most: it may have been published several times under one id.
MAX_FOUND: Final = 20


class ReadTrace(Request[list[TraceEvent]], frozen=True, kw_only=True, tag="read-trace"):
    """Asks for the events of a trace."""

    trace_id: str
    scope: str | None = None


class FindTraces(Request[list[str]], frozen=True, kw_only=True, tag="find-traces"):
    """Asks for the ids of traces of one message."""

    wanted: TraceFilter


VALUES: tuple[type[msgspec.Struct], ...] = (ReadTrace, FindTraces)


class FoundTrace(NamedTuple):
    """The events of a trace in order, and the brokers that did not answer."""

    events: list[TraceEvent]
    missing: list[BrokerId]


class RemoteTraces:
    """Searches the traces of all brokers."""

    def __init__(self, tracing: Tracing | None, others: OtherBrokers) -> None:
        """`tracing` is None if this broker records no traces."""
        self._tracing = tracing
        self._others = others

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {ReadTrace: self._serve_trace, FindTraces: self._serve_search}

    @property
    def is_alone(self) -> bool:
        """Whether there are no other brokers."""
        return self._others.is_alone

    async def events(self, trace_id: str, scope: str | None = None) -> FoundTrace:
        """Return the events of a trace from all brokers, of one scope if it is given."""
        request = ReadTrace(trace_id=trace_id, scope=scope)
        own, (found, missing) = await asyncio.gather(
            self._own_events(trace_id, scope), self._others.ask(request, TIMEOUT_MS)
        )
        return FoundTrace(joined_events([own, *found]), missing)

    async def of_message(self, wanted: TraceFilter) -> list[FoundTrace]:
        """Return the traces of the message that a filter selects."""
        own, (found, _) = await asyncio.gather(
            self._own_ids(wanted), self._others.ask(FindTraces(wanted=wanted), TIMEOUT_MS)
        )
        ids = dict.fromkeys(each for some in (own, *found) for each in some)
        return [await self.events(each, wanted.scope) for each in list(ids)[:MAX_FOUND]]

    async def _own_events(self, trace_id: str, scope: str | None) -> list[TraceEvent]:
        if self._tracing is None:
            return []
        return await self._tracing.ask(lambda store: store.events(trace_id, scope))

    async def _own_ids(self, wanted: TraceFilter) -> list[str]:
        if self._tracing is None:
            return []
        page = await self._tracing.ask(lambda store: store.find(wanted, MAX_FOUND))
        return [each.trace_id for each in page.traces]

    async def _serve_trace(self, request: ReadTrace, _peer: Peer) -> list[TraceEvent]:
        return await self._own_events(request.trace_id, request.scope)

    async def _serve_search(self, request: FindTraces, _peer: Peer) -> list[str]:
        return await self._own_ids(request.wanted)
