"""What does TLS cost: what does the broker transfer, and how many clients does it accept, per second of CPU?

One broker has a plain listener and one with TLS, which do the same work in turns: prebuilt requests on raw
sockets produce batches of 1 MB and fetch them. Only the processor time of the broker counts. The client runs
on the same machine and encrypts as much, so rates by the clock would be those of both together.

Handshakes are complete ones, with a certificate of the curve P-256. The rate by the clock is that of 8
threads of one Python process, which is the limit; the broker's own is what a second of its CPU accepts.
"""

import os
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from alpacamq.cli.cert import write_dev

from . import topics, wire
from .report import OURS, Floor, Report
from .server_cost import cpu_ns, middle_half
from .servers import AlpacaMQ, Server
from .session import Session

GB = 1e9
GIB = 1 << 30
RECORDS = 10
RECORD_BYTES = 100_000
# Requests that are sent before the first answer is read.
IN_FLIGHT = 3
WAIT_S = 60.0
CONNECTORS = 8
PER_GIB = "s of server CPU per GiB"
PER_CORE = "GB per core-second of the server"
RATIO = "times the CPU without TLS"
FAST_ENOUGH = Floor(at_least=0.8)
ACCEPTS_ENOUGH = Floor(at_least=1000)


class _Listener(NamedTuple):
    """A listener of the broker."""

    name: str
    address: str
    # None: it is plain.
    context: ssl.SSLContext | None

    def connect(self) -> socket.socket:
        plain = wire.connect(self.address)
        if self.context is None:
            return plain
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1")


def run(session: Session, report: Report) -> None:
    certificates = session.new_directory()
    files = write_dev(certificates, hosts=(), client="client")
    port = _free_port()
    broker = AlpacaMQ(
        OURS,
        {
            "ALPACAMQ_TLS_CERTIFICATE": os.fspath(files.certificate),
            "ALPACAMQ_TLS_KEY": os.fspath(files.key),
            "ALPACAMQ_LISTENERS_SECURE_LISTEN": f"127.0.0.1:{port}",
            "ALPACAMQ_LISTENERS_SECURE_TLS": "true",
        },
    )
    with session.server(broker) as server:
        plain = _Listener("plain", server.address, None)
        encrypted = _Listener("TLS", f"127.0.0.1:{port}", ssl.create_default_context(cafile=files.ca))
        _measure_transfer(session, report, server, plain, encrypted)
        _measure_connections(session, report, server, port, files.ca)


def _measure_transfer(
    session: Session, report: Report, server: Server, plain: _Listener, encrypted: _Listener
) -> None:
    """Compare the listeners pair by pair: what other load costs changes from sample to sample.

    Samples are small, and their topics deleted, so that a file is written to memory that another one has
    left: on a virtual machine the first write to a page may cost more than all that is measured here.
    """
    batch = wire.batch_of(RECORDS, RECORD_BYTES)
    requests = session.scaled(GIB // 4, GIB // 16) // len(batch)
    costs: dict[tuple[str, str], list[float]] = {}
    session.settle()
    for number in range(session.scaled(16, 3) + 1):
        for listener in (plain, encrypted) if number % 2 else (encrypted, plain):
            topic = f"tls-{listener.name}-{number}"
            topics.create(server.address, topic, 1)
            for case, transfer in (("produced", _produce), ("fetched", _fetch)):
                began_ns = cpu_ns(server.pid)
                transfer(listener, topic, batch, requests)
                spent_s = (cpu_ns(server.pid) - began_ns) / 1e9
                if number:  # the first round warms up
                    costs.setdefault((case, listener.name), []).append(spent_s)
            topics.delete(server.address, topic)
    size = requests * len(batch)
    for case in ("produced", "fetched"):
        without, with_tls = costs[case, plain.name], costs[case, encrypted.name]
        for listener, spent in ((plain, without), (encrypted, with_tls)):
            title = f"batches of 1 MB, {case}, {listener.name}"
            per_gib = middle_half([each / (size / GIB) for each in spent])
            report(case=title, server=OURS, unit=PER_GIB, samples=per_gib)
            per_core = middle_half([size / GB / each for each in spent])
            floor = None if listener is plain else FAST_ENOUGH
            report(case=title, server=OURS, unit=PER_CORE, samples=per_core, floor=floor)
        ratios = middle_half([a / b for a, b in zip(with_tls, without, strict=True)])
        report(case=f"batches of 1 MB, {case}, TLS", server=OURS, unit=RATIO, samples=ratios)


def _produce(listener: _Listener, topic: str, batch: bytes, requests: int) -> None:
    request = wire.produce_request(topic, 0, batch, acks=1)
    answer_bytes = wire.produce_response_bytes(topic)

    def receive(connection: socket.socket) -> None:
        wire.check_produced(wire.receive_exactly(connection, answer_bytes), topic)

    _exchange(listener, lambda _number: request, receive, requests)


def _fetch(listener: _Listener, topic: str, batch: bytes, requests: int) -> None:
    buffer = memoryview(bytearray(wire.fetch_response_bytes(topic) + len(batch)))

    def receive(connection: socket.socket) -> None:
        at = 0
        while at < len(buffer):
            if not (count := connection.recv_into(buffer[at:])):
                raise ConnectionError(f"closed after {at} of {len(buffer)} bytes")
            at += count
        wire.check_fetched(bytes(buffer[4:200]), topic)

    # A response has at least one batch, and with this limit no second one.
    _exchange(listener, lambda number: wire.fetch_request(topic, 0, number * RECORDS, 1), receive, requests)


def _exchange(
    listener: _Listener,
    request: Callable[[int], bytes],
    receive: Callable[[socket.socket], None],
    count: int,
) -> None:
    with listener.connect() as connection:
        for number in range(count + IN_FLIGHT):
            if number < count:
                connection.sendall(request(number))
            if number >= IN_FLIGHT:
                receive(connection)


def _measure_connections(session: Session, report: Report, server: Server, port: int, ca: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    count = session.scaled(2000, 400)

    def connect(_number: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            encrypted.unwrap()

    rates: list[float] = []
    costs_s: list[float] = []
    with ThreadPoolExecutor(CONNECTORS) as threads:
        for number in range(session.scaled(8, 2) + 1):
            session.settle()
            began_s, began_ns = time.monotonic(), cpu_ns(server.pid)
            list(threads.map(connect, range(count)))
            if number:  # the first round warms up
                rates.append(count / (time.monotonic() - began_s))
                costs_s.append((cpu_ns(server.pid) - began_ns) / 1e9 / count)
    case = f"TLS connections, opened and closed by {CONNECTORS} threads"
    per_core = middle_half([1 / each for each in costs_s])
    report(
        case=case,
        server=OURS,
        unit="connections per core-second of the server",
        samples=per_core,
        floor=ACCEPTS_ENOUGH,
    )
    milliseconds = middle_half([each * 1000 for each in costs_s])
    report(case=case, server=OURS, unit="ms of server CPU per connection", samples=milliseconds)
    report(case=case, server=OURS, unit="connections/s", samples=middle_half(rates))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
