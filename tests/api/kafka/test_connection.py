"""Connections with sockets that are real and requests that are not: who has to give way, and when."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import pytest

from alpacamq.api.kafka import connection as connection_module
from alpacamq.api.kafka.connection import Answer, Connection, Shared
from alpacamq.api.kafka.inbox import SCRATCH_BYTES
from alpacamq.node.config import KafkaConfig
from alpacamq.telemetry.logs import capture_logs

MIB = 1 << 20
ROOM_BYTES = 4 * MIB
# More than the socket's buffers on both sides take, so that a client has to read for it to be sent.
ANSWER_BYTES = 32 * MIB
CONFIG = KafkaConfig(
    max_request_bytes=ROOM_BYTES,
    in_flight_bytes=ROOM_BYTES,
    connection_in_flight_bytes=MIB,
    frame_timeout_ms=30_000,
)
HOLD = b"hold"


@dataclass
class Requests:
    """Takes every frame for a request that is answered when the test says so."""

    frames: list[int] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    held: list[Connection] = field(default_factory=list)

    def handle(self, connection: Connection, frame: memoryview) -> None:
        self.frames.append(len(frame))
        self.answers.append(connection.reserve())
        if frame == HOLD:
            connection.hold()
            self.held.append(connection)

    def opened(self, connection: Connection) -> None: ...

    def end_turn(self) -> None: ...


@dataclass
class Clock:
    """The time that connections see."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Listening:
    """A listener, what it shares, and the requests that have arrived."""

    shared: Shared
    requests: Requests
    address: tuple[str, int]

    async def connect(self) -> tuple[socket.socket, Connection]:
        """A client, and the broker's side of its connection."""
        loop = asyncio.get_running_loop()
        before = set(self.shared.connections)
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, self.address)
        await until(lambda: len(self.shared.connections) > len(before))
        (connection,) = self.shared.connections - before
        return client, connection


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go round until something has come true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


def send(client: socket.socket, data: bytes) -> Awaitable[None]:
    return asyncio.get_running_loop().sock_sendall(client, data)


async def read_all(client: socket.socket, size: int) -> None:
    loop = asyncio.get_running_loop()
    while size:
        size -= len(await loop.sock_recv(client, min(size, MIB)))


def framed(payload: bytes) -> bytes:
    return pack(">i", len(payload)) + payload


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection_module, "monotonic", clock)
    return clock


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    loop = asyncio.get_running_loop()
    requests = Requests()
    async with asyncio.TaskGroup() as tasks:
        shared = Shared(loop, requests, CONFIG, SCRATCH_BYTES, tasks, None)
        server = await loop.create_server(lambda: Connection(loop, shared), "127.0.0.1", 0)
        try:
            yield Listening(shared, requests, server.sockets[0].getsockname())
        finally:
            server.close()
            for connection in list(shared.connections):
                connection.close("the test is over")


async def stopped_reading(broker: Listening) -> tuple[socket.socket, Connection]:
    """A client that has sent a part of a large frame and does not read the answer that came meanwhile."""
    client, connection = await broker.connect()
    await send(client, framed(b"request"))
    await send(client, pack(">i", ROOM_BYTES) + bytes(100_000))
    await until(lambda: connection._inbox.received_bytes == 100_000)
    broker.requests.answers[0].fill((bytes(ANSWER_BYTES),))
    await until(lambda: connection._paused)
    return client, connection


async def test_room_that_others_wait_for_is_taken_from_a_client_that_does_not_read(clock: Clock) -> None:
    async with listening() as broker:
        client, connection = await stopped_reading(broker)
        with closing(client):
            connection.check_pace(clock.now)
            assert not connection.is_closed
            clock.now += 60
            connection.check_pace(clock.now)
            assert connection.is_closed


async def test_a_client_is_not_blamed_for_the_time_it_was_not_read_from(clock: Clock) -> None:
    async with listening() as broker:
        client, connection = await stopped_reading(broker)
        with closing(client):
            clock.now += 60
            connection.check_timeouts(clock.now)  # nothing is read from it, so nothing can be late
            await read_all(client, ANSWER_BYTES)
            await until(lambda: not connection._paused)
            connection.check_pace(clock.now)
            connection.check_timeouts(clock.now)
            assert not connection.is_closed
            clock.now += 60
            connection.check_timeouts(clock.now)  # from now on it is late
            assert connection.is_closed


async def test_a_frame_that_began_behind_a_long_request_has_its_time_from_when_that_is_done(
    clock: Clock,
) -> None:
    async with listening() as broker:
        client, connection = await broker.connect()
        with closing(client):
            await send(client, framed(HOLD) + framed(b"next")[:6])
            await until(lambda: bool(broker.requests.held))
            clock.now += 60
            connection.check_timeouts(clock.now)
            connection.proceed()
            connection.check_timeouts(clock.now)
            assert not connection.is_closed
            await send(client, framed(b"next")[6:])
            await until(lambda: len(broker.requests.frames) == 2)


@pytest.fixture
def failing_map(monkeypatch: pytest.MonkeyPatch) -> Callable[[Shared, Exception | None], None]:
    """Have mappings for large frames fail from now on, or work again."""

    def fail(shared: Shared, error: Exception | None) -> None:
        take = type(shared.buffers).take

        def refuse(size: int) -> Any:
            if error is not None:
                raise error
            return take(shared.buffers, size)

        monkeypatch.setattr(shared.buffers, "take", refuse)

    return fail


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOMEM, "Cannot allocate memory"), id="the system refuses"),
        pytest.param(MemoryError(), id="the allocator refuses"),
    ],
)
async def test_a_mapping_that_fails_costs_only_the_connection_that_wanted_it(
    error: Exception, failing_map: Callable[[Shared, Exception | None], None]
) -> None:
    async with listening() as broker:
        shared = broker.shared
        first_client, first = await broker.connect()
        second_client, second = await broker.connect()
        with closing(first_client), closing(second_client), capture_logs() as logs:
            # The first takes all the room there is, the one that goes beyond it included; the second waits.
            holder_client, holder = await broker.connect()
            await send(holder_client, pack(">i", ROOM_BYTES) + bytes(ROOM_BYTES - 1))
            await until(lambda: holder._inbox.received_bytes == ROOM_BYTES - 1)
            await send(first_client, pack(">i", ROOM_BYTES) + bytes(ROOM_BYTES - 1))
            await until(lambda: first._inbox.received_bytes == ROOM_BYTES - 1)
            await send(second_client, pack(">i", MIB) + bytes(MIB // 16))
            await until(lambda: second._awaits_room)

            failing_map(shared, error)
            await send(first_client, b"x")  # all of it is there: it is done with, and gives its room back
            await until(lambda: second.is_closed)
            assert not first.is_closed
            assert broker.requests.frames == [ROOM_BYTES]

            failing_map(shared, None)
            await send(holder_client, b"x")
            await send(first_client, framed(bytes(ROOM_BYTES)))  # all the room is free again
            await until(lambda: broker.requests.frames == [ROOM_BYTES] * 3)
            holder_client.close()
    reasons = [each["reason"] for each in logs if each["event"] == "connection_closed"]
    assert f"no memory for a request of {MIB} bytes" in reasons[0]
    assert not [each for each in logs if each["event"] == "connection_crashed"]


async def test_a_mapping_that_fails_at_once_closes_the_connection(
    failing_map: Callable[[Shared, Exception | None], None],
) -> None:
    async with listening() as broker:
        client, connection = await broker.connect()
        other_client, other = await broker.connect()
        with closing(client), closing(other_client), capture_logs() as logs:
            failing_map(broker.shared, OSError(errno.ENOMEM, "Cannot allocate memory"))
            await send(client, pack(">i", MIB) + bytes(MIB // 16))
            await until(lambda: connection.is_closed)
            failing_map(broker.shared, None)
            await send(other_client, framed(bytes(ROOM_BYTES)))
            await until(lambda: broker.requests.frames == [ROOM_BYTES])
            assert not other.is_closed
    assert "no memory for a request" in logs[0]["reason"]
