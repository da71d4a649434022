"""Queues over HTTP: receiving and settling messages, and managing queues."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record
from alpacamq.wire.queues import QueueDescription, QueueTotals, ReliabilityStats

from .connection import HttpApi, Outcome, Problem, Query
from .names import naming, queue_names

# Requests keys and values in base64, so that they are returned byte for byte.
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


# The default group, also used by SQS consumers and redrives.
DEFAULT_GROUP = "queue"
# Limits of the broker per request.
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
    """A message leased until `deadline`, to be settled with its receipt."""

    topic: str
    receipt: str
    delivery_count: int
    priority: str
    deadline: int


class Settle(StrEnum):
    """Ways to settle a message, by their names in the API."""

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
    """Lease messages and wait for the first; empty on timeout."""
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
    """Settle deliveries; yield each receipt with its error, if any."""
    remaining = iter(receipts)
    while some := list(islice(remaining, MAX_RECEIPTS)):
        try:
            # A request with a single receipt fails as a whole.
            answer = api.send("POST", ("messages", how), _Settled, {"receipts": some, **details})
        except Problem as problem:
            if len(some) > 1:
                raise
            yield some[0], problem
        else:
            yield from zip(some, (each.failure for each in answer.results), strict=True)


def peek(api: HttpApi, queue: QueueName, max_messages: int) -> list[StoredMessage]:
    """Return the next unprocessed messages without leasing them."""
    with naming(api, topic=queue.topic, group=queue.group):
        query: Query = {"limit": max_messages, "values": AS_BYTES}
        return api.get((*queue.path, "messages"), _Peeked, query=query).messages


def describe(api: HttpApi, queue: QueueName) -> QueueDescription:
    with naming(api, topic=queue.topic, group=queue.group):
        return api.get(queue.path, QueueDescription)


def list_queues(api: HttpApi) -> list[tuple[QueueName, QueueTotals | None]]:
    """List all queues with their totals, if the broker reports them: their number is limited."""
    names = [QueueName(group, topic) for group, topic in queue_names(api)]
    stats = api.get(("reliability", "stats"), ReliabilityStats, query={"limit": _MAX_QUEUES})
    totals = {QueueName(each.group, each.topic): each.totals for each in stats.queues}
    return [(name, totals.get(name)) for name in names]


def configure(api: HttpApi, queue: QueueName, changes: Mapping[str, str | None]) -> QueueDescription:
    """Set a group's own settings on a topic; None resets to the topic's."""
    with naming(api, topic=queue.topic):
        return api.send("PUT", queue.path, QueueDescription, {"settings": dict(changes)})


def purge(api: HttpApi, queue: QueueName) -> QueueDescription:
    """Mark all current messages as processed."""
    with naming(api, topic=queue.topic, group=queue.group):
        return api.send("POST", (*queue.path, "purge"), QueueDescription)


def delete_queues(api: HttpApi, group: str) -> None:
    """Delete a group with its queues and its offsets."""
    api.send("DELETE", ("groups", group), type(None))


def reset(api: HttpApi, queue: QueueName, offsets: Mapping[int, int]) -> None:
    """Move a queue to these offsets by partition."""
    with naming(api, topic=queue.topic, group=queue.group):
        for partition, offset in offsets.items():
            body = {"partition": partition, "offset": offset}
            api.send("POST", (*queue.path, "reset"), QueueDescription, body)


def places(api: HttpApi, topic: str, where: Mapping[str, str | int], partition: int | None) -> dict[int, int]:
    """Resolve a position (`to`, `offset` or `timestamp`) to offsets by partition."""
    wanted = {"topic": topic, **where} | ({} if partition is None else {"partition": partition})
    # Any group works: dry_run changes nothing.
    path = ("groups", "alpacactl", "offsets")
    with naming(api, topic=topic, partition=partition):
        found = api.send("POST", path, _Offsets, {"reset": [wanted], "dry_run": True})
    return {each.partition: each.offset for each in found.offsets}
