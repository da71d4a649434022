"""Consumers of a queue over gRPC: streams of Queue.Work, each on a connection of its own.

The client writes HTTP/2 frames itself: a gRPC library would be the limit.
"""

import socket
from collections.abc import Iterator
from struct import Struct
from typing import Any

from google.protobuf.message import Message

from alpacamq.v1 import queue_pb2

from .dialogue import Dialogue, Finished, together

GROUP = "bench"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
ACK, END_HEADERS = 1, 4
STREAM = 1
WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = (1 << 16) - 1
_WINDOW_UPDATE, _INITIAL_WINDOW_SIZE = 8, 4
_HEAD = Struct(">HBBBI")
_PREFIX = Struct(">BI")


def drain(address: str, topic: str, messages: int, consumers: int, credit: int, batch: int) -> None:
    """Receive and acknowledge all messages of a topic.

    Each consumer holds up to `credit`, and acknowledges at least `batch` together.
    """
    opened = queue_pb2.WorkOpen(topic=topic, group=GROUP, credit=credit)
    unread = unsettled = messages

    def consume() -> Dialogue:
        nonlocal unread, unsettled
        data = yield _open(address, "Queue/Work") + _message(queue_pb2.WorkRequest(open=opened))
        content = b""
        pending: list[int] = []
        while True:
            reply = b""
            done = 0
            for kind, flags, at, end in _frames(data):
                content, answer = _received(content, kind, flags, data[at:end])
                reply += answer
                done = end
            content, responses = _responses(content, queue_pb2.WorkResponse)
            for response in responses:
                assert not response.errors, response.errors[0]
                unsettled -= len(response.settled)
                pending += [each.delivery_id for each in response.messages]
                unread -= len(response.messages)
            # Near the end there may be no whole batch for everyone.
            if len(pending) >= batch or (pending and unread < 2 * consumers * credit):
                reply += _message(queue_pb2.WorkRequest(ack=pending))
                pending = []
            if unsettled <= 0:
                raise Finished
            data = data[done:] + (yield reply)

    together(address, [consume() for _ in range(consumers)])
    assert unsettled == 0, f"{-unsettled} messages more than were sent"


class Stream:
    """The only stream of a connection, for a client that waits for what it receives."""

    def __init__(self, address: str, method: str, response: type[Message]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._response = response
        self._data = self._content = b""
        self.socket.sendall(_open(address, method))

    def send(self, request: Message) -> None:
        self.socket.sendall(_message(request))

    def receive(self) -> list[Any]:
        """Read once from the socket; return the responses that are complete."""
        received = self.socket.recv(1 << 16)
        if not received:
            raise ConnectionError("the server hung up")
        self._data += received
        done = 0
        for kind, flags, at, end in _frames(self._data):
            self._content, answer = _received(self._content, kind, flags, self._data[at:end])
            if answer:
                self.socket.sendall(answer)
            done = end
        self._data = self._data[done:]
        self._content, responses = _responses(self._content, self._response)
        return responses

    def close(self) -> None:
        self.socket.close()


def _received(content: bytes, kind: int, flags: int, payload: bytes) -> tuple[bytes, bytes]:
    """Return the content with that of a frame, and what has to be sent in return."""
    if kind == DATA:
        return content + payload, b""
    if kind in (SETTINGS, PING) and not flags & ACK:
        return content, _frame(kind, ACK, 0, payload if kind == PING else b"")
    if kind in (RESET, GO_AWAY):
        raise ConnectionError(f"the stream ended: {payload!r}")
    return content, b""


def _open(address: str, method: str) -> bytes:
    """Begin a connection and the headers of its only stream; nothing received waits for a window."""
    settings = Struct(">HI").pack(_INITIAL_WINDOW_SIZE, WINDOW)
    window = (WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")
    headers = b"\x83\x86"  # POST, http, as indexed in HPACK's table
    headers += b"\x04" + _string(f"/alpacamq.v1.{method}".encode()) + b"\x01" + _string(address.encode())
    headers += b"\x0f\x10" + _string(b"application/grpc") + b"\x00" + _string(b"te") + _string(b"trailers")
    return b"".join(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _frame(SETTINGS, 0, 0, settings),
            _frame(_WINDOW_UPDATE, 0, 0, window),
            _frame(HEADERS, END_HEADERS, STREAM, headers),
        ]
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def _frames(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Find whole frames: their type and flags, and where their payload begins and ends."""
    at, size = 0, len(data)
    while at + _HEAD.size <= size:
        high, low, kind, flags, _ = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + (high << 8 | low)
        if end > size:
            return
        yield kind, flags, at + _HEAD.size, end
        at = end


def _message(request: Message) -> bytes:
    body = request.SerializeToString()
    return _frame(DATA, 0, STREAM, _PREFIX.pack(0, len(body)) + body)


def _responses(content: bytes, kind: type[Message]) -> tuple[bytes, list[Any]]:
    """Return the rest of the content, and its whole messages."""
    at = 0
    found = []
    while at + _PREFIX.size <= len(content):
        _, size = _PREFIX.unpack_from(content, at)
        begin = at + _PREFIX.size
        if begin + size > len(content):
            break
        found.append(kind.FromString(content[begin : begin + size]))
        at = begin + size
    return content[at:], found


def _string(text: bytes) -> bytes:
    return bytes([len(text)]) + text
