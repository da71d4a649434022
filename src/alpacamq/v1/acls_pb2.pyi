from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAclsRequest(_message.Message):
    __slots__ = ("resource", "name", "pattern", "principal", "host", "operation", "permission", "limit")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str
    limit: int
    def __init__(self, resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("rules", "total")
    RULES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[AclDescription]
    total: int
    def __init__(self, rules: _Optional[_Iterable[_Union[AclDescription, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class AclDescription(_message.Message):
    __slots__ = ("id", "resource", "name", "pattern", "principal", "host", "operation", "permission")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, id: _Optional[str] = ..., resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class CreateAclRequest(_message.Message):
    __slots__ = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class DeleteAclRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
