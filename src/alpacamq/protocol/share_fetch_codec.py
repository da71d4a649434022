"""Encodes the ShareFetch response around its records, which go from file to socket."""

from collections.abc import Generator, Sequence
from struct import Struct
from typing import NamedTuple

from .produce_codec import Node, encode_endpoints
from .schema import run_to_end
from .varint import uvarint

# A flexible header: size, correlation id, no tagged fields; then throttle time and error.
_FRAME = Struct(">iixih")
_INT32 = Struct(">i")
_PARTITION = Struct(">ih")  # index, error
_INT16 = Struct(">h")
_LEADER = Struct(">iix")  # id, epoch
_ACQUIRED = Struct(">qqhx")  # first and last offset, delivery count
_MAX_INT16 = 2**15 - 1
_NO_LEADER = _LEADER.pack(-1, -1)
_NO_TEXT = b"\x00"
_NO_TAGS = b"\x00"
# Partitions encoded between two yields.
_STRIDE = 128


class AcquiredRange(NamedTuple):
    """Adjacent offsets with the same delivery count, this delivery included."""

    first: int
    last: int
    delivery_count: int


class PartitionShared(NamedTuple):
    """The response for one partition, without its records."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    records_bytes: int = 0
    acquired: Sequence[AcquiredRange] = ()
    # Id and epoch of the leader, if another broker leads.
    current_leader: tuple[int, int] | None = None


def encode_share_fetch_response(
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionShared]]],
    *,
    lock_timeout_ms: int = 0,
    error_code: int = 0,
    error_message: str | None = None,
) -> list[bytes]:
    """Encode the response frame without its records, as pieces between which the records go.

    There is one piece more than there are partitions with records, in the order of the partitions; the
    frame size includes the records. Topics are named by their 16-byte ids. All served versions are equal.
    """
    return run_to_end(
        encode_share_fetch_response_in_slices(
            correlation_id,
            topics,
            lock_timeout_ms=lock_timeout_ms,
            error_code=error_code,
            error_message=error_message,
        )
    )


def encode_share_fetch_response_in_slices(
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionShared]]],
    *,
    lock_timeout_ms: int = 0,
    error_code: int = 0,
    error_message: str | None = None,
    nodes: Sequence[Node] = (),
    throttle_ms: int = 0,
) -> Generator[None, None, list[bytes]]:
    """Encode the response in slices, as `encode_share_fetch_response` does in one go."""
    pieces = []
    records_bytes = 0
    out = bytearray(_text(error_message))
    out += _INT32.pack(lock_timeout_ms)
    out += uvarint(len(topics) + 1)
    for topic_id, partitions in topics:
        out += topic_id
        out += uvarint(len(partitions) + 1)
        for number, partition in enumerate(partitions, 1):
            if not number % _STRIDE or len(partition.acquired) > _STRIDE:
                yield
            out += _PARTITION.pack(partition.partition, partition.error_code)
            out += _text(partition.error_message)
            out += _INT16.pack(partition.acknowledge_error_code)
            out += _text(partition.acknowledge_error_message)
            leader = partition.current_leader
            out += _NO_LEADER if leader is None else _LEADER.pack(*leader)
            out += uvarint(partition.records_bytes + 1)
            if partition.records_bytes:
                records_bytes += partition.records_bytes
                pieces.append(bytes(out))
                out.clear()
            out += uvarint(len(partition.acquired) + 1)
            for first, last, delivery_count in partition.acquired:
                out += _ACQUIRED.pack(first, last, min(delivery_count, _MAX_INT16))
            out += _NO_TAGS
        out += _NO_TAGS
    out += encode_endpoints(nodes)
    out += _NO_TAGS
    pieces.append(bytes(out))
    size = _FRAME.size - _INT32.size + sum(map(len, pieces)) + records_bytes
    pieces[0] = _FRAME.pack(size, correlation_id, throttle_ms, error_code) + pieces[0]
    return pieces


def _text(text: str | None) -> bytes:
    if text is None:
        return _NO_TEXT
    data = text.encode()
    return uvarint(len(data) + 1) + data
