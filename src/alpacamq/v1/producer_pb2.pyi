from alpacamq.v1 import messages_pb2 as _messages_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_NONE: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]
ACKS_UNSPECIFIED: Acks
ACKS_NONE: Acks
ACKS_LEADER: Acks
ACKS_ALL: Acks

class EncodedBatch(_message.Message):
    __slots__ = ("partition", "data")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    partition: int
    data: bytes
    def __init__(self, partition: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "transactional_id", "base_sequence")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    transactional_id: str
    base_sequence: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., base_sequence: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("correlation_id", "topic", "records", "batches", "acks", "timeout_ms", "producer")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    topic: str
    records: _containers.RepeatedCompositeFieldContainer[_messages_pb2.NewRecord]
    batches: _containers.RepeatedCompositeFieldContainer[EncodedBatch]
    acks: Acks
    timeout_ms: int
    producer: ProducerState
    def __init__(self, correlation_id: _Optional[int] = ..., topic: _Optional[str] = ..., records: _Optional[_Iterable[_Union[_messages_pb2.NewRecord, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[EncodedBatch, _Mapping]]] = ..., acks: _Optional[_Union[Acks, str]] = ..., timeout_ms: _Optional[int] = ..., producer: _Optional[_Union[ProducerState, _Mapping]] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("correlation_id", "result", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    result: ProduceResult
    error: _status_pb2.Status
    def __init__(self, correlation_id: _Optional[int] = ..., result: _Optional[_Union[ProduceResult, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("partitions", "offsets", "delayed", "errors")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    delayed: _containers.RepeatedCompositeFieldContainer[DelayedRecord]
    errors: _containers.RepeatedCompositeFieldContainer[RecordError]
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., delayed: _Optional[_Iterable[_Union[DelayedRecord, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[RecordError, _Mapping]]] = ...) -> None: ...

class DelayedRecord(_message.Message):
    __slots__ = ("index", "id", "deliver_at_ms")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: int
    deliver_at_ms: int
    def __init__(self, index: _Optional[int] = ..., id: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...

class RecordError(_message.Message):
    __slots__ = ("index", "status")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    index: int
    status: _status_pb2.Status
    def __init__(self, index: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("topic", "records", "acks", "timeout_ms", "producer")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    records: _containers.RepeatedCompositeFieldContainer[_messages_pb2.NewRecord]
    acks: Acks
    timeout_ms: int
    producer: ProducerState
    def __init__(self, topic: _Optional[str] = ..., records: _Optional[_Iterable[_Union[_messages_pb2.NewRecord, _Mapping]]] = ..., acks: _Optional[_Union[Acks, str]] = ..., timeout_ms: _Optional[int] = ..., producer: _Optional[_Union[ProducerState, _Mapping]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ProduceResult
    def __init__(self, result: _Optional[_Union[ProduceResult, _Mapping]] = ...) -> None: ...
