"""Closed connections are freed at once.

A connection in a reference cycle would wait for the garbage collector, and one that was open during a long
collection would stay for ever: the broker exempts what such a collection has found (gc.freeze).
"""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.http.reader import RequestReader
from alpacamq.api.http.server import Connection as HttpConnection
from alpacamq.api.http.server import HttpListener
from alpacamq.api.kafka.call import Backend
from alpacamq.api.kafka.connection import Connection as KafkaConnection
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.api.listening import ListenerSettings
from alpacamq.api.tls import Handshakes, ListenerTls, TlsConnection
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.tls import Certificates, TlsSettings
from alpacamq.model.address import Address
from alpacamq.node.config import KafkaConfig
from alpacamq.telemetry.logs import capture_logs
from tests.broker.open_brokers import running
from tests.certificates import Authority, client_context

from .http.serving import EchoApp, Limits

COUNT = 20
# The event loop closes sockets later, and the last response of a connection precedes its end.
MAX_TURNS = 200
# The search for idle connections keeps the last one that it has seen, with its transport and its reader.
KEPT = 3
KAFKA_REQUEST = b"\0\0\0\x0e" + b"\0\x12\0\0" + b"\0\0\0\1" + b"\0\4test"
HTTP_REQUEST = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"
# By API: what a client sends before it closes the connection, or the broker does.
SENT: Mapping[str, Mapping[str, bytes]] = {
    "kafka": {
        "nothing": b"",
        "a part of a request": b"\0\0",
        "a request": KAFKA_REQUEST,
        "several requests": KAFKA_REQUEST * 5,
        "garbage": b"\xff" * 8,
    },
    "http": {
        "nothing": b"",
        "a part of a request": b"GET",
        "a request": HTTP_REQUEST,
        "a request that takes a task": HTTP_REQUEST.replace(b"echo", b"later"),
        "several requests": HTTP_REQUEST * 5,
        "garbage": b"\xff" * 8 + b"\r\n\r\n",
    },
}


class _Forgetful(EchoApp):
    """Keeps no request: each has its connection."""

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        answer = super().__call__(request)
        self.requests.clear()
        return answer


@asynccontextmanager
async def listening(
    directory: Path, authority: Authority
) -> AsyncIterator[Mapping[str, Mapping[str, Address]]]:
    """The addresses of each API, by whether it uses TLS."""
    server = authority.server()
    certificates = Certificates(TlsSettings(certificate=server.certificate, key=server.key), SystemClock())
    tls = ListenerTls(certificates=certificates, handshakes=Handshakes())
    any_port = Address("127.0.0.1", 0)
    settings = [
        ListenerSettings(name="plain", address=any_port),
        ListenerSettings(name="encrypted", address=any_port, tls=tls),
    ]
    async with running(directory) as broker:
        kafka, http = (
            Listener.of(settings, KafkaConfig(), None),
            HttpListener.of(settings, Limits(), "http", None),
        )
        host, port = kafka.bind()
        http.bind()
        requests = KafkaRequests(Backend(broker=broker, host=host, port=port))
        tasks = [asyncio.create_task(kafka.run(requests)), asyncio.create_task(http.run(_Forgetful()))]
        try:
            await kafka.listening.wait()
            await http.listening.wait()
            yield {"kafka": kafka.addresses, "http": http.addresses}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def alive() -> list[Any]:
    kinds = (KafkaConnection, HttpConnection, TlsConnection, RequestReader)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def visit(address: Address, context: ssl.SSLContext | None, sent: bytes) -> None:
    """Open a connection, send something, and close it."""
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        if sent:
            writer.write(sent)
            await writer.drain()
        if len(sent) > 3:
            await reader.read(1)  # an answer, or the end
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


async def left_after(address: Address, context: ssl.SSLContext | None, sent: bytes) -> int:
    """Return how many connections are still there after they were closed."""
    before = len(alive())
    for _ in range(COUNT):
        await visit(address, context, sent)
    turns = 0
    while (left := len(alive()) - before) > KEPT and turns < MAX_TURNS:
        await asyncio.sleep(0.01)
        turns += 1
    return left


def test_closed_connections_are_freed_without_the_garbage_collector(
    tmp_path: Path, without_collections: None
) -> None:
    authority = Authority(tmp_path / "certificates")
    context = client_context(authority)

    async def run() -> dict[tuple[str, str, str], int]:
        async with listening(tmp_path / "data", authority) as addresses:
            return {
                (api, listener, name): await left_after(
                    addresses[api][listener], context if listener == "encrypted" else None, sent
                )
                for api, examples in SENT.items()
                for listener in ("plain", "encrypted")
                for name, sent in examples.items()
            }

    with capture_logs():
        left = uvloop.run(run())
    assert {key: count for key, count in left.items() if count > KEPT} == {}
