from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartRedriveRequest(_message.Message):
    __slots__ = ("topic", "target", "messages_per_second", "max_messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    target: str
    messages_per_second: int
    max_messages: int
    def __init__(self, topic: _Optional[str] = ..., target: _Optional[str] = ..., messages_per_second: _Optional[int] = ..., max_messages: _Optional[int] = ...) -> None: ...

class Redrive(_message.Message):
    __slots__ = ("id", "source", "target", "state", "started", "moved", "to_move", "messages_per_second", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    TO_MOVE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: str
    source: str
    target: str
    state: str
    started: int
    moved: int
    to_move: int
    messages_per_second: int
    failure: str
    def __init__(self, id: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., state: _Optional[str] = ..., started: _Optional[int] = ..., moved: _Optional[int] = ..., to_move: _Optional[int] = ..., messages_per_second: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class ListRedrivesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListRedrivesResponse(_message.Message):
    __slots__ = ("redrives",)
    REDRIVES_FIELD_NUMBER: _ClassVar[int]
    redrives: _containers.RepeatedCompositeFieldContainer[Redrive]
    def __init__(self, redrives: _Optional[_Iterable[_Union[Redrive, _Mapping]]] = ...) -> None: ...

class GetRedriveRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelRedriveRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
