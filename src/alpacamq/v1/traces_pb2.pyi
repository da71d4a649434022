from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTracesRequest(_message.Message):
    __slots__ = ("limit", "topic", "status", "to", "cursor")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    limit: int
    topic: str
    status: str
    to: str
    cursor: str
    def __init__(self, limit: _Optional[int] = ..., topic: _Optional[str] = ..., status: _Optional[str] = ..., to: _Optional[str] = ..., cursor: _Optional[str] = ..., **kwargs) -> None: ...

class SearchTracesRequest(_message.Message):
    __slots__ = ("limit", "topic", "status", "to", "cursor", "partition", "offset", "key", "trace_id")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    topic: str
    status: str
    to: str
    cursor: str
    partition: int
    offset: int
    key: str
    trace_id: str
    def __init__(self, limit: _Optional[int] = ..., topic: _Optional[str] = ..., status: _Optional[str] = ..., to: _Optional[str] = ..., cursor: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., key: _Optional[str] = ..., trace_id: _Optional[str] = ..., **kwargs) -> None: ...

class ListTracesResponse(_message.Message):
    __slots__ = ("traces", "cursor")
    TRACES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    traces: _containers.RepeatedCompositeFieldContainer[TraceOverview]
    cursor: str
    def __init__(self, traces: _Optional[_Iterable[_Union[TraceOverview, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class TraceOverview(_message.Message):
    __slots__ = ("trace_id", "topic", "partition", "offset", "started_at", "ended_at", "duration_ms", "events", "status")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    topic: str
    partition: int
    offset: int
    started_at: str
    ended_at: str
    duration_ms: float
    events: int
    status: str
    def __init__(self, trace_id: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., started_at: _Optional[str] = ..., ended_at: _Optional[str] = ..., duration_ms: _Optional[float] = ..., events: _Optional[int] = ..., status: _Optional[str] = ...) -> None: ...

class GetTraceRequest(_message.Message):
    __slots__ = ("trace_id",)
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    def __init__(self, trace_id: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("trace_id", "status", "events", "missing_nodes")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_NODES_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    status: str
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    missing_nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, trace_id: _Optional[str] = ..., status: _Optional[str] = ..., events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., missing_nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("at", "name", "span_id", "parent_span_id", "topic", "partition", "offset", "group", "consumer", "api", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    at: str
    name: str
    span_id: str
    parent_span_id: str
    topic: str
    partition: int
    offset: int
    group: str
    consumer: str
    api: str
    attributes: _containers.MessageMap[str, _struct_pb2.Value]
    def __init__(self, at: _Optional[str] = ..., name: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., group: _Optional[str] = ..., consumer: _Optional[str] = ..., api: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _struct_pb2.Value]] = ...) -> None: ...

class TraceStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TraceStatsResponse(_message.Message):
    __slots__ = ("enabled", "ring_size", "ring_events", "traces", "traces_total", "events_total", "dropped_total", "passed_over_total", "log_files", "log_bytes", "log_written_total", "exported_spans_total", "export_failed_spans_total", "export_dropped_events_total")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    RING_SIZE_FIELD_NUMBER: _ClassVar[int]
    RING_EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    TRACES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOG_FILES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_WRITTEN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_SPANS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FAILED_SPANS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXPORT_DROPPED_EVENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    ring_size: int
    ring_events: int
    traces: int
    traces_total: int
    events_total: int
    dropped_total: int
    passed_over_total: int
    log_files: int
    log_bytes: int
    log_written_total: int
    exported_spans_total: int
    export_failed_spans_total: int
    export_dropped_events_total: int
    def __init__(self, enabled: bool = ..., ring_size: _Optional[int] = ..., ring_events: _Optional[int] = ..., traces: _Optional[int] = ..., traces_total: _Optional[int] = ..., events_total: _Optional[int] = ..., dropped_total: _Optional[int] = ..., passed_over_total: _Optional[int] = ..., log_files: _Optional[int] = ..., log_bytes: _Optional[int] = ..., log_written_total: _Optional[int] = ..., exported_spans_total: _Optional[int] = ..., export_failed_spans_total: _Optional[int] = ..., export_dropped_events_total: _Optional[int] = ...) -> None: ...
