"""Members of consumer groups with server-side assignment (KIP-848).

    async with Consumer(cluster, "billing", topics=["orders"]) as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

Partitions come and go only while the application waits for its next record: whatever was delivered before
has been processed then, and can be committed in `on_revoked`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from alpacamq.model.ids import TopicPartition

from .cluster import Cluster
from .reader import At, ConsumedRecord, FetchSettings

Callback = Callable[[Collection[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a member behaves in its group."""

    # Where to start in partitions without a committed offset: "earliest", "latest", a time, or "error".
    reset: str | At = "earliest"
    # None: only `commit` commits. Otherwise what was processed is committed so often, and at the end.
    auto_commit_s: float | None = None
    # Static membership: a member that restarts within the session gets its partitions back.
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    # The time that the application has for a record when partitions are revoked.
    rebalance_timeout_ms: int = 300_000
    fetch: FetchSettings = field(default_factory=FetchSettings)


class Consumer:
    """An asynchronous iterator over the records of the partitions that the group assigns."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        topics: Collection[str] = (),
        pattern: str | None = None,
        settings: ConsumerSettings | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics, or to those whose whole names match a pattern of RE2."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit if auto_commit_s is set, and leave the group."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> ConsumedRecord: ...

    async def take(self, max_records: int = 500, wait_s: float | None = None) -> list[ConsumedRecord]:
        """Return records of one partition; empty after `wait_s` without any."""
        ...

    @property
    def group(self) -> str: ...

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record that was delivered, by assigned partition."""
        ...

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets, or all positions. Raises MemberFenced if partitions have been taken away."""

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def pause(self, partitions: Collection[TopicPartition]) -> None: ...

    def resume(self, partitions: Collection[TopicPartition]) -> None: ...

    def subscribe(self, topics: Collection[str] = (), *, pattern: str | None = None) -> None: ...

    async def close(self) -> None: ...
