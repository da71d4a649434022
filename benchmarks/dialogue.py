"""The cheapest clients that Python allows: raw connections in one epoll loop.

A dialogue is a generator that yields the bytes to send next, none if it needs more of an answer, and
receives the bytes that have arrived.
"""

import re
import select
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack

from . import wire

Dialogue = Generator[bytes, bytes, None]

RECEIVED_BYTES = 1 << 18
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_SUCCESS = (b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 204")


class Turns:
    """The requests that all connections make together: a number, or as many as begin within a time."""

    def __init__(self, requests: int | None = None, *, seconds: float | None = None) -> None:
        assert (requests is None) != (seconds is None)
        self._requests = requests
        self._until = None if seconds is None else time.monotonic() + seconds
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.taken == self._requests or (self._until is not None and time.monotonic() >= self._until):
            raise StopIteration
        self.taken += 1
        return self.taken


class Finished(Exception):
    """Raised by a dialogue to end all of them."""


def together(address: str, dialogues: Iterable[Dialogue]) -> None:
    """Run each dialogue on a connection of its own until all have ended."""
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        running: dict[int, tuple[socket.socket, Callable[[bytes], bytes]]] = {}
        for dialogue in dialogues:
            connection = stack.enter_context(wire.connect(address))
            # With a timeout each receive would wait for its socket first, which the loop has done.
            connection.settimeout(None)
            stack.callback(dialogue.close)
            if (first := next(dialogue, None)) is not None:
                connection.sendall(first)
                running[connection.fileno()] = connection, dialogue.send
                poll.register(connection, select.EPOLLIN)
        try:
            while running:
                _serve(poll, running)
        except Finished:
            pass


def _serve(poll: select.epoll, running: dict[int, tuple[socket.socket, Callable[[bytes], bytes]]]) -> None:
    ready = poll.poll(wire.SOCKET_TIMEOUT_S)
    if not ready:
        raise TimeoutError("the server does not answer")
    for descriptor, _ in ready:
        connection, proceed = running[descriptor]
        received = connection.recv(RECEIVED_BYTES)
        if not received:
            raise ConnectionError("the server hung up")
        try:
            request = proceed(received)
        except StopIteration:
            poll.unregister(descriptor)
            del running[descriptor]
        else:
            if request:
                connection.sendall(request)


def http_head(address: str, method: str, path: str) -> bytes:
    """Return the request line and headers of an HTTP request, without its length."""
    return f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json".encode()


def http_request(head: bytes, body: bytes = b"") -> bytes:
    return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def ask(request: bytes) -> Generator[bytes, bytes, bytes]:
    """Send an HTTP request; return the body of the response, which must be a success."""
    data = yield request
    while True:
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            found = _LENGTH.search(data, 0, end + 2)
            if len(data) >= end + 4 + (int(found[1]) if found else 0):
                break
        data += yield b""
    if not data.startswith(_SUCCESS):
        raise RuntimeError(f"{data[:700]!r}")
    return data[end + 4 :]
