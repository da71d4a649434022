"""Counters of a broker's topics, groups and queues, over HTTP."""

import msgspec

from .http import HttpApi
from .queues import QueueTotals

_LIMIT = 1000


class TopicFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A topic; totals only grow, unless the broker starts again."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic."""

    group: str
    topic: str
    lag: int
    committed_total: int


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A group that uses a topic as a queue."""

    group: str
    topic: str
    totals: QueueTotals


class _Topics(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[TopicFigures]


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupFigures]


class _Queues(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueFigures]


def topic_figures(api: HttpApi) -> list[TopicFigures]:
    return api.get(("stats", "topics"), _Topics, query={"limit": _LIMIT}).topics


def group_figures(api: HttpApi) -> list[GroupFigures]:
    return api.get(("stats", "groups"), _Groups, query={"limit": _LIMIT}).groups


def queue_figures(api: HttpApi) -> list[QueueFigures]:
    return api.get(("reliability", "stats"), _Queues, query={"limit": _LIMIT}).queues
