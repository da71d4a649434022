from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndpointsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndpointsResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "nodes")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeEndpoints]
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeEndpoints, _Mapping]]] = ...) -> None: ...

class NodeEndpoints(_message.Message):
    __slots__ = ("node_id", "rack", "kafka", "http", "grpc", "sqs", "registry")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    SQS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    rack: str
    kafka: str
    http: str
    grpc: str
    sqs: str
    registry: str
    def __init__(self, node_id: _Optional[int] = ..., rack: _Optional[str] = ..., kafka: _Optional[str] = ..., http: _Optional[str] = ..., grpc: _Optional[str] = ..., sqs: _Optional[str] = ..., registry: _Optional[str] = ...) -> None: ...
