"""ApiVersions, DescribeCluster and DescribeLogDirs."""

import os
from typing import TYPE_CHECKING

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.protocol.apis import APIS
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
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

if TYPE_CHECKING:
    from collections.abc import Iterable

_BROKERS = 1
_SERVED = [
    ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
    for _, api in sorted(APIS.items())
]
# Clients use these to decide on the consumer protocol of KIP-848, the share groups of KIP-932 and
# the transactions of KIP-890.
_FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}
_SUPPORTED = [
    SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in _FEATURES.items()
]
_FINALIZED = [
    FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
    for name, level in _FEATURES.items()
]
# Clients of an earlier version reject a feature whose lowest level is 0 (KAFKA-17011).
_LEVEL_0_FROM = 4


def api_versions(_backend: Backend, _request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=_SERVED,
        supported_features=_SUPPORTED if call.version >= _LEVEL_0_FROM else [],
        finalized_features_epoch=0,
        finalized_features=_FINALIZED,
    )


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response, in version 0, to a request of an unsupported version."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_SERVED)


def describe_cluster(
    backend: Backend, request: DescribeClusterRequest, _call: Call
) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"unsupported endpoint type {request.endpoint_type}: must be 1 (brokers)",
        )
    return DescribeClusterResponse(
        cluster_id=backend.broker.cluster_id,
        controller_id=backend.node_id,
        brokers=[DescribeClusterBroker(broker_id=backend.node_id, host=backend.host, port=backend.port)],
    )


async def describe_log_dirs(
    backend: Backend, request: DescribeLogDirsRequest, call: Call
) -> DescribeLogDirsResponse:
    broker = backend.broker
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(name, range(topic.partitions)) for name, topic in broker.topics.image.topics.items()]
    else:
        named = await call.each_once(request.topics, lambda topic: topic.topic)
        wanted = ((topic.topic, topic.partitions) for topic in named)
    topics = []
    for name, indexes in wanted:
        partitions = []
        for index in indexes:
            await call.pause()
            if (partition := broker.topics.find(name.encode(), index)) is not None:
                size_bytes = partition.size_bytes
                partitions.append(DescribeLogDirsPartition(partition_index=index, partition_size=size_bytes))
        await call.pause()
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
