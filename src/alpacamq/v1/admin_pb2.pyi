from alpacamq.v1 import groups_pb2 as _groups_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElectionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELECTION_KIND_UNSPECIFIED: _ClassVar[ElectionKind]
    ELECTION_KIND_PREFERRED: _ClassVar[ElectionKind]
    ELECTION_KIND_UNCLEAN: _ClassVar[ElectionKind]
ELECTION_KIND_UNSPECIFIED: ElectionKind
ELECTION_KIND_PREFERRED: ElectionKind
ELECTION_KIND_UNCLEAN: ElectionKind

class ListTopicsRequest(_message.Message):
    __slots__ = ("prefix", "internal", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    internal: bool
    after: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., internal: bool = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[ListedTopic]
    next: str
    def __init__(self, topics: _Optional[_Iterable[_Union[ListedTopic, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class ListedTopic(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "internal", "messages", "size_bytes", "unavailable_partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    partitions: int
    internal: bool
    messages: int
    size_bytes: int
    unavailable_partitions: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[int] = ..., internal: bool = ..., messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., unavailable_partitions: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("name", "topic_id", "internal", "partitions", "settings", "overrides")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    internal: bool
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionSummary]
    settings: _containers.ScalarMap[str, str]
    overrides: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., internal: bool = ..., partitions: _Optional[_Iterable[_Union[PartitionSummary, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ..., overrides: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PartitionSummary(_message.Message):
    __slots__ = ("partition", "leader", "leader_epoch", "start_offset", "end_offset", "last_stable_offset", "size_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    size_bytes: int
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("topic", "settings", "unset")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    settings: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class ListPartitionsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListPartitionsResponse(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDetails]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionDetails, _Mapping]]] = ...) -> None: ...

class PartitionDetails(_message.Message):
    __slots__ = ("partition", "leader", "leader_epoch", "replicas", "in_sync_replicas", "start_offset", "high_watermark", "last_stable_offset", "messages", "size_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync_replicas: _containers.RepeatedScalarFieldContainer[int]
    start_offset: int
    high_watermark: int
    last_stable_offset: int
    messages: int
    size_bytes: int
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync_replicas: _Optional[_Iterable[int]] = ..., start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., messages: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class CompactTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class CompactTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedCompositeFieldContainer[CompactedPartition]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[CompactedPartition, _Mapping]]] = ...) -> None: ...

class CompactedPartition(_message.Message):
    __slots__ = ("partition", "compacted", "size_before_bytes", "size_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BEFORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    compacted: bool
    size_before_bytes: int
    size_bytes: int
    def __init__(self, partition: _Optional[int] = ..., compacted: bool = ..., size_before_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TopicStatsRequest(_message.Message):
    __slots__ = ("prefix", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class TopicStatsResponse(_message.Message):
    __slots__ = ("topics", "total")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicCounters]
    total: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicCounters, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class TopicCounters(_message.Message):
    __slots__ = ("topic", "partitions", "messages", "size_bytes", "written_total", "written_bytes_total", "fetched_total", "fetched_bytes_total")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    messages: int
    size_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., written_total: _Optional[int] = ..., written_bytes_total: _Optional[int] = ..., fetched_total: _Optional[int] = ..., fetched_bytes_total: _Optional[int] = ...) -> None: ...

class BrokerStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerStatsResponse(_message.Message):
    __slots__ = ("version", "node_id", "uptime_ms", "topics", "partitions", "messages", "size_bytes", "groups", "queues", "delayed", "open_transactions", "requests")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    node_id: int
    uptime_ms: int
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    groups: int
    queues: int
    delayed: int
    open_transactions: int
    requests: int
    def __init__(self, version: _Optional[str] = ..., node_id: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., groups: _Optional[int] = ..., queues: _Optional[int] = ..., delayed: _Optional[int] = ..., open_transactions: _Optional[int] = ..., requests: _Optional[int] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatusResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "controller", "voters", "nodes", "partitions", "reassignments", "throttle", "links", "features", "warnings")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    controller: ControllerStatus
    voters: _containers.RepeatedCompositeFieldContainer[VoterStatus]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    partitions: PartitionTotals
    reassignments: _containers.RepeatedCompositeFieldContainer[ReassignmentStatus]
    throttle: int
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    features: _containers.ScalarMap[str, int]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., controller: _Optional[_Union[ControllerStatus, _Mapping]] = ..., voters: _Optional[_Iterable[_Union[VoterStatus, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., partitions: _Optional[_Union[PartitionTotals, _Mapping]] = ..., reassignments: _Optional[_Iterable[_Union[ReassignmentStatus, _Mapping]]] = ..., throttle: _Optional[int] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping]]] = ..., features: _Optional[_Mapping[str, int]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ControllerStatus(_message.Message):
    __slots__ = ("node_id", "term", "commit_index", "applied_index")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    term: int
    commit_index: int
    applied_index: int
    def __init__(self, node_id: _Optional[int] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ...) -> None: ...

class VoterStatus(_message.Message):
    __slots__ = ("node_id", "directory_id", "lag", "silent_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: str
    lag: int
    silent_ms: int
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[str] = ..., lag: _Optional[int] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "state", "addresses", "rack", "roles", "version", "fenced", "draining", "broker_epoch", "directory_id", "controller", "voter", "leaders", "replicas", "in_sync", "under_replicated", "below_min_isr", "offline", "lag_messages", "lag_ms", "error")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    BELOW_MIN_ISR_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    state: str
    addresses: _containers.ScalarMap[str, str]
    rack: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    version: str
    fenced: bool
    draining: bool
    broker_epoch: int
    directory_id: str
    controller: bool
    voter: bool
    leaders: int
    replicas: int
    in_sync: int
    under_replicated: int
    below_min_isr: int
    offline: int
    lag_messages: int
    lag_ms: int
    error: str
    def __init__(self, node_id: _Optional[int] = ..., state: _Optional[str] = ..., addresses: _Optional[_Mapping[str, str]] = ..., rack: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., fenced: bool = ..., draining: bool = ..., broker_epoch: _Optional[int] = ..., directory_id: _Optional[str] = ..., controller: bool = ..., voter: bool = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ..., in_sync: _Optional[int] = ..., under_replicated: _Optional[int] = ..., below_min_isr: _Optional[int] = ..., offline: _Optional[int] = ..., lag_messages: _Optional[int] = ..., lag_ms: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class PartitionTotals(_message.Message):
    __slots__ = ("partitions", "under_replicated", "below_min_isr", "offline", "reassigning", "not_preferred")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    BELOW_MIN_ISR_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    REASSIGNING_FIELD_NUMBER: _ClassVar[int]
    NOT_PREFERRED_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    under_replicated: int
    below_min_isr: int
    offline: int
    reassigning: int
    not_preferred: int
    def __init__(self, partitions: _Optional[int] = ..., under_replicated: _Optional[int] = ..., below_min_isr: _Optional[int] = ..., offline: _Optional[int] = ..., reassigning: _Optional[int] = ..., not_preferred: _Optional[int] = ...) -> None: ...

class ReassignmentStatus(_message.Message):
    __slots__ = ("topic", "partition", "replicas", "adding", "removing", "progress", "behind", "bytes_left", "throttle")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_LEFT_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    progress: float
    behind: int
    bytes_left: int
    throttle: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., progress: _Optional[float] = ..., behind: _Optional[int] = ..., bytes_left: _Optional[int] = ..., throttle: _Optional[int] = ...) -> None: ...

class LinkStatus(_message.Message):
    __slots__ = ("node_id", "address", "state", "last_error", "calls_in_flight")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    state: str
    last_error: str
    calls_in_flight: int
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., last_error: _Optional[str] = ..., calls_in_flight: _Optional[int] = ...) -> None: ...

class ClusterPartitionsRequest(_message.Message):
    __slots__ = ("state", "topic", "node", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: str
    topic: str
    node: int
    limit: int
    def __init__(self, state: _Optional[str] = ..., topic: _Optional[str] = ..., node: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ClusterPartitionsResponse(_message.Message):
    __slots__ = ("partitions", "total")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ClusterPartition]
    total: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[ClusterPartition, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ClusterPartition(_message.Message):
    __slots__ = ("topic", "partition", "leader", "leader_epoch", "replicas", "in_sync", "eligible", "adding", "removing", "states")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    eligible: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync: _Optional[_Iterable[int]] = ..., eligible: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node", "leaders_only")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    node: int
    leaders_only: bool
    def __init__(self, node: _Optional[int] = ..., leaders_only: bool = ...) -> None: ...

class CancelDrainRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: int
    def __init__(self, node: _Optional[int] = ...) -> None: ...

class DrainStatus(_message.Message):
    __slots__ = ("node_id", "draining", "leaders", "replicas")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    draining: bool
    leaders: int
    replicas: int
    def __init__(self, node_id: _Optional[int] = ..., draining: bool = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("node", "force")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    node: int
    force: bool
    def __init__(self, node: _Optional[int] = ..., force: bool = ...) -> None: ...

class ReassignPartitionsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[WantedReplicas]
    def __init__(self, partitions: _Optional[_Iterable[_Union[WantedReplicas, _Mapping]]] = ...) -> None: ...

class WantedReplicas(_message.Message):
    __slots__ = ("topic", "partition", "replicas")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionOutcomes(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOutcome]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOutcome, _Mapping]]] = ...) -> None: ...

class PartitionOutcome(_message.Message):
    __slots__ = ("topic", "partition", "leader", "replicas", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    error: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., error: _Optional[str] = ...) -> None: ...

class ReassignmentThrottle(_message.Message):
    __slots__ = ("bytes_per_second",)
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    def __init__(self, bytes_per_second: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("kind", "partitions")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    kind: ElectionKind
    partitions: _containers.RepeatedCompositeFieldContainer[ElectedPartition]
    def __init__(self, kind: _Optional[_Union[ElectionKind, str]] = ..., partitions: _Optional[_Iterable[_Union[ElectedPartition, _Mapping]]] = ...) -> None: ...

class ElectedPartition(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class UpgradeClusterRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: bool = ...) -> None: ...

class FeatureLevel(_message.Message):
    __slots__ = ("before", "level", "supported")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    before: int
    level: int
    supported: int
    def __init__(self, before: _Optional[int] = ..., level: _Optional[int] = ..., supported: _Optional[int] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("topic", "group", "measure", "after", "points")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    measure: str
    after: str
    points: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., measure: _Optional[str] = ..., after: _Optional[str] = ..., points: _Optional[int] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("interval_ms", "times", "series", "omitted", "missing_nodes")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_NODES_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    times: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedCompositeFieldContainer[HistorySeries]
    omitted: int
    missing_nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, interval_ms: _Optional[int] = ..., times: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[_Union[HistorySeries, _Mapping]]] = ..., omitted: _Optional[int] = ..., missing_nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class HistorySeries(_message.Message):
    __slots__ = ("measure", "topic", "group", "values")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    measure: str
    topic: str
    group: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, measure: _Optional[str] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "filter", "offsets", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: bytes
    filter: str
    offsets: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[bytes] = ..., filter: _Optional[str] = ..., offsets: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class FindMessagesResponse(_message.Message):
    __slots__ = ("topic", "messages", "looked_at", "next_offsets", "end_offsets", "skipped")
    class NextOffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EndOffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[_groups_pb2.PeekedMessage]
    looked_at: int
    next_offsets: _containers.ScalarMap[str, int]
    end_offsets: _containers.ScalarMap[str, int]
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedBatch]
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_groups_pb2.PeekedMessage, _Mapping]]] = ..., looked_at: _Optional[int] = ..., next_offsets: _Optional[_Mapping[str, int]] = ..., end_offsets: _Optional[_Mapping[str, int]] = ..., skipped: _Optional[_Iterable[_Union[SkippedBatch, _Mapping]]] = ...) -> None: ...

class SkippedBatch(_message.Message):
    __slots__ = ("topic", "partition", "base_offset", "count", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    base_offset: int
    count: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListPipelinesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPipelinesResponse(_message.Message):
    __slots__ = ("pipelines",)
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineReport]
    def __init__(self, pipelines: _Optional[_Iterable[_Union[PipelineReport, _Mapping]]] = ...) -> None: ...

class PipelineReport(_message.Message):
    __slots__ = ("name", "kind", "state", "started", "updated", "rows", "rows_per_second", "lag", "batch", "malformed", "error", "silent", "batch_at", "failures")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    BATCH_AT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    state: str
    started: int
    updated: int
    rows: int
    rows_per_second: float
    lag: int
    batch: int
    malformed: int
    error: str
    silent: bool
    batch_at: int
    failures: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., started: _Optional[int] = ..., updated: _Optional[int] = ..., rows: _Optional[int] = ..., rows_per_second: _Optional[float] = ..., lag: _Optional[int] = ..., batch: _Optional[int] = ..., malformed: _Optional[int] = ..., error: _Optional[str] = ..., silent: bool = ..., batch_at: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...
