"""The TLS layer of accepted connections, and the addresses that a listener serves."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import cast

import pytest
import uvloop

from alpacamq.api import tls as tls_module
from alpacamq.api.listening import ListenerSettings, ListeningSocket, is_within
from alpacamq.api.tls import MAX_RECORDS, AddressQuota, Handshakes, ListenerTls, TlsConnection
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.tls import Certificates, ClientCertificates, TlsSettings
from alpacamq.model.address import Address
from alpacamq.model.ids import TimestampMs
from alpacamq.telemetry.logs import capture_logs
from alpacamq.telemetry.metrics import ListenerStats
from tests.certificates import Authority, Pair, client_context
from tests.waiting import eventually

LARGE = bytes(range(256)) * 20_000
DEADLINE_S = 20.0


# The broker runs on uvloop, and tests of APIs on asyncio.
LOOP_FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    async with asyncio.timeout(DEADLINE_S):
        yield


class Echo(asyncio.Protocol):
    """Sends back what it gets, and ends its side when the client sends a line `end`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_paused = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        if data == b"end\n":
            self.transport.write(b"goodbye")
            self.transport.write_eof()
        elif data == b"who\n":
            self.transport.write(str(self.transport.get_extra_info("principal")).encode())
        else:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.is_paused.set()


class BufferedEcho(asyncio.BufferedProtocol):
    """Sends back what it gets through a small buffer, and pauses after every piece."""

    def __init__(self) -> None:
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(bytes(self._buffer[:nbytes]))
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._transport.resume_reading)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.server()


class Served:
    """A listener that runs."""

    def __init__(self, address: Address, handshakes: Handshakes, stats: ListenerStats) -> None:
        self.address = address
        self.handshakes = handshakes
        self.stats = stats
        self.protocols: list[asyncio.BaseProtocol] = []

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port, ssl=context)

    async def connect_plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port)


@asynccontextmanager
async def served(
    certificates: Certificates,
    factory: Callable[[], asyncio.BaseProtocol] = Echo,
    mode: ClientCertificates = ClientCertificates.NONE,
    allow: tuple[str, ...] = (),
    handshakes: Handshakes | None = None,
    quota: AddressQuota | None = None,
) -> AsyncIterator[Served]:
    handshakes, stats = handshakes or Handshakes(), ListenerStats()
    settings = ListenerSettings(
        name="test",
        address=Address("127.0.0.1", 0),
        tls=ListenerTls(certificates=certificates, handshakes=handshakes, client_certificates=mode),
        allow=tuple(map(ip_network, allow)),
    )
    listening = ListeningSocket(settings, stats)
    running = Served(listening.bind(), handshakes, stats)

    def make() -> asyncio.BaseProtocol:
        running.protocols.append(factory())
        return running.protocols[-1]

    server = await listening.accept(make, quota)
    try:
        yield running
    finally:
        server.close()
        handshakes.abort()


def certificates_of(pair: Pair, authority: Authority, crl: Path | None = None) -> Certificates:
    settings = TlsSettings(certificate=pair.certificate, key=pair.key, client_ca=authority.ca, crl=crl)
    return Certificates(settings, SystemClock())


@pytest.fixture
def certificates(server_pair: Pair, authority: Authority) -> Certificates:
    return certificates_of(server_pair, authority)


@pytest.mark.parametrize("factory", [Echo, BufferedEcho])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_bytes_arrive_as_they_were_sent(
    certificates: Certificates,
    authority: Authority,
    factory: Callable[[], asyncio.BaseProtocol],
    version: ssl.TLSVersion,
) -> None:
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    async with served(certificates, factory) as listener:
        reader, writer = await listener.connect(context)
        writer.write(LARGE)
        assert await reader.readexactly(len(LARGE)) == LARGE
        writer.close()
    assert (listener.stats.handshakes, listener.handshakes.in_progress) == (1, 0)


async def test_the_server_can_end_its_side_first(certificates: Certificates, authority: Authority) -> None:
    async with served(certificates) as listener:
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"end\n")
        assert await reader.read() == b"goodbye"
        writer.close()


async def test_a_client_that_does_not_read_pauses_the_protocol_and_can_be_aborted(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates) as listener:
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"x")
        await reader.readexactly(1)
        (echo,) = cast("list[Echo]", listener.protocols)
        cast("asyncio.Transport", writer.transport).pause_reading()
        while not echo.is_paused.is_set():
            echo.transport.write(LARGE)
            await asyncio.sleep(0)
        assert echo.transport.get_write_buffer_size() > 0
        echo.transport.abort()


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x12\0\x12\0\3", b"\x80\x2e\x01"])
async def test_a_client_without_tls_is_closed_and_counted(
    certificates: Certificates, request_: bytes
) -> None:
    async with served(certificates) as listener:
        reader, writer = await listener.connect_plain()
        writer.write(request_)
        assert await reader.read() == b""
        writer.close()
        assert listener.stats.failed_handshakes == 1
        assert listener.handshakes.in_progress == 0
        assert not listener.protocols


async def test_a_port_scan_is_not_counted_as_a_failed_handshake(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates) as listener:
        _, writer = await listener.connect_plain()
        writer.close()
        await writer.wait_closed()
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"x")
        await reader.readexactly(1)
        writer.close()
        await asyncio.to_thread(eventually, lambda: not listener.handshakes.in_progress)
        assert listener.stats.failed_handshakes == 0


async def test_a_handshake_that_takes_too_long_is_closed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "HANDSHAKE_SECONDS", 0.05)
    async with served(certificates) as listener:
        reader, writer = await listener.connect_plain()
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()
        assert listener.stats.failed_handshakes == 1


async def test_silent_connections_make_room_for_new_ones(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates, handshakes=Handshakes(limit=3)) as listener:
        silent = [await listener.connect_plain() for _ in range(10)]
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listener.handshakes.in_progress <= 3
        writer.close()
        for _, each in silent:
            each.close()


async def test_connections_that_do_not_continue_make_room_for_new_ones(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates, handshakes=Handshakes(limit=3)) as listener:
        begun = [await listener.connect_plain() for _ in range(3)]
        for _, each in begun:
            each.write(b"\x16")
        while len(listener.handshakes._begun) < 3:  # noqa: ASYNC110 - their bytes are under way
            await asyncio.sleep(0.001)
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert await begun[0][0].read() == b""
        for each in (writer, *(each for _, each in begun)):
            each.close()


@pytest.mark.parametrize(
    "header", [b"\x63\x03\x03\x40\x00", b"\x17\x03\x03\xff\xff"], ids=["unknown type", "too long"]
)
async def test_a_record_that_cannot_be_valid_is_refused_before_it_is_complete(
    certificates: Certificates, authority: Authority, header: bytes
) -> None:
    def attack(host: str, port: int) -> None:
        with (
            socket.create_connection((host, port), timeout=DEADLINE_S) as plain,
            client_context(authority).wrap_socket(plain, server_hostname="localhost") as encrypted,
        ):
            encrypted.sendall(b"x")
            assert encrypted.recv(1) == b"x"
            os.write(encrypted.fileno(), header)
            # A timeout is no refusal.
            with suppress(ssl.SSLError, ConnectionError):
                assert encrypted.recv(100) == b""

    async with served(certificates) as listener:
        await asyncio.to_thread(attack, listener.address.host, listener.address.port)


class OneConnection:
    """A quota of one connection for each address."""

    def __init__(self) -> None:
        self.began = self.ended = 0

    def handshake_began(self, _host: str) -> bool:
        if self.began > self.ended:
            return False
        self.began += 1
        return True

    def handshake_ended(self, _host: str) -> None:
        self.ended += 1


async def test_a_connection_beyond_the_quota_of_its_address_costs_no_handshake(
    certificates: Certificates, authority: Authority
) -> None:
    quota = OneConnection()
    async with served(certificates, quota=quota) as listener:
        _, silent = await listener.connect_plain()
        await asyncio.to_thread(eventually, lambda: quota.began == 1)
        with pytest.raises(ConnectionError):
            await listener.connect(client_context(authority))
        assert (listener.handshakes.in_progress, listener.stats.failed_handshakes) == (1, 0)
        silent.close()
        await asyncio.to_thread(eventually, lambda: quota.ended == 1)
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert (quota.began, quota.ended) == (2, 2)  # the protocol counts it now
        (echo,) = cast("list[Echo]", listener.protocols)
        assert echo.transport.get_extra_info("is_within_quota") is True
        writer.close()


class Pieces(asyncio.Protocol):
    """Notes the sizes of what it gets at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))


@pytest.mark.parametrize("cut", [0, 3, 10])
async def test_many_small_records_take_several_turns(
    certificates: Certificates, authority: Authority, cut: int
) -> None:
    """So that records which take long, such as key updates, do not stop others."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    count = 5 * MAX_RECORDS
    async with served(certificates, Pieces) as listener:
        reader, writer = await listener.connect_plain()
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        # With the end of the handshake, and cut inside a record or its header.
        for _ in range(count):
            client.write(b"x")
        data = outgoing.read()
        writer.write(data[: len(data) - cut])
        while not (listener.protocols and sum(pieces(listener)) >= count - 1):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        writer.write(data[len(data) - cut :])
        while sum(pieces(listener)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert max(pieces(listener)) <= MAX_RECORDS
        writer.close()


def pieces(listener: Served) -> list[int]:
    protocol = listener.protocols[0]
    assert isinstance(protocol, Pieces)
    return protocol.sizes


class LaterClock(SystemClock):
    """The system's clock, which tests can advance."""

    ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.ahead_ms)


async def test_a_resumed_session_ends_with_the_certificate_of_its_client(
    server_pair: Pair, authority: Authority
) -> None:
    clock = LaterClock()
    settings = TlsSettings(certificate=server_pair.certificate, key=server_pair.key, client_ca=authority.ca)
    context = client_context(authority, authority.client("alice"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(address: Address, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection((address.host, address.port), timeout=DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as secured,
        ):
            secured.sendall(b"who\n")
            return secured.recv(100), secured.session

    async with served(Certificates(settings, clock), mode=ClientCertificates.REQUIRED) as listener:
        answer, session = await asyncio.to_thread(connect, listener.address, None)
        assert b"alice" in answer
        assert (await asyncio.to_thread(connect, listener.address, session))[0] == answer
        clock.ahead_ms = 100 * 365 * 86_400_000
        assert (await asyncio.to_thread(connect, listener.address, session))[0] == b""


async def test_client_certificates_name_the_principal(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates, mode=ClientCertificates.REQUIRED) as listener:
        reader, writer = await listener.connect(client_context(authority, authority.client("alice")))
        writer.write(b"who\n")
        assert await reader.read(100) == b"User:CN=alice"
        writer.close()


async def test_a_client_may_have_no_certificate_if_it_is_only_requested(
    certificates: Certificates, authority: Authority
) -> None:
    async with served(certificates, mode=ClientCertificates.REQUESTED) as listener:
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"who\n")
        assert await reader.read(100) == b"None"
        writer.close()


async def refused(listener: Served, context: ssl.SSLContext) -> str:
    """Return the alert with which the server refuses a client."""
    with pytest.raises(ssl.SSLError) as alert:
        await ask(listener, context)
    assert not listener.protocols
    return alert.value.reason


async def ask(listener: Served, context: ssl.SSLContext) -> None:
    reader, writer = await listener.connect(context)
    try:
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    finally:
        writer.close()


async def test_clients_are_told_why_their_certificate_is_refused(
    server_pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "Another CA").client("mallory")
    revoked = authority.client("revoked")
    authority.revoke([revoked.serial])
    strict = certificates_of(server_pair, authority, authority.crl)
    async with served(strict, mode=ClientCertificates.REQUIRED) as listener:
        assert "UNKNOWN_CA" in await refused(listener, client_context(authority, stranger))
        assert "EXPIRED" in await refused(listener, client_context(authority, authority.client("old", -1)))
        assert "REVOKED" in await refused(listener, client_context(authority, revoked))
        assert "CERTIFICATE_REQUIRED" in await refused(listener, client_context(authority))
        assert listener.stats.failed_handshakes == 4


async def test_a_certificate_is_refused_from_the_next_revocation_list_on(
    server_pair: Pair, authority: Authority
) -> None:
    alice = client_context(authority, pair := authority.client("alice"))
    authority.revoke([])
    certificates = certificates_of(server_pair, authority, authority.crl)
    async with served(certificates, mode=ClientCertificates.REQUIRED) as listener:
        reader, writer = await listener.connect(alice)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        authority.revoke([pair.serial])
        certificates.check()
        listener.protocols.clear()
        assert "REVOKED" in await refused(listener, alice)
        # The open connection stays.
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_a_client_does_not_trust_a_server_of_another_authority_or_name(
    certificates: Certificates, authority: Authority, tmp_path: Path
) -> None:
    async with served(certificates) as listener:
        with pytest.raises(ssl.SSLCertVerificationError):
            await listener.connect(client_context(Authority(tmp_path, "Another CA")))
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(
                "127.0.0.1", listener.address.port, ssl=client_context(authority), server_hostname="other"
            )


async def test_only_allowed_networks_are_served(certificates: Certificates, authority: Authority) -> None:
    async with served(certificates, allow=("10.0.0.0/8",)) as listener:
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await listener.connect(client_context(authority))
        assert (listener.stats.filtered, listener.stats.failed_handshakes) == (1, 0)
    async with served(certificates, allow=("10.0.0.0/8", "127.0.0.0/8")) as listener:
        reader, writer = await listener.connect(client_context(authority))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("fd00::1", True),
        ("fe80::1%eth0", False),
        ("", False),
    ],
)
def test_networks_contain_addresses_of_either_version(host: str, expected: bool) -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    assert is_within(host, networks) is expected


class Step:
    """A handshake that takes a millisecond of CPU time."""

    def __init__(self, clock: "Clock", loop: "Timers") -> None:
        self._clock = clock
        self.loop = loop
        self.steps = 0
        self.waits = False

    def continue_handshake(self) -> None:
        self._clock.now += 0.001
        self.steps += 1

    def wait(self) -> None:
        self.waits = True

    def proceed(self) -> None:
        self.waits = False

    def is_closing(self) -> bool:
        return False


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Timers:
    """Runs what is due later when the test says so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        self._due.append((delay, call, arguments))

    def run(self) -> None:
        due, self._due = self._due, []
        for delay, call, arguments in due:
            self._clock.now += delay
            call(*arguments)


def test_a_flood_of_handshakes_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    timers = Timers(clock)
    monkeypatch.setattr(tls_module, "monotonic", clock)
    handshakes = Handshakes()
    flood = [Step(clock, timers) for _ in range(100)]
    for step in flood:
        handshakes.run(cast("TlsConnection", step))
    done = sum(step.steps for step in flood)
    assert 5 <= done <= 7
    assert all(step.waits for step in flood[done:])
    began_at = clock.now
    while any(step.waits for step in flood):
        timers.run()
    assert [step.steps for step in flood] == [1] * 100
    share = (100 - done) * 0.001 / (clock.now - began_at)
    assert share < 0.7


async def test_failures_are_logged_one_by_one_only_up_to_a_limit(certificates: Certificates) -> None:
    with capture_logs() as logged:
        await _fail_often(certificates)
    failed = [line for line in logged if line["event"] == "handshake_failed"]
    assert len(failed) == tls_module.LOGGED_FAILURES


async def _fail_often(certificates: Certificates) -> None:
    async with served(certificates) as listener:
        for _ in range(tls_module.LOGGED_FAILURES + 5):
            with socket.create_connection((listener.address.host, listener.address.port)) as plain:
                plain.sendall(b"GET")
        failures = tls_module.LOGGED_FAILURES + 5
        await asyncio.to_thread(eventually, lambda: listener.stats.failed_handshakes == failures)
