from alpacamq.v1 import messages_pb2 as _messages_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkRequest(_message.Message):
    __slots__ = ("open", "ack", "nack", "reject", "extend", "credit")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    open: WorkOpen
    ack: _containers.RepeatedScalarFieldContainer[int]
    nack: _containers.RepeatedCompositeFieldContainer[Nack]
    reject: _containers.RepeatedCompositeFieldContainer[Reject]
    extend: _containers.RepeatedCompositeFieldContainer[Extend]
    credit: int
    def __init__(self, open: _Optional[_Union[WorkOpen, _Mapping]] = ..., ack: _Optional[_Iterable[int]] = ..., nack: _Optional[_Iterable[_Union[Nack, _Mapping]]] = ..., reject: _Optional[_Iterable[_Union[Reject, _Mapping]]] = ..., extend: _Optional[_Iterable[_Union[Extend, _Mapping]]] = ..., credit: _Optional[int] = ...) -> None: ...

class WorkOpen(_message.Message):
    __slots__ = ("topic", "group", "credit", "visibility_ms", "consumer", "start", "max_messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    credit: int
    visibility_ms: int
    consumer: str
    start: _messages_pb2.Start
    max_messages: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., credit: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., consumer: _Optional[str] = ..., start: _Optional[_Union[_messages_pb2.Start, str]] = ..., max_messages: _Optional[int] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("delivery_id", "delay_ms", "reason")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    delay_ms: int
    reason: str
    def __init__(self, delivery_id: _Optional[int] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("delivery_id", "reason")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    reason: str
    def __init__(self, delivery_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("delivery_id", "visibility_ms")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    visibility_ms: int
    def __init__(self, delivery_id: _Optional[int] = ..., visibility_ms: _Optional[int] = ...) -> None: ...

class WorkResponse(_message.Message):
    __slots__ = ("messages", "settled", "errors")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Delivery]
    settled: _containers.RepeatedScalarFieldContainer[int]
    errors: _containers.RepeatedCompositeFieldContainer[SettlementError]
    def __init__(self, messages: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., settled: _Optional[_Iterable[int]] = ..., errors: _Optional[_Iterable[_Union[SettlementError, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("delivery_id", "record", "delivery_count", "priority", "deadline_ms", "first_delivered_ms", "receipt")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_DELIVERED_MS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    record: _messages_pb2.Record
    delivery_count: int
    priority: _messages_pb2.Priority
    deadline_ms: int
    first_delivered_ms: int
    receipt: str
    def __init__(self, delivery_id: _Optional[int] = ..., record: _Optional[_Union[_messages_pb2.Record, _Mapping]] = ..., delivery_count: _Optional[int] = ..., priority: _Optional[_Union[_messages_pb2.Priority, str]] = ..., deadline_ms: _Optional[int] = ..., first_delivered_ms: _Optional[int] = ..., receipt: _Optional[str] = ...) -> None: ...

class SettlementError(_message.Message):
    __slots__ = ("delivery_id", "status")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    status: _status_pb2.Status
    def __init__(self, delivery_id: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("topic", "group", "max_messages", "wait_ms", "visibility_ms", "consumer", "start")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    max_messages: int
    wait_ms: int
    visibility_ms: int
    consumer: str
    start: _messages_pb2.Start
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., max_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., consumer: _Optional[str] = ..., start: _Optional[_Union[_messages_pb2.Start, str]] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, messages: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("receipt", "action", "delay_ms", "visibility_ms", "reason")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[Settlement.Action]
        ACTION_ACK: _ClassVar[Settlement.Action]
        ACTION_NACK: _ClassVar[Settlement.Action]
        ACTION_REJECT: _ClassVar[Settlement.Action]
        ACTION_EXTEND: _ClassVar[Settlement.Action]
    ACTION_UNSPECIFIED: Settlement.Action
    ACTION_ACK: Settlement.Action
    ACTION_NACK: Settlement.Action
    ACTION_REJECT: Settlement.Action
    ACTION_EXTEND: Settlement.Action
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    action: Settlement.Action
    delay_ms: int
    visibility_ms: int
    reason: str
    def __init__(self, receipt: _Optional[str] = ..., action: _Optional[_Union[Settlement.Action, str]] = ..., delay_ms: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("settlements",)
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_status_pb2.Status]
    def __init__(self, results: _Optional[_Iterable[_Union[_status_pb2.Status, _Mapping]]] = ...) -> None: ...
