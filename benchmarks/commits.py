"""Offset commits with prebuilt requests, and reads of committed offsets."""

import socket
import time
from collections.abc import Mapping, Sequence
from struct import Struct

from alpacamq.protocol import schema
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from alpacamq.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

from .wire import CLIENT, Refused, connect, receive

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 7, 5, 1
# The coordinator is being created or loaded.
NOT_YET = frozenset({14, 15, 16})
RETRY_S = 0.005

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")


def commit_request(group: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """Build a commit from outside the group, which must have no members."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    asked = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    )
    return _frame(OFFSET_COMMIT, COMMIT_VERSION, schema.encode(asked, COMMIT_VERSION))


def check_commit(payload: bytes) -> frozenset[int]:
    """Raise for an error in the response; return the codes that mean "not yet"."""
    answer = schema.decode(OffsetCommitResponse, COMMIT_VERSION, memoryview(payload), 4)
    codes = frozenset(each.error_code for topic in answer.topics for each in topic.partitions)
    if codes - NOT_YET - {0}:
        raise Refused(f"OffsetCommit was answered with errors {sorted(codes)}")
    return codes & NOT_YET


def commit(address: str, group: str, topic: str, offsets: Mapping[int, int], within_s: float) -> int:
    """Commit once, as soon as there is a coordinator; return the size of the response frame."""
    request = commit_request(group, topic, offsets)
    deadline = time.monotonic() + within_s
    with connect(address) as connection:
        while time.monotonic() < deadline:
            find_coordinator(connection, group)
            connection.sendall(request)
            payload = receive(connection)
            if not check_commit(payload):
                return _SIZE.size + len(payload)
            time.sleep(RETRY_S)
    raise TimeoutError(f"there is no coordinator of group {group}")


def committed(
    connection: socket.socket, group: str, topic: str, partitions: Sequence[int], within_s: float
) -> list[int]:
    """Return the committed offset of each partition, as soon as the coordinator is loaded."""
    asked = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)]
    )
    request = _frame(OFFSET_FETCH, FETCH_VERSION, schema.encode(asked, FETCH_VERSION))
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        connection.sendall(request)
        answer = schema.decode(OffsetFetchResponse, FETCH_VERSION, memoryview(receive(connection)), 4)
        if answer.error_code == 0:
            return [each.committed_offset for found in answer.topics for each in found.partitions]
        if answer.error_code not in NOT_YET:
            raise Refused(f"OffsetFetch was answered with error {answer.error_code}")
        time.sleep(RETRY_S)
    raise TimeoutError(f"the coordinator of group {group} is not loaded")


def find_coordinator(connection: socket.socket, group: str) -> FindCoordinatorResponse:
    """Find the coordinator, which makes some servers create it."""
    asked = schema.encode(FindCoordinatorRequest(key=group), FIND_VERSION)
    connection.sendall(_frame(FIND_COORDINATOR, FIND_VERSION, asked))
    return schema.decode(FindCoordinatorResponse, FIND_VERSION, memoryview(receive(connection)), 4)


def _frame(key: int, version: int, body: bytes) -> bytes:
    payload = _HEADER.pack(key, version, 0, len(CLIENT)) + CLIENT + body
    return _SIZE.pack(len(payload)) + payload
