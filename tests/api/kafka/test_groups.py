"""Groups at the Kafka API: what each version of a request is answered."""

from typing import Any

import pytest

from alpacamq.cluster.image import CURRENT_LEVEL, VERSION_FEATURE
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from alpacamq.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.brokers import Broker
from tests.waiting import eventually

from .wire import CLIENT_ID, Wire, at_most, versions, wired

# The subscription of a consumer: version 0, no topics, no user data.
SUBSCRIPTION = bytes(10)
LATEST_JOIN = versions(JoinGroupRequest)[-1]


def join_request(group: str, member_id: str = "", **more: Any) -> JoinGroupRequest:
    fields: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **(fields | more))


def join(wire: Wire, group: str, version: int = LATEST_JOIN) -> Any:
    """Join as the only member, with a second request where the version wants one."""
    response = wire.ask(join_request(group), version)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = wire.ask(join_request(group, response.member_id), version)
    assert response.error_code == 0
    return response


def consumer_heartbeat(group: str, topic: str, member_id: str = "me", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, **(fields | more))


@pytest.mark.parametrize("version", versions(JoinGroupRequest))
def test_a_member_joins_is_assigned_lives_and_leaves_in_every_version(
    wire: Wire, topic: str, version: int
) -> None:
    joined = join(wire, topic, version)
    assert (joined.leader, [member.member_id for member in joined.members]) == (
        joined.member_id,
        [joined.member_id],
    )
    me = {"group_id": topic, "generation_id": joined.generation_id, "member_id": joined.member_id}

    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all of it")
    sync = SyncGroupRequest(**me, protocol_type="consumer", protocol_name="range", assignments=[assignment])
    synced = wire.ask(sync, at_most(SyncGroupRequest, version))
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
    assert wire.ask(HeartbeatRequest(**me), at_most(HeartbeatRequest, version)).error_code == 0

    leave = LeaveGroupRequest(
        group_id=topic, member_id=joined.member_id, members=[MemberIdentity(member_id=joined.member_id)]
    )
    left = wire.ask(leave, at_most(LeaveGroupRequest, version))
    assert [left.error_code, *(member.error_code for member in left.members)] in ([0], [0, 0])
    late = wire.ask(HeartbeatRequest(**me), at_most(HeartbeatRequest, version))
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(JoinGroupRequest))
def test_new_members_get_their_id_first_from_version_4_on(wire: Wire, topic: str, version: int) -> None:
    response = wire.ask(join_request(topic), version)

    assert response.error_code == (ErrorCode.MEMBER_ID_REQUIRED if version >= 4 else ErrorCode.NONE)
    assert response.member_id.startswith(f"{CLIENT_ID}-")


def test_a_group_without_a_name_cannot_be_joined(wire: Wire) -> None:
    assert wire.ask(join_request("")).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.NONE), (5, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
)
def test_members_name_their_protocol_when_they_sync_from_version_5_on(
    wire: Wire, topic: str, version: int, code: ErrorCode
) -> None:
    joined = join(wire, topic)

    synced = wire.ask(
        SyncGroupRequest(group_id=topic, generation_id=joined.generation_id, member_id=joined.member_id),
        version,
    )

    assert synced.error_code == code


def test_a_request_that_waits_holds_up_those_behind_it(broker: Broker, topic: str) -> None:
    with wired(broker.host_and_port) as first, wired(broker.host_and_port) as second:
        joined = join(first, topic)
        # The second can only come in when the first joins again.
        second.send(join_request(topic), 3)
        second.send(ListGroupsRequest())
        eventually_rebalancing(first, topic, joined)
        first.ask(join_request(topic, joined.member_id))

        assert second.receive(JoinGroupRequest, 3).error_code == 0
        assert second.receive(ListGroupsRequest).error_code == 0


def test_a_client_that_goes_while_it_waits_is_out_when_its_session_ends(broker: Broker, topic: str) -> None:
    with wired(broker.host_and_port) as first:
        joined = join(first, topic)
        with wired(broker.host_and_port) as second:
            second.send(join_request(topic, session_timeout_ms=1000), 3)
            eventually_rebalancing(first, topic, joined)

        def members() -> set[str]:
            (described,) = first.ask(DescribeGroupsRequest(groups=[topic])).groups
            return {member.member_id for member in described.members}

        # No other member has rejoined yet, so it could have waited long.
        eventually(lambda: members() == {joined.member_id})


def eventually_rebalancing(wire: Wire, group: str, joined: Any) -> None:
    heartbeat = HeartbeatRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
    )
    eventually(lambda: wire.ask(heartbeat).error_code == ErrorCode.REBALANCE_IN_PROGRESS)


@pytest.mark.parametrize("version", versions(LeaveGroupRequest))
def test_leaving_an_unknown_group_is_an_error_of_the_member(wire: Wire, topic: str, version: int) -> None:
    leave = LeaveGroupRequest(group_id=topic, member_id="who", members=[MemberIdentity(member_id="who")])

    response = wire.ask(leave, version)

    code = ErrorCode.UNKNOWN_MEMBER_ID
    if version < 3:
        assert response.error_code == code
    else:
        assert (response.error_code, [member.error_code for member in response.members]) == (0, [code])


@pytest.mark.parametrize("version", versions(DescribeGroupsRequest))
def test_an_unknown_group_is_dead(wire: Wire, topic: str, version: int) -> None:
    (described,) = wire.ask(DescribeGroupsRequest(groups=[topic]), version).groups

    code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert (described.error_code, described.group_state) == (code, "Dead")


def test_a_group_is_described_by_the_request_for_its_protocol(wire: Wire, made: str) -> None:
    classic, consumer = f"{made}-classic", f"{made}-consumer"
    join(wire, classic)
    assert wire.ask(consumer_heartbeat(consumer, made)).error_code == 0

    as_classic = wire.ask(DescribeGroupsRequest(groups=[classic, consumer])).groups
    as_consumer = wire.ask(ConsumerGroupDescribeRequest(group_ids=[classic, consumer])).groups

    assert [each.error_code for each in as_classic] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
    assert [each.error_code for each in as_consumer] == [ErrorCode.GROUP_ID_NOT_FOUND, 0]
    (member,) = as_classic[0].members
    assert (member.client_id, member.client_host) == (CLIENT_ID, "127.0.0.1")
    (member,) = as_consumer[1].members
    assert (member.client_id, member.client_host) == (CLIENT_ID, "127.0.0.1")
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == (made, [0, 1])


@pytest.mark.parametrize("version", versions(ListGroupsRequest))
def test_groups_are_listed_in_every_version(wire: Wire, topic: str, version: int) -> None:
    join(wire, topic)

    listed = wire.ask(ListGroupsRequest(), version).groups

    (line,) = [each for each in listed if each.group_id == topic]
    assert line.protocol_type == "consumer"
    assert line.group_state == ("CompletingRebalance" if version >= 4 else "")
    assert line.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("version", versions(DeleteGroupsRequest))
def test_each_group_to_be_deleted_has_its_own_result(wire: Wire, topic: str, version: int) -> None:
    join(wire, topic)

    results = wire.ask(DeleteGroupsRequest(groups_names=[topic, "no such group"]), version).results

    assert [each.error_code for each in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]


@pytest.mark.parametrize(("version", "code"), [(0, ErrorCode.NONE), (1, ErrorCode.INVALID_REQUEST)])
def test_consumers_name_themselves_from_version_1_on(
    wire: Wire, made: str, version: int, code: ErrorCode
) -> None:
    response = wire.ask(consumer_heartbeat(made, made, member_id=""), version)

    assert response.error_code == code
    assert bool(response.member_id) == (code == ErrorCode.NONE)


def test_assignments_use_topic_ids(wire: Wire, made: str) -> None:
    response = wire.ask(consumer_heartbeat(made, made))

    (assigned,) = response.assignment.topic_partitions
    assert (response.member_epoch, sorted(assigned.partitions)) == (1, [0, 1])


@pytest.mark.parametrize("version", versions(FindCoordinatorRequest))
def test_this_broker_coordinates_everything(broker: Broker, wire: Wire, topic: str, version: int) -> None:
    found = wire.ask(FindCoordinatorRequest(key=topic, coordinator_keys=[topic, "other"]), version)

    host, port = broker.host_and_port
    if version < 4:
        assert (found.error_code, found.host, found.port) == (0, host, port)
    else:
        assert [(each.key, each.host, each.port) for each in found.coordinators] == [
            (topic, host, port),
            ("other", host, port),
        ]


def test_clients_learn_of_the_current_protocols(wire: Wire) -> None:
    levels = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
    for version in (3, 4):
        response = wire.ask(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), version
        )
        finalized = {each.name: each.max_version_level for each in response.finalized_features}
        assert finalized == {**levels, VERSION_FEATURE: CURRENT_LEVEL}
        assert response.finalized_features_epoch > 0
        supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
        # A client of version 3 refuses a response with a level 0 in it.
        kafkas = {} if version == 3 else {name: (0, level) for name, level in levels.items()}
        assert supported == {**kafkas, VERSION_FEATURE: (1, CURRENT_LEVEL)}


def set_group_config(wire: Wire, group: str, **settings: str) -> int:
    configs = [
        IncrementallyAlterableConfig(
            name=f"consumer.{name.replace('_', '.')}", config_operation=0, value=value
        )
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=32, resource_name=group, configs=configs)
    (result,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    return int(result.error_code)


def test_the_heartbeat_interval_and_session_timeout_of_a_consumer_group_can_be_set(
    wire: Wire, made: str
) -> None:
    settings = {"heartbeat_interval_ms": "400", "session_timeout_ms": "1000"}
    assert set_group_config(wire, made, **settings) == 0

    joined = wire.ask(consumer_heartbeat(made, made))

    assert joined.heartbeat_interval_ms == 400
    describe = ConsumerGroupDescribeRequest(group_ids=[made])
    assert len(wire.ask(describe).groups[0].members) == 1
    eventually(lambda: not wire.ask(describe).groups[0].members, within_s=10)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"session_timeout_ms": "999"}, id="too short"),
        pytest.param({"heartbeat_interval_ms": "x"}, id="not a number"),
        pytest.param({"heartbeat_interval_ms": "30000"}, id="as long as the session"),
        pytest.param({"rebalance_timeout_ms": "1000"}, id="unknown"),
    ],
)
def test_invalid_settings_of_a_consumer_group_are_refused(
    wire: Wire, topic: str, settings: dict[str, str]
) -> None:
    assert set_group_config(wire, topic, **settings) == ErrorCode.INVALID_CONFIG
