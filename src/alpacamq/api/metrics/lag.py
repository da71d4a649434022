"""How far groups are behind, for whoever watches all of them."""

from collections.abc import Iterator
from typing import NamedTuple

from alpacamq.api.rest.coordination import ask_group
from alpacamq.api.slices import first_names, in_slices
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import FetchOffsetsReply, FetchOffsetsRequest

# Each costs tens of microseconds.
_GROUPS_AT_ONCE = 50


class Lag(NamedTuple):
    """Messages that a group has not come to in a topic, and those before its offsets, of all partitions."""

    group: str
    topic: str
    messages: int
    reached: int


async def group_names(broker: Broker, limit: int, prefix: str = "") -> list[str]:
    """The first groups in order of their names that the coordinators know."""
    return await first_names(await broker.coordinators.group_ids(), limit, prefix=prefix)


async def lags(broker: Broker, groups: list[str]) -> list[Lag]:
    """Per group and topic with committed offsets."""
    found: list[Lag] = []
    async for some in in_slices(groups, _GROUPS_AT_ONCE):
        for group in some:
            found += await _of_group(broker, group)
    return found


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
