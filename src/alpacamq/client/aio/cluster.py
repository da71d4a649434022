"""A cluster as an asyncio client sees it: brokers, topics, leaders and coordinators."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Self
from uuid import UUID

from alpacamq.client.connect import Tls
from alpacamq.client.login import Credentials
from alpacamq.model.address import Address
from alpacamq.model.ids import TopicPartition


class Isolation(IntEnum):
    """Isolation level of a read."""

    UNCOMMITTED = 0
    COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic in the metadata: its id, and the leader of each partition (-1 if there is none)."""

    name: str
    id: UUID
    leaders: tuple[int, ...]


class Cluster:
    """Routes requests to brokers; connects on first use, and again after a connection is lost."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        client_id: str = "alpacamq",
        request_s: float = 30.0,
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def close(self) -> None:
        """Close all connections; calls in flight end with Closed."""

    async def topic(self, name: str, *, may_create: bool = True) -> Topic:
        """Return a topic of the cached metadata, which is requested if need be. Raises NotFound."""
        ...

    async def topic_names(self) -> list[str]:
        """Return the names of all topics that this client may see."""
        ...

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after a time by partition, or None."""
        ...

    async def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.COMMITTED
    ) -> dict[TopicPartition, int]: ...

    async def topic_settings(self, name: str) -> Mapping[str, str | None]:
        """Return the settings of a topic by name."""
        ...
