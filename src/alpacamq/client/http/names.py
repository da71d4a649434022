"""Lists names over HTTP, for error messages that suggest similar ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from alpacamq.client.errors import NotFound
from alpacamq.model.ids import TopicName, TopicPartition

from .connection import HttpApi, Problem

_PAGE = 10_000
_UNKNOWN_TOPIC = "unknown-topic"
_UNKNOWN_GROUP = "group-id-not-found"


class _ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _Topics(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[_ListedTopic]
    next: str | None


class _ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topics: list[str] = []


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[_ListedGroup]
    next: str | None


P = TypeVar("P", _Topics, _Groups)


def topic_names(api: HttpApi) -> list[str]:
    """Return all topics except internal ones."""
    return [each.name for page in _pages(api, "topics", _Topics) for each in page.topics]


def topic_names_like(api: HttpApi, start: str, limit: int) -> list[str]:
    """Return up to `limit` topics with a prefix."""
    page = api.get(["topics"], _Topics, query={"prefix": start, "limit": limit})
    return [each.name for each in page.topics]


def group_names_like(api: HttpApi, start: str, limit: int) -> list[str]:
    """Return up to `limit` groups with a prefix, including groups of queues."""
    page = api.get(["groups"], _Groups, query={"prefix": start, "limit": limit})
    return list(dict.fromkeys(each.group for each in page.groups))


def queue_names(api: HttpApi) -> list[tuple[str, str]]:
    """Return all queues as pairs of group and topic."""
    pages = _pages(api, "groups", _Groups)
    return [(each.group, topic) for page in pages for each in page.groups for topic in each.topics]


def _pages(api: HttpApi, path: str, kind: type[P]) -> Iterator[P]:
    after: str | None = None
    while True:
        page = api.get([path], kind, query={"limit": _PAGE, "after": after})
        yield page
        if page.next is None:
            return
        after = page.next


@contextmanager
def naming(
    api: HttpApi, *, topic: str, group: str | None = None, partition: int | None = None
) -> Iterator[None]:
    """Translate the broker's not-found problems into NotFound with similar names."""
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
