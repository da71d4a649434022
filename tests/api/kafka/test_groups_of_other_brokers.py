"""Groups of other brokers: Kafka's clients are sent to their coordinators, and ask every broker for lists."""

import asyncio
from pathlib import Path

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.handlers import configs, consumer_groups, groups
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.messages import CommitRequest, OffsetToCommit
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import consumer_groups as consumer_wire
from alpacamq.protocol.messages import groups as wire
from tests.broker.remote.three_brokers import ThreeBrokers, three_brokers

GROUPS = [f"group-{number}" for number in range(12)]
CALL = Call(5, "client", ANONYMOUS_CALLER, lambda: asyncio.sleep(0))


def backend_of(broker: Broker) -> Backend:
    return Backend(broker=broker, host="127.0.0.1", port=9092)


async def with_offsets(cluster: ThreeBrokers) -> dict[str, int]:
    """Commit an offset in every group; return the ids of their coordinators."""
    await cluster.create("orders")
    offset = OffsetToCommit(topic="orders", partition=0, offset=1)
    for group in GROUPS:
        await cluster[1].groups.ask(CommitRequest(group=group, offsets=(offset,)))
    return {group: await cluster[1].groups.coordinator_of(group) for group in GROUPS}


async def test_requests_to_another_coordinator_are_refused_and_not_forwarded(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        coordinators = await with_offsets(cluster)
        for node_id, broker in cluster.brokers.items():
            for group, coordinator in coordinators.items():
                backend = backend_of(broker)
                beat = wire.HeartbeatRequest(group_id=group, member_id="m", generation_id=1)
                answered = await groups.heartbeat(backend, beat, CALL)
                is_refused = answered.error_code == ErrorCode.NOT_COORDINATOR
                assert is_refused is (node_id != coordinator)
                describe = wire.DescribeGroupsRequest(groups=[group])
                (described,) = (await groups.describe_groups(backend, describe, CALL)).groups
                assert (described.error_code == ErrorCode.NOT_COORDINATOR) is is_refused
                join = consumer_wire.ConsumerGroupHeartbeatRequest(group_id=group, member_id="m")
                joined = await consumer_groups.consumer_group_heartbeat(backend, join, CALL)
                assert (joined.error_code == ErrorCode.NOT_COORDINATOR) is is_refused


async def test_every_broker_lists_its_own_groups(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        coordinators = await with_offsets(cluster)
        for node_id, broker in cluster.brokers.items():
            listed = await groups.list_groups(backend_of(broker), wire.ListGroupsRequest(), CALL)
            own = sorted(group for group, coordinator in coordinators.items() if coordinator == node_id)
            assert sorted(each.group_id for each in listed.groups) == own


async def test_settings_of_a_group_are_changed_through_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await with_offsets(cluster)
        for group, broker in zip(GROUPS, [*cluster.brokers.values()] * 4, strict=True):
            overrides = {"share.auto.offset.reset": "earliest"}
            await configs.configure_group(
                backend_of(broker), group, overrides, replace_all=False, dry_run=False
            )
        for broker in cluster.brokers.values():
            assert sorted(await broker.groups.configured()) == sorted(GROUPS)
