"""The history of all brokers: each samples what it leads and coordinates, and charts show the sums."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.sampling import INTERVAL_S
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.history import History, Measure, SeriesKey

from .routing import OtherBrokers

# Charts are drawn again every few seconds: a broker that does not answer is left out of one drawing.
TIMEOUT_MS: Final = 2000
_INTERVAL_MS: Final = int(INTERVAL_S * 1000)

Numbers = list[float | None]


class NodeHistory(msgspec.Struct, frozen=True):
    """Series of one broker with common timestamps; `omitted` of those asked for are not kept."""

    times_ms: list[int]
    keys: list[SeriesKey]
    values: list[Numbers]
    omitted: int = 0


class ReadHistory(Request[NodeHistory], frozen=True, kw_only=True, tag="read-history"):
    """Asks for series: those of a topic, a group or a measure, or without any of the whole broker."""

    topic: str | None = None
    group: str | None = None
    measure: Measure | None = None
    after_ms: int = 0
    points: int = 300

    def wants(self, key: SeriesKey) -> bool:
        if self.topic is self.group is self.measure is None:
            return not key.topic
        return (
            self.topic in (None, key.topic)
            and self.group in (None, key.group)
            and self.measure in (None, key.measure)
            and bool(key.topic)
        )


VALUES: tuple[type[msgspec.Struct], ...] = (ReadHistory,)


class SummedHistory(NamedTuple):
    """The sums of all brokers, and those that did not answer."""

    history: NodeHistory
    missing: list[BrokerId]


class RemoteHistory:
    """Adds up the history of all brokers."""

    def __init__(self, history: History, others: OtherBrokers) -> None:
        self._history = history
        self._others = others

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {ReadHistory: self._serve}

    async def read(self, request: ReadHistory) -> SummedHistory:
        """Return the sums of all brokers at the timestamps of this one."""
        own = self._own(request)
        found, missing = await self._others.ask(request, TIMEOUT_MS)
        return SummedHistory(added_up(own, found) if found else own, missing)

    def _own(self, request: ReadHistory) -> NodeHistory:
        keys = [key for key in self._history.series() if request.wants(key)]
        found = self._history.excerpt(keys, request.after_ms, request.points)
        omitted = sum(request.wants(key) for key in self._history.omitted)
        return NodeHistory(found.times_ms, keys, found.values, omitted)

    async def _serve(self, request: ReadHistory, _peer: Peer) -> NodeHistory:
        return self._own(request)


def added_up(own: NodeHistory, others: Sequence[NodeHistory]) -> NodeHistory:
    """Add the series of other brokers to those of one, each with its samples nearest in time.

    Brokers take samples at different times; a sample that is further away than the samples of both are apart
    does not count. A value is None if no broker has one.
    """
    times = own.times_ms
    sums: dict[SeriesKey, Numbers] = dict(zip(own.keys, map(list, own.values), strict=True))
    for other in others:
        within = max(_apart_ms(times), _apart_ms(other.times_ms))
        nearest = [_nearest(other.times_ms, each, within) for each in times]
        for key, numbers in zip(other.keys, other.values, strict=True):
            added = [None if at is None else numbers[at] for at in nearest]
            sums[key] = [_sum(*pair) for pair in zip(sums.get(key, [None] * len(times)), added, strict=True)]
    keys = sorted(sums)
    omitted = own.omitted + sum(other.omitted for other in others)
    return NodeHistory(times, keys, [sums[key] for key in keys], omitted)


def _apart_ms(times: Sequence[int]) -> int:
    if len(times) < 2:
        return _INTERVAL_MS
    return max((times[-1] - times[0]) // (len(times) - 1), _INTERVAL_MS)


def _nearest(times: Sequence[int], wanted: int, within: int) -> int | None:
    """Return the index of the time that is nearest; None if it is further away than `within`."""
    after = bisect_left(times, wanted)
    found = min(
        (index for index in (after - 1, after) if 0 <= index < len(times)),
        key=lambda index: abs(times[index] - wanted),
        default=None,
    )
    return found if found is not None and abs(times[found] - wanted) <= within else None


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return round(one + other, 3)
