"""Topics as queues over HTTP: leasing messages, settling them, and looking after queues."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record

from .connection import HttpApi, Outcome, Problem, Query
from .names import naming, queue_names

# Asks for keys and values in base64: they come back byte for byte, whatever they are.
AS_BYTES = "base64"


class Base64(msgspec.Struct, frozen=True):
    """The value of a header that is not text."""

    base64: bytes


HeaderValue = str | Base64 | None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a topic; times are in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key_base64: bytes | None = None
    value_base64: bytes | None = None
    headers: dict[str, HeaderValue] | list[tuple[str, HeaderValue]] = {}

    def place(self, topic: str) -> TopicPartition:
        return TopicPartition(TopicName(topic), self.partition)

    @property
    def record(self) -> Record:
        pairs = self.headers.items() if isinstance(self.headers, dict) else self.headers
        headers = tuple(Header(name, header_bytes(value)) for name, value in pairs)
        return Record(self.offset, self.timestamp, self.key_base64, self.value_base64, headers)


def header_bytes(value: HeaderValue) -> bytes | None:
    match value:
        case None:
            return None
        case Base64(base64=content):
            return content
        case str():
            return value.encode()


# The group of consumers that name none: those of SQS too, and redrives.
DEFAULT_GROUP = "queue"
# What the broker takes at most at once.
MAX_MESSAGES = 1000
MAX_RECEIPTS = 1000
MAX_WAIT_MS = 30_000
_MAX_QUEUES = 1000


@dataclass(frozen=True, slots=True)
class QueueName:
    """A group on a topic."""

    group: str
    topic: str

    @property
    def path(self) -> tuple[str, ...]:
        return ("groups", self.group, "queues", self.topic)


class LeasedMessage(StoredMessage, frozen=True, kw_only=True):
    """A message that is ours until `deadline`, to be settled by its receipt."""

    topic: str
    receipt: str
    delivery_count: int
    priority: str
    deadline: int


class LaneTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One lane; totals count since the broker started."""

    ready: int = 0
    in_flight: int = 0
    resting: int = 0
    enqueued_total: int = 0
    delivered_total: int = 0


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds, and what has happened since the broker started."""

    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    received_total: int
    acked_total: int
    nacked_total: int
    rejected_total: int
    expired_leases_total: int
    dead_lettered_total: int
    redelivered_total: int
    waiting_receives: int


class QueuePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a queue; everything before `start_offset` is done."""

    partition: int
    start_offset: int
    end_offset: int
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    lanes: dict[str, LaneTotals]


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is; `settings` are those the group has of its own."""

    group: str
    topic: str
    settings: dict[str, str]
    totals: QueueTotals
    partitions: list[QueuePartition]

    def lanes(self) -> dict[str, LaneTotals]:
        """The lanes of all partitions, added up."""
        names = dict.fromkeys(name for each in self.partitions for name in each.lanes)
        return {name: self._lane(name) for name in names}

    def _lane(self, name: str) -> LaneTotals:
        stats = [each.lanes.get(name, LaneTotals()) for each in self.partitions]
        return LaneTotals(
            ready=sum(each.ready for each in stats),
            in_flight=sum(each.in_flight for each in stats),
            resting=sum(each.resting for each in stats),
            enqueued_total=sum(each.enqueued_total for each in stats),
            delivered_total=sum(each.delivered_total for each in stats),
        )


class Settle(StrEnum):
    """What may become of a leased message, as the API calls it."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "visibility"


class _Leased(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[LeasedMessage]


class _Peeked(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[StoredMessage]


class _Settled(msgspec.Struct, frozen=True, kw_only=True):
    results: list[Outcome]


class _QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    totals: QueueTotals


class _ReliabilityStats(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[_QueueStats]


class _Offset(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    offset: int


class _Offsets(msgspec.Struct, frozen=True, kw_only=True):
    offsets: list[_Offset]


def receive(
    api: HttpApi,
    queue: QueueName,
    *,
    max_messages: int,
    wait_ms: int,
    visibility_ms: int | None = None,
    start: str | None = None,
) -> list[LeasedMessage]:
    """Lease messages, waiting for the first; none if there was none in time."""
    query: Query = {
        "topic": queue.topic,
        "max": max_messages,
        "wait_ms": wait_ms,
        "visibility_ms": visibility_ms,
        "start": start,
        "values": AS_BYTES,
    }
    with naming(api, topic=queue.topic):
        found = api.get(("groups", queue.group, "poll"), _Leased, query=query, wait_ms=wait_ms)
    return found.messages


def settle(
    api: HttpApi, how: Settle, receipts: Iterable[str], **details: str | int
) -> Iterator[tuple[str, Problem | None]]:
    """Settle deliveries; each receipt with what was wrong with it, if anything."""
    remaining = iter(receipts)
    while some := list(islice(remaining, MAX_RECEIPTS)):
        try:
            # A single one is refused as a whole.
            answer = api.send("POST", ("messages", how), _Settled, {"receipts": some, **details})
        except Problem as problem:
            if len(some) > 1:
                raise
            yield some[0], problem
        else:
            yield from zip(some, (each.failure for each in answer.results), strict=True)


def peek(api: HttpApi, queue: QueueName, max_messages: int) -> list[StoredMessage]:
    """The next messages that are not done, without leasing them."""
    with naming(api, topic=queue.topic, group=queue.group):
        query: Query = {"limit": max_messages, "values": AS_BYTES}
        return api.get((*queue.path, "messages"), _Peeked, query=query).messages


def describe(api: HttpApi, queue: QueueName) -> QueueDescription:
    with naming(api, topic=queue.topic, group=queue.group):
        return api.get(queue.path, QueueDescription)


def every_queue(api: HttpApi) -> list[tuple[QueueName, QueueTotals | None]]:
    """All queues with what they hold, where the broker tells it: it tells it of many, not of any number."""
    names = [QueueName(group, topic) for group, topic in queue_names(api)]
    stats = api.get(("reliability", "stats"), _ReliabilityStats, query={"limit": _MAX_QUEUES})
    totals = {QueueName(each.group, each.topic): each.totals for each in stats.queues}
    return [(name, totals.get(name)) for name in names]


def configure(api: HttpApi, queue: QueueName, changes: Mapping[str, str | None]) -> QueueDescription:
    """Give a group settings of its own on a topic; None goes back to the topic's."""
    with naming(api, topic=queue.topic):
        return api.send("PUT", queue.path, QueueDescription, {"settings": dict(changes)})


def purge(api: HttpApi, queue: QueueName) -> QueueDescription:
    """Everything there is now is done."""
    with naming(api, topic=queue.topic, group=queue.group):
        return api.send("POST", (*queue.path, "purge"), QueueDescription)


def delete_queues(api: HttpApi, group: str) -> None:
    """Forget a group: its queues and its offsets."""
    api.send("DELETE", ("groups", group), type(None))


def reset(api: HttpApi, queue: QueueName, offsets: Mapping[int, int]) -> None:
    """Begin again at these offsets of partitions."""
    with naming(api, topic=queue.topic, group=queue.group):
        for partition, offset in offsets.items():
            body = {"partition": partition, "offset": offset}
            api.send("POST", (*queue.path, "reset"), QueueDescription, body)


def places(api: HttpApi, topic: str, where: Mapping[str, str | int], partition: int | None) -> dict[int, int]:
    """The offsets that a place (`to`, `offset` or `timestamp`) is in partitions of a topic."""
    wanted = {"topic": topic, **where} | ({} if partition is None else {"partition": partition})
    # Asked of any group: with dry_run it is only told.
    path = ("groups", "alpacactl", "offsets")
    with naming(api, topic=topic, partition=partition):
        found = api.send("POST", path, _Offsets, {"reset": [wanted], "dry_run": True})
    return {each.partition: each.offset for each in found.offsets}
