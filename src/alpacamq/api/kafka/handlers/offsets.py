"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

import asyncio
from collections import Counter
from enum import IntEnum

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of
from alpacamq.broker.partition.leader import Partition, delete_before
from alpacamq.model.errors import AlpacaError, OffsetNotAvailable, OffsetOutOfRange, PolicyViolation
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from alpacamq.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from alpacamq.security.acls import Operation

_TO_HIGH_WATERMARK = -1
_READ_COMMITTED = 1
_NOT_AVAILABLE_FROM = 5


class Timestamp(IntEnum):
    """Special timestamps that stand for a position in the log."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


async def list_offsets(backend: Backend, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    topics = []
    named = await _count_named(request, call)
    committed = request.isolation_level == _READ_COMMITTED
    for topic in request.topics:
        await call.pause()
        found = []
        for wanted in topic.partitions:
            await call.pause()
            if named[topic.name, wanted.partition_index] > 1:  # as Kafka does
                result = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST
                )
            else:
                result = await _listed(backend, topic.name, wanted, call, committed=committed)
            found.append(result)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
    return ListOffsetsResponse(topics=topics)


async def offset_for_leader_epoch(
    backend: Backend, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        await call.pause()
        ends = []
        for wanted in topic.partitions:
            await call.pause()
            ends.append(_epoch_end(backend, topic.topic, wanted, call))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=topics)


async def delete_records(
    backend: Backend, request: DeleteRecordsRequest, call: Call
) -> DeleteRecordsResponse:
    topics = []
    for topic in request.topics:
        await call.pause()
        results = []
        for wanted in topic.partitions:
            await call.pause()
            results.append(await _deleted(backend, topic.name, wanted, call))
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _count_named(request: ListOffsetsRequest, call: Call) -> Counter[tuple[str, int]]:
    """Count how often each partition is named."""
    named: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        await call.pause()
        for wanted in topic.partitions:
            named[topic.name, wanted.partition_index] += 1
            await call.pause()
    return named


async def _listed(
    backend: Backend, name: str, wanted: ListOffsetsPartition, call: Call, *, committed: bool
) -> ListOffsetsPartitionResponse:
    try:
        backend.broker.access.check_topic(call.caller, Operation.DESCRIBE, name)
        partition = backend.broker.topics.partition(name, wanted.partition_index)
        partition.check_epoch(wanted.current_leader_epoch)
        limit = partition.last_stable_offset if committed else partition.high_watermark
        offset, timestamp_ms, epoch = await _located(backend, partition, wanted.timestamp, limit)
        if depends_on_end(wanted.timestamp, offset) and not partition.covers_former_epochs:
            raise OffsetNotAvailable(
                f"{partition.identity} has a new leader, which does not know its end yet"
            )
    except AlpacaError as error:
        code = code_of(error)
        if code == ErrorCode.OFFSET_NOT_AVAILABLE and call.version < _NOT_AVAILABLE_FROM:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, offset=offset, timestamp=timestamp_ms, leader_epoch=epoch
    )


def depends_on_end(timestamp_ms: int, offset: int) -> bool:
    """Return whether an answer depends on where the log ends: that end, or that nothing was found before it.

    After an election the high watermark is behind what former leaders had acknowledged, until the followers
    have fetched from the new one.
    """
    return timestamp_ms == Timestamp.LATEST or offset < 0


async def _located(
    backend: Backend, partition: Partition, timestamp_ms: int, limit: int
) -> tuple[int, int, int]:
    """Return offset, timestamp and leader epoch of a timestamp before `limit`; -1 for missing values."""
    if timestamp_ms == Timestamp.LATEST:
        return limit, -1, partition.leader_epoch
    if timestamp_ms in (Timestamp.EARLIEST, Timestamp.EARLIEST_LOCAL):
        return partition.start_offset, -1, partition.epoch_at(partition.start_offset)
    loop = asyncio.get_running_loop()
    threads = backend.broker.work_threads
    if timestamp_ms >= 0:
        found = await loop.run_in_executor(threads, partition.offset_for_timestamp, timestamp_ms, limit)
    elif timestamp_ms == Timestamp.MAX_TIMESTAMP:
        found = await loop.run_in_executor(threads, partition.max_timestamp, limit)
    else:
        found = None  # not supported by this log, such as a remote tier
    return (-1, -1, -1) if found is None else (found.offset, found.timestamp_ms, found.leader_epoch)


def _epoch_end(backend: Backend, name: str, wanted: OffsetForLeaderPartition, call: Call) -> EpochEndOffset:
    access = backend.broker.access
    try:
        if not access.sees_cluster(call.caller, Operation.CLUSTER_ACTION):
            access.check_topic(call.caller, Operation.DESCRIBE, name)
        partition = backend.broker.topics.partition(name, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
    except AlpacaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=code_of(error))
    epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


async def _deleted(
    backend: Backend, name: str, wanted: DeleteRecordsPartition, call: Call
) -> DeleteRecordsPartitionResult:
    index = wanted.partition_index
    try:
        backend.broker.access.check_topic(call.caller, Operation.DELETE, name)
        partition = backend.broker.topics.partition(name, index)
        if not partition.config.deletes_old:
            raise PolicyViolation(f"topic {name!r} is compacted: delete records with tombstones")
        offset = partition.high_watermark if wanted.offset == _TO_HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} of {partition.identity} is beyond {partition.high_watermark}"
            )
        await delete_before(partition, offset, backend.broker.work_threads)
    except AlpacaError as error:
        return DeleteRecordsPartitionResult(partition_index=index, error_code=code_of(error))
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=partition.start_offset)
