"""Client telemetry and AlterReplicaLogDirs.

This broker subscribes to no metrics of clients and has one log directory: the responses say so in the way
that clients and tools expect.
"""

from uuid import uuid4

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of
from alpacamq.model.batch import Codec
from alpacamq.model.errors import AlpacaError
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from alpacamq.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from alpacamq.protocol.notation import ZERO_UUID
from alpacamq.security.acls import Operation

# How often clients ask for subscriptions again.
_PUSH_INTERVAL_MS = 300_000
_TELEMETRY_MAX_BYTES = 1 << 20
_SUBSCRIPTION_ID = 1


def get_telemetry_subscriptions(
    _backend: Backend, request: GetTelemetrySubscriptionsRequest, _call: Call
) -> GetTelemetrySubscriptionsResponse:
    """Name a client that has no id yet, and subscribe to none of its metrics."""
    known = request.client_instance_id
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=uuid4() if known == ZERO_UUID else known,
        subscription_id=_SUBSCRIPTION_ID,
        accepted_compression_types=[Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY],
        push_interval_ms=_PUSH_INTERVAL_MS,
        telemetry_max_bytes=_TELEMETRY_MAX_BYTES,
        delta_temporality=True,
    )


def push_telemetry(_backend: Backend, request: PushTelemetryRequest, _call: Call) -> PushTelemetryResponse:
    """Discard what a client sends although nothing was requested."""
    code = ErrorCode.NONE
    if request.client_instance_id == ZERO_UUID:
        code = ErrorCode.INVALID_REQUEST
    elif request.subscription_id != _SUBSCRIPTION_ID:
        code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    elif len(request.metrics) > _TELEMETRY_MAX_BYTES:
        code = ErrorCode.TELEMETRY_TOO_LARGE
    return PushTelemetryResponse(error_code=code)


async def alter_replica_log_dirs(
    backend: Backend, request: AlterReplicaLogDirsRequest, call: Call
) -> AlterReplicaLogDirsResponse:
    """Accept the directory in which a partition is; there is no other to move it to."""
    broker = backend.broker
    here = str(broker.settings.data_directory.absolute())
    results: dict[str, dict[int, ErrorCode]] = {}
    refusal = ErrorCode.NONE
    try:
        broker.access.check_cluster(call.caller, Operation.ALTER)
    except AlpacaError as error:
        refusal = code_of(error)
    for directory in request.dirs:
        for topic in directory.topics:
            await call.pause()
            of_topic = results.setdefault(topic.name, {})
            for index in topic.partitions:
                await call.pause()
                if refusal:
                    of_topic[index] = refusal
                elif not broker.topics.exists(topic.name.encode(), index):
                    of_topic[index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif index not in broker.replicas.of_topic(broker.topics.image.topic(topic.name).id):
                    of_topic[index] = ErrorCode.REPLICA_NOT_AVAILABLE
                else:
                    is_here = directory.path == here
                    of_topic[index] = ErrorCode.NONE if is_here else ErrorCode.LOG_DIR_NOT_FOUND
    topics = []
    for name, of_topic in results.items():
        partitions = []
        for index, code in of_topic.items():
            await call.pause()
            partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
        topics.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=topics)
