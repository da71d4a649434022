"""What does TLS cost: the broker's processor time for a GiB produced or fetched, and connections a second?

One broker has a plain listener and one with TLS, which do the same work in turns with librdkafka. Large
messages keep the work per message small on both. Handshakes are complete ones, with a certificate of the
curve P-256; the clients run on the same machine and take as much processor time as the broker.
"""

import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from alpacamq.cli.cert import write_dev

from . import topics
from .report import OURS, Report
from .server_cost import cpu_ns
from .servers import AlpacaMQ, Server
from .session import Session

GIB = 1 << 30
SIZE = 100_000
WAIT_S = 60.0
CONNECTORS = 8
PER_GIB = "s of server CPU per GiB"


class _Listener(NamedTuple):
    """A listener of the broker, and how librdkafka reaches it."""

    name: str
    settings: dict[str, str]


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
        listeners = (
            _Listener("plain", {"bootstrap.servers": server.address}),
            _Listener(
                "TLS",
                {
                    "bootstrap.servers": f"127.0.0.1:{port}",
                    "security.protocol": "SSL",
                    "ssl.ca.location": os.fspath(files.ca),
                },
            ),
        )
        _measure_transfer(session, report, server, listeners)
        _measure_connections(session, report, server, port, files.ca)


def _measure_transfer(
    session: Session, report: Report, server: Server, listeners: tuple[_Listener, ...]
) -> None:
    count = session.scaled(2 * GIB, GIB // 8) // SIZE
    produced: dict[str, list[float]] = {each.name: [] for each in listeners}
    fetched: dict[str, list[float]] = {each.name: [] for each in listeners}
    for number in range(session.scaled(5, 1) + 1):
        for listener in listeners if number % 2 else reversed(listeners):
            topic = f"tls-{listener.name}-{number}"
            topics.create(server.address, topic, 1)
            session.settle()
            began_ns = cpu_ns(server.pid)
            _produce(listener, topic, count)
            between_ns = cpu_ns(server.pid)
            _fetch(listener, topic, count)
            ended_ns = cpu_ns(server.pid)
            topics.delete(server.address, topic)
            if number:  # the first round warms up
                gib = count * SIZE / GIB
                produced[listener.name].append((between_ns - began_ns) / 1e9 / gib)
                fetched[listener.name].append((ended_ns - between_ns) / 1e9 / gib)
    for listener in listeners:
        for case, costs in (("produced", produced), ("fetched", fetched)):
            title = f"messages of 100 KB, {case}, {listener.name}"
            report(case=title, server=OURS, unit=PER_GIB, samples=costs[listener.name])


def _produce(listener: _Listener, topic: str, count: int) -> None:
    producer = Producer({**listener.settings, "linger.ms": 5, "batch.size": 1_000_000})
    value = os.urandom(SIZE)
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if unsent := producer.flush(WAIT_S):
        raise TimeoutError(f"{unsent} of {count} messages were not acknowledged")


def _fetch(listener: _Listener, topic: str, count: int) -> None:
    consumer = Consumer(
        {
            **listener.settings,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while count:
            messages = consumer.consume(min(count, 500), WAIT_S)
            if not messages:
                raise TimeoutError(f"{count} messages did not come")
            count -= len(messages)
    finally:
        consumer.close()


def _measure_connections(session: Session, report: Report, server: Server, port: int, ca: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    count = session.scaled(4000, 400)

    def connect(_number: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            encrypted.unwrap()

    rates: list[float] = []
    costs: list[float] = []
    with ThreadPoolExecutor(CONNECTORS) as threads:
        for number in range(session.repeats + 1):
            session.settle()
            began_s, began_ns = time.monotonic(), cpu_ns(server.pid)
            list(threads.map(connect, range(count)))
            if number:  # the first round warms up
                rates.append(count / (time.monotonic() - began_s))
                costs.append((cpu_ns(server.pid) - began_ns) / count / 1e6)
    case = f"TLS connections, opened and closed by {CONNECTORS} threads"
    report(case=case, server=OURS, unit="connections/s", samples=rates)
    report(case=case, server=OURS, unit="ms of server CPU per connection", samples=costs)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
