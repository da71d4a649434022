"""Groups of three brokers, through each of them."""

import asyncio
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.rest.handlers import groups, offsets, polling
from alpacamq.api.rest.parameters import OfGroup
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import GroupIdNotFound, UnknownMember
from alpacamq.model.topics import OFFSETS_TOPIC
from tests.broker.remote.three_brokers import ThreeBrokers, three_brokers

from .test_any_node import PARTITIONS, TOPIC, ask, publish

GROUP = OfGroup(group="readers")


async def join(broker: Broker, **fields: Any) -> groups.MembershipAnswer:
    return await ask(groups.join, broker, GROUP, groups.Join(topics=[TOPIC], **fields))


async def created(cluster: ThreeBrokers) -> None:
    await cluster.create(TOPIC, partitions=PARTITIONS)
    for index in range(PARTITIONS):
        await publish(cluster[1], index, b"%d" % index)


async def test_a_member_uses_another_broker_with_every_request(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await created(cluster)
        brokers = cycle(cluster.brokers.values())
        member = (await join(next(brokers))).member_id
        values: set[object] = set()
        cursor: dict[str, Any] = {}
        async with asyncio.timeout(60):
            while len(values) < PARTITIONS:
                query = polling.Poll(
                    group=GROUP.group, member=member, wait_ms=200, max=2, commit=bool(cursor), **cursor
                )
                page = await ask(polling.poll, next(brokers), query)
                assert isinstance(page, polling.MemberPoll)
                values |= {message.value for message in page.messages}
                cursor = {"cursor": page.cursor} if page.cursor else {}
        assert values == {str(index) for index in range(PARTITIONS)}
        for broker in cluster.brokers.values():
            described = await ask(groups.describe_group, broker, GROUP)
            assert [each.member_id for each in described.members] == [member]
            assert described.members[0].assignment == {TOPIC: list(range(PARTITIONS))}
            assert (await ask(groups.list_rebalances, broker, GROUP)).rebalances
            listed = await ask(groups.list_groups, broker, groups.GroupsQuery())
            assert [(each.group, each.type) for each in listed.groups] == [(GROUP.group, "consumer")]
        await ask(groups.leave, next(brokers), GROUP, groups.Leave(member_id=member))
        with pytest.raises(UnknownMember):
            await ask(groups.heartbeat, next(brokers), GROUP, groups.OfMember(member_id=member))
        await ask(groups.delete_group, next(brokers), GROUP)
        for broker in cluster.brokers.values():
            with pytest.raises(GroupIdNotFound):
                await ask(groups.describe_group, broker, GROUP)


async def test_members_and_offsets_survive_the_broker_of_their_group(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await created(cluster)
        coordinator = await cluster[1].groups.coordinator_of(GROUP.group)
        broker = next(each for node_id, each in cluster.brokers.items() if node_id != coordinator)
        joined = await join(broker)
        member = joined.member_id
        commits = [offsets.NewOffset(topic=TOPIC, partition=index, offset=1) for index in range(PARTITIONS)]
        await ask(
            offsets.change_offsets,
            broker,
            GROUP,
            offsets.OffsetChanges(offsets=commits, member_id=member, member_epoch=joined.member_epoch),
        )
        killing = asyncio.create_task(cluster.kill(coordinator))
        for _ in range(5):
            beat = groups.OfMember(member_id=member)
            assert (await ask(groups.heartbeat, broker, GROUP, beat)).member_id == member
        await killing
        assert cluster.leader_id(OFFSETS_TOPIC, broker.groups._machines.index_of(GROUP.group)) != coordinator
        shown = await ask(offsets.show_offsets, broker, offsets.OffsetsQuery(group=GROUP.group))
        assert [each.offset for each in shown.offsets] == [1] * PARTITIONS
