from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyDescription]
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyDescription, _Mapping]]] = ...) -> None: ...

class KeyDescription(_message.Message):
    __slots__ = ("id", "owner", "created", "expires", "scopes", "description", "last_used")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    created: int
    expires: int
    scopes: _containers.RepeatedScalarFieldContainer[str]
    description: str
    last_used: int
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., created: _Optional[int] = ..., expires: _Optional[int] = ..., scopes: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., last_used: _Optional[int] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("owner", "expires_in_ms", "scopes", "description")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    owner: str
    expires_in_ms: int
    scopes: _containers.RepeatedScalarFieldContainer[str]
    description: str
    def __init__(self, owner: _Optional[str] = ..., expires_in_ms: _Optional[int] = ..., scopes: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ...) -> None: ...

class CreatedKey(_message.Message):
    __slots__ = ("id", "owner", "created", "expires", "scopes", "description", "last_used", "key", "aws_secret_access_key")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AWS_SECRET_ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    created: int
    expires: int
    scopes: _containers.RepeatedScalarFieldContainer[str]
    description: str
    last_used: int
    key: str
    aws_secret_access_key: str
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., created: _Optional[int] = ..., expires: _Optional[int] = ..., scopes: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., last_used: _Optional[int] = ..., key: _Optional[str] = ..., aws_secret_access_key: _Optional[str] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("id", "overlap_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    overlap_ms: int
    def __init__(self, id: _Optional[str] = ..., overlap_ms: _Optional[int] = ...) -> None: ...

class DeleteKeyRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
