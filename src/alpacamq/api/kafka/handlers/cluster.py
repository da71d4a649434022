"""About the broker as a whole: its versions, coordinators, cluster, disks and producer ids."""

import os

from alpacamq.api.kafka.door import Door
from alpacamq.api.kafka.errors import code_of
from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.protocol.apis import APIS
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from alpacamq.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from alpacamq.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from alpacamq.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

_BROKERS = 1
_COORDINATED = (0, 1)  # groups and transactions
_SERVED = [
    ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
    for _, api in sorted(APIS.items())
]


def api_versions(_door: Door, _request: ApiVersionsRequest) -> ApiVersionsResponse:
    return ApiVersionsResponse(api_keys=_SERVED)


def unsupported_api_versions() -> ApiVersionsResponse:
    """The answer, in version 0, to a client that asks in a version we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_SERVED)


def describe_cluster(door: Door, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type}: only brokers (1) can be described here",
        )
    return DescribeClusterResponse(
        cluster_id=door.broker.cluster_id,
        controller_id=door.node_id,
        brokers=[DescribeClusterBroker(broker_id=door.node_id, host=door.host, port=door.port)],
    )


def find_coordinator(door: Door, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    keys = request.coordinator_keys or [request.key]
    if request.key_type not in _COORDINATED:
        reason = f"there are no coordinators of type {request.key_type}"
        failed = [
            Coordinator(key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=reason) for key in keys
        ]
        return FindCoordinatorResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=reason, coordinators=failed
        )
    found = [Coordinator(key=key, node_id=door.node_id, host=door.host, port=door.port) for key in keys]
    return FindCoordinatorResponse(node_id=door.node_id, host=door.host, port=door.port, coordinators=found)


def describe_log_dirs(door: Door, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    broker = door.broker
    if request.topics is None:
        wanted = {name: range(topic.partitions) for name, topic in broker.topics.image.topics.items()}
    else:
        wanted = {topic.topic: topic.partitions for topic in request.topics}  # type: ignore[misc]
    topics = []
    for name, indexes in wanted.items():
        found = [broker.topics.find(name.encode(), index) for index in indexes]
        partitions = [
            DescribeLogDirsPartition(
                partition_index=partition.identity.partition, partition_size=partition.log.size_bytes
            )
            for partition in found
            if partition is not None
        ]
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    directory = broker.settings.data_directory
    room = os.statvfs(directory)
    result = DescribeLogDirsResult(
        log_dir=str(directory.absolute()),
        topics=topics,
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )
    return DescribeLogDirsResponse(results=[result])


async def init_producer_id(door: Door, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            raise InvalidRequest("transactions are not supported yet")
        producer_id = await door.broker.producer_ids.new()
    except AlpacaError as error:
        return InitProducerIdResponse(error_code=code_of(error))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
