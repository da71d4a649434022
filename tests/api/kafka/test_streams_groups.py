"""StreamsGroupHeartbeat and StreamsGroupDescribe on the wire."""

from typing import Any

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from alpacamq.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.streams import (
    CopartitionGroup,
    Endpoint,
    HeartbeatSubtopology,
    HeartbeatTopology,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    TaskIds,
    TopicInfo,
)
from tests.waiting import eventually

from .conftest import PARTITIONS
from .wire import Wire

TOPIC_RESOURCE = 2
MISSING_INTERNAL_TOPICS = 3


def topology(source: str, **changes: Any) -> HeartbeatTopology:
    """A word count: its second part has a repartition topic and a changelog topic."""
    count = {
        "subtopology_id": "1",
        "repartition_source_topics": [TopicInfo(name=f"{source}-words")],
        "state_changelog_topics": [
            TopicInfo(name=f"{source}-counts", topic_configs=[KeyValue(key="retention.ms", value="-1")])
        ],
    }
    split = HeartbeatSubtopology(
        subtopology_id="0", source_topics=[source], repartition_sink_topics=[f"{source}-words"]
    )
    return HeartbeatTopology(epoch=0, subtopologies=[HeartbeatSubtopology(**(count | changes)), split])


def beat(wire: Wire, group: str, member: str = "m1", epoch: int = 0, **fields: Any) -> Any:
    if epoch == 0:
        joining = {
            "topology": topology(group),
            "rebalance_timeout_ms": 60_000,
            "process_id": f"process of {member}",
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        }
        fields = joining | fields
    return wire.ask(
        StreamsGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, endpoint_information_epoch=-1, **fields
        )
    )


def tasks(listed: list[TaskIds]) -> dict[str, list[int]]:
    return {each.subtopology_id: list(each.partitions) for each in listed}


def joined(wire: Wire, group: str, **fields: Any) -> Any:
    """Join, and repeat heartbeats until the internal topics exist and there are tasks."""
    reply = beat(wire, group, **fields)
    assert [status.status_code for status in reply.status] == [MISSING_INTERNAL_TOPICS]
    epoch = reply.member_epoch

    def has_tasks() -> Any:
        again = beat(wire, group, epoch=epoch)
        return again if again.active_tasks is not None else None

    return eventually(has_tasks)


def test_a_member_gets_tasks_once_its_internal_topics_exist(wire: Wire, made: str) -> None:
    reply = joined(wire, made)
    assert reply.error_code == ErrorCode.NONE
    assert tasks(reply.active_tasks) == {"0": [0, 1], "1": [0, 1]}
    assert reply.standby_tasks == []
    assert reply.warmup_tasks == []
    assert reply.status == []


def test_internal_topics_have_the_settings_of_the_application(wire: Wire, made: str) -> None:
    joined(wire, made)
    asked = [MetadataRequestTopic(name=f"{made}-{name}") for name in ("words", "counts")]

    def are_open() -> bool:
        # A topic is known before its partitions are open.
        topics = wire.ask(MetadataRequest(topics=asked), 9).topics
        return [len(topic.partitions) for topic in topics] == [PARTITIONS] * 2

    eventually(are_open)
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=f"{made}-counts",
        configuration_keys=["cleanup.policy", "retention.ms"],
    )
    (found,) = wire.ask(DescribeConfigsRequest(resources=[resource])).results
    assert {each.name: each.value for each in found.configs} == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
    }


def test_a_topic_that_cannot_be_created_is_named_in_the_status(wire: Wire, made: str) -> None:
    invalid = topology(made, state_changelog_topics=[TopicInfo(name="not a name")])
    epoch = beat(wire, made, topology=invalid).member_epoch

    def failure() -> str:
        (status,) = beat(wire, made, epoch=epoch).status
        return status.status_detail if "cannot create" in status.status_detail else ""

    assert "'not a name'" in eventually(failure)


def test_two_members_share_the_tasks_and_know_each_others_endpoints(wire: Wire, made: str) -> None:
    first = joined(wire, made, user_endpoint=Endpoint(host="one", port=65_535))
    running: dict[str, Any] = {"standby_tasks": [], "warmup_tasks": []}
    beat(wire, made, epoch=first.member_epoch, active_tasks=first.active_tasks, **running)
    second = beat(wire, made, "m2", user_endpoint=Endpoint(host="two", port=2))
    assert second.active_tasks == []
    told = beat(wire, made, epoch=first.member_epoch)
    assert tasks(told.active_tasks) == {"0": [0], "1": [0]}
    beat(wire, made, epoch=first.member_epoch, active_tasks=told.active_tasks, **running)
    given = beat(wire, made, "m2", second.member_epoch)
    assert tasks(given.active_tasks) == {"0": [1], "1": [1]}
    assert {
        (each.user_endpoint.host, each.user_endpoint.port): [
            (place.topic, list(place.partitions)) for place in each.active_partitions
        ]
        for each in given.partitions_by_user_endpoint
    } == {
        ("one", 65_535): [(made, [0]), (f"{made}-words", [0])],
        ("two", 2): [(made, [1]), (f"{made}-words", [1])],
    }


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"member": ""}, ErrorCode.INVALID_REQUEST, id="no member id"),
        pytest.param({"epoch": 7}, ErrorCode.GROUP_ID_NOT_FOUND, id="no such group"),
        pytest.param({"topology": None}, ErrorCode.INVALID_REQUEST, id="no topology"),
        pytest.param({"standby_tasks": None}, ErrorCode.INVALID_REQUEST, id="half a report"),
        pytest.param(
            {"topology": topology("a", repartition_sink_topics=["t"] * 20_000)},
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            id="large topology",
        ),
        pytest.param(
            {"topology": HeartbeatTopology()}, ErrorCode.STREAMS_INVALID_TOPOLOGY, id="empty topology"
        ),
        pytest.param(
            {"topology": topology("a", copartition_groups=[CopartitionGroup(source_topics=[3])])},
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            id="copartition group of no topic",
        ),
    ],
)
def test_invalid_heartbeats(wire: Wire, made: str, fields: dict[str, Any], code: ErrorCode) -> None:
    reply = beat(wire, made, **fields)
    assert reply.error_code == code
    assert reply.error_message


def test_a_group_is_described_listed_and_deleted(wire: Wire, made: str) -> None:
    joined(wire, made, client_tags=[KeyValue(key="zone", value="a")])
    (found,) = wire.ask(StreamsGroupDescribeRequest(group_ids=[made])).groups
    assert found.error_code == ErrorCode.NONE
    assert found.group_state == "Stable"
    assert [each.subtopology_id for each in found.topology.subtopologies] == ["0", "1"]
    (member,) = found.members
    assert member.process_id == "process of m1"
    assert tasks(member.assignment.active_tasks) == {"0": [0, 1], "1": [0, 1]}
    assert member.client_tags == [KeyValue(key="zone", value="a")]
    listed = wire.ask(ListGroupsRequest(types_filter=["streams"])).groups
    assert made in {each.group_id for each in listed}
    assert {each.group_type for each in listed} == {"streams"}

    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[made])).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    beat(wire, made, epoch=-1)
    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[made])).results
    assert result.error_code == ErrorCode.NONE
    (gone,) = wire.ask(StreamsGroupDescribeRequest(group_ids=[made])).groups
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
