"""The table of rights, row by row: each request without one of its rights, and with exactly its rights."""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from alpacamq.api.kafka.requests import HANDLERS
from alpacamq.api.kafka.rights import (
    BY_ID,
    FOR_ANOTHER,
    LISTED,
    OF_ANOTHER,
    REJECTING,
    TABLE,
    Denied,
    Need,
    Right,
    Row,
)
from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import acls as acl_wire
from alpacamq.protocol.messages import cluster as cluster_wire
from alpacamq.protocol.messages import committed_offsets as offset_wire
from alpacamq.protocol.messages import configs as config_wire
from alpacamq.protocol.messages import consumer_groups as consumer_wire
from alpacamq.protocol.messages import delegation_tokens as token_wire
from alpacamq.protocol.messages import groups as group_wire
from alpacamq.protocol.messages import offsets as list_wire
from alpacamq.protocol.messages import quorum as quorum_wire
from alpacamq.protocol.messages import quotas as quota_wire
from alpacamq.protocol.messages import reassignments as reassignment_wire
from alpacamq.protocol.messages import sasl as sasl_wire
from alpacamq.protocol.messages import share as share_wire
from alpacamq.protocol.messages import streams as streams_wire
from alpacamq.protocol.messages import telemetry as telemetry_wire
from alpacamq.protocol.messages import topics as topic_wire
from alpacamq.protocol.messages import transactions as transaction_wire
from alpacamq.protocol.messages import users as users_wire
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.notation import Message, fields_of
from alpacamq.security.acls import CLUSTER_NAME, Operation, PatternType, ResourceType
from tests.secured import ADMIN, ALICE, SecuredBroker, rule, secured_broker

from .share_member import ACCEPT, REJECT, Member
from .test_committed_offsets import commit
from .test_groups import consumer_heartbeat
from .wire import Wire, wired

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
_TOPIC, _BROKER, _GROUP = 2, 4, 32
TRANSACTIONAL = 1 << 4
ANY = 1
_numbers = count()


@dataclass
class Case:
    """The resources of one test, and its clients."""

    broker: SecuredBroker
    admin: Wire
    alice: Wire
    name: str
    topic_id: UUID
    # The next epoch of a share session of alice.
    epoch: int = 1
    # Of a delegation token of another user.
    token_id: str = ""

    @property
    def topic(self) -> str:
        return f"{self.name}-topic"

    @property
    def new_topic(self) -> str:
        return f"{self.name}-topic-new"

    @property
    def group(self) -> str:
        return f"{self.name}-group"

    @property
    def transactional_id(self) -> str:
        return f"{self.name}-id"

    @property
    def owner(self) -> str:
        return f"{self.name}-owner"

    def names(self) -> Mapping[ResourceType, str]:
        return {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.CLUSTER: CLUSTER_NAME,
            ResourceType.DELEGATION_TOKEN: self.token_id,
            ResourceType.USER: f"User:{self.owner}",
        }

    def allow(self, right: Right, need: Need | None = None) -> None:
        """Give alice a right to the resource of its kind, or to that which a need is about."""
        name = self.names()[right.kind]
        if need is not None and need.resource:
            name = dead_letter_topic(self.topic, "") or ""
        is_cluster = right.kind is ResourceType.CLUSTER
        pattern = PatternType.LITERAL if is_cluster else PatternType.PREFIXED
        self.broker.create(rule(right.operation, right.kind, name, pattern))


class Asked(NamedTuple):
    """A request in a version, the latest if it is None."""

    request: Message
    version: int | None = None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("rights")) as broker:
        yield broker


@pytest.fixture
def case(broker: SecuredBroker) -> Iterator[Case]:
    broker.revoke()
    with wired(broker.addresses[ADMIN]) as admin, wired(broker.addresses[ALICE]) as alice:
        name = f"case{next(_numbers)}"
        topic = broker.call(broker.broker.topics.create(f"{name}-topic", partitions=1))
        yield Case(broker, admin, alice, name, topic.id)


def codes(response: Message) -> set[int]:
    """Return every error code of a response, of whichever kind."""
    found: set[int] = set()
    for field in fields_of(type(response)):
        value = getattr(response, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        elif isinstance(value, list | tuple):
            for part in value:
                if isinstance(part, Message):
                    found |= codes(part)
    return found - {0}


def identified(row: Row) -> str:
    return f"{APIS[row.api].name} {row.when}".strip()


def alternatives() -> Iterator[Any]:
    for row in TABLE:
        for place, need in enumerate(row.needs):
            for right in filter(None, (need.right, need.instead)):
                yield pytest.param(row, place, right, id=f"{identified(row)}: {right}")


def test_every_request_has_a_row() -> None:
    assert {row.api for row in TABLE} == set(APIS)
    assert set(HANDLERS) <= {row.api for row in TABLE}
    assert len({(row.api, row.when) for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("row", "place", "right"), list(alternatives()))
def test_a_request_needs_each_of_its_rights_and_no_other(
    case: Case, row: Row, place: int, right: Right
) -> None:
    prepare = PREPARATIONS.get((row.api, row.when))
    if prepare is not None:
        prepare(case)
        case.broker.revoke()
    need = row.needs[place]
    for other in row.needs[:place] + row.needs[place + 1 :]:
        case.allow(other.right, other)
    check_denied(case, need, ask(case, row))
    case.allow(right, need)
    response = ask(case, row)
    assert not codes(response) - EXPECTED.get((row.api, row.when), set()), response
    if need.denied is Denied.LEFT_OUT:
        assert case.names()[need.right.kind] in repr(response)


def check_denied(case: Case, need: Need, response: Message) -> None:
    if need.error is None:
        assert not codes(response), response
        assert case.names()[need.right.kind] not in repr(response)
    else:
        assert need.error in codes(response), response


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=identified(row))
        for row in TABLE
        if any(need.right.kind is ResourceType.TOPIC for need in row.needs)
    ],
)
def test_the_answer_about_a_forbidden_topic_is_the_same_if_it_does_not_exist(case: Case, row: Row) -> None:
    prepare = PREPARATIONS.get((row.api, row.when))
    if prepare is not None:
        prepare(case)
        case.broker.revoke()
    for need in row.needs:
        if need.right.kind is not ResourceType.TOPIC:
            case.allow(need.right)
    forbidden = ask(case, row)
    case.broker.call(case.broker.broker.topics.delete(case.topic))
    assert ask(case, row) == forbidden


@pytest.mark.parametrize("row", [pytest.param(row, id=identified(row)) for row in TABLE if not row.needs])
def test_some_requests_need_no_right(case: Case, row: Row) -> None:
    assert not codes(ask(case, row)) & REFUSALS


def ask(case: Case, row: Row) -> Any:
    request, version = REQUESTS[row.api, row.when](case)
    response = case.alice.ask(request, version)
    is_next_of_session = row.api is ApiKey.SHARE_ACKNOWLEDGE or row.when == REJECTING
    if is_next_of_session and not response.error_code:
        case.epoch += 1
    return response


def producing(case: Case, *, by_id: bool = False, transactional: bool = False) -> ProduceRequest:
    producer: dict[str, Any] = {}
    if transactional:
        producer = {
            "producer_id": producer_of(case),
            "producer_epoch": 0,
            "base_sequence": 0,
            "attributes": TRANSACTIONAL,
        }
    batch = write_batch([Record(0, 0, b"k", b"v")], **producer)
    data = PartitionProduceData(index=0, records=bytes(batch))
    topic = (
        TopicProduceData(topic_id=case.topic_id, partition_data=[data])
        if by_id
        else TopicProduceData(name=case.topic, partition_data=[data])
    )
    return ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        transactional_id=case.transactional_id if transactional else None,
        topic_data=[topic],
    )


def fetching(case: Case, *, by_id: bool) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = (
        FetchTopic(topic_id=case.topic_id, partitions=[wanted])
        if by_id
        else FetchTopic(topic=case.topic, partitions=[wanted])
    )
    return FetchRequest(max_bytes=1 << 20, topics=[topic])


def committing(case: Case, *, by_id: bool) -> offset_wire.OffsetCommitRequest:
    partition = offset_wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = (
        offset_wire.OffsetCommitRequestTopic(topic_id=case.topic_id, partitions=[partition])
        if by_id
        else offset_wire.OffsetCommitRequestTopic(name=case.topic, partitions=[partition])
    )
    return offset_wire.OffsetCommitRequest(group_id=case.group, topics=[topic])


def fetching_offsets(
    case: Case, topics: list[offset_wire.OffsetFetchRequestTopics] | None
) -> offset_wire.OffsetFetchRequest:
    group = offset_wire.OffsetFetchRequestGroup(group_id=case.group, topics=topics)
    return offset_wire.OffsetFetchRequest(groups=[group])


def offsets_by_name(case: Case) -> Asked:
    topic = offset_wire.OffsetFetchRequestTopics(name=case.topic, partition_indexes=[0])
    return Asked(fetching_offsets(case, [topic]), 9)


def offsets_by_id(case: Case) -> Asked:
    topic = offset_wire.OffsetFetchRequestTopics(topic_id=case.topic_id, partition_indexes=[0])
    return Asked(fetching_offsets(case, [topic]))


def coordinator(key_type: int, key: str) -> group_wire.FindCoordinatorRequest:
    return group_wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])


def share_key(case: Case) -> str:
    topic_id = urlsafe_b64encode(case.topic_id.bytes).decode().rstrip("=")
    return f"{case.group}:{topic_id}:0"


def joining(case: Case) -> group_wire.JoinGroupRequest:
    return group_wire.JoinGroupRequest(
        group_id=case.group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=1000,
        protocol_type="consumer",
        protocols=[group_wire.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def creating(case: Case) -> topic_wire.CreateTopicsRequest:
    topic = topic_wire.CreatableTopic(name=case.new_topic, num_partitions=1, replication_factor=1)
    return topic_wire.CreateTopicsRequest(topics=[topic])


def describing_configs(kind: int, name: str) -> Asked:
    resource = config_wire.DescribeConfigsResource(resource_type=kind, resource_name=name)
    return Asked(config_wire.DescribeConfigsRequest(resources=[resource]))


def altering_configs(kind: int, name: str) -> Asked:
    resource = config_wire.AlterConfigsResource(resource_type=kind, resource_name=name)
    return Asked(config_wire.AlterConfigsRequest(resources=[resource]))


def changing_configs(kind: int, name: str) -> Asked:
    resource = config_wire.IncrementalAlterConfigsResource(resource_type=kind, resource_name=name)
    return Asked(config_wire.IncrementalAlterConfigsRequest(resources=[resource]))


def transaction_topics(case: Case) -> list[transaction_wire.TransactionTopic]:
    return [transaction_wire.TransactionTopic(name=case.topic, partitions=[0])]


def adding(case: Case) -> transaction_wire.AddPartitionsToTxnRequest:
    return transaction_wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=case.transactional_id,
        v3_and_below_producer_id=producer_of(case),
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=transaction_topics(case),
    )


def verifying(case: Case) -> Asked:
    transaction = transaction_wire.AddPartitionsToTxnTransaction(
        transactional_id=case.transactional_id,
        producer_id=producer_of(case),
        producer_epoch=0,
        topics=transaction_topics(case),
    )
    return Asked(transaction_wire.AddPartitionsToTxnRequest(transactions=[transaction]))


def producer_of(case: Case) -> int:
    """Return the producer id of the transactional id."""
    asked = transaction_wire.DescribeTransactionsRequest(transactional_ids=[case.transactional_id])
    producer_id: int = case.admin.ask(asked).transaction_states[0].producer_id
    return producer_id


def marking(case: Case) -> Asked:
    topic = transaction_wire.WritableTxnMarkerTopic(name=case.topic, partition_indexes=[0])
    marker = transaction_wire.WritableTxnMarker(
        producer_id=producer_of(case),
        producer_epoch=0,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=0,
    )
    return Asked(transaction_wire.WriteTxnMarkersRequest(markers=[marker]))


def committing_in_transaction(case: Case) -> Asked:
    partition = transaction_wire.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = transaction_wire.TxnOffsetCommitRequestTopic(name=case.topic, partitions=[partition])
    return Asked(
        transaction_wire.TxnOffsetCommitRequest(
            transactional_id=case.transactional_id,
            group_id=case.group,
            producer_id=producer_of(case),
            producer_epoch=0,
            topics=[topic],
        )
    )


def streaming(case: Case, *, creates: bool) -> streams_wire.StreamsGroupHeartbeatRequest:
    changelog = [streams_wire.TopicInfo(name=case.new_topic)] if creates else []
    part = streams_wire.HeartbeatSubtopology(
        subtopology_id="0", source_topics=[case.topic], state_changelog_topics=changelog
    )
    return streams_wire.StreamsGroupHeartbeatRequest(
        group_id=case.group,
        member_id="m1",
        endpoint_information_epoch=-1,
        topology=streams_wire.HeartbeatTopology(subtopologies=[part]),
        rebalance_timeout_ms=60_000,
        process_id="p",
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )


def acknowledgement(kind: int) -> share_wire.SharePartition:
    """Return an acknowledgement of a record that the member does not hold."""
    batch = share_wire.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[kind])
    return share_wire.SharePartition(partition_index=0, acknowledgement_batches=[batch])


def sharing(case: Case, wanted: share_wire.SharePartition | None = None) -> Asked:
    """Begin a session, or reject a record in the next request of one."""
    epoch = 0 if wanted is None else case.epoch
    wanted = wanted or share_wire.SharePartition(partition_index=0)
    return Asked(
        share_wire.ShareFetchRequest(
            group_id=case.group,
            member_id="member",
            share_session_epoch=epoch,
            max_bytes=1 << 20,
            max_records=10,
            batch_size=10,
            topics=[share_wire.ShareTopic(topic_id=case.topic_id, partitions=[wanted])],
        )
    )


def acknowledging(case: Case, wanted: share_wire.SharePartition | None = None) -> Asked:
    """Acknowledge a record in the next request of a session."""
    wanted = wanted or acknowledgement(ACCEPT)
    return Asked(
        share_wire.ShareAcknowledgeRequest(
            group_id=case.group,
            member_id="member",
            share_session_epoch=case.epoch,
            topics=[share_wire.ShareTopic(topic_id=case.topic_id, partitions=[wanted])],
        )
    )


def heartbeat_of_share_member(case: Case) -> share_wire.ShareGroupHeartbeatRequest:
    return share_wire.ShareGroupHeartbeatRequest(
        group_id=case.group, member_id="member", member_epoch=0, subscribed_topic_names=[case.topic]
    )


def describing_share_offsets(
    case: Case, topics: list[share_wire.DescribeShareGroupOffsetsRequestTopic] | None
) -> Asked:
    group = share_wire.DescribeShareGroupOffsetsRequestGroup(group_id=case.group, topics=topics)
    return Asked(share_wire.DescribeShareGroupOffsetsRequest(groups=[group]))


def altering_share_offsets(case: Case, name: str | None = None) -> Asked:
    partition = share_wire.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = share_wire.AlterShareGroupOffsetsRequestTopic(
        topic_name=name or case.topic, partitions=[partition]
    )
    return Asked(share_wire.AlterShareGroupOffsetsRequest(group_id=case.group, topics=[topic]))


def deleting(case: Case) -> topic_wire.DeleteTopicsRequest:
    return topic_wire.DeleteTopicsRequest(topics=[topic_wire.DeleteTopicState(name=case.topic)])


def of_topic(case: Case) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=case.topic)]


def voter_of(case: Case) -> dict[str, Any]:
    return {"cluster_id": case.broker.broker.cluster_id, "voter_id": 77, "voter_directory_id": UUID(int=7)}


def everything() -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": "nothing",
        "pattern_type_filter": ANY,
        "operation": ANY,
        "permission_type": ANY,
    }


A_RULE = acl_wire.AclCreation(
    resource_type=ResourceType.TOPIC,
    resource_name="nothing",
    principal="User:nobody",
    host="*",
    operation=Operation.READ,
    permission_type=3,
)


def creating_token(owner: str | None = None) -> token_wire.CreateDelegationTokenRequest:
    return token_wire.CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=owner)


REQUESTS: Mapping[tuple[ApiKey, str], Callable[[Case], Asked]] = {
    (ApiKey.PRODUCE, ""): lambda case: Asked(producing(case), 12),
    (ApiKey.PRODUCE, BY_ID): lambda case: Asked(producing(case, by_id=True)),
    (ApiKey.PRODUCE, "in a transaction"): lambda case: Asked(producing(case, transactional=True), 12),
    (ApiKey.FETCH, ""): lambda case: Asked(fetching(case, by_id=False), 12),
    (ApiKey.FETCH, BY_ID): lambda case: Asked(fetching(case, by_id=True)),
    (ApiKey.CREATE_DELEGATION_TOKEN, ""): lambda _: Asked(creating_token()),
    (ApiKey.CREATE_DELEGATION_TOKEN, FOR_ANOTHER): lambda case: Asked(creating_token(case.owner)),
    (ApiKey.RENEW_DELEGATION_TOKEN, ""): lambda _: Asked(token_wire.RenewDelegationTokenRequest(hmac=b"x")),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, ""): lambda _: Asked(token_wire.ExpireDelegationTokenRequest(hmac=b"x")),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, ""): lambda _: Asked(token_wire.DescribeDelegationTokenRequest()),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, OF_ANOTHER): lambda _: Asked(
        token_wire.DescribeDelegationTokenRequest()
    ),
    (ApiKey.LIST_OFFSETS, ""): lambda case: Asked(
        list_wire.ListOffsetsRequest(
            topics=[
                list_wire.ListOffsetsTopic(
                    name=case.topic,
                    partitions=[list_wire.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
            ]
        )
    ),
    (ApiKey.METADATA, ""): lambda case: Asked(MetadataRequest(topics=of_topic(case))),
    (ApiKey.METADATA, BY_ID): lambda case: Asked(
        MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=case.topic_id)])
    ),
    (ApiKey.METADATA, LISTED): lambda _: Asked(MetadataRequest(topics=None)),
    (ApiKey.METADATA, "that creates a topic"): lambda case: Asked(
        MetadataRequest(topics=[MetadataRequestTopic(name=case.new_topic)], allow_auto_topic_creation=True)
    ),
    (ApiKey.OFFSET_COMMIT, ""): lambda case: Asked(committing(case, by_id=False), 9),
    (ApiKey.OFFSET_COMMIT, BY_ID): lambda case: Asked(committing(case, by_id=True)),
    (ApiKey.OFFSET_FETCH, ""): offsets_by_name,
    (ApiKey.OFFSET_FETCH, BY_ID): offsets_by_id,
    (ApiKey.OFFSET_FETCH, LISTED): lambda case: Asked(fetching_offsets(case, None), 9),
    (ApiKey.FIND_COORDINATOR, "of a group"): lambda case: Asked(coordinator(0, case.group)),
    (ApiKey.FIND_COORDINATOR, "of a transactional id"): lambda case: Asked(
        coordinator(1, case.transactional_id)
    ),
    (ApiKey.FIND_COORDINATOR, "of the state of a share group"): lambda case: Asked(
        coordinator(2, share_key(case))
    ),
    (ApiKey.JOIN_GROUP, ""): lambda case: Asked(joining(case)),
    (ApiKey.HEARTBEAT, ""): lambda case: Asked(
        group_wire.HeartbeatRequest(group_id=case.group, generation_id=1, member_id="m")
    ),
    (ApiKey.LEAVE_GROUP, ""): lambda case: Asked(
        group_wire.LeaveGroupRequest(group_id=case.group, members=[group_wire.MemberIdentity(member_id="m")])
    ),
    (ApiKey.SYNC_GROUP, ""): lambda case: Asked(
        group_wire.SyncGroupRequest(
            group_id=case.group,
            generation_id=1,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
        )
    ),
    (ApiKey.DESCRIBE_GROUPS, ""): lambda case: Asked(group_wire.DescribeGroupsRequest(groups=[case.group])),
    (ApiKey.LIST_GROUPS, ""): lambda _: Asked(group_wire.ListGroupsRequest()),
    (ApiKey.API_VERSIONS, ""): lambda _: Asked(
        cluster_wire.ApiVersionsRequest(client_software_name="t", client_software_version="1")
    ),
    (ApiKey.CREATE_TOPICS, ""): lambda case: Asked(creating(case), 4),
    (ApiKey.CREATE_TOPICS, "with settings in the response"): lambda case: Asked(
        topic_wire.CreateTopicsRequest(topics=creating(case).topics, validate_only=True)
    ),
    (ApiKey.DELETE_TOPICS, ""): lambda case: Asked(deleting(case)),
    (ApiKey.DELETE_TOPICS, BY_ID): lambda case: Asked(
        topic_wire.DeleteTopicsRequest(topics=[topic_wire.DeleteTopicState(topic_id=case.topic_id)])
    ),
    (ApiKey.DELETE_RECORDS, ""): lambda case: Asked(
        topic_wire.DeleteRecordsRequest(
            topics=[
                topic_wire.DeleteRecordsTopic(
                    name=case.topic,
                    partitions=[topic_wire.DeleteRecordsPartition(partition_index=0, offset=0)],
                )
            ]
        )
    ),
    (ApiKey.INIT_PRODUCER_ID, "without a transactional id"): lambda _: Asked(
        transaction_wire.InitProducerIdRequest()
    ),
    (ApiKey.INIT_PRODUCER_ID, "with a transactional id"): lambda case: Asked(
        transaction_wire.InitProducerIdRequest(
            transactional_id=case.transactional_id, transaction_timeout_ms=60_000
        )
    ),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, ""): lambda case: Asked(
        list_wire.OffsetForLeaderEpochRequest(
            topics=[
                list_wire.OffsetForLeaderTopic(
                    topic=case.topic,
                    partitions=[list_wire.OffsetForLeaderPartition(partition=0, leader_epoch=0)],
                )
            ]
        )
    ),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "of clients (versions up to 3)"): lambda case: Asked(adding(case), 3),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "of brokers (versions from 4)"): verifying,
    (ApiKey.ADD_OFFSETS_TO_TXN, ""): lambda case: Asked(
        transaction_wire.AddOffsetsToTxnRequest(
            transactional_id=case.transactional_id,
            producer_id=producer_of(case),
            producer_epoch=0,
            group_id=case.group,
        )
    ),
    (ApiKey.END_TXN, ""): lambda case: Asked(
        transaction_wire.EndTxnRequest(
            transactional_id=case.transactional_id, producer_id=producer_of(case), producer_epoch=0
        ),
        4,
    ),
    (ApiKey.WRITE_TXN_MARKERS, ""): marking,
    (ApiKey.TXN_OFFSET_COMMIT, ""): committing_in_transaction,
    (ApiKey.DESCRIBE_ACLS, ""): lambda _: Asked(acl_wire.DescribeAclsRequest(**everything())),
    (ApiKey.CREATE_ACLS, ""): lambda _: Asked(acl_wire.CreateAclsRequest(creations=[A_RULE])),
    (ApiKey.DELETE_ACLS, ""): lambda _: Asked(
        acl_wire.DeleteAclsRequest(filters=[acl_wire.DeleteAclsFilter(**everything())])
    ),
    (ApiKey.DESCRIBE_CONFIGS, "of a topic"): lambda case: describing_configs(_TOPIC, case.topic),
    (ApiKey.DESCRIBE_CONFIGS, "of a group"): lambda case: describing_configs(_GROUP, case.group),
    (ApiKey.DESCRIBE_CONFIGS, "of a broker"): lambda _: describing_configs(_BROKER, "1"),
    (ApiKey.ALTER_CONFIGS, "of a topic"): lambda case: altering_configs(_TOPIC, case.topic),
    (ApiKey.ALTER_CONFIGS, "of a group"): lambda case: altering_configs(_GROUP, case.group),
    (ApiKey.ALTER_CONFIGS, "of a broker"): lambda _: altering_configs(_BROKER, "1"),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "of a topic"): lambda case: changing_configs(_TOPIC, case.topic),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "of a group"): lambda case: changing_configs(_GROUP, case.group),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "of a broker"): lambda _: changing_configs(_BROKER, "1"),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, ""): lambda case: Asked(
        cluster_wire.AlterReplicaLogDirsRequest(
            dirs=[
                cluster_wire.AlterReplicaLogDir(
                    path=str(case.broker.broker.settings.data_directory.absolute()),
                    topics=[cluster_wire.AlterReplicaLogDirTopic(name=case.topic, partitions=[0])],
                )
            ]
        )
    ),
    (ApiKey.DESCRIBE_LOG_DIRS, ""): lambda _: Asked(cluster_wire.DescribeLogDirsRequest()),
    (ApiKey.CREATE_PARTITIONS, ""): lambda case: Asked(
        topic_wire.CreatePartitionsRequest(
            topics=[topic_wire.CreatePartitionsTopic(name=case.topic, count=2)]
        )
    ),
    (ApiKey.DELETE_GROUPS, ""): lambda case: Asked(group_wire.DeleteGroupsRequest(groups_names=[case.group])),
    (ApiKey.ELECT_LEADERS, ""): lambda case: Asked(
        reassignment_wire.ElectLeadersRequest(
            topic_partitions=[reassignment_wire.TopicPartitions(topic=case.topic, partitions=[0])]
        )
    ),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ""): lambda _: Asked(
        reassignment_wire.AlterPartitionReassignmentsRequest()
    ),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, ""): lambda _: Asked(
        reassignment_wire.ListPartitionReassignmentsRequest()
    ),
    (ApiKey.OFFSET_DELETE, ""): lambda case: Asked(
        offset_wire.OffsetDeleteRequest(
            group_id=case.group,
            topics=[
                offset_wire.OffsetDeleteRequestTopic(
                    name=case.topic, partitions=[offset_wire.OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        )
    ),
    (ApiKey.SASL_HANDSHAKE, ""): lambda _: Asked(sasl_wire.SaslHandshakeRequest(mechanism="PLAIN")),
    (ApiKey.SASL_AUTHENTICATE, ""): lambda _: Asked(sasl_wire.SaslAuthenticateRequest()),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ""): lambda _: Asked(
        users_wire.DescribeUserScramCredentialsRequest()
    ),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ""): lambda _: Asked(
        users_wire.AlterUserScramCredentialsRequest(
            deletions=[users_wire.ScramCredentialDeletion(name="nobody", mechanism=1)]
        )
    ),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, ""): lambda _: Asked(quota_wire.DescribeClientQuotasRequest()),
    (ApiKey.ALTER_CLIENT_QUOTAS, ""): lambda _: Asked(
        quota_wire.AlterClientQuotasRequest(
            entries=[
                quota_wire.AlterEntryData(
                    entity=[quota_wire.EntityData(entity_type="user", entity_name="nobody")],
                    ops=[quota_wire.OpData(key="producer_byte_rate", remove=True)],
                )
            ]
        )
    ),
    (ApiKey.DESCRIBE_QUORUM, ""): lambda _: Asked(quorum_wire.DescribeQuorumRequest()),
    (ApiKey.UPDATE_FEATURES, ""): lambda _: Asked(quorum_wire.UpdateFeaturesRequest()),
    (ApiKey.DESCRIBE_CLUSTER, ""): lambda _: Asked(cluster_wire.DescribeClusterRequest()),
    (ApiKey.DESCRIBE_CLUSTER, "of controllers"): lambda _: Asked(
        cluster_wire.DescribeClusterRequest(endpoint_type=2)
    ),
    (ApiKey.DESCRIBE_PRODUCERS, ""): lambda case: Asked(
        transaction_wire.DescribeProducersRequest(
            topics=[transaction_wire.DescribeProducersTopic(name=case.topic, partition_indexes=[0])]
        )
    ),
    (ApiKey.UNREGISTER_BROKER, ""): lambda _: Asked(quorum_wire.UnregisterBrokerRequest(broker_id=99)),
    (ApiKey.DESCRIBE_TRANSACTIONS, ""): lambda case: Asked(
        transaction_wire.DescribeTransactionsRequest(transactional_ids=[case.transactional_id])
    ),
    (ApiKey.LIST_TRANSACTIONS, ""): lambda _: Asked(transaction_wire.ListTransactionsRequest()),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, ""): lambda case: Asked(consumer_heartbeat(case.group, case.topic)),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, ""): lambda case: Asked(
        consumer_wire.ConsumerGroupDescribeRequest(group_ids=[case.group])
    ),
    (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ""): lambda _: Asked(
        telemetry_wire.GetTelemetrySubscriptionsRequest()
    ),
    (ApiKey.PUSH_TELEMETRY, ""): lambda _: Asked(telemetry_wire.PushTelemetryRequest()),
    (ApiKey.LIST_CONFIG_RESOURCES, ""): lambda _: Asked(config_wire.ListConfigResourcesRequest()),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, ""): lambda case: Asked(
        topic_wire.DescribeTopicPartitionsRequest(topics=[topic_wire.TopicRequest(name=case.topic)])
    ),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, LISTED): lambda _: Asked(topic_wire.DescribeTopicPartitionsRequest()),
    (ApiKey.SHARE_GROUP_HEARTBEAT, ""): lambda case: Asked(heartbeat_of_share_member(case)),
    (ApiKey.SHARE_GROUP_DESCRIBE, ""): lambda case: Asked(
        share_wire.ShareGroupDescribeRequest(group_ids=[case.group])
    ),
    (ApiKey.SHARE_FETCH, ""): sharing,
    (ApiKey.SHARE_FETCH, REJECTING): lambda case: sharing(case, acknowledgement(REJECT)),
    (ApiKey.SHARE_ACKNOWLEDGE, ""): acknowledging,
    (ApiKey.SHARE_ACKNOWLEDGE, REJECTING): lambda case: acknowledging(case, acknowledgement(REJECT)),
    (ApiKey.ADD_RAFT_VOTER, ""): lambda _: Asked(quorum_wire.AddRaftVoterRequest(cluster_id="another")),
    (ApiKey.REMOVE_RAFT_VOTER, ""): lambda case: Asked(quorum_wire.RemoveRaftVoterRequest(**voter_of(case))),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, ""): lambda case: Asked(streaming(case, creates=False)),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "that creates internal topics"): lambda case: Asked(
        streaming(case, creates=True)
    ),
    (ApiKey.STREAMS_GROUP_DESCRIBE, ""): lambda case: Asked(
        streams_wire.StreamsGroupDescribeRequest(group_ids=[case.group])
    ),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ""): lambda case: describing_share_offsets(
        case, [share_wire.DescribeShareGroupOffsetsRequestTopic(topic_name=case.topic, partitions=[0])]
    ),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, LISTED): lambda case: describing_share_offsets(case, None),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, ""): altering_share_offsets,
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, ""): lambda case: Asked(
        share_wire.DeleteShareGroupOffsetsRequest(
            group_id=case.group,
            topics=[share_wire.DeleteShareGroupOffsetsRequestTopic(topic_name=case.topic)],
        )
    ),
}


def has_committed(case: Case) -> None:
    assert not commit(case.admin, case.group, case.topic, 0)


def has_producer(case: Case) -> None:
    asked = transaction_wire.InitProducerIdRequest(
        transactional_id=case.transactional_id, transaction_timeout_ms=60_000
    )
    assert not codes(case.admin.ask(asked))


def has_transaction(case: Case) -> None:
    has_producer(case)
    assert not codes(case.admin.ask(adding(case), 3))


def has_offsets_in_transaction(case: Case) -> None:
    has_producer(case)
    asked = transaction_wire.AddOffsetsToTxnRequest(
        transactional_id=case.transactional_id,
        producer_id=producer_of(case),
        producer_epoch=0,
        group_id=case.group,
    )
    assert not codes(case.admin.ask(asked))


def has_consumer(case: Case) -> None:
    assert not codes(case.admin.ask(consumer_heartbeat(case.group, case.topic)))


def has_share_member(case: Case) -> None:
    assert not codes(case.admin.ask(heartbeat_of_share_member(case)))


def has_share_session(case: Case) -> None:
    case.allow(Right(Operation.READ, ResourceType.GROUP))
    case.allow(Right(Operation.READ, ResourceType.TOPIC))
    Member(case.alice, case.topic, case.group).join().fetch(0)


def has_share_offsets(case: Case) -> None:
    """Use another topic as well: the group exists as long as it has one."""
    other = f"{case.name}-other"
    case.broker.call(case.broker.broker.topics.create(other, partitions=1))
    for name in (case.topic, other):
        assert not codes(case.admin.ask(altering_share_offsets(case, name).request))


def has_streams(case: Case) -> None:
    assert not codes(case.admin.ask(streaming(case, creates=False)))


def has_token_of_another(case: Case) -> None:
    created = case.admin.ask(creating_token(case.owner))
    assert not codes(created)
    case.token_id = created.token_id


# The state that a request needs to succeed.
PREPARATIONS: Mapping[tuple[ApiKey, str], Callable[[Case], None]] = {
    (ApiKey.PRODUCE, "in a transaction"): has_producer,
    (ApiKey.OFFSET_FETCH, LISTED): has_committed,
    (ApiKey.DESCRIBE_GROUPS, ""): has_committed,
    (ApiKey.LIST_GROUPS, ""): has_committed,
    (ApiKey.DELETE_GROUPS, ""): has_committed,
    (ApiKey.OFFSET_DELETE, ""): has_committed,
    (ApiKey.ADD_PARTITIONS_TO_TXN, "of clients (versions up to 3)"): has_producer,
    (ApiKey.ADD_PARTITIONS_TO_TXN, "of brokers (versions from 4)"): has_producer,
    (ApiKey.ADD_OFFSETS_TO_TXN, ""): has_producer,
    (ApiKey.END_TXN, ""): has_transaction,
    (ApiKey.WRITE_TXN_MARKERS, ""): has_producer,
    (ApiKey.TXN_OFFSET_COMMIT, ""): has_offsets_in_transaction,
    (ApiKey.DESCRIBE_TRANSACTIONS, ""): has_transaction,
    (ApiKey.LIST_TRANSACTIONS, ""): has_producer,
    (ApiKey.CONSUMER_GROUP_DESCRIBE, ""): has_consumer,
    (ApiKey.SHARE_GROUP_DESCRIBE, ""): has_share_member,
    (ApiKey.SHARE_FETCH, ""): has_share_member,
    (ApiKey.SHARE_FETCH, REJECTING): has_share_session,
    (ApiKey.SHARE_ACKNOWLEDGE, ""): has_share_session,
    (ApiKey.SHARE_ACKNOWLEDGE, REJECTING): has_share_session,
    (ApiKey.STREAMS_GROUP_DESCRIBE, ""): has_streams,
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ""): has_share_offsets,
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, LISTED): has_share_offsets,
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, ""): has_share_offsets,
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, OF_ANOTHER): has_token_of_another,
}
# Errors of requests that are allowed, and about something that does not exist.
EXPECTED: Mapping[tuple[ApiKey, str], set[int]] = {
    (ApiKey.METADATA, "that creates a topic"): {ErrorCode.LEADER_NOT_AVAILABLE},
    (ApiKey.JOIN_GROUP, ""): {ErrorCode.MEMBER_ID_REQUIRED},
    (ApiKey.HEARTBEAT, ""): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.LEAVE_GROUP, ""): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.SYNC_GROUP, ""): {ErrorCode.UNKNOWN_MEMBER_ID},
    (ApiKey.ELECT_LEADERS, ""): {ErrorCode.ELECTION_NOT_NEEDED},
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ""): {ErrorCode.RESOURCE_NOT_FOUND},
    (ApiKey.UNREGISTER_BROKER, ""): {ErrorCode.BROKER_ID_NOT_REGISTERED},
    (ApiKey.SHARE_FETCH, REJECTING): {ErrorCode.INVALID_RECORD_STATE},
    (ApiKey.SHARE_ACKNOWLEDGE, ""): {ErrorCode.INVALID_RECORD_STATE},
    (ApiKey.SHARE_ACKNOWLEDGE, REJECTING): {ErrorCode.INVALID_RECORD_STATE},
    (ApiKey.ADD_RAFT_VOTER, ""): {ErrorCode.INCONSISTENT_CLUSTER_ID},
    (ApiKey.REMOVE_RAFT_VOTER, ""): {ErrorCode.VOTER_NOT_FOUND},
}
