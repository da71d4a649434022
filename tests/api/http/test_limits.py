"""Limits of HTTP clients, and responses beyond them."""

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from typing import cast

import psutil
import pytest

from alpacamq.api.http.messages import Refused, Request
from alpacamq.api.http.reader import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    PORTION_BYTES,
    RequestReader,
    Room,
)
from alpacamq.api.http.server import Backlog, Connection, HttpListener, Shared
from alpacamq.broker.quotas import Quotas
from tests.waiting import eventually

from .serving import KIB, MIB, Client, EchoApp, Limits, Server, get, post, served

SHORT_MS = 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(get("/" + "a" * (MAX_TARGET_BYTES - 1)), 200, id="longest target"),
        pytest.param(get("/" + "a" * MAX_TARGET_BYTES), 414, id="target too long"),
        pytest.param(get(headers="X: y\r\n" * (MAX_HEADERS - 1)), 200, id="most headers"),
        pytest.param(get(headers="X: y\r\n" * MAX_HEADERS), 431, id="too many headers"),
        pytest.param(get(headers=f"X: {'y' * (MAX_HEADER_BYTES - 20)}\r\n"), 200, id="largest headers"),
        pytest.param(get(headers=f"X: {'y' * MAX_HEADER_BYTES}\r\n"), 431, id="headers too large"),
        pytest.param(get(headers=f"{'x' * MAX_HEADER_BYTES}: y\r\n"), 431, id="name too large"),
        pytest.param(post(bytes(4 * MIB)), 200, id="largest body"),
        pytest.param(post(bytes(4 * MIB + 1)), 413, id="body too large"),
    ],
)
def test_sizes_are_limited(client: Client, request_bytes: bytes, status: int) -> None:
    answer = client.ask(request_bytes)

    assert answer.status == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert client.is_closed()


@pytest.mark.parametrize("split", range(0, 70, 3))
@pytest.mark.parametrize(
    ("line", "data"),
    [
        pytest.param(b"ffffffffffffffff\r\n", b"hello", id="2^64 - 1"),
        pytest.param(b"7FFFFFFFFFFFFFFF;a=b\r\n", b"", id="2^63 - 1, with an extension"),
        pytest.param(b"5\r\nhello\r\n400001\r\n", b"he", id="one byte too many in the second chunk"),
        pytest.param(b"000000000400001\r\n", b"", id="leading zeros"),
    ],
)
def test_a_chunk_that_announces_too_much_is_refused_at_once(line: bytes, data: bytes, split: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    refused: list[object] = []
    reader = RequestReader("peer", 4 * MIB, Room(64 * MIB))
    for part in parted(head + line + data, split):
        reader.feed(part, 0.0)
        refused += [arrival.what for arrival in reader.arrivals]
        reader.arrivals.clear()

    assert [what.status for what in refused if isinstance(what, Refused)] == [413]


@pytest.mark.parametrize("split", range(0, 70, 3))
def test_chunks_within_the_limit_are_taken_however_they_arrive(split: int) -> None:
    body = b"400000;ffffffffffffffff=1\r\n" + bytes(4 * MIB) + b"\r\n0\r\n\r\n"
    reader = RequestReader("peer", 4 * MIB, Room(64 * MIB))
    for part in parted(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body, split):
        reader.feed(part, 0.0)

    (arrival,) = reader.arrivals
    assert isinstance(arrival.what, Request)
    assert len(arrival.what.body) == 4 * MIB


def test_a_chunk_without_end_is_answered(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello")

    assert client.answer().status == 413
    assert client.is_closed()


def parted(data: bytes, split: int) -> list[bytes]:
    """`data` in two parts, cut `split` bytes behind the request line; byte by byte for 0."""
    if not split:
        small = [data[at : at + 1] for at in range(200)]
        return [*small, *(data[at : at + 8192] for at in range(200, len(data), 8192))]
    at = data.index(b"\n") + split
    return [part for part in (data[:at], data[at:]) if part]


@pytest.mark.parametrize(
    ("begun", "more", "status"),
    [
        pytest.param(b"GET /", b"a", 414, id="target"),
        pytest.param(b"GET / HTTP/1.1\r\nX", b"x", 431, id="name"),
        pytest.param(b"GET / HTTP/1.1\r\nX: ", b"y", 431, id="value"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"e",
            431,
            id="chunk extension",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: ",
            b"t",
            431,
            id="trailer",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"T: t\r\n",
            431,
            id="trailers",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n",
            413,
            id="chunks of a byte",
        ),
    ],
)
def test_endless_requests_are_cut_off(begun: bytes, more: bytes, status: int) -> None:
    with served(max_body_bytes=64 * KIB) as server, Client(server.address) as client:
        client.send(begun)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                client.send(more * (16 * KIB // len(more)))

        assert client.answer().status == status
        assert server.app.requests == []


def test_a_chunked_body_is_limited_before_it_is_read_whole(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    client.send(b"%x\r\n%b" % (1 << 40, bytes(5 * MIB)))

    assert client.answer().status == 413


def test_a_client_gets_to_read_why_although_it_sends_on(client: Client) -> None:
    """As most libraries do, it sends all of the body before it reads."""
    client.send(post(bytes(30 * MIB)))

    assert client.answer().status == 413


def test_a_client_that_was_refused_and_sends_on_is_cut_off(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n")
    assert client.answer().status == 413

    def is_cut_off() -> bool:
        try:
            client.send(b"x")
        except ConnectionError:
            return True
        return False

    eventually(is_cut_off)


def test_bodies_of_all_clients_together_are_limited() -> None:
    with served(max_body_bytes=100 * KIB, in_flight_bytes=150 * KIB) as server, ExitStack() as clients:
        holding, refused, small = (clients.enter_context(Client(server.address)) for _ in range(3))
        holding.send(post(bytes(100 * KIB), "/wait"))
        eventually(lambda: server.app.begun)

        answer = refused.ask(post(bytes(100 * KIB)))

        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert small.ask(post(bytes(40 * KIB))).status == 200
        server.call(lambda: server.app.released.set())
        assert holding.answer().status == 200
        assert small.ask(post(bytes(100 * KIB))).status == 200


def test_a_body_that_was_only_announced_keeps_no_other_out() -> None:
    with served(max_body_bytes=100 * KIB, in_flight_bytes=150 * KIB) as server, ExitStack() as clients:
        for _ in range(10):
            announcing = clients.enter_context(Client(server.address))
            announcing.send(post(bytes(100 * KIB))[: -99 * KIB])
        assert clients.enter_context(Client(server.address)).ask(post(bytes(100 * KIB))).status == 200


def test_chunked_bodies_are_counted_too() -> None:
    chunk = b"%x\r\n%b\r\n" % (60 * KIB, bytes(60 * KIB))
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        served(max_body_bytes=100 * KIB, in_flight_bytes=100 * KIB) as server,
        Client(server.address) as first,
        Client(server.address) as second,
    ):
        first.send(head + chunk)
        eventually(lambda: Client(server.address).ask(post(bytes(60 * KIB))).status == 503)

        assert second.ask(head + chunk).status == 503
        first.send(b"0\r\n\r\n")
        assert first.answer().status == 200
        assert Client(server.address).ask(post(bytes(100 * KIB))).status == 200


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(post(bytes(90 * KIB))[:-1], id="inside a body"),
        pytest.param(post(bytes(90 * KIB), "/wait"), id="waiting for an answer"),
        pytest.param(get("/wait") + post(bytes(40 * KIB)), id="with a request in line"),
        pytest.param(post(bytes(90 * KIB))[:-1] + b"\r\n" + b"junk", id="with junk behind it"),
        pytest.param(post(bytes(90 * KIB), headers="A: b\r\n c\r\n"), id="refused"),
        pytest.param(post(bytes(90 * KIB), "/fail"), id="after a bug"),
        pytest.param(get("/big/1000000"), id="without reading"),
    ],
)
def test_memory_of_a_client_is_released_on_disconnect(left: bytes) -> None:
    with served(max_body_bytes=100 * KIB, in_flight_bytes=100 * KIB) as server:
        for _ in range(5):
            with Client(server.address) as client:
                client.send(left)
            eventually(lambda: Client(server.address).ask(post(bytes(100 * KIB))).status == 200)


def test_answers_that_are_not_read_are_limited() -> None:
    with served(in_flight_bytes=8 * MIB) as server, ExitStack() as clients:
        unread = 0

        def is_refused() -> bool:
            client = clients.enter_context(Client(server.address))
            return client.ask(get()).status == 503

        while not is_refused():
            clients.enter_context(Client(server.address)).send(get(f"/big/{16 * MIB}"))
            unread += 1
            assert unread < 10
        clients.close()
        eventually(lambda: Client(server.address).ask(get()).status == 200)


def test_a_client_that_does_not_read_is_not_served_further(server: Server, client: Client) -> None:
    client.send(get(f"/big/{4 * MIB}") * 1000)
    answered = eventually(lambda: len(server.app.requests))

    assert client.answer().status == 200
    assert answered < 50


def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    with served(header_timeout_ms=SHORT_MS) as server, Client(server.address) as client:
        client.send(b"GET / HTTP/1.1\r\nHost:")

        assert client.answer().status == 408
        assert client.is_closed()


def test_a_head_that_drips_is_not_waited_for() -> None:
    with served(header_timeout_ms=SHORT_MS) as server, Client(server.address) as client:
        client.send(b"GET / HTTP/1.1\r\nX: ")

        def drip_ends() -> bool:
            try:
                client.send(b"y")
            except ConnectionError:
                return True
            return False

        eventually(drip_ends)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with served(header_timeout_ms=SHORT_MS) as server, Client(server.address) as client:
        client.send(post(b"abc")[:-1])

        assert client.answer().status == 408
        assert client.is_closed()


def test_an_idle_connection_is_closed_without_a_word() -> None:
    with served(idle_timeout_ms=SHORT_MS) as server, Client(server.address) as client:
        assert client.ask(get()).status == 200

        assert client.is_closed()


def test_empty_lines_do_not_keep_a_connection_open() -> None:
    with served(idle_timeout_ms=SHORT_MS) as server, Client(server.address) as client:

        def is_closed() -> bool:
            try:
                client.send(b"\r\n")
            except ConnectionError:
                return True
            return False

        eventually(is_closed)


def test_a_long_poll_is_not_idle() -> None:
    with (
        served(idle_timeout_ms=SHORT_MS, header_timeout_ms=SHORT_MS) as server,
        Client(server.address) as waiting,
    ):
        waiting.send(get("/wait"))
        eventually(lambda: server.app.begun)
        for _ in range(3):  # as long as idle connections last, several times
            assert Client(server.address).is_closed()

        server.call(lambda: server.app.released.set())

        assert waiting.answer().status == 200


@pytest.mark.parametrize("headers", ["", "Connection: close\r\n"])
def test_a_client_that_does_not_read_is_disconnected(headers: str) -> None:
    with served(idle_timeout_ms=SHORT_MS) as server, Client(server.address) as client:
        client.send(get(f"/big/{32 * MIB}", headers=headers))
        eventually(lambda: server.app.requests)
        mine = client.socket.getsockname()

        def is_hung_up_on() -> bool:
            connections = psutil.Process().net_connections("tcp")
            return not any(each.laddr == server.address and each.raddr == mine for each in connections)

        eventually(is_hung_up_on)


def test_connections_beyond_the_limit_are_refused_cheaply() -> None:
    with served(max_connections=3) as server, ExitStack() as clients:
        inside = [clients.enter_context(Client(server.address)) for _ in range(3)]
        for client in inside:
            client.send(get("/wait"))
        eventually(lambda: server.app.begun == 3)

        for _ in range(2000):
            with Client(server.address) as outside:
                assert outside.answer().status == 503
                assert outside.is_closed()

        eventually(lambda: server.logged("connections_refused"))
        assert len(server.logged("connections_refused")) < 10
        inside[0].socket.close()
        eventually(lambda: Client(server.address).ask(get()).status == 200)
        server.call(server.app.released.set)
        assert all(client.answer().status == 200 for client in inside[1:])


class Ipv4OverIpv6(asyncio.Transport):
    """A connection of an IPv4 client to a socket for both versions."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("::ffff:10.0.0.7", 1234, 0, 0) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Counts:
    """Quotas that let all pass."""

    def __init__(self) -> None:
        self.by_address: Mapping[str, int] = {}

    def count_connections(self, by_address: Mapping[str, int]) -> None:
        self.by_address = by_address

    def admits_connection(self, _host: str) -> bool:
        return True

    def connection_closed(self, _connection: object) -> None:
        pass


async def test_a_connection_is_counted_and_forgotten_under_the_same_address() -> None:
    loop, counts = asyncio.get_running_loop(), Counts()
    async with asyncio.TaskGroup() as tasks:
        shared = Shared("http", EchoApp(), Limits(), tasks, None)
        shared.connection_limit.enforce(cast("Quotas", counts))
        connection = Connection(loop, shared)
        connection.connection_made(Ipv4OverIpv6())
        assert counts.by_address == {"10.0.0.7": 1}
        connection.connection_lost(None)
        assert counts.by_address == {}


def test_the_longest_idle_connection_gives_way_to_a_new_one() -> None:
    with served(max_connections=3) as server, ExitStack() as clients:
        oldest, busy, other = [clients.enter_context(Client(server.address)) for _ in range(3)]
        assert oldest.ask(get()).status == 200
        busy.send(get("/wait"))
        eventually(lambda: server.app.begun)
        assert other.ask(get()).status == 200

        def is_let_in() -> bool:
            assert other.ask(get()).status == 200
            new = clients.enter_context(Client(server.address))
            return new.ask(get()).status == 200

        eventually(is_let_in)

        assert oldest.is_closed()
        assert other.ask(get()).status == 200
        server.call(server.app.released.set)
        assert busy.answer().status == 200
        (evicted,) = eventually(lambda: server.logged("connections_evicted"))
        assert evicted["count"] == 1


@pytest.mark.parametrize("sent", [b"GET / HT", b"nonsense\r\n\r\n"], ids=["a head", "a refused request"])
def test_a_connection_that_sends_no_whole_request_gives_way_to_a_new_one(sent: bytes) -> None:
    with served(max_connections=1) as server, Client(server.address) as slow:
        slow.send(sent)

        def is_let_in() -> bool:
            with Client(server.address) as new:
                return new.ask(get()).status == 200

        eventually(is_let_in)


def test_a_body_of_tiny_chunks_is_parsed_in_turns() -> None:
    """A turn that has taken its time ends after the portion that it was parsing."""
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
    backlog = Backlog(RequestReader("peer", MIB, Room(MIB)))
    backlog.put(sent)
    turns = 1
    while (arrival := backlog.next(0.0, until=0.0)) is None:
        assert backlog.has_unread, "no request in what was sent"
        turns += 1
    assert isinstance(arrival.what, Request)
    assert arrival.what.body == b"x" * 10_000
    assert turns == -(-len(sent) // PORTION_BYTES)


def test_a_connection_of_an_ipv4_client_of_an_ipv6_socket_is_counted_and_forgotten() -> None:
    async def count() -> None:
        listener = HttpListener("::ffff:127.0.0.1", 0, Limits())
        port = listener.bind()[1]
        serving = asyncio.create_task(listener.run(EchoApp()))
        await listener.listening.wait()
        assert listener._shared is not None
        by_address = listener._shared.connection_limit._by_address
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(10):
            while dict(by_address) != {"127.0.0.1": 1}:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.001)
            writer.close()
            while by_address:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.001)
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(count())
