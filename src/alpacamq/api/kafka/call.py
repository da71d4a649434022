"""The arguments of Kafka request handlers."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.quotas import Limit
from alpacamq.model.address import Address

T = TypeVar("T")

# The name of the API's first listener, which every broker has.
KAFKA_LISTENER = "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The broker, and the addresses advertised to clients."""

    broker: Broker
    # Of the first listener.
    host: str
    port: int
    # Of the others, by name.
    others: Mapping[str, Address] = field(default_factory=dict)

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
    # The name of the listener that the client came through.
    listener: str = KAFKA_LISTENER
    # The client's quota of created and deleted partitions, if it has one.
    mutations: Limit | None = None

    async def each_once(self, entries: Iterable[T], key: Callable[[T], object]) -> Collection[T]:
        """Return entries of a request without duplicates: a response may be much larger than its request."""
        found: dict[object, T] = {}
        for entry in entries:
            await self.pause()
            found[key(entry)] = entry
        return found.values()
