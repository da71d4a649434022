"""Kafka's frames by hand, for clients so thin that the server is what is measured.

Requests are built once and sent again and again: Produce version 7 with one batch, Fetch version 4,
ListOffsets version 1, all of which old and new brokers serve and whose responses have a known size.
"""

import socket
import time
from struct import Struct

from alpacamq.model.records import Record, write_batch

PRODUCE, FETCH, LIST_OFFSETS, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 1, 2, 17, 18, 36
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION = 7, 4, 1
SASL_HANDSHAKE_VERSION, SASL_AUTHENTICATE_VERSION = 1, 0
CLIENT = b"bench"
REQUEST_TIMEOUT_MS = 30_000
SOCKET_TIMEOUT_S = 60.0

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")
_PRODUCE_HEAD = Struct(">hhi")
_PARTITION_OFFSET = Struct(">iqi")
_RETRY_S = 0.005


class Refused(Exception):
    """The server answered with an error code."""


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=SOCKET_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def wait_until_answering(address: str, within_s: float) -> None:
    """Return once the server answers a request; TimeoutError when it does not."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with connect(address) as connection:
                connection.sendall(_request(API_VERSIONS, 0, b""))
                receive(connection)
                return
        except OSError:
            time.sleep(_RETRY_S)
    raise TimeoutError(f"{address} does not answer")


def receive(connection: socket.socket) -> bytes:
    """The payload of the next frame."""
    (size,) = _SIZE.unpack(receive_exactly(connection, _SIZE.size))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += chunk
    return bytes(data)


def log_in(connection: socket.socket, user: str, password: str) -> None:
    """Authenticate with PLAIN."""
    token = f"\0{user}\0{password}".encode()
    for request in (
        _request(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, _string("PLAIN")),
        _request(SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION, _SIZE.pack(len(token)) + token),
    ):
        connection.sendall(request)
        code = int.from_bytes(receive(connection)[4:6], "big", signed=True)
        if code:
            raise Refused(f"the login of {user} was answered with error {code}")


def one_record_batch(size: int) -> bytes:
    """A batch of one record with a value of `size` bytes, stamped now."""
    return batch_of(1, size)


def batch_of(records: int, size: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return bytes(write_batch([Record(index, now_ms, None, b"x" * size) for index in range(records)]))


def produce_request(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    body = _PRODUCE_HEAD.pack(-1, acks, REQUEST_TIMEOUT_MS)  # -1: no transactional id
    body += _SIZE.pack(1) + _string(topic) + _SIZE.pack(1) + _SIZE.pack(partition)
    return _request(PRODUCE, PRODUCE_VERSION, body + _SIZE.pack(len(batch)) + batch)


def produce_response_bytes(topic: str) -> int:
    """The size of every answer to `produce_request`, frame included."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8 + 8) + 4


def check_produced(response: bytes, topic: str) -> None:
    """Refuse an answer (frame included) that carries an error."""
    at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    code = int.from_bytes(response[at : at + 2], "big", signed=True)
    if code:
        raise Refused(f"Produce was answered with error {code}")


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    body = Struct(">iiiib").pack(-1, 0, 0, max_bytes, 0)
    body += _SIZE.pack(1) + _string(topic) + _SIZE.pack(1)
    return _request(FETCH, FETCH_VERSION, body + _PARTITION_OFFSET.pack(partition, offset, max_bytes))


def fetch_response_bytes(topic: str) -> int:
    """The size of an answer to `fetch_request`, frame included, without the batches."""
    return 4 + 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8 + 4) + 4


def check_fetched(payload: bytes, topic: str) -> None:
    """Refuse a Fetch response of one partition that carries an error or no records."""
    at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    code, _, _, _, size = Struct(">hqqii").unpack_from(payload, at)
    if code or size <= 0:
        raise Refused(f"Fetch was answered with error {code} and {size} bytes")


def offset_for_timestamp_request(topic: str, partition: int, timestamp_ms: int) -> bytes:
    body = _SIZE.pack(-1) + _SIZE.pack(1) + _string(topic) + _SIZE.pack(1)
    return _request(LIST_OFFSETS, LIST_OFFSETS_VERSION, body + Struct(">iq").pack(partition, timestamp_ms))


def offset_for_timestamp(payload: bytes, topic: str) -> int:
    """The offset in a ListOffsets response of one partition."""
    at = 4 + 4 + 2 + len(topic) + 4 + 4
    code, _, offset = Struct(">hqq").unpack_from(payload, at)
    if code:
        raise Refused(f"ListOffsets was answered with error {code}")
    return int(offset)


def _request(key: int, version: int, body: bytes) -> bytes:
    payload = _HEADER.pack(key, version, 0, len(CLIENT)) + CLIENT + body
    return _SIZE.pack(len(payload)) + payload


def _string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()
