"""What a handler of the Kafka API has to work with."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from alpacamq.broker.broker import Broker

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The broker, and the address clients are told to come to."""

    broker: Broker
    host: str
    port: int

    @property
    def node_id(self) -> int:
        return self.broker.settings.node_id


class Call(NamedTuple):
    """How a request came: the version it is written in, and who sent it."""

    version: int
    client_id: str
    client_host: str
    # To be awaited once for each entry a client has named: lets others have their turn when it is time.
    pause: Callable[[], Awaitable[None]]

    async def each_once(self, entries: Iterable[T], key: Callable[[T], object]) -> Collection[T]:
        """The entries a client has named, each once: an answer may be much larger than its question."""
        found: dict[object, T] = {}
        for entry in entries:
            await self.pause()
            found[key(entry)] = entry
        return found.values()
