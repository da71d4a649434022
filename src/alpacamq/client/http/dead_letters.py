"""Dead letters over HTTP: the topics that hold them, what each says of its origin, and their way back."""

from contextlib import suppress

import msgspec

from alpacamq.client.errors import NotFound
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
from alpacamq.model.ids import TopicPartition
from alpacamq.model.records import Record

from .connection import HttpApi, Problem, Query
from .names import naming, topic_names
from .queues import AS_BYTES, DEFAULT_GROUP, QueueName, StoredMessage, describe, peek

SUFFIX = ".dlq"
_SETTING = "queue.dead.letter.topic"
_OUT_OF_RANGE = "offset-out-of-range"
_UNKNOWN_REDRIVE = "unknown-task"
_RUNNING = frozenset({"running", "cancelling"})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was set aside; what it does not say of its origin is None."""

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
    """A topic of dead letters, the topics they come from, and how many nobody has seen to."""

    topic: str
    sources: list[str]
    waiting: int


class Redrive(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters on their way back."""

    id: str
    source: str
    target: str | None
    state: str
    started: int
    moved: int
    to_move: int
    messages_per_second: int | None
    failure: str

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING


class _Redrives(msgspec.Struct, frozen=True, kw_only=True):
    redrives: list[Redrive]


class _Extent(msgspec.Struct, frozen=True, kw_only=True):
    start_offset: int
    end_offset: int


class _Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: list[_Extent]
    settings: dict[str, str]

    @property
    def dead_letter_topic(self) -> str:
        return self.settings.get(_SETTING) or f"{self.name}{SUFFIX}"


class _Messages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[StoredMessage]


def dead_letter_topics(api: HttpApi) -> list[DeadLetterTopic]:
    """Topics that are the dead-letter topic of another, or have the name of one."""
    topics = {}
    for name in topic_names(api):
        with suppress(Problem):  # deleted meanwhile
            topics[name] = api.get(("topics", name), _Topic)
    sources: dict[str, list[str]] = {name: [] for name in topics if name.endswith(SUFFIX)}
    for name, topic in topics.items():
        if topic.dead_letter_topic in topics:
            sources.setdefault(topic.dead_letter_topic, []).append(name)
    return [
        DeadLetterTopic(topic=name, sources=sources[name], waiting=_waiting(api, topics[name]))
        for name in sorted(sources)
    ]


def find_dead_letter_topic(api: HttpApi, name: str) -> str:
    """The topic with the dead letters meant: of this name, or that of the topic of this name."""
    with naming(api, topic=name):
        topic = api.get(("topics", name), _Topic)
    if name.endswith(SUFFIX) or any(each.topic is not None for each in dead_letters(api, name, 1)):
        return name
    try:
        return api.get(("topics", topic.dead_letter_topic), _Topic).name
    except Problem:
        raise NotFound("dead letter of topic", name) from None


def dead_letters(api: HttpApi, topic: str, max_messages: int) -> list[DeadLetter]:
    """The first that nobody has seen to."""
    try:
        found = peek(api, QueueName(DEFAULT_GROUP, topic), max_messages)
    except NotFound:
        # Nobody has used it as a queue, so nothing of it is done.
        with naming(api, topic=topic):
            query: Query = {"limit": max_messages, "values": AS_BYTES}
            found = api.get(("topics", topic, "messages"), _Messages, query=query).messages
    return [_dead_letter(topic, each) for each in found]


def dead_letter(api: HttpApi, topic: str, partition: int, offset: int) -> DeadLetter:
    """One of them, done with or not."""
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
) -> Redrive:
    """Have the broker move dead letters: to `target`, or each to where it came from."""
    wanted = {"target": target, "messages_per_second": messages_per_second, "max_messages": max_messages}
    body = {name: value for name, value in wanted.items() if value is not None}
    with naming(api, topic=topic), naming(api, topic=target or topic):
        return api.send("POST", ("topics", topic, "dead-letters", "redrive"), Redrive, body)


def redrives(api: HttpApi, topic: str | None = None) -> list[Redrive]:
    """Under way and ended, newest first."""
    return api.get(["redrives"], _Redrives, query={"topic": topic}).redrives


def redrive(api: HttpApi, task_id: str) -> Redrive:
    return _of_redrive(api, "GET", task_id)


def cancel_redrive(api: HttpApi, task_id: str) -> Redrive:
    """End it; what it has moved stays moved."""
    return _of_redrive(api, "DELETE", task_id)


def _of_redrive(api: HttpApi, method: str, task_id: str) -> Redrive:
    try:
        return api.send(method, ("redrives", task_id), Redrive)
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
