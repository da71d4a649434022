"""ACLs, client telemetry, log directories and the list of what can be configured."""

from uuid import UUID, uuid4

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from alpacamq.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from alpacamq.protocol.messages.configs import ListConfigResourcesRequest
from alpacamq.protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest

from .share_member import configure
from .wire import Wire, versions

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
ANY = 1
TOPIC_RESOURCE = 2


@pytest.mark.parametrize("version", versions(DescribeAclsRequest))
def test_acls_need_access_control(wire: Wire, version: int) -> None:
    asked = DescribeAclsRequest(
        resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
    )
    assert wire.ask(asked, version).error_code == ErrorCode.SECURITY_DISABLED

    creation = AclCreation(
        resource_type=TOPIC_RESOURCE,
        resource_name="t",
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    created = wire.ask(CreateAclsRequest(creations=[creation, creation]), version)
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2

    wanted = DeleteAclsFilter(resource_type_filter=ANY, operation=ANY, permission_type=ANY)
    (deleted,) = wire.ask(DeleteAclsRequest(filters=[wanted]), version).filter_results
    assert deleted.error_code == ErrorCode.SECURITY_DISABLED
    assert "security.acls" in deleted.error_message


def test_a_client_gets_an_instance_id_and_is_asked_for_no_metrics(wire: Wire) -> None:
    first = wire.ask(GetTelemetrySubscriptionsRequest())
    assert (first.error_code, first.requested_metrics) == (0, [])
    assert first.client_instance_id != UUID(int=0)
    assert first.push_interval_ms > 0

    again = wire.ask(GetTelemetrySubscriptionsRequest(client_instance_id=first.client_instance_id))
    assert again.client_instance_id == first.client_instance_id
    assert again.subscription_id == first.subscription_id


def test_metrics_that_a_client_pushes_are_discarded(wire: Wire) -> None:
    client = uuid4()
    subscription = wire.ask(GetTelemetrySubscriptionsRequest(client_instance_id=client)).subscription_id

    def push(number: int, metrics: bytes = b"x", id_: UUID = client) -> ErrorCode:
        asked = PushTelemetryRequest(client_instance_id=id_, subscription_id=number, metrics=metrics)
        return ErrorCode(wire.ask(asked).error_code)

    assert push(subscription) == ErrorCode.NONE
    assert push(subscription + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(subscription, b"x" * (2 << 20)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(subscription, id_=UUID(int=0)) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(AlterReplicaLogDirsRequest))
def test_a_partition_stays_in_the_only_log_directory(wire: Wire, made: str, version: int) -> None:
    (here,) = wire.ask(DescribeLogDirsRequest()).results

    def move(path: str, topic: str, partition: int) -> ErrorCode:
        moved = AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        asked = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[moved])])
        (result,) = wire.ask(asked, version).results
        assert result.topic_name == topic
        return ErrorCode(result.partitions[0].error_code)

    assert move(here.log_dir, made, 0) == ErrorCode.NONE
    assert move("/elsewhere", made, 0) == ErrorCode.LOG_DIR_NOT_FOUND
    assert move(here.log_dir, made, 99) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(here.log_dir, "not-there", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_can_be_configured_is_listed(wire: Wire, made: str) -> None:
    configure(wire, made, record_lock_duration_ms="2000")

    def listed(*kinds: int, version: int = 1) -> set[tuple[int, str]]:
        response = wire.ask(ListConfigResourcesRequest(resource_types=list(kinds)), version)
        assert response.error_code == 0
        return {(each.resource_type, each.resource_name) for each in response.config_resources}

    of_test = {(TOPIC, made), (BROKER, "1"), (BROKER_LOGGER, "1"), (GROUP, made)}
    assert listed() >= of_test
    for kind in (TOPIC, BROKER, BROKER_LOGGER, GROUP):
        found = listed(kind)
        assert {each for each in of_test if each[0] == kind} <= found
        assert {number for number, _ in found} == {kind}
    assert listed(CLIENT_METRICS) == listed(version=0) == set()


def test_an_unknown_kind_of_resource_is_refused(wire: Wire) -> None:
    response = wire.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 99]))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
