"""Queues over HTTP: receiving, settling and managing them; their dead letters and redrives."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import msgspec

from alpacamq.client.errors import NotFound
from alpacamq.model.dead_letters import SETTING, dead_letter_topic, is_dead_letter_name
from alpacamq.model.headers import (
    DEAD_LETTER_HEADERS,
    DEAD_LETTER_REASON,
    DEAD_LETTERED_AT,
    DELIVERY_COUNT,
    ORIGIN_GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record
from alpacamq.wire.queues import (
    QueueDescription,
    QueueTotals,
    RedriveDescription,
    RedriveList,
    ReliabilityStats,
)

from .connection import HttpApi, Outcome, Problem, Query
from .names import naming, queue_names, topic_names

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


def peek_at_topic(api: HttpApi, topic: str, max_messages: int) -> list[StoredMessage]:
    """Return the first messages of a topic."""
    with naming(api, topic=topic):
        query: Query = {"limit": max_messages, "values": AS_BYTES}
        return api.get(("topics", topic, "messages"), _Peeked, query=query).messages


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


_OUT_OF_RANGE = "offset-out-of-range"
_UNKNOWN_REDRIVE = "unknown-task"
_RUNNING = frozenset({"running", "cancelling"})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter; fields of its origin that are unknown are None."""

    place: TopicPartition
    record: Record
    topic: str | None
    partition: int | None
    offset: int | None
    group: str | None
    timestamp_ms: int | None
    delivery_count: int | None
    reason: str | None
    dead_lettered_ms: int | None


class DeadLetterTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A dead-letter topic, its source topics, and the number of unprocessed messages."""

    topic: str
    sources: list[str]
    waiting: int


class _Extent(msgspec.Struct, frozen=True, kw_only=True):
    start_offset: int
    end_offset: int


class _Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: list[_Extent]
    settings: dict[str, str]

    @property
    def dead_letter_topic(self) -> str | None:
        return dead_letter_topic(self.name, self.settings.get(SETTING, ""))


class _Messages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[StoredMessage]


def dead_letter_topics(api: HttpApi) -> list[DeadLetterTopic]:
    """List topics that are the dead-letter topic of another, or are named like one."""
    topics = {}
    for name in topic_names(api):
        with suppress(Problem):  # deleted concurrently
            topics[name] = api.get(("topics", name), _Topic)
    sources: dict[str, list[str]] = {name: [] for name in topics if is_dead_letter_name(name)}
    pairs = [(name, topic.dead_letter_topic) for name, topic in topics.items()]
    for group, name in queue_names(api):
        with suppress(NotFound, Problem):  # deleted meanwhile
            pairs.append((name, describe(api, QueueName(group, name)).dead_letter_topic))
    for name, target in pairs:
        if target in topics and name not in (known := sources.setdefault(target, [])):
            known.append(name)
    return [
        DeadLetterTopic(topic=name, sources=sources[name], waiting=_waiting(api, topics[name]))
        for name in sorted(sources)
    ]


def find_dead_letter_topic(api: HttpApi, name: str) -> str:
    """Return the dead-letter topic with this name, or that of the topic with this name."""
    with naming(api, topic=name):
        topic = api.get(("topics", name), _Topic)
    if is_dead_letter_name(name) or any(each.topic is not None for each in dead_letters(api, name, 1)):
        return name
    try:
        target = describe(api, QueueName(DEFAULT_GROUP, name)).dead_letter_topic
    except NotFound:  # never used as a queue
        target = topic.dead_letter_topic
    try:
        if target is not None:
            return api.get(("topics", target), _Topic).name
    except Problem:
        pass
    raise NotFound("dead letter of topic", name)


def dead_letters(api: HttpApi, topic: str, max_messages: int) -> list[DeadLetter]:
    """Return the first unprocessed dead letters."""
    try:
        found = peek(api, QueueName(DEFAULT_GROUP, topic), max_messages)
    except NotFound:
        # It was never used as a queue, so nothing in it is done.
        with naming(api, topic=topic):
            query: Query = {"limit": max_messages, "values": AS_BYTES}
            found = api.get(("topics", topic, "messages"), _Messages, query=query).messages
    return [_dead_letter(topic, each) for each in found]


def dead_letter(api: HttpApi, topic: str, partition: int, offset: int) -> DeadLetter:
    """Return one dead letter, processed or not."""
    path = ("topics", topic, "partitions", str(partition), "messages")
    query: Query = {"offset": offset, "limit": 1, "values": AS_BYTES}
    try:
        with naming(api, topic=topic, partition=partition):
            found = api.get(path, _Messages, query=query).messages
    except Problem as problem:
        if problem.kind != _OUT_OF_RANGE:
            raise
        found = []
    if not found or found[0].offset != offset:
        raise NotFound(f"dead letter in {topic!r} with the id", f"{partition}:{offset}")
    return _dead_letter(topic, found[0])


def start_redrive(
    api: HttpApi,
    topic: str,
    *,
    target: str | None = None,
    messages_per_second: int | None = None,
    max_messages: int | None = None,
) -> RedriveDescription:
    """Have the broker move dead letters: to `target`, or each to where it came from."""
    wanted = {"target": target, "messages_per_second": messages_per_second, "max_messages": max_messages}
    body = {name: value for name, value in wanted.items() if value is not None}
    with naming(api, topic=topic), naming(api, topic=target or topic):
        return api.send("POST", ("topics", topic, "dead-letters", "redrive"), RedriveDescription, body)


def redrives(api: HttpApi, topic: str | None = None) -> list[RedriveDescription]:
    """Under way and ended, newest first."""
    return api.get(["redrives"], RedriveList, query={"topic": topic}).redrives


def redrive(api: HttpApi, task_id: str) -> RedriveDescription:
    return _of_redrive(api, "GET", task_id)


def cancel_redrive(api: HttpApi, task_id: str) -> RedriveDescription:
    """End it; what it has moved stays moved."""
    return _of_redrive(api, "DELETE", task_id)


def _of_redrive(api: HttpApi, method: str, task_id: str) -> RedriveDescription:
    try:
        return api.send(method, ("redrives", task_id), RedriveDescription)
    except Problem as problem:
        if problem.kind != _UNKNOWN_REDRIVE:
            raise
        raise NotFound("redrive", task_id, [each.id for each in redrives(api)]) from None


def _waiting(api: HttpApi, topic: _Topic) -> int:
    try:
        totals = describe(api, QueueName(DEFAULT_GROUP, topic.name)).totals
    except NotFound:
        return sum(each.end_offset - each.start_offset for each in topic.partitions)
    return totals.ready + totals.in_flight + totals.resting


def _dead_letter(topic: str, message: StoredMessage) -> DeadLetter:
    record = message.record
    said = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    return DeadLetter(
        place=message.place(topic),
        record=record._replace(
            headers=tuple(each for each in record.headers if each.key not in DEAD_LETTER_HEADERS)
        ),
        topic=said.get(ORIGIN_TOPIC),
        partition=_number(said.get(ORIGIN_PARTITION)),
        offset=_number(said.get(ORIGIN_OFFSET)),
        group=said.get(ORIGIN_GROUP),
        timestamp_ms=_number(said.get(ORIGIN_TIMESTAMP)),
        delivery_count=_number(said.get(DELIVERY_COUNT)),
        reason=said.get(DEAD_LETTER_REASON),
        dead_lettered_ms=_number(said.get(DEAD_LETTERED_AT)),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None
