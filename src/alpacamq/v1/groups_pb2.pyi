from alpacamq.v1 import messages_pb2 as _messages_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGroupsRequest(_message.Message):
    __slots__ = ("prefix", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListedGroup]
    next: str
    def __init__(self, groups: _Optional[_Iterable[_Union[ListedGroup, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class ListedGroup(_message.Message):
    __slots__ = ("group", "type", "state", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    type: str
    state: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., type: _Optional[str] = ..., state: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "type", "queues", "members", "state", "epoch", "assignor")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    type: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    state: str
    epoch: int
    assignor: str
    def __init__(self, group: _Optional[str] = ..., type: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., assignor: _Optional[str] = ...) -> None: ...

class PartitionNumbers(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "client_host", "member_epoch", "topics", "pattern", "assignment", "target", "process_id", "active_tasks", "standby_tasks")
    class AssignmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartitionNumbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartitionNumbers, _Mapping]] = ...) -> None: ...
    class TargetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartitionNumbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartitionNumbers, _Mapping]] = ...) -> None: ...
    class ActiveTasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartitionNumbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartitionNumbers, _Mapping]] = ...) -> None: ...
    class StandbyTasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartitionNumbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartitionNumbers, _Mapping]] = ...) -> None: ...
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_TASKS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    member_epoch: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    assignment: _containers.MessageMap[str, PartitionNumbers]
    target: _containers.MessageMap[str, PartitionNumbers]
    process_id: str
    active_tasks: _containers.MessageMap[str, PartitionNumbers]
    standby_tasks: _containers.MessageMap[str, PartitionNumbers]
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., member_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., assignment: _Optional[_Mapping[str, PartitionNumbers]] = ..., target: _Optional[_Mapping[str, PartitionNumbers]] = ..., process_id: _Optional[str] = ..., active_tasks: _Optional[_Mapping[str, PartitionNumbers]] = ..., standby_tasks: _Optional[_Mapping[str, PartitionNumbers]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ListRebalancesRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ListRebalancesResponse(_message.Message):
    __slots__ = ("group", "rebalances")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REBALANCES_FIELD_NUMBER: _ClassVar[int]
    group: str
    rebalances: _containers.RepeatedCompositeFieldContainer[Rebalance]
    def __init__(self, group: _Optional[str] = ..., rebalances: _Optional[_Iterable[_Union[Rebalance, _Mapping]]] = ...) -> None: ...

class Rebalance(_message.Message):
    __slots__ = ("started", "ended", "duration_ms", "state", "cause", "members", "generation", "member_count")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    started: int
    ended: int
    duration_ms: int
    state: str
    cause: str
    members: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    member_count: int
    def __init__(self, started: _Optional[int] = ..., ended: _Optional[int] = ..., duration_ms: _Optional[int] = ..., state: _Optional[str] = ..., cause: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., member_count: _Optional[int] = ...) -> None: ...

class GetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetOffsetsResponse(_message.Message):
    __slots__ = ("group", "offsets", "total_lag")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LAG_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    total_lag: int
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., total_lag: _Optional[int] = ...) -> None: ...

class GroupOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "metadata", "end_offset", "lag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    metadata: str
    end_offset: int
    lag: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ..., end_offset: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class NewOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    metadata: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class CommitGroupOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets", "member_id", "member_epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[NewOffset]
    member_id: str
    member_epoch: int
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[NewOffset, _Mapping]]] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ...) -> None: ...

class OffsetReset(_message.Message):
    __slots__ = ("topic", "partition", "to", "offset", "timestamp")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    to: _messages_pb2.Start
    offset: int
    timestamp: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[_Union[_messages_pb2.Start, str]] = ..., offset: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...

class ResetGroupOffsetsRequest(_message.Message):
    __slots__ = ("group", "reset", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    reset: _containers.RepeatedCompositeFieldContainer[OffsetReset]
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., reset: _Optional[_Iterable[_Union[OffsetReset, _Mapping]]] = ..., dry_run: bool = ...) -> None: ...

class OffsetResults(_message.Message):
    __slots__ = ("offsets", "errors")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetResult]
    errors: int
    def __init__(self, offsets: _Optional[_Iterable[_Union[OffsetResult, _Mapping]]] = ..., errors: _Optional[int] = ...) -> None: ...

class OffsetResult(_message.Message):
    __slots__ = ("topic", "partition", "offset", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    error: _status_pb2.Status
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GroupStatsRequest(_message.Message):
    __slots__ = ("prefix", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GroupStatsResponse(_message.Message):
    __slots__ = ("groups", "total")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupCounters]
    total: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupCounters, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class GroupCounters(_message.Message):
    __slots__ = ("group", "topic", "lag", "committed_total")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    lag: int
    committed_total: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., lag: _Optional[int] = ..., committed_total: _Optional[int] = ...) -> None: ...

class DescribeQueueRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class QueueDescription(_message.Message):
    __slots__ = ("group", "topic", "generation", "settings", "dead_letter_topic", "totals", "partitions")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    generation: int
    settings: _containers.ScalarMap[str, str]
    dead_letter_topic: str
    totals: QueueTotals
    partitions: _containers.RepeatedCompositeFieldContainer[QueuePartition]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., generation: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., dead_letter_topic: _Optional[str] = ..., totals: _Optional[_Union[QueueTotals, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[QueuePartition, _Mapping]]] = ...) -> None: ...

class QueueTotals(_message.Message):
    __slots__ = ("ready", "in_flight", "resting", "dead_lettering", "received_total", "acked_total", "nacked_total", "rejected_total", "expired_leases_total", "dead_lettered_total", "redelivered_total", "waiting_receives")
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERING_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACKED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NACKED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REJECTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_LEASES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WAITING_RECEIVES_FIELD_NUMBER: _ClassVar[int]
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    received_total: int
    acked_total: int
    nacked_total: int
    rejected_total: int
    expired_leases_total: int
    dead_lettered_total: int
    redelivered_total: int
    waiting_receives: int
    def __init__(self, ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., resting: _Optional[int] = ..., dead_lettering: _Optional[int] = ..., received_total: _Optional[int] = ..., acked_total: _Optional[int] = ..., nacked_total: _Optional[int] = ..., rejected_total: _Optional[int] = ..., expired_leases_total: _Optional[int] = ..., dead_lettered_total: _Optional[int] = ..., redelivered_total: _Optional[int] = ..., waiting_receives: _Optional[int] = ...) -> None: ...

class QueuePartition(_message.Message):
    __slots__ = ("partition", "start_offset", "end_offset", "oldest_offset", "ready", "in_flight", "resting", "dead_lettering", "lanes")
    class LanesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: LaneTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LaneTotals, _Mapping]] = ...) -> None: ...
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERING_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    start_offset: int
    end_offset: int
    oldest_offset: int
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    lanes: _containers.MessageMap[str, LaneTotals]
    def __init__(self, partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., oldest_offset: _Optional[int] = ..., ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., resting: _Optional[int] = ..., dead_lettering: _Optional[int] = ..., lanes: _Optional[_Mapping[str, LaneTotals]] = ...) -> None: ...

class LaneTotals(_message.Message):
    __slots__ = ("ready", "in_flight", "resting", "enqueued_total", "delivered_total")
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ready: int
    in_flight: int
    resting: int
    enqueued_total: int
    delivered_total: int
    def __init__(self, ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., resting: _Optional[int] = ..., enqueued_total: _Optional[int] = ..., delivered_total: _Optional[int] = ...) -> None: ...

class ConfigureQueueRequest(_message.Message):
    __slots__ = ("group", "topic", "settings", "unset")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    settings: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ResetQueueRequest(_message.Message):
    __slots__ = ("group", "topic", "partition", "to", "offset", "timestamp")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    partition: int
    to: _messages_pb2.Start
    offset: int
    timestamp: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[_Union[_messages_pb2.Start, str]] = ..., offset: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class PeekQueueRequest(_message.Message):
    __slots__ = ("group", "topic", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class PeekQueueResponse(_message.Message):
    __slots__ = ("group", "topic", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ...) -> None: ...

class PeekedMessage(_message.Message):
    __slots__ = ("partition", "offset", "timestamp", "key", "value", "headers")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Header]
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[_messages_pb2.Header, _Mapping]]] = ...) -> None: ...

class QueueStatsRequest(_message.Message):
    __slots__ = ("group", "topic", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class QueueStatsResponse(_message.Message):
    __slots__ = ("totals", "queues")
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    totals: QueueTotals
    queues: _containers.RepeatedCompositeFieldContainer[QueueCounters]
    def __init__(self, totals: _Optional[_Union[QueueTotals, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueCounters, _Mapping]]] = ...) -> None: ...

class QueueCounters(_message.Message):
    __slots__ = ("group", "topic", "totals")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    totals: QueueTotals
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., totals: _Optional[_Union[QueueTotals, _Mapping]] = ...) -> None: ...

class PriorityStatsRequest(_message.Message):
    __slots__ = ("group", "topic", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class PriorityStatsResponse(_message.Message):
    __slots__ = ("lanes", "partitions")
    class LanesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: LaneFlow
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LaneFlow, _Mapping]] = ...) -> None: ...
    LANES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.MessageMap[str, LaneFlow]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionLanes]
    def __init__(self, lanes: _Optional[_Mapping[str, LaneFlow]] = ..., partitions: _Optional[_Iterable[_Union[PartitionLanes, _Mapping]]] = ...) -> None: ...

class LaneFlow(_message.Message):
    __slots__ = ("ready", "in_flight", "resting", "enqueued_total", "delivered_total", "enqueued_per_second", "delivered_per_second")
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ready: int
    in_flight: int
    resting: int
    enqueued_total: int
    delivered_total: int
    enqueued_per_second: float
    delivered_per_second: float
    def __init__(self, ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., resting: _Optional[int] = ..., enqueued_total: _Optional[int] = ..., delivered_total: _Optional[int] = ..., enqueued_per_second: _Optional[float] = ..., delivered_per_second: _Optional[float] = ...) -> None: ...

class PartitionLanes(_message.Message):
    __slots__ = ("group", "topic", "partition", "lanes")
    class LanesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: LaneFlow
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LaneFlow, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    partition: int
    lanes: _containers.MessageMap[str, LaneFlow]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., lanes: _Optional[_Mapping[str, LaneFlow]] = ...) -> None: ...
