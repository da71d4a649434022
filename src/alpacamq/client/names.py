"""What there is under which name, over HTTP, for errors that suggest the right one."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition

from .errors import NotFound
from .http import HttpApi, Problem

_PAGE = 10_000
_UNKNOWN_TOPIC = "unknown-topic"
_UNKNOWN_GROUP = "group-id-not-found"


class _ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[_ListedTopic]
    next: str | None


class _ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topics: list[str] = []


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[_ListedGroup]


def topic_names(api: HttpApi) -> list[str]:
    """Every topic that is not the broker's own."""
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page = api.get(["topics"], _TopicPage, query={"limit": _PAGE, "after": after or None})
        names += [each.name for each in page.topics]
        after = page.next
    return names


def queue_names(api: HttpApi) -> list[tuple[str, str]]:
    """Every group with the topic it uses as a queue."""
    groups = api.get(["groups"], _Groups).groups
    return sorted((each.group, topic) for each in groups for topic in each.topics)


@contextmanager
def naming(
    api: HttpApi, *, topic: str, group: str | None = None, partition: int | None = None
) -> Iterator[None]:
    """Turns the broker's refusal of a name into NotFound with the names that are near."""
    try:
        yield
    except Problem as problem:
        if problem.kind not in (_UNKNOWN_TOPIC, _UNKNOWN_GROUP):
            raise
        known = topic_names(api)
        if topic not in known:
            raise NotFound("topic", topic, known) from None
        if problem.kind == _UNKNOWN_GROUP and group is not None:
            groups = [each for each, of in queue_names(api) if of == topic]
            raise NotFound(f"queue on topic {topic!r} of the group", group, groups) from None
        if partition is not None:
            raise NotFound("partition", str(TopicPartition(TopicName(topic), partition))) from None
        raise
