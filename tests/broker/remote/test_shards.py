"""Requests to state machines on other brokers."""

import asyncio
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.groups import Groups
from alpacamq.broker.remote import shards
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.statemachine.topic import StateMachineTopic
from alpacamq.coordinator.consumer.messages import ConsumerGroupDescription, ConsumerHeartbeatRequest
from alpacamq.coordinator.groups import DescribeRequest, GroupCoordinator
from alpacamq.coordinator.messages import (
    CommitRequest,
    DeleteGroupRequest,
    FetchOffsetsRequest,
    LeaveRequest,
    LeavingMember,
    OffsetToCommit,
)
from alpacamq.coordinator.rebalances import RebalancesRequest
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupIdNotFound,
    NotCoordinator,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    UnknownMember,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import OFFSETS_TOPIC

from .three_brokers import ThreeBrokers, three_brokers

ORDERS = TopicName("orders")
P0 = TopicPartition(ORDERS, 0)


def machines_of(groups: Groups) -> StateMachineTopic[GroupCoordinator]:
    return groups._machines


def commit(group: str, offset: int) -> CommitRequest:
    to_commit = OffsetToCommit(topic=ORDERS, partition=0, offset=offset)
    return CommitRequest(group=group, offsets=(to_commit,))


async def committed(broker: Broker, group: str) -> int:
    reply = await broker.groups.ask(FetchOffsetsRequest(group=group, partitions=(P0,)))
    return reply.offsets[0].offset


async def group_elsewhere(cluster: ThreeBrokers, broker: Broker) -> str:
    """Return the name of a group that another broker coordinates."""
    for number in range(1000):
        name = f"group-{number}"
        if await broker.groups.coordinator_of(name) != broker.settings.node_id:
            await cluster.led(OFFSETS_TOPIC, machines_of(broker.groups).index_of(name))
            return name
    raise AssertionError("one broker leads everything")


async def host_of(cluster: ThreeBrokers, group: str) -> StateMachineHost[GroupCoordinator]:
    """Return the host of a group's coordinator, where it is now, loaded."""
    index = machines_of(cluster.any.groups).index_of(group)
    await cluster.led(OFFSETS_TOPIC, index)
    machines = machines_of(cluster.leader_of(OFFSETS_TOPIC, index).groups)
    await cluster.until(lambda: machines.is_here(index), "the host")
    host = machines.host_at(index)
    await host.wait_until_loaded()
    return host


async def test_a_group_works_through_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        for number, broker in enumerate(cluster.brokers.values()):
            for each in range(12):
                group = f"group-{each}"
                results = await broker.groups.ask(commit(group, number))
                assert [result.error for result in results.partitions] == [None]
                for reader in cluster.brokers.values():
                    assert await committed(reader, group) == number
        names = sorted(f"group-{each}" for each in range(12))
        for broker in cluster.brokers.values():
            assert sorted(await broker.groups.group_ids()) == names
            assert sorted(each.group for each in await broker.groups.list_groups(names)) == names
            assert await broker.groups.configured() == []
        here = [await broker.groups.group_ids_here() for broker in cluster.brokers.values()]
        assert sorted(name for some in here for name in some) == names
        assert all(len(some) < len(names) for some in here)


async def test_errors_of_other_brokers_are_raised_as_they_are(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        with pytest.raises(GroupIdNotFound):
            await broker.groups.ask(DescribeRequest(group=group))
        with pytest.raises(NotCoordinator) as caught:
            await broker.groups.ask_here(DescribeRequest(group=group))
        assert caught.value.coordinator == await broker.groups.coordinator_of(group)
        # Inside of a reply.
        await broker.groups.ask(
            ConsumerHeartbeatRequest(
                group=group,
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topics=(ORDERS,),
                owned={},
            )
        )
        leaving = LeaveRequest(group=group, members=(LeavingMember(member_id="unknown"),))
        assert isinstance((await broker.groups.ask(leaving)).members[0].error, UnknownMember)
        described = await broker.groups.ask(DescribeRequest(group=group))
        assert isinstance(described, ConsumerGroupDescription)
        assert [member.member_id for member in described.members] == ["m"]
        assert (await broker.groups.ask(RebalancesRequest(group=group))).rebalances


async def test_requests_follow_a_coordinator_whose_broker_dies(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        await broker.groups.ask(commit(group, 1))
        former = await broker.groups.coordinator_of(group)
        kill = asyncio.create_task(cluster.kill(former))
        for offset in range(2, 30):
            await broker.groups.ask(commit(group, offset))
            assert await committed(broker, group) == offset
        await kill
        assert await broker.groups.coordinator_of(group) != former
        for other in cluster.brokers.values():
            assert await committed(other, group) == 29


async def test_requests_follow_a_coordinator_that_moves(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        group = await group_elsewhere(cluster, cluster[1])
        index = machines_of(cluster[1].groups).index_of(group)

        offset = 0
        for target in (1, 2, 3, 1, 2, 3):
            moving = asyncio.create_task(cluster.move_leader(OFFSETS_TOPIC, index, target))
            is_moved = False
            while not is_moved:
                is_moved = moving.done()  # once more at the new leader
                offset += 1
                for broker in cluster.brokers.values():
                    await broker.groups.ask(commit(group, offset))
                    assert await committed(broker, group) == offset
            await moving


async def test_a_lost_connection_repeats_what_may_be_repeated_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        await broker.groups.ask(commit(group, 1))
        host = await host_of(cluster, group)
        asked = []

        async def ask(request: object) -> object:
            asked.append(request)
            if len(asked) % 2:
                cluster.wires.lose(1)
                await asyncio.Event().wait()
            return await StateMachineHost.ask(host, request)  # type: ignore[arg-type]

        monkeypatch.setattr(host, "ask", ask)
        assert await committed(broker, group) == 1
        assert len(asked) == 2
        with pytest.raises(RequestTimedOut):
            await broker.groups.ask(DeleteGroupRequest(group=group))
        assert len(asked) == 3
        assert await committed(broker, group) == 1


async def test_cancelling_a_request_cancels_it_at_the_other_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        host = await host_of(cluster, group)
        began, ended = asyncio.Event(), asyncio.Event()

        async def ask(_request: object) -> object:
            began.set()
            try:
                return await asyncio.Event().wait()
            finally:
                ended.set()

        monkeypatch.setattr(host, "ask", ask)
        pending = asyncio.create_task(broker.groups.ask(DescribeRequest(group=group)))
        async with asyncio.timeout(20):
            await began.wait()
            pending.cancel()
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await pending


async def test_a_silent_former_leader_does_not_hold_up_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FORMER_LEADER_SECONDS", 0.1)
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        await broker.groups.ask(commit(group, 1))
        host = await host_of(cluster, group)
        began = asyncio.Event()

        async def ask(_request: object) -> object:
            began.set()
            return await asyncio.Event().wait()

        monkeypatch.setattr(host, "ask", ask)
        pending = asyncio.create_task(committed(broker, group))
        await began.wait()
        index = host.partition.identity.partition
        await cluster.move_leader(OFFSETS_TOPIC, index, 1)
        async with asyncio.timeout(60):
            assert await pending == 1


async def test_a_request_to_all_machines_names_the_broker_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FOLLOW_ALL_SECONDS", 0.5)
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        await cluster[1].groups.ask(commit("group", 1))
        assert await cluster[1].groups.group_ids() == ["group"]
        cluster.wires.cut(1, 3)
        with pytest.raises(CoordinatorUnavailable, match="broker 3 did not answer"):
            await cluster[1].groups.group_ids()
        cluster.wires.heal()
        monkeypatch.setattr(shards, "FOLLOW_ALL_SECONDS", 10)
        assert await cluster[1].groups.group_ids() == ["group"]


async def test_without_a_leader_a_request_fails_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        group = await group_elsewhere(cluster, cluster[1])
        await cluster[1].groups.ask(commit(group, 1))
        monkeypatch.setattr(shards, "FOLLOW_SECONDS", 0.5)
        monkeypatch.setattr(machines_of(cluster[1].groups), "leader_of", lambda _shard: None)
        with pytest.raises(NotCoordinator, match="has no leader"):
            await committed(cluster[1], group)


async def test_forwarded_calls_are_counted(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        await broker.groups.ask(commit(group, 1))
        with pytest.raises(GroupIdNotFound):
            await broker.groups.ask(DeleteGroupRequest(group=group + "x" * 10))
        assert broker.metrics is not None
        kinds = broker.metrics.forwarded.kinds
        assert kinds["CommitRequest"].seconds.count == 1
        assert kinds["CommitRequest"].refusals == {}


@pytest.mark.parametrize(
    ("error", "repeatable", "is_sent_again"),
    [
        pytest.param(NotCoordinator("moved", 2), False, True, id="not begun"),
        pytest.param(CoordinatorLoading("loading"), False, True, id="loading"),
        pytest.param(PeerUnavailable("down"), False, True, id="not sent"),
        pytest.param(UnknownBroker("new"), False, True, id="no address"),
        pytest.param(NotCoordinator("moved", 2, has_begun=True), False, False, id="moved while handled"),
        pytest.param(NotCoordinator("moved", 2, has_begun=True), True, True, id="moved, repeatable"),
        pytest.param(CoordinatorUnavailable("full"), False, False, id="not written"),
        pytest.param(CoordinatorUnavailable("full"), True, True, id="not written, repeatable"),
        pytest.param(RequestTimedOut("lost"), False, False, id="connection lost"),
        pytest.param(RequestTimedOut("lost"), True, True, id="connection lost, repeatable"),
        pytest.param(UnknownMember("who"), True, False, id="a reply"),
    ],
)
def test_a_request_is_sent_again_only_if_it_cannot_take_effect_twice(
    error: AlpacaError, repeatable: bool, is_sent_again: bool
) -> None:
    request = commit("g", 1) if repeatable else DeleteGroupRequest(group="g")
    assert request.may_be_repeated is repeatable
    assert shards.may_be_sent_again(request, error) is is_sent_again


async def test_a_broker_that_cannot_reach_a_third_one_does_not_say_that_nothing_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(ORDERS)
        broker = cluster[1]
        group = await group_elsewhere(cluster, broker)
        host = await host_of(cluster, group)
        asked = []

        async def ask(request: object) -> object:
            asked.append(request)
            raise PeerUnavailable("a third broker")

        monkeypatch.setattr(host, "ask", ask)
        with pytest.raises(CoordinatorUnavailable, match="a third broker"):
            await broker.groups.ask(DeleteGroupRequest(group=group))
        assert len(asked) == 1
