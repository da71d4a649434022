"""Checks 34 to 36: slow clients, many connections, many logins and many handshakes at once."""

import itertools
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from struct import pack

import msgspec

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.api.http.serving import Client
from tests.api.kafka.logins import PLAIN, exchange_of, handshake, is_served, log_in, plain
from tests.api.kafka.wire import Wire, wired
from tests.certificates import client_context
from tests.hostile.target import MAX_CONNECTIONS, VICTIM, VICTIM_PASSWORD, Target, http_request
from tests.waiting import eventually

from . import Check, closed
from .login import SHA_256, guesses, stranger
from .wire import client_hello


@dataclass(frozen=True)
class Size:
    """How many connections and logins a flood has; more connections than the listeners accept."""

    connections: int
    logins: int
    handshakes: int


SMALL = Size(connections=2 * MAX_CONNECTIONS, logins=100, handshakes=200)
FULL = Size(connections=10_000, logins=1000, handshakes=10_000)
# Of one thread: a client's half of a handshake takes as long as the broker's.
THREADS = 4
_HOSTS = (f"127.2.{number // 200 % 200}.{number % 200 + 1}" for number in itertools.count())


def drip(connection: socket.socket, data: Iterator[bytes]) -> bytes:
    """Send a byte whenever nothing has come back for a while; return the answer once it is closed."""
    received = b""
    connection.settimeout(0.05)
    for byte in data:
        try:
            connection.sendall(byte)
            while chunk := connection.recv(4096):
                received += chunk
            return received
        except TimeoutError:
            continue
        except ConnectionError:
            return received
    raise AssertionError("the broker waits for ever")


def _slow_frame(target: Target) -> str:
    """Announce a request and send it byte by byte."""
    with wired(target.kafka_address) as wire:
        wire.send_bytes(pack(">i", 60_000))
        drip(wire.socket, itertools.repeat(b"\0", 2000))
        return closed(target, wire)


def _slow_frame_logged_in(target: Target) -> str:
    with stranger(target) as wire:
        assert log_in(wire, PLAIN, VICTIM, VICTIM_PASSWORD).error_code == 0
        wire.send_bytes(pack(">i", 8 << 20))
        drip(wire.socket, itertools.repeat(b"\0", 2000))
        return closed(target, wire)


def _never_logs_in(target: Target) -> str:
    """Send requests that need no login, and never log in."""
    with wired(target.kafka_address) as wire:

        def is_closed() -> bool:
            try:
                return bool(wire.ask(ApiVersionsRequest(), 0).error_code)
            except ConnectionError:
                return True

        eventually(is_closed, what="the end of the connection")
        return closed(target, wire)


def _slow_http(listener: str, begun: bytes) -> Callable[[Target], str]:
    """Send a request byte by byte."""

    def attack(target: Target) -> str:
        with Client(getattr(target, listener)) as client:
            client.send(begun)
            answer = drip(client.socket, itertools.repeat(b"x", 2000))
        return answer.partition(b"\r\n")[0].decode().removeprefix("HTTP/1.1 ")

    return attack


_SLOW_HEAD = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
_SLOW_BODY = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"


def _slow_node(target: Target) -> str:
    """Open a handshake with the cluster listener, and send it byte by byte."""
    with Client(target.cluster) as client:
        client.send(pack(">I", 1000))
        answer = drip(client.socket, itertools.repeat(b"\0", 900))
    tag, refusal, _ = msgspec.msgpack.decode(answer[4:])
    return f"{tag}: {refusal}"


def _flood(listener: str, begun: bytes, count: int) -> Callable[[Target], str]:
    """Open more connections than are accepted, and send the beginning of a request on each."""

    def attack(target: Target) -> str:
        with ExitStack() as stack:
            for _ in range(count):
                connection = stack.enter_context(socket.socket())
                connection.connect(getattr(target, listener))
                with suppress(ConnectionError):
                    connection.sendall(begun)
            eventually(
                lambda: target.connections_to(getattr(target, listener)) <= count // 2,
                what="the end of the connections that are too many",
            )
            # A place becomes free when the first of them have been idle for a second.
            return str(eventually(lambda: _served_by(target, listener), what="a client that is served"))

    return attack


def _served_by(target: Target, listener: str) -> str | None:
    """Return that a new client is served, or None."""
    try:
        if listener == "kafka_address":
            with stranger(target, next(_HOSTS)) as wire:
                log_in(wire, SHA_256, VICTIM, VICTIM_PASSWORD)
                return "others log in" if is_served(wire) else None
        if listener == "http":
            return "others are served" if target.ask_http("GET", "/readyz").status == 200 else None
        if listener == "sqs":
            answer = target.ask_sqs(http_request("POST", "/", b"", {}))
            return "others are served" if answer.status != 503 else None
        if listener == "registry":
            answer = target.ask_registry("GET", "/schemas/types", b"", target.bearer("mallory"))
            return "others are served" if answer.status == 200 else None
        with Client(target.cluster) as client:
            client.send(pack(">I", 1) + b"x")
            return "others are served" if client.socket.recv(1) else None
    except (ConnectionError, AssertionError):
        return None


def _scram_flood(count: int) -> Callable[[Target], str]:
    """Begin a SCRAM exchange on many connections, and finish none."""

    def attack(target: Target) -> str:
        with ExitStack() as stack:
            for _ in range(count):
                wire = stack.enter_context(wired(target.kafka_address, next(_HOSTS)))
                wire.send(SaslHandshakeRequest(mechanism=SHA_256), 1)
                wire.send(SaslAuthenticateRequest(auth_bytes=exchange_of(SHA_256, VICTIM).first), 2)
            with stranger(target) as other:
                assert log_in(other, SHA_256, VICTIM, VICTIM_PASSWORD).error_code == 0
        return "others log in"

    return attack


def _password_flood(count: int) -> Callable[[Target], str]:
    """Send wrong passwords from many addresses at once: each has to be hashed."""

    def attack(target: Target) -> str:
        with ExitStack() as stack:
            wires: list[Wire] = []
            for number in range(count):
                wire = stack.enter_context(wired(target.kafka_address, next(_HOSTS)))
                assert handshake(wire, PLAIN) == ErrorCode.NONE
                wires.append(wire)
                wire.send(SaslAuthenticateRequest(auth_bytes=plain(VICTIM, f"guess {number}")), 2)
            with stranger(target) as other:
                assert log_in(other, SHA_256, VICTIM, VICTIM_PASSWORD).error_code == 0
            codes = {ErrorCode(wire.receive(SaslAuthenticateRequest, 2).error_code).name for wire in wires}
        return f"{', '.join(sorted(codes))}; others log in"

    return attack


def _hello_flood(count: int) -> Callable[[Target], str]:
    """Begin a TLS handshake on many connections, and finish none."""
    hello = client_hello()

    def attack(target: Target) -> str:
        with ExitStack() as stack:
            for _ in range(count):
                connection = stack.enter_context(socket.create_connection(target.encrypted))
                with suppress(ConnectionError):
                    connection.sendall(hello)
            return str(eventually(lambda: _served_encrypted(target), what="a client that is served"))

    return attack


def _handshake_flood(count: int) -> Callable[[Target], str]:
    """Complete TLS handshakes as fast as possible, and close."""

    def attack(target: Target) -> str:
        def shake_hands(context: ssl.SSLContext) -> None:
            for _ in range(count // THREADS):
                with suppress(OSError), socket.create_connection(target.encrypted) as plain:
                    context.wrap_socket(plain, server_hostname="localhost").close()

        with ThreadPoolExecutor(THREADS) as threads:
            # A context each: they remember sessions.
            ends = [threads.submit(shake_hands, client_context(target.authority)) for _ in range(THREADS)]
            answer = eventually(lambda: _served_encrypted(target), what="a client that is served")
            for end in ends:
                end.result()
        return str(answer)

    return attack


def _served_encrypted(target: Target) -> str | None:
    """Return that a new client is served over TLS, or None."""
    try:
        with wired(target.encrypted, next(_HOSTS), client_context(target.authority)) as wire:
            log_in(wire, SHA_256, VICTIM, VICTIM_PASSWORD)
            return "others log in" if is_served(wire) else None
    except (OSError, AssertionError):
        return None


def _unread(target: Target) -> str:
    """Ask for more and more, and read nothing."""
    request = http_request("GET", "/openapi.json", b"", target.bearer("mallory"))
    with Client(target.http) as client:
        client.socket.settimeout(0.2)
        sent = 0
        with suppress(TimeoutError, ConnectionError):
            while sent < 50_000:
                client.send(request)
                sent += 1
        return "not read further" if sent < 50_000 else "read"


_408 = "408 Request Timeout"

_SLOW = [
    Check(
        34,
        "requests without a login for ever, Kafka",
        "closed: the client did not authenticate in time (kafka.frame_timeout_ms)",
        _never_logs_in,
    ),
    Check(
        34,
        "a request byte by byte, Kafka",
        "closed: a request did not arrive in time (kafka.frame_timeout_ms)",
        _slow_frame,
    ),
    Check(
        34,
        "a request byte by byte, Kafka, logged in",
        "closed: a request did not arrive in time (kafka.frame_timeout_ms)",
        _slow_frame_logged_in,
    ),
    Check(34, "a head byte by byte, HTTP", _408, _slow_http("http", _SLOW_HEAD)),
    Check(34, "a body byte by byte, HTTP", _408, _slow_http("http", _SLOW_BODY)),
    Check(34, "a head byte by byte, SQS", _408, _slow_http("sqs", _SLOW_HEAD)),
    Check(34, "a body byte by byte, SQS", _408, _slow_http("sqs", _SLOW_BODY)),
    Check(34, "a head byte by byte, registry", _408, _slow_http("registry", _SLOW_HEAD)),
    Check(34, "a body byte by byte, registry", _408, _slow_http("registry", _SLOW_BODY)),
    Check(34, "a handshake byte by byte, cluster listener", "refused: handshake_timed_out", _slow_node),
    Check(34, "responses that are not read, HTTP", "not read further", _unread),
]


def _floods(size: Size) -> Iterator[Check]:
    for listener, name, begun in (
        ("kafka_address", "Kafka", b"\0"),
        ("http", "HTTP", b"GET"),
        ("sqs", "SQS", b"POST"),
        ("registry", "registry", b"GET"),
        ("cluster", "cluster listener", b"\0"),
    ):
        answer = "others log in" if listener == "kafka_address" else "others are served"
        attack = _flood(listener, begun, size.connections)
        yield Check(35, f"{size.connections:,} connections, {name}", answer, attack)
    yield Check(
        36, f"{size.logins:,} SCRAM exchanges without an end", "others log in", _scram_flood(size.logins)
    )
    yield Check(
        36,
        f"{size.logins:,} wrong passwords at once",
        "SASL_AUTHENTICATION_FAILED; others log in",
        _password_flood(size.logins),
    )
    yield Check(
        36,
        f"{size.handshakes:,} TLS handshakes without an end",
        "others log in",
        _hello_flood(size.handshakes),
    )
    yield Check(36, f"{size.handshakes:,} TLS handshakes", "others log in", _handshake_flood(size.handshakes))


CHECKS = [*_SLOW, *_floods(SMALL)]
FULL_SIZE = [guesses(10_000), *_floods(FULL)]
