from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTenantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantDescription]
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantDescription, _Mapping]]] = ...) -> None: ...

class TenantDescription(_message.Message):
    __slots__ = ("id", "status", "reason", "description", "created", "limits", "principals")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: str
    reason: str
    description: str
    created: int
    limits: _containers.ScalarMap[str, int]
    principals: _containers.RepeatedCompositeFieldContainer[TenantPrincipal]
    def __init__(self, id: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., description: _Optional[str] = ..., created: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ..., principals: _Optional[_Iterable[_Union[TenantPrincipal, _Mapping]]] = ...) -> None: ...

class TenantPrincipal(_message.Message):
    __slots__ = ("principal", "admin")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    principal: str
    admin: bool
    def __init__(self, principal: _Optional[str] = ..., admin: bool = ...) -> None: ...

class CreateTenantRequest(_message.Message):
    __slots__ = ("id", "description", "limits")
    ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    id: str
    description: str
    limits: NewTenantLimits
    def __init__(self, id: _Optional[str] = ..., description: _Optional[str] = ..., limits: _Optional[_Union[NewTenantLimits, _Mapping]] = ...) -> None: ...

class DescribeTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class AlterTenantRequest(_message.Message):
    __slots__ = ("tenant", "description", "limits")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    description: str
    limits: NewTenantLimits
    def __init__(self, tenant: _Optional[str] = ..., description: _Optional[str] = ..., limits: _Optional[_Union[NewTenantLimits, _Mapping]] = ...) -> None: ...

class NewTenantLimits(_message.Message):
    __slots__ = ("topics", "partitions", "storage_bytes", "message_bytes", "connections", "groups", "group_members", "retention_ms", "delay_ms", "produce_bytes_per_second", "fetch_bytes_per_second", "produce_messages_per_second", "fetch_messages_per_second", "unset")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FETCH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FETCH_MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    topics: int
    partitions: int
    storage_bytes: int
    message_bytes: int
    connections: int
    groups: int
    group_members: int
    retention_ms: int
    delay_ms: int
    produce_bytes_per_second: int
    fetch_bytes_per_second: int
    produce_messages_per_second: int
    fetch_messages_per_second: int
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[int] = ..., partitions: _Optional[int] = ..., storage_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., groups: _Optional[int] = ..., group_members: _Optional[int] = ..., retention_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., produce_bytes_per_second: _Optional[int] = ..., fetch_bytes_per_second: _Optional[int] = ..., produce_messages_per_second: _Optional[int] = ..., fetch_messages_per_second: _Optional[int] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class StopTenantRequest(_message.Message):
    __slots__ = ("tenant", "reason")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    reason: str
    def __init__(self, tenant: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ActivateTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListTenantTopicsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListTenantTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TenantTopic]
    def __init__(self, topics: _Optional[_Iterable[_Union[TenantTopic, _Mapping]]] = ...) -> None: ...

class TenantTopic(_message.Message):
    __slots__ = ("name", "stored_name", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORED_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    stored_name: str
    partitions: int
    def __init__(self, name: _Optional[str] = ..., stored_name: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class TenantUsageRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class TenantUsageResponse(_message.Message):
    __slots__ = ("id", "topics", "partitions", "messages", "storage_bytes", "groups", "limits")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    id: str
    topics: int
    partitions: int
    messages: int
    storage_bytes: int
    groups: int
    limits: _containers.ScalarMap[str, int]
    def __init__(self, id: _Optional[str] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., messages: _Optional[int] = ..., storage_bytes: _Optional[int] = ..., groups: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ...) -> None: ...

class TenantStatsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class TenantStatsResponse(_message.Message):
    __slots__ = ("id", "messages", "storage_bytes", "written_total", "written_bytes_total", "fetched_total", "fetched_bytes_total", "groups", "delayed", "transactional_ids", "transactions")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    messages: int
    storage_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int
    groups: int
    delayed: int
    transactional_ids: int
    transactions: int
    def __init__(self, id: _Optional[str] = ..., messages: _Optional[int] = ..., storage_bytes: _Optional[int] = ..., written_total: _Optional[int] = ..., written_bytes_total: _Optional[int] = ..., fetched_total: _Optional[int] = ..., fetched_bytes_total: _Optional[int] = ..., groups: _Optional[int] = ..., delayed: _Optional[int] = ..., transactional_ids: _Optional[int] = ..., transactions: _Optional[int] = ...) -> None: ...

class SetTenantPrincipalRequest(_message.Message):
    __slots__ = ("tenant", "principal", "admin")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    principal: str
    admin: bool
    def __init__(self, tenant: _Optional[str] = ..., principal: _Optional[str] = ..., admin: bool = ...) -> None: ...

class RemoveTenantPrincipalRequest(_message.Message):
    __slots__ = ("tenant", "principal")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    principal: str
    def __init__(self, tenant: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...
