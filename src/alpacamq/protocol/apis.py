"""The requests this broker serves: their keys, messages and versions."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from .messages import (
    acls,
    cluster,
    committed_offsets,
    configs,
    consumer_groups,
    delegation_tokens,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    quorum,
    quotas,
    reassignments,
    sasl,
    streams,
    telemetry,
    topics,
    transactions,
    users,
)
from .messages import cluster as api_versions
from .messages import share as share_fetch
from .messages import share as share_groups
from .messages import share as share_offsets
from .messages import transactions as producers
from .notation import Message


class ApiKey(IntEnum):
    """Requests by their number on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its response, with the versions of both that are served."""

    key: ApiKey
    name: str
    request: type[Message]
    response: type[Message]
    min_version: int
    max_version: int
    # The lowest version in ApiVersions, which is not always one that is served.
    advertised_min: int
    flexible_from: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


def _api(
    key: ApiKey,
    request: type[Message],
    response: type[Message],
    versions: tuple[int, int],
    advertised_min: int | None = None,
) -> Api:
    assert request.flexible_from == response.flexible_from
    return Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=versions[0],
        max_version=versions[1],
        advertised_min=versions[0] if advertised_min is None else advertised_min,
        flexible_from=request.flexible_from,
    )


APIS: Mapping[int, Api] = MappingProxyType({api.key: api for api in (
    # librdkafka 2.0 takes a broker without version 0 for one that cannot compress, and then silently sends
    # gzip, snappy and lz4 batches uncompressed (KAFKA-18659).
    _api(ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse, (3, 13), advertised_min=0),
    _api(ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse, (4, 17)),
    _api(ApiKey.LIST_OFFSETS, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse, (1, 10)),
    _api(ApiKey.METADATA, metadata.MetadataRequest, metadata.MetadataResponse, (0, 13)),
    _api(ApiKey.OFFSET_COMMIT,
         committed_offsets.OffsetCommitRequest, committed_offsets.OffsetCommitResponse, (2, 10)),
    _api(ApiKey.OFFSET_FETCH,
         committed_offsets.OffsetFetchRequest, committed_offsets.OffsetFetchResponse, (1, 10)),
    # librdkafka takes a broker without it for one that does not support lz4.
    _api(ApiKey.FIND_COORDINATOR, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse, (0, 6)),
    _api(ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse, (0, 9)),
    _api(ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse, (0, 4)),
    _api(ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse, (0, 5)),
    _api(ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse, (0, 5)),
    _api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, (0, 6)),
    _api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse, (0, 5)),
    _api(ApiKey.SASL_HANDSHAKE, sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse, (0, 1)),
    _api(ApiKey.API_VERSIONS, api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse, (0, 4)),
    _api(ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse, (2, 7)),
    _api(ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse, (1, 6)),
    _api(ApiKey.DELETE_RECORDS, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse, (0, 2)),
    _api(ApiKey.INIT_PRODUCER_ID, producers.InitProducerIdRequest, producers.InitProducerIdResponse, (0, 5)),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH,
         offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse, (0, 4)),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN,
         transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse, (0, 5)),
    _api(ApiKey.ADD_OFFSETS_TO_TXN,
         transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse, (0, 4)),
    _api(ApiKey.END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse, (0, 5)),
    _api(ApiKey.WRITE_TXN_MARKERS,
         transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse, (1, 1)),
    _api(ApiKey.TXN_OFFSET_COMMIT,
         transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse, (0, 5)),
    _api(ApiKey.DESCRIBE_ACLS, acls.DescribeAclsRequest, acls.DescribeAclsResponse, (1, 3)),
    _api(ApiKey.CREATE_ACLS, acls.CreateAclsRequest, acls.CreateAclsResponse, (1, 3)),
    _api(ApiKey.DELETE_ACLS, acls.DeleteAclsRequest, acls.DeleteAclsResponse, (1, 3)),
    _api(ApiKey.DESCRIBE_CONFIGS, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse, (1, 4)),
    _api(ApiKey.ALTER_CONFIGS, configs.AlterConfigsRequest, configs.AlterConfigsResponse, (0, 2)),
    _api(ApiKey.ALTER_REPLICA_LOG_DIRS,
         cluster.AlterReplicaLogDirsRequest, cluster.AlterReplicaLogDirsResponse, (1, 2)),
    _api(ApiKey.DESCRIBE_LOG_DIRS, cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse, (1, 4)),
    _api(ApiKey.SASL_AUTHENTICATE, sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse, (0, 2)),
    _api(ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse, (0, 3)),
    _api(ApiKey.CREATE_DELEGATION_TOKEN,
         delegation_tokens.CreateDelegationTokenRequest, delegation_tokens.CreateDelegationTokenResponse,
         (1, 3)),
    _api(ApiKey.RENEW_DELEGATION_TOKEN,
         delegation_tokens.RenewDelegationTokenRequest, delegation_tokens.RenewDelegationTokenResponse,
         (1, 2)),
    _api(ApiKey.EXPIRE_DELEGATION_TOKEN,
         delegation_tokens.ExpireDelegationTokenRequest, delegation_tokens.ExpireDelegationTokenResponse,
         (1, 2)),
    _api(ApiKey.DESCRIBE_DELEGATION_TOKEN,
         delegation_tokens.DescribeDelegationTokenRequest, delegation_tokens.DescribeDelegationTokenResponse,
         (1, 3)),
    _api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse, (0, 2)),
    _api(ApiKey.ELECT_LEADERS,
         reassignments.ElectLeadersRequest, reassignments.ElectLeadersResponse, (0, 2)),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS,
         configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse, (0, 1)),
    _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS,
         reassignments.AlterPartitionReassignmentsRequest, reassignments.AlterPartitionReassignmentsResponse,
         (0, 1)),
    _api(ApiKey.LIST_PARTITION_REASSIGNMENTS,
         reassignments.ListPartitionReassignmentsRequest, reassignments.ListPartitionReassignmentsResponse,
         (0, 0)),
    _api(ApiKey.OFFSET_DELETE,
         committed_offsets.OffsetDeleteRequest, committed_offsets.OffsetDeleteResponse, (0, 0)),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS,
         quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse, (0, 1)),
    _api(ApiKey.ALTER_CLIENT_QUOTAS,
         quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse, (0, 1)),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
         users.DescribeUserScramCredentialsRequest, users.DescribeUserScramCredentialsResponse, (0, 0)),
    _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
         users.AlterUserScramCredentialsRequest, users.AlterUserScramCredentialsResponse, (0, 0)),
    _api(ApiKey.DESCRIBE_QUORUM, quorum.DescribeQuorumRequest, quorum.DescribeQuorumResponse, (0, 2)),
    _api(ApiKey.UPDATE_FEATURES, quorum.UpdateFeaturesRequest, quorum.UpdateFeaturesResponse, (0, 2)),
    _api(ApiKey.DESCRIBE_CLUSTER, cluster.DescribeClusterRequest, cluster.DescribeClusterResponse, (0, 2)),
    _api(ApiKey.DESCRIBE_PRODUCERS,
         transactions.DescribeProducersRequest, transactions.DescribeProducersResponse, (0, 0)),
    _api(ApiKey.UNREGISTER_BROKER, quorum.UnregisterBrokerRequest, quorum.UnregisterBrokerResponse, (0, 0)),
    _api(ApiKey.DESCRIBE_TRANSACTIONS,
         transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse, (0, 0)),
    _api(ApiKey.LIST_TRANSACTIONS,
         transactions.ListTransactionsRequest, transactions.ListTransactionsResponse, (0, 1)),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT,
         consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse,
         (0, 1)),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE,
         consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse, (0, 1)),
    _api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
         telemetry.GetTelemetrySubscriptionsRequest, telemetry.GetTelemetrySubscriptionsResponse, (0, 0)),
    _api(ApiKey.PUSH_TELEMETRY, telemetry.PushTelemetryRequest, telemetry.PushTelemetryResponse, (0, 0)),
    _api(ApiKey.LIST_CONFIG_RESOURCES,
         configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse, (0, 1)),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS,
         topics.DescribeTopicPartitionsRequest, topics.DescribeTopicPartitionsResponse, (0, 0)),
    # Version 0 of the first four was an early access that no released client uses.
    _api(ApiKey.SHARE_GROUP_HEARTBEAT,
         share_groups.ShareGroupHeartbeatRequest, share_groups.ShareGroupHeartbeatResponse, (1, 1)),
    _api(ApiKey.SHARE_GROUP_DESCRIBE,
         share_groups.ShareGroupDescribeRequest, share_groups.ShareGroupDescribeResponse, (1, 1)),
    _api(ApiKey.SHARE_FETCH, share_fetch.ShareFetchRequest, share_fetch.ShareFetchResponse, (1, 2)),
    _api(ApiKey.SHARE_ACKNOWLEDGE,
         share_fetch.ShareAcknowledgeRequest, share_fetch.ShareAcknowledgeResponse, (1, 2)),
    _api(ApiKey.ADD_RAFT_VOTER, quorum.AddRaftVoterRequest, quorum.AddRaftVoterResponse, (0, 1)),
    _api(ApiKey.REMOVE_RAFT_VOTER, quorum.RemoveRaftVoterRequest, quorum.RemoveRaftVoterResponse, (0, 0)),
    _api(ApiKey.STREAMS_GROUP_HEARTBEAT,
         streams.StreamsGroupHeartbeatRequest, streams.StreamsGroupHeartbeatResponse, (0, 0)),
    _api(ApiKey.STREAMS_GROUP_DESCRIBE,
         streams.StreamsGroupDescribeRequest, streams.StreamsGroupDescribeResponse, (0, 0)),
    _api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
         share_offsets.DescribeShareGroupOffsetsRequest, share_offsets.DescribeShareGroupOffsetsResponse,
         (0, 1)),
    _api(ApiKey.ALTER_SHARE_GROUP_OFFSETS,
         share_offsets.AlterShareGroupOffsetsRequest, share_offsets.AlterShareGroupOffsetsResponse, (0, 0)),
    _api(ApiKey.DELETE_SHARE_GROUP_OFFSETS,
         share_offsets.DeleteShareGroupOffsetsRequest, share_offsets.DeleteShareGroupOffsetsResponse,
         (0, 0)),
)})  # fmt: skip
