from alpacamq.v1 import messages_pb2 as _messages_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_READ_COMMITTED: _ClassVar[Isolation]
    ISOLATION_READ_UNCOMMITTED: _ClassVar[Isolation]

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_UNSPECIFIED: _ClassVar[Format]
    FORMAT_MESSAGES: _ClassVar[Format]
    FORMAT_RECORD_BATCH: _ClassVar[Format]
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_READ_COMMITTED: Isolation
ISOLATION_READ_UNCOMMITTED: Isolation
FORMAT_UNSPECIFIED: Format
FORMAT_MESSAGES: Format
FORMAT_RECORD_BATCH: Format

class Position(_message.Message):
    __slots__ = ("start", "offset", "timestamp_ms", "ago_ms")
    START_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    start: _messages_pb2.Start
    offset: int
    timestamp_ms: int
    ago_ms: int
    def __init__(self, start: _Optional[_Union[_messages_pb2.Start, str]] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., ago_ms: _Optional[int] = ...) -> None: ...

class PartitionPosition(_message.Message):
    __slots__ = ("partition", "position")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    position: Position
    def __init__(self, partition: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Until(_message.Message):
    __slots__ = ("current_end", "offset", "timestamp_ms")
    CURRENT_END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    current_end: bool
    offset: int
    timestamp_ms: int
    def __init__(self, current_end: bool = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topic", "start", "partitions", "until", "isolation", "format", "max_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    start: Position
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionPosition]
    until: Until
    isolation: Isolation
    format: Format
    max_bytes: int
    def __init__(self, topic: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionPosition, _Mapping]]] = ..., until: _Optional[_Union[Until, _Mapping]] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., format: _Optional[_Union[Format, str]] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("records", "batches", "positions", "skipped")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Record]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatches]
    positions: _containers.RepeatedCompositeFieldContainer[ReadPosition]
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedOffsets]
    def __init__(self, records: _Optional[_Iterable[_Union[_messages_pb2.Record, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[StoredBatches, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[ReadPosition, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[SkippedOffsets, _Mapping]]] = ...) -> None: ...

class StoredBatches(_message.Message):
    __slots__ = ("partition", "data", "aborted", "topic")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    data: bytes
    aborted: _containers.RepeatedCompositeFieldContainer[AbortedTransaction]
    topic: str
    def __init__(self, partition: _Optional[int] = ..., data: _Optional[bytes] = ..., aborted: _Optional[_Iterable[_Union[AbortedTransaction, _Mapping]]] = ..., topic: _Optional[str] = ...) -> None: ...

class AbortedTransaction(_message.Message):
    __slots__ = ("producer_id", "first_offset")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    first_offset: int
    def __init__(self, producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ...) -> None: ...

class ReadPosition(_message.Message):
    __slots__ = ("partition", "next_offset", "end_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    next_offset: int
    end_offset: int
    def __init__(self, partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class SkippedOffsets(_message.Message):
    __slots__ = ("partition", "base_offset", "count", "reason", "topic")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    count: int
    reason: str
    topic: str
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., reason: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "released", "commit", "pause", "resume", "seek", "credit_bytes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: SubscribeOpen
    released: Released
    commit: CommitOffsets
    pause: PartitionSet
    resume: PartitionSet
    seek: Seek
    credit_bytes: int
    def __init__(self, open: _Optional[_Union[SubscribeOpen, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., commit: _Optional[_Union[CommitOffsets, _Mapping]] = ..., pause: _Optional[_Union[PartitionSet, _Mapping]] = ..., resume: _Optional[_Union[PartitionSet, _Mapping]] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class SubscribeOpen(_message.Message):
    __slots__ = ("group", "topics", "pattern", "instance_id", "rack", "client_id", "start", "isolation", "format", "credit_bytes", "rebalance_timeout_ms", "max_bytes")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    instance_id: str
    rack: str
    client_id: str
    start: _messages_pb2.Start
    isolation: Isolation
    format: Format
    credit_bytes: int
    rebalance_timeout_ms: int
    max_bytes: int
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., client_id: _Optional[str] = ..., start: _Optional[_Union[_messages_pb2.Start, str]] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., format: _Optional[_Union[Format, str]] = ..., credit_bytes: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionSet(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class OffsetToCommit(_message.Message):
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

class CommitOffsets(_message.Message):
    __slots__ = ("correlation_id", "offsets")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetToCommit]
    def __init__(self, correlation_id: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[OffsetToCommit, _Mapping]]] = ...) -> None: ...

class Seek(_message.Message):
    __slots__ = ("topic", "partition", "position")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    position: Position
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("joined", "assigned", "revoked", "records", "committed", "lost")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    joined: Membership
    assigned: Assigned
    revoked: PartitionSet
    records: SubscribedRecords
    committed: CommitResult
    lost: PartitionSet
    def __init__(self, joined: _Optional[_Union[Membership, _Mapping]] = ..., assigned: _Optional[_Union[Assigned, _Mapping]] = ..., revoked: _Optional[_Union[PartitionSet, _Mapping]] = ..., records: _Optional[_Union[SubscribedRecords, _Mapping]] = ..., committed: _Optional[_Union[CommitResult, _Mapping]] = ..., lost: _Optional[_Union[PartitionSet, _Mapping]] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("group", "member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[AssignedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[AssignedPartition, _Mapping]]] = ...) -> None: ...

class AssignedPartition(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SubscribedRecords(_message.Message):
    __slots__ = ("topic", "records", "batches", "positions", "skipped")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    records: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Record]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatches]
    positions: _containers.RepeatedCompositeFieldContainer[ReadPosition]
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedOffsets]
    def __init__(self, topic: _Optional[str] = ..., records: _Optional[_Iterable[_Union[_messages_pb2.Record, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[StoredBatches, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[ReadPosition, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[SkippedOffsets, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("correlation_id", "offsets", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    error: _status_pb2.Status
    def __init__(self, correlation_id: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class CommittedOffset(_message.Message):
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
