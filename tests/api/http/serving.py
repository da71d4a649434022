"""A listener on a loop of its own, and a client that can say anything, right or wrong."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import uvloop

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.http.server import HttpListener
from alpacamq.telemetry.logs import capture_logs

TIMEOUT_S = 20.0
KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a listener under test; generous, unless a test is about them."""

    max_connections: int = 2000
    idle_timeout_ms: int = 60_000
    header_timeout_ms: int = 60_000
    max_body_bytes: int = 4 * MIB
    in_flight_bytes: int = 64 * MIB


@dataclass
class EchoApp:
    """Echo the request; some paths behave differently."""

    requests: list[Request] = field(default_factory=list)
    begun: int = 0
    ended: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        self.requests.append(request)
        path, _, argument = request.path[1:].partition("/")
        match path:
            case "later":
                return self._later(request)
            case "wait":
                return self._wait(request)
            case "big":
                return Response(200, bytes(int(argument)), "application/octet-stream")
            case "fail":
                raise RuntimeError("the secret of the house")
            case "fail-later":
                return self._fail_later()
            case "cancelled":
                return self._cancelled()
            case "bad-header":
                return Response(200, b"", headers=(("X-Bad", "a\r\nSet-Cookie: b"),))
            case "empty":
                return Response(204)
        return self.echo(request)

    def echo(self, request: Request) -> Response:
        said = {
            "method": request.method,
            "path": request.path,
            "query": request.query_string,
            "host": request.host,
            "body": request.body.decode("latin-1"),
        }
        return Response(200, json.dumps(said).encode(), headers=(("X-Echo", "yes"),))

    async def _later(self, request: Request) -> Response:
        await asyncio.sleep(0)
        return self.echo(request)

    async def _wait(self, request: Request) -> Response:
        """A long poll that ends when a test says so, or never."""
        self.begun += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        return self.echo(request)

    async def _fail_later(self) -> Response:
        await asyncio.sleep(0)
        raise RuntimeError("the secret of the house")

    async def _cancelled(self) -> Response:
        raise asyncio.CancelledError


class Server:
    """One listener serving one app until it is stopped."""

    def __init__(self, limits: Limits, log: Sequence[MutableMapping[str, Any]]) -> None:
        self._limits = limits
        self._log = log
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        # What the loop itself complained of; there is never a reason for that.
        self.complaints: list[str] = []
        self.app = EchoApp()
        self.address = ("127.0.0.1", 0)

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        self.app.released = asyncio.Event()
        self._stop = asyncio.Event()
        listener = HttpListener(*self.address, self._limits)
        self.address = listener.bind()
        task = asyncio.create_task(listener.run(self.app))
        await listener.listening.wait()
        self._ready.set()
        await self._stop.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def start(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self

    def stop(self) -> None:
        """Shut down as the node does."""
        if self._thread.is_alive():
            self.call(lambda: self._stop.set())
            self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the listener did not end"

    def logged(self, event: str) -> list[MutableMapping[str, Any]]:
        return [entry for entry in self._log if entry["event"] == event]

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop do something."""
        self._loop.call_soon_threadsafe(function)


@contextmanager
def served(**limits: int) -> Iterator[Server]:
    """A server for the duration of the block, which must end without a complaint."""
    with capture_logs() as logged:
        server = Server(Limits(**limits), logged).start()
        try:
            yield server
        finally:
            server.stop()
    assert not server.complaints
    assert not server.logged("connection_crashed")


@dataclass(frozen=True)
class Answer:
    """A response, taken apart."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection on which anything can be said."""

    def __init__(self, address: tuple[str, int], host: str = "") -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S, source_address=(host, 0))
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, to_head: bool = False) -> Answer:
        """The next response; ConnectionError when there is none."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert status_line.startswith("HTTP/1.1 ")
        size = 0 if to_head else int(headers.get("content-length", 0))
        while len(self._received) < size:
            self._receive()
        body, self._received = self._received[:size], self._received[size:]
        return Answer(int(status_line[9:12]), headers, body)

    def ask(self, request: bytes) -> Answer:
        self.send(request)
        return self.answer()

    def finish(self) -> None:
        """Send no more."""
        self.socket.shutdown(socket.SHUT_WR)

    def all_answers(self) -> list[Answer]:
        """Every response until the server hangs up; they must be whole."""
        answers = []
        while True:
            try:
                answers.append(self.answer())
            except ConnectionResetError:
                return answers
            except ConnectionError:
                assert not self._received, "the last answer is cut short"
                return answers

    def is_closed(self) -> bool:
        """Wait for the server to hang up; false when it says something instead."""
        if self._received:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self) -> None:
        data = self.socket.recv(64 * KIB)
        if not data:
            raise ConnectionError(f"closed after {self._received!r}")
        self._received += data


def get(path: str = "/", *, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n".encode("latin-1")


def post(body: bytes, path: str = "/", *, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a.example\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode("latin-1") + body
