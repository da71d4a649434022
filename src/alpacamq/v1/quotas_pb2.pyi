from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListQuotasRequest(_message.Message):
    __slots__ = ("user", "client_id", "ip", "limit")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    limit: int
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "total")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaDescription]
    total: int
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaDescription, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class QuotaDescription(_message.Message):
    __slots__ = ("user", "client_id", "ip", "defaults", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    defaults: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.ScalarMap[str, float]
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ..., defaults: _Optional[_Iterable[str]] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class AlterQuotasRequest(_message.Message):
    __slots__ = ("user", "client_id", "ip", "defaults", "values")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    defaults: _containers.RepeatedScalarFieldContainer[str]
    values: QuotaValues
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ..., defaults: _Optional[_Iterable[str]] = ..., values: _Optional[_Union[QuotaValues, _Mapping]] = ...) -> None: ...

class QuotaValues(_message.Message):
    __slots__ = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate", "connection_count", "unset")
    PRODUCER_BYTE_RATE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_BYTE_RATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_MUTATION_RATE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_CREATION_RATE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    producer_byte_rate: float
    consumer_byte_rate: float
    request_percentage: float
    controller_mutation_rate: float
    connection_creation_rate: float
    connection_count: float
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, producer_byte_rate: _Optional[float] = ..., consumer_byte_rate: _Optional[float] = ..., request_percentage: _Optional[float] = ..., controller_mutation_rate: _Optional[float] = ..., connection_creation_rate: _Optional[float] = ..., connection_count: _Optional[float] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...
