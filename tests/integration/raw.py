"""A raw socket with Kafka's frames, to send invalid requests and to read exact answers."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple

PRODUCE = 0
FETCH = 1
METADATA = 3
API_VERSIONS = 18
CREATE_TOPICS = 19

_SIZE = Struct(">i")
_HEADER = Struct(">hhi")
_API = Struct(">hhh")
_PARTITION = Struct(">ihqqi")

TIMEOUT_S = 20.0


def frame(payload: bytes) -> bytes:
    return _SIZE.pack(len(payload)) + payload


def string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def request(api: int, version: int, body: bytes = b"", *, correlation: int = 7, client: str = "raw") -> bytes:
    """Return a request with header version 1, including the frame."""
    return frame(_HEADER.pack(api, version, correlation) + string(client) + body)


def produce_request(topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1) -> bytes:
    """Return a Produce request (version 3) of one batch, including the frame."""
    body = Struct(">hhi").pack(-1, acks, 10_000) + _SIZE.pack(1) + string(topic)
    return request(PRODUCE, 3, body + Struct(">iii").pack(1, partition, len(batch)) + batch)


class FetchedPartition(NamedTuple):
    """One partition of a Fetch response."""

    partition: int
    error: int
    high_watermark: int
    records: bytes


class Produced(NamedTuple):
    """The answer to one Produce request of one batch."""

    error: int
    base_offset: int


class RawConnection:
    """One connection to send arbitrary bytes on."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S)

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Return the payload of the next frame; ConnectionError if the broker closes the connection."""
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Wait for the broker to close the connection; fails if it answers instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def api_versions(self) -> dict[int, tuple[int, int]]:
        self.send(request(API_VERSIONS, 0))
        return parse_api_versions(self.receive())[1]

    def fetch(
        self, topic: str, offsets: Sequence[tuple[int, int]], *, max_bytes: int = 10_000_000
    ) -> list[FetchedPartition]:
        """Send one Fetch (version 4) of these partitions, each from its offset."""
        self.send(fetch_request(topic, offsets, max_bytes=max_bytes))
        return parse_fetch(self.receive())

    def produce(
        self, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1
    ) -> Produced:
        """Send one Produce (version 3) with arbitrary bytes as the batch."""
        self.send(produce_request(topic, batch, partition=partition, acks=acks))
        return self.produced(topic)

    def produced(self, topic: str) -> Produced:
        """Return the answer to a Produce that has been sent."""
        answer = self.receive()
        # After the correlation id, one topic's name and its one partition's number.
        at = 4 + 4 + len(string(topic)) + 4 + 4
        return Produced(*Struct(">hq").unpack_from(answer, at))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[RawConnection]:
    connection = RawConnection(address)
    try:
        yield connection
    finally:
        connection.close()


def fetch_request(
    topic: str,
    offsets: Sequence[tuple[int, int]],
    *,
    max_bytes: int = 10_000_000,
    client: str = "raw",
    wait_ms: int = 0,
) -> bytes:
    """Return a Fetch with replica -1, at least one byte if `wait_ms` is given, read uncommitted."""
    body = Struct(">iiiib").pack(-1, wait_ms, min(wait_ms, 1), max_bytes, 0)
    body += _SIZE.pack(1) + string(topic) + _SIZE.pack(len(offsets))
    for partition, offset in offsets:
        body += Struct(">iqi").pack(partition, offset, max_bytes)
    return request(FETCH, 4, body, client=client)


def parse_fetch(payload: bytes) -> list[FetchedPartition]:
    """Return the partitions of a Fetch response (version 4) for one topic."""
    at = 4 + 4 + 4  # correlation id, throttle time, number of topics
    at += 2 + int.from_bytes(payload[at : at + 2], "big")
    (count,) = _SIZE.unpack_from(payload, at)
    at += 4
    partitions = []
    for _ in range(count):
        partition, error, high_watermark, _, aborted = _PARTITION.unpack_from(payload, at)
        assert aborted <= 0
        at += _PARTITION.size
        (size,) = _SIZE.unpack_from(payload, at)
        at += 4
        partitions.append(FetchedPartition(partition, error, high_watermark, payload[at : at + max(size, 0)]))
        at += max(size, 0)
    assert at == len(payload)
    return partitions


def parse_api_versions(payload: bytes) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return error code and version ranges of an ApiVersions response (version 0)."""
    error = int.from_bytes(payload[4:6], "big")
    (count,) = _SIZE.unpack_from(payload, 6)
    assert len(payload) == 10 + count * _API.size
    ranges = (_API.unpack_from(payload, 10 + index * _API.size) for index in range(count))
    return error, {api: (first, last) for api, first, last in ranges}
