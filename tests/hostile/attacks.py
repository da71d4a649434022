"""Requests with as many entries as their size allows, for every API whose arrays a client controls."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.apis import APIS
from alpacamq.protocol.messages import (
    cluster,
    configs,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    share,
    topics,
    users,
)
from alpacamq.protocol.messages import committed_offsets as committed
from alpacamq.protocol.messages import consumer_groups as consumers
from alpacamq.protocol.messages import transactions as txn
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import encode

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")
_BY_REQUEST = {api.request: api for api in APIS.values()}

# A topic that is there, with this many partitions, for what only real partitions cost.
TARGET = "target"
TARGET_PARTITIONS = 1000
GROUP = "hostile"
NOWHERE = UUID(int=7)
# A Produce or Fetch with more partitions is refused.
SERVED_PARTITIONS = 20_000
_TRANSACTIONAL = 0x10


def framed(request: Message, version: int | None = None, correlation_id: int = 1) -> bytes:
    """A request in wire format."""
    api = _BY_REQUEST[type(request)]
    number = api.max_version if version is None else version
    header = _HEADER.pack(api.key, number, correlation_id, 0)
    if number >= api.flexible_from:
        header += b"\x00"
    payload = header + encode(request, number)
    return _SIZE.pack(len(payload)) + payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One kind of request, and how many entries it has at its largest."""

    name: str
    build: Callable[[int], Message]
    # As many as fit into the largest request, or as triggered the fault.
    entries: int
    version: int | None = None
    # Few enough to be served, so that it is the work itself that others may have to wait for.
    served_entries: int = 80_000

    def frame(self, entries: int) -> bytes:
        return framed(self.build(entries), self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Connections that each send one request again and again."""

    attack: Attack
    entries: int
    connections: int


def _names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def _targets(count: int) -> list[int]:
    return [number % TARGET_PARTITIONS for number in range(count)]


def _metadata(name: Callable[[int], str], *, create: bool) -> Callable[[int], Message]:
    return lambda count: metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name(number)) for number in range(count)],
        allow_auto_topic_creation=create,
    )


def _offset_commit(topic: str) -> Callable[[int], Message]:
    return lambda count: committed.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            committed.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    committed.OffsetCommitRequestPartition(partition_index=index, committed_offset=0)
                    for index in _targets(count)
                ],
            )
        ],
    )


def _txn_offset_commit(count: int) -> Message:
    return txn.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        topics=[
            txn.TxnOffsetCommitRequestTopic(
                name=TARGET,
                partitions=[
                    txn.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=0)
                    for index in _targets(count)
                ],
            )
        ],
    )


def _list_offsets(timestamp: int) -> Callable[[int], Message]:
    return lambda count: offsets.ListOffsetsRequest(
        topics=[
            offsets.ListOffsetsTopic(
                name=TARGET,
                partitions=[
                    offsets.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index in _targets(count)
                ],
            )
        ]
    )


def _fetch(count: int) -> Message:
    return fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            fetch.FetchTopic(
                topic=TARGET,
                partitions=[
                    fetch.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
                    for index in _targets(count)
                ],
            )
        ],
    )


def _produce(topic: str) -> Callable[[int], Message]:
    return lambda count: produce.ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            produce.TopicProduceData(
                name=topic,
                partition_data=[
                    produce.PartitionProduceData(index=index, records=None) for index in _targets(count)
                ],
            )
        ],
    )


def _produce_topics(count: int) -> Message:
    return produce.ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[produce.TopicProduceData(name=name, partition_data=[]) for name in _names(count)],
    )


def _produce_batches(transactional_id: str | None) -> Callable[[int], Message]:
    """A small batch for each entry, of a transaction that the broker does not know if it is of one."""

    def build(count: int) -> Message:
        record = Record(0, int(time.time() * 1000), None, b"x")
        if transactional_id is None:
            batch = write_batch([record])
        else:
            batch = write_batch(
                [record], attributes=_TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0
            )
        return produce.ProduceRequest(
            transactional_id=transactional_id,
            acks=1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name=TARGET,
                    partition_data=[
                        produce.PartitionProduceData(index=index, records=batch) for index in _targets(count)
                    ],
                )
            ],
        )

    return build


def _create_topics(count: int) -> Message:
    return topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=f"!{number}", num_partitions=1) for number in range(count)]
    )


def _create_topic_configs(count: int) -> Message:
    return topics.CreateTopicsRequest(
        topics=[
            topics.CreatableTopic(
                name="configured",
                num_partitions=1,
                configs=[topics.CreatableTopicConfig(name=name, value="1") for name in _names(count)],
            )
        ]
    )


def _share_fetch(count: int) -> Message:
    return share.ShareFetchRequest(
        group_id=GROUP,
        member_id="m",
        share_session_epoch=0,
        topics=[
            share.ShareTopic(
                topic_id=NOWHERE,
                partitions=[share.SharePartition(partition_index=index) for index in range(count)],
            )
        ],
    )


def _share_acknowledge(count: int) -> Message:
    return share.ShareAcknowledgeRequest(
        group_id=GROUP,
        member_id="m",
        share_session_epoch=1,
        topics=[
            share.ShareTopic(
                topic_id=NOWHERE,
                partitions=[
                    share.SharePartition(
                        partition_index=0,
                        acknowledgement_batches=[
                            share.AcknowledgementBatch(
                                first_offset=number, last_offset=number, acknowledge_types=[1]
                            )
                            for number in range(count)
                        ],
                    )
                ],
            )
        ],
    )


def _consumer_heartbeat(count: int) -> Message:
    return consumers.ConsumerGroupHeartbeatRequest(
        group_id="hostile-consumers",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=_names(count),
        topic_partitions=[],
    )


def _consumer_owned(count: int) -> Message:
    return consumers.ConsumerGroupHeartbeatRequest(
        group_id="hostile-consumers",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[TARGET],
        topic_partitions=[
            consumers.HeartbeatTopicPartitions(topic_id=UUID(int=number + 1), partitions=[0])
            for number in range(count)
        ],
    )


def _join(count: int) -> Message:
    return groups.JoinGroupRequest(
        group_id="hostile-classic",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name=name, metadata=b"") for name in _names(count)],
    )


def _join_metadata(size: int) -> Message:
    return groups.JoinGroupRequest(
        group_id="hostile-metadata",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=bytes(size))],
    )


def _sync(count: int) -> Message:
    return groups.SyncGroupRequest(
        group_id="hostile-classic",
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            groups.SyncGroupRequestAssignment(member_id=name, assignment=b"") for name in _names(count)
        ],
    )


def _leave(count: int) -> Message:
    return groups.LeaveGroupRequest(
        group_id="hostile-classic",
        members=[groups.MemberIdentity(member_id=name) for name in _names(count)],
    )


def _offset_fetch(count: int) -> Message:
    return committed.OffsetFetchRequest(
        groups=[
            committed.OffsetFetchRequestGroup(
                group_id=GROUP,
                topics=[committed.OffsetFetchRequestTopics(name=TARGET, partition_indexes=_targets(count))],
            )
        ]
    )


def _offset_fetch_groups(count: int) -> Message:
    return committed.OffsetFetchRequest(
        groups=[committed.OffsetFetchRequestGroup(group_id=name, topics=None) for name in _names(count)]
    )


def _offset_delete(count: int) -> Message:
    return committed.OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            committed.OffsetDeleteRequestTopic(
                name=TARGET,
                partitions=[
                    committed.OffsetDeleteRequestPartition(partition_index=index) for index in _targets(count)
                ],
            )
        ],
    )


def _add_partitions(count: int) -> Message:
    return txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_topics=[txn.TransactionTopic(name=TARGET, partitions=_targets(count))],
    )


def _add_transactions(count: int) -> Message:
    return txn.AddPartitionsToTxnRequest(
        transactions=[
            txn.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=1, producer_epoch=0, verify_only=True
            )
            for name in _names(count)
        ]
    )


def _markers(count: int) -> Message:
    return txn.WriteTxnMarkersRequest(
        markers=[
            txn.WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[
                    txn.WritableTxnMarkerTopic(
                        name=TARGET, partition_indexes=[TARGET_PARTITIONS + number for number in range(count)]
                    )
                ],
            )
        ]
    )


def _delete_records(count: int) -> Message:
    return topics.DeleteRecordsRequest(
        topics=[
            topics.DeleteRecordsTopic(
                name=TARGET,
                partitions=[
                    topics.DeleteRecordsPartition(partition_index=TARGET_PARTITIONS + number, offset=0)
                    for number in range(count)
                ],
            )
        ]
    )


def _leader_epochs(count: int) -> Message:
    return offsets.OffsetForLeaderEpochRequest(
        topics=[
            offsets.OffsetForLeaderTopic(
                topic=TARGET,
                partitions=[
                    offsets.OffsetForLeaderPartition(partition=index, leader_epoch=0)
                    for index in _targets(count)
                ],
            )
        ]
    )


def _alter_share_offsets(count: int) -> Message:
    return share.AlterShareGroupOffsetsRequest(
        group_id=GROUP,
        topics=[
            share.AlterShareGroupOffsetsRequestTopic(
                topic_name=TARGET,
                partitions=[
                    share.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0)
                    for index in _targets(count)
                ],
            )
        ],
    )


def _delete_users(count: int) -> Message:
    deletions = [users.ScramCredentialDeletion(name=name, mechanism=1) for name in _names(count)]
    return users.AlterUserScramCredentialsRequest(deletions=deletions)


def _alter_user(count: int) -> Message:
    upsertion = users.ScramCredentialUpsertion(name="u", mechanism=1, iterations=4096)
    return users.AlterUserScramCredentialsRequest(upsertions=[upsertion] * count)


ATTACKS = (
    Attack(name="Metadata", build=_metadata(lambda _: "t", create=False), entries=2_000_000, version=4),
    Attack(
        name="Metadata, many names",
        build=_metadata(lambda n: f"t{n}", create=False),
        entries=800_000,
        version=4,
    ),
    Attack(
        name="Metadata, invalid names to create",
        build=_metadata(lambda n: f"!{n}", create=True),
        entries=800_000,
        version=4,
    ),
    Attack(
        name="Metadata, one topic of 1,000 partitions again and again",
        build=_metadata(lambda _: TARGET, create=False),
        entries=10_000,
    ),
    Attack(name="OffsetCommit", build=_offset_commit(TARGET), entries=450_000, version=8),
    Attack(name="OffsetCommit, unknown topic", build=_offset_commit("nowhere"), entries=450_000, version=8),
    Attack(name="TxnOffsetCommit", build=_txn_offset_commit, entries=450_000),
    Attack(name="OffsetFetch", build=_offset_fetch, entries=2_000_000, version=8),
    Attack(name="OffsetFetch, many groups", build=_offset_fetch_groups, entries=500_000),
    Attack(name="OffsetDelete", build=_offset_delete, entries=2_000_000),
    Attack(name="CreateTopics", build=_create_topics, entries=400_000),
    Attack(name="CreateTopics, many settings", build=_create_topic_configs, entries=700_000),
    Attack(
        name="DeleteTopics",
        build=lambda n: topics.DeleteTopicsRequest(topic_names=_names(n)),
        entries=900_000,
        version=5,
    ),
    Attack(
        name="CreatePartitions",
        build=lambda n: topics.CreatePartitionsRequest(
            topics=[topics.CreatePartitionsTopic(name=name, count=2) for name in _names(n)]
        ),
        entries=550_000,
    ),
    Attack(name="DeleteRecords", build=_delete_records, entries=600_000),
    Attack(
        name="DescribeTopicPartitions",
        build=lambda n: topics.DescribeTopicPartitionsRequest(
            topics=[topics.TopicRequest(name=name) for name in _names(n)]
        ),
        entries=900_000,
    ),
    Attack(name="ListOffsets, latest", build=_list_offsets(-1), entries=450_000),
    Attack(name="ListOffsets, by time", build=_list_offsets(5), entries=450_000),
    Attack(name="OffsetForLeaderEpoch", build=_leader_epochs, entries=600_000),
    Attack(
        name="ListOffsets, topics without partitions",
        build=lambda n: offsets.ListOffsetsRequest(
            topics=[offsets.ListOffsetsTopic(name=name, partitions=[]) for name in _names(n)]
        ),
        entries=800_000,
    ),
    Attack(
        name="OffsetCommit, topics without partitions",
        build=lambda n: committed.OffsetCommitRequest(
            group_id=GROUP, topics=[committed.OffsetCommitRequestTopic(name=name) for name in _names(n)]
        ),
        entries=800_000,
        version=9,
    ),
    Attack(
        name="Produce, empty partitions",
        build=_produce(TARGET),
        entries=1_000_000,
        version=9,
        served_entries=SERVED_PARTITIONS,
    ),
    Attack(
        name="Produce, 100 MiB of empty partitions",
        build=_produce("x"),
        entries=14_000_000,
        version=9,
        served_entries=SERVED_PARTITIONS,
    ),
    Attack(
        name="Produce, empty topics",
        build=_produce_topics,
        entries=800_000,
        version=9,
        served_entries=SERVED_PARTITIONS,
    ),
    Attack(
        name="Produce, many batches",
        build=_produce_batches(None),
        entries=80_000,
        version=9,
        served_entries=SERVED_PARTITIONS,
    ),
    Attack(
        name="Produce, many batches of a transaction",
        build=_produce_batches("hostile"),
        entries=80_000,
        version=9,
        served_entries=SERVED_PARTITIONS,
    ),
    Attack(name="Fetch", build=_fetch, entries=250_000, version=12, served_entries=SERVED_PARTITIONS),
    Attack(
        name="DescribeConfigs",
        build=lambda n: configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(resource_type=2, resource_name=name) for name in _names(n)
            ]
        ),
        entries=700_000,
    ),
    Attack(
        name="DescribeConfigs, one topic again and again",
        build=lambda n: configs.DescribeConfigsRequest(
            resources=[configs.DescribeConfigsResource(resource_type=2, resource_name=TARGET)] * n,
            include_synonyms=True,
            include_documentation=True,
        ),
        entries=10_000,
    ),
    Attack(
        name="IncrementalAlterConfigs",
        build=lambda n: configs.IncrementalAlterConfigsRequest(
            resources=[
                configs.IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=[])
                for name in _names(n)
            ]
        ),
        entries=700_000,
    ),
    Attack(
        name="AlterConfigs, many settings",
        build=lambda n: configs.AlterConfigsRequest(
            resources=[
                configs.AlterConfigsResource(
                    resource_type=2,
                    resource_name=TARGET,
                    configs=[configs.AlterableConfig(name=name, value="1") for name in _names(n)],
                )
            ]
        ),
        entries=700_000,
    ),
    Attack(
        name="DescribeLogDirs",
        build=lambda n: cluster.DescribeLogDirsRequest(
            topics=[cluster.DescribableLogDirTopic(topic=TARGET, partitions=_targets(n))]
        ),
        entries=2_000_000,
    ),
    Attack(
        name="FindCoordinator",
        build=lambda n: groups.FindCoordinatorRequest(coordinator_keys=_names(n)),
        entries=1_000_000,
    ),
    Attack(name="JoinGroup, many protocols", build=_join, entries=800_000),
    Attack(name="JoinGroup, 8 MB of metadata", build=_join_metadata, entries=8_000_000),
    Attack(name="SyncGroup", build=_sync, entries=700_000),
    Attack(name="LeaveGroup", build=_leave, entries=700_000),
    Attack(
        name="DescribeGroups",
        build=lambda n: groups.DescribeGroupsRequest(groups=_names(n)),
        entries=1_000_000,
    ),
    Attack(
        name="DeleteGroups",
        build=lambda n: groups.DeleteGroupsRequest(groups_names=_names(n)),
        entries=1_000_000,
    ),
    Attack(
        name="ListGroups, many filters",
        build=lambda n: groups.ListGroupsRequest(states_filter=_names(n)),
        entries=1_000_000,
    ),
    Attack(name="ConsumerGroupHeartbeat, subscriptions", build=_consumer_heartbeat, entries=1_000_000),
    Attack(name="ConsumerGroupHeartbeat, owned partitions", build=_consumer_owned, entries=350_000),
    Attack(
        name="ConsumerGroupDescribe",
        build=lambda n: consumers.ConsumerGroupDescribeRequest(group_ids=_names(n)),
        entries=1_000_000,
    ),
    Attack(
        name="ShareGroupHeartbeat",
        build=lambda n: share.ShareGroupHeartbeatRequest(
            group_id="hostile-shares", member_id="m", member_epoch=0, subscribed_topic_names=_names(n)
        ),
        entries=1_000_000,
    ),
    Attack(
        name="ShareGroupDescribe",
        build=lambda n: share.ShareGroupDescribeRequest(group_ids=_names(n)),
        entries=1_000_000,
    ),
    Attack(name="ShareFetch", build=_share_fetch, entries=1_200_000),
    Attack(name="ShareAcknowledge", build=_share_acknowledge, entries=400_000),
    Attack(
        name="DescribeShareGroupOffsets",
        build=lambda n: share.DescribeShareGroupOffsetsRequest(
            groups=[share.DescribeShareGroupOffsetsRequestGroup(group_id=name) for name in _names(n)]
        ),
        entries=800_000,
    ),
    Attack(name="AlterShareGroupOffsets", build=_alter_share_offsets, entries=600_000),
    Attack(
        name="DeleteShareGroupOffsets",
        build=lambda n: share.DeleteShareGroupOffsetsRequest(
            group_id=GROUP,
            topics=[share.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in _names(n)],
        ),
        entries=900_000,
    ),
    Attack(name="AddPartitionsToTxn", build=_add_partitions, entries=2_000_000, version=3),
    Attack(name="AddPartitionsToTxn, many transactions", build=_add_transactions, entries=380_000),
    Attack(name="WriteTxnMarkers", build=_markers, entries=2_000_000),
    Attack(
        name="DescribeTransactions",
        build=lambda n: txn.DescribeTransactionsRequest(transactional_ids=_names(n)),
        entries=1_000_000,
    ),
    Attack(
        name="ListTransactions, many filters",
        build=lambda n: txn.ListTransactionsRequest(producer_id_filters=list(range(n))),
        entries=1_000_000,
    ),
    Attack(
        name="DescribeProducers",
        build=lambda n: txn.DescribeProducersRequest(
            topics=[txn.DescribeProducersTopic(name=TARGET, partition_indexes=_targets(n))]
        ),
        entries=2_000_000,
    ),
    Attack(
        name="DescribeUserScramCredentials",
        build=lambda n: users.DescribeUserScramCredentialsRequest(
            users=[users.UserName(name=name) for name in _names(n)]
        ),
        entries=900_000,
    ),
    Attack(name="AlterUserScramCredentials, unknown users", build=_delete_users, entries=700_000),
    Attack(name="AlterUserScramCredentials, one user again and again", build=_alter_user, entries=400_000),
)

_BY_NAME = {attack.name: attack for attack in ATTACKS}

# More connections than long requests may be under way at once, so that there is always one that waits.
LOOPS = (Loop(attack=_BY_NAME["DescribeGroups"], entries=10_000, connections=40),)
