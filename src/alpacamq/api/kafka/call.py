"""The arguments of Kafka request handlers."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The broker, and the address advertised to clients."""

    broker: Broker
    host: str
    port: int

    @property
    def node_id(self) -> int:
        return self.broker.settings.node_id


class Call(NamedTuple):
    """The version of a request, and its sender."""

    version: int
    client_id: str
    caller: Caller
    # Awaited once for each entry of a request: yields to other requests when the slice is over.
    pause: Callable[[], Awaitable[None]]

    async def each_once(self, entries: Iterable[T], key: Callable[[T], object]) -> Collection[T]:
        """Return entries of a request without duplicates: a response may be much larger than its request."""
        found: dict[object, T] = {}
        for entry in entries:
            await self.pause()
            found[key(entry)] = entry
        return found.values()
