"""Queue mode for the doors: receive and settle messages of any topic as a group.

Hosts the queue engine on its internal topic, shows it the log in outline, reads the records it
leases, and carries out its moves to dead-letter topics and back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpacamq.model.errors import AlpacaError
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Record
from alpacamq.queues.messages import Acquired, Action, DescribeReply, QueueId, Settlement, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message and the lease on it."""

    topic: str
    partition: int
    record: Record
    receipt: str
    delivery_count: int
    lane: Lane
    deadline_ms: int
    first_delivered_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipted:
    """A settlement by receipt handle: what consumers over HTTP and SQS bring."""

    receipt: str
    action: Action
    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveTask:
    """A redrive under way or ended."""

    id: str
    source: str  # the dead-letter topic
    target: str | None  # None: each message to where it came from
    state: str  # running, completed, cancelling, cancelled, failed
    started_ms: int
    moved: int
    to_move: int  # when it began
    messages_per_second: int | None
    failure: str = ""


class Queues:
    """Every queue of this broker."""

    async def receive(
        self,
        queue: QueueId,
        *,
        consumer: str = "",
        max_messages: int = 10,
        visibility_ms: int | None = None,
        wait_ms: int = 0,
        max_bytes: int = 16 << 20,
        partitions: tuple[int, ...] | None = None,
        start: Start = Start.EARLIEST,
        key_runs: bool = False,
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait_ms` for the first. Those past queue.ttl.ms are not among them.

        What does not fit into `max_bytes` is given back at once; at least one is returned.
        Cancelling the call gives back what it would have returned.
        """
        raise NotImplementedError

    async def settle(self, settlements: Sequence[Receipted]) -> list[AlpacaError | None]:
        """Settle deliveries by their receipts, of any queues: None or what was wrong with each, in order."""
        raise NotImplementedError

    async def acquire(
        self,
        queue: QueueId,
        *,
        consumer: str,
        partition: int,
        max_messages: int,
        lock_ms: int | None = None,
        start: Start = Start.LATEST,
    ) -> tuple[Acquired, ...]:
        """Lease messages of one partition without reading them: for Kafka's share consumers. Never waits."""
        raise NotImplementedError

    async def settle_acquired(
        self, queue: QueueId, settlements: Sequence[Settlement]
    ) -> list[AlpacaError | None]:
        """Settle by partition, offset and consumer: for Kafka's share consumers."""
        raise NotImplementedError

    async def release_consumer(self, queue: QueueId, consumer: str) -> None:
        """Give back all that a consumer holds."""
        raise NotImplementedError

    async def wait_for_messages(self, queues: Sequence[QueueId], wait_ms: int) -> None:
        """Return when one of these queues may have something to lease, or after `wait_ms`."""
        raise NotImplementedError

    async def describe(self, queue: QueueId) -> DescribeReply:
        raise NotImplementedError

    async def queues(self) -> list[QueueId]:
        """Every group on every topic that is or was used as a queue."""
        return []

    async def reset(self, queue: QueueId, offsets: Mapping[int, int]) -> None:
        """Begin again at these offsets."""
        raise NotImplementedError

    async def purge(self, queue: QueueId) -> None:
        """Everything there is now is done."""
        raise NotImplementedError

    async def configure(self, queue: QueueId, overrides: Mapping[str, str | None]) -> DescribeReply:
        """Give a group settings of its own on a topic."""
        raise NotImplementedError

    async def delete(self, queue: QueueId) -> None:
        """Forget a group on a topic."""
        raise NotImplementedError

    async def peek(self, queue: QueueId, max_messages: int) -> list[Record]:
        """The next messages that are not done, without leasing them, partition by partition."""
        raise NotImplementedError

    async def start_redrive(
        self,
        source: str,
        *,
        target: str | None = None,
        messages_per_second: int | None = None,
        max_messages: int | None = None,
    ) -> RedriveTask:
        """Move dead letters back: to `target`, or each to the topic it came from."""
        raise NotImplementedError

    def redrives(self, source: str | None = None) -> list[RedriveTask]:
        """Newest first; the last hundred."""
        raise NotImplementedError

    def cancel_redrive(self, task_id: str) -> RedriveTask:
        raise NotImplementedError
