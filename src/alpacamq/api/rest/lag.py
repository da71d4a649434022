"""How far groups are behind, for whoever watches all of them."""

from collections.abc import Iterator
from typing import NamedTuple

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.group_messages import (
    FetchOffsetsReply,
    FetchOffsetsRequest,
    ListReply,
    ListRequest,
)
from alpacamq.coordinator.groups import GroupCoordinator

from .coordination import ask_group


class Lag(NamedTuple):
    """Messages that a group has not come to in a topic, and those before its offsets, of all partitions."""

    group: str
    topic: str
    messages: int
    reached: int


async def group_names(broker: Broker) -> list[str]:
    """Every group that the coordinators know, by name."""
    replies: list[ListReply] = await broker.coordinators.ask_every_group_shard(
        lambda machine, ticket, now_ms: machine.list_groups(ListRequest(), ticket, now_ms)
    )
    return sorted(each.group for reply in replies for each in reply.groups)


async def lags(broker: Broker, groups: list[str]) -> list[Lag]:
    """Per group and topic with committed offsets."""
    return [lag for group in groups for lag in await _of_group(broker, group)]


async def _of_group(broker: Broker, group: str) -> Iterator[Lag]:
    reply: FetchOffsetsReply = await ask_group(
        broker, GroupCoordinator.fetch_offsets, FetchOffsetsRequest(group=group)
    )
    by_topic: dict[str, Lag] = {}
    for each in reply.offsets:
        partition = broker.topics.find(each.topic.encode(), each.partition)
        if partition is not None:
            behind = max(partition.high_watermark - each.offset, 0)
            so_far = by_topic.get(each.topic, Lag(group, each.topic, 0, 0))
            by_topic[each.topic] = so_far._replace(
                messages=so_far.messages + behind, reached=so_far.reached + each.offset
            )
    return (lag for _, lag in sorted(by_topic.items()))
