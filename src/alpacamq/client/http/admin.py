"""Partitions and compaction of topics, and rebalances of groups, over HTTP."""

from alpacamq.client.errors import NotFound
from alpacamq.wire.groups import GroupRebalance, GroupRebalances
from alpacamq.wire.topics import CompactedPartition, CompactedTopic, PartitionDetails, PartitionList

from .connection import HttpApi, Problem
from .names import group_names_like, naming

_UNKNOWN_GROUP = "group-id-not-found"
_SUGGESTED_FROM = 1000
_COMPACTION_MS = 3_600_000


def partitions(api: HttpApi, topic: str) -> list[PartitionDetails]:
    """Return the partitions of a topic."""
    with naming(api, topic=topic):
        return api.get(("topics", topic, "partitions"), PartitionList).partitions


def compact(api: HttpApi, topic: str) -> list[CompactedPartition]:
    """Compact a topic, and return the result of each partition."""
    with naming(api, topic=topic):
        path = ("admin", "topics", topic, "compact")
        return api.send("POST", path, CompactedTopic, wait_ms=_COMPACTION_MS).partitions


def rebalances(api: HttpApi, group: str) -> list[GroupRebalance]:
    """Return the recent rebalances of a group, newest first."""
    try:
        return api.get(("groups", group, "rebalances"), GroupRebalances).rebalances
    except Problem as problem:
        if problem.kind != _UNKNOWN_GROUP:
            raise
        raise NotFound("group", group, group_names_like(api, "", _SUGGESTED_FROM)) from None
