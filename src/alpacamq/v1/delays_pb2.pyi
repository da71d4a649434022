from alpacamq.v1 import messages_pb2 as _messages_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDelayedRequest(_message.Message):
    __slots__ = ("topic", "partition", "after", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    after: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDelayedResponse(_message.Message):
    __slots__ = ("messages", "next")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DelayedMessage]
    next: str
    def __init__(self, messages: _Optional[_Iterable[_Union[DelayedMessage, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class DelayedMessage(_message.Message):
    __slots__ = ("topic", "partition", "id", "deliver_at", "scheduled", "size_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    id: int
    deliver_at: int
    scheduled: int
    size_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., id: _Optional[int] = ..., deliver_at: _Optional[int] = ..., scheduled: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GetDelayedRequest(_message.Message):
    __slots__ = ("topic", "id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class DelayedContent(_message.Message):
    __slots__ = ("topic", "partition", "id", "deliver_at", "scheduled", "size_bytes", "key", "value", "headers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    id: int
    deliver_at: int
    scheduled: int
    size_bytes: int
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Header]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., id: _Optional[int] = ..., deliver_at: _Optional[int] = ..., scheduled: _Optional[int] = ..., size_bytes: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[_messages_pb2.Header, _Mapping]]] = ...) -> None: ...

class CancelDelayedRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ListDelayTopicsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDelayTopicsResponse(_message.Message):
    __slots__ = ("topics", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[DelayTopic]
    next: str
    def __init__(self, topics: _Optional[_Iterable[_Union[DelayTopic, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class DelayTopic(_message.Message):
    __slots__ = ("topic", "pending", "next_deliver_at")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    NEXT_DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    pending: int
    next_deliver_at: int
    def __init__(self, topic: _Optional[str] = ..., pending: _Optional[int] = ..., next_deliver_at: _Optional[int] = ...) -> None: ...

class DelayStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DelayStatsResponse(_message.Message):
    __slots__ = ("pending", "next_deliver_at", "scheduled_total", "delivered_total", "cancelled_total", "dropped_total", "late_ms_p99")
    PENDING_FIELD_NUMBER: _ClassVar[int]
    NEXT_DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_P99_FIELD_NUMBER: _ClassVar[int]
    pending: int
    next_deliver_at: int
    scheduled_total: int
    delivered_total: int
    cancelled_total: int
    dropped_total: int
    late_ms_p99: float
    def __init__(self, pending: _Optional[int] = ..., next_deliver_at: _Optional[int] = ..., scheduled_total: _Optional[int] = ..., delivered_total: _Optional[int] = ..., cancelled_total: _Optional[int] = ..., dropped_total: _Optional[int] = ..., late_ms_p99: _Optional[float] = ...) -> None: ...
