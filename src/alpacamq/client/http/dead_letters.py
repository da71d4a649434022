"""Dead letters over HTTP: dead-letter topics, messages with their origin, and redrives."""

from contextlib import suppress

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
from alpacamq.model.ids import TopicPartition
from alpacamq.model.records import Record
from alpacamq.wire.queues import RedriveDescription, RedriveList

from .connection import HttpApi, Problem, Query
from .names import naming, queue_names, topic_names
from .queues import AS_BYTES, DEFAULT_GROUP, QueueName, StoredMessage, describe, peek

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
