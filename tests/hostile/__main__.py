"""Sends every hostile request at full size to a broker of its own and prints what it cost the others.

    python -m tests.hostile [part of a request's name ...]
    python -m tests.hostile floods

For each request: what another client's produce and OffsetCommit waited at most in the second before it and
while it was served, how much of the broker's work lay in the wait of a produce at most (by processor time:
what other processes do to the wait does not count), and the resident memory of the broker before, during and
after.
`floods` opens 10,000 connections, guesses 10,000 passwords and begins 10,000 TLS handshakes instead, each
while a Kafka, an HTTP and an SQS client work, and prints what they waited for in CPU time of the broker's
event loop.
`HOSTILE_SOURCE` names the `src` directory of another version to measure.
"""

import contextlib
import itertools
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Self

from alpacamq.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.brokers import Broker

from . import target
from .attacks import ATTACKS, LOOPS, TARGET, TARGET_PARTITIONS, Attack, Loop, framed
from .bystander import TIMEOUT_S, TOPIC, Bystander, Wait, receive_frame, standing_by
from .checks import floods

MIB = 1 << 20
ANNOUNCED_BYTES = 100 * MIB
SENT_BYTES = 60_000
LOOP_SECONDS = 10
COLUMNS = (
    "request", "entries", "size", "answer", "took",
    "a produce waits without it / during it", "for work of", "a commit waits",
    "resident before / during / after",
)  # fmt: skip


class Measurement:
    """Measures a broker and another client during an attack."""

    def __init__(self, broker: Broker, bystander: Bystander) -> None:
        self._broker = broker
        self._bystander = bystander
        self._ending = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._take_longest()
        time.sleep(1)
        self._idle = self._take_longest()
        self._before = self._highest = self._broker.resident_bytes
        self._watching.start()
        self._began_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._took_s = time.monotonic() - self._began_at
        time.sleep(0.2)
        self._during = self._take_longest()
        self._ending.set()
        self._watching.join()

    def _take_longest(self) -> tuple[Wait, Wait]:
        return self._bystander.producing.take_longest(), self._bystander.committing.take_longest()

    def _watch(self) -> None:
        while not self._ending.wait(0.01):
            with contextlib.suppress(Exception):
                self._highest = max(self._highest, self._broker.resident_bytes)

    def print(self, *columns: str) -> None:
        """One line of the table."""
        memory = (self._before, self._highest, self._broker.resident_bytes)
        idle_produce, idle_commit = self._idle
        produce, commit = self._during
        cells = [
            *columns,
            f"{self._took_s:.2f} s",
            f"{idle_produce.waited_ms:.0f} / {produce.waited_ms:.0f} ms",
            f"{produce.work_ms:.0f} ms",
            f"{idle_commit.waited_ms:.0f} / {commit.waited_ms:.0f} ms",
            " / ".join(f"{size_bytes / MIB:.0f}" for size_bytes in memory) + " MiB",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def prepare(broker: Broker) -> None:
    """Create the topics that the requests speak of."""
    new = [
        CreatableTopic(name=TARGET, num_partitions=TARGET_PARTITIONS, replication_factor=1),
        CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),
    ]
    with socket.create_connection(broker.host_and_port, timeout=TIMEOUT_S) as connection:
        connection.sendall(framed(CreateTopicsRequest(topics=new)))
        receive_frame(connection)


def send(broker: Broker, frame: bytes) -> str:
    """Send one request on a connection of its own; how the broker answered."""
    with socket.create_connection(broker.host_and_port, timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(frame)
            return f"{len(receive_frame(connection)):,} bytes"
        except ConnectionError:
            return "closed"
        except TimeoutError:
            return "none"


def measure(broker: Broker, bystander: Bystander, attack: Attack, entries: int) -> None:
    frame = attack.frame(entries)
    with Measurement(broker, bystander) as measurement:
        answer = send(broker, frame)
    measurement.print(attack.name, f"{entries:,}", f"{len(frame) / MIB:.1f} MiB", answer)


def measure_announcements(broker: Broker, bystander: Bystander, count: int, *, together: bool) -> None:
    """Connections that announce a large frame, send the beginning of it and hang up."""
    with Measurement(broker, bystander) as measurement, contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = socket.create_connection(broker.host_and_port, timeout=TIMEOUT_S)
            connection.sendall(pack(">i", ANNOUNCED_BYTES) + bytes(SENT_BYTES))
            time.sleep(0.01)
            if together:
                stack.enter_context(connection)
            else:
                connection.close()
    measurement.print(
        "announces 100 MiB, sends 60 KB, hangs up",
        f"{count:,} connections {'at once' if together else 'in a row'}",
        f"{SENT_BYTES / MIB:.1f} MiB",
        "none",
    )


def measure_loop(broker: Broker, bystander: Bystander, loop: Loop) -> None:
    """Connections that send the same request over and over."""
    frame = loop.attack.frame(loop.entries)
    answered = 0

    def repeat(until: float) -> None:
        nonlocal answered
        with socket.create_connection(broker.host_and_port, timeout=TIMEOUT_S) as connection:
            while time.monotonic() < until:
                connection.sendall(frame)
                receive_frame(connection)
                answered += 1

    with Measurement(broker, bystander) as measurement:
        until = time.monotonic() + LOOP_SECONDS
        threads = [threading.Thread(target=repeat, args=(until,)) for _ in range(loop.connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    measurement.print(
        f"{loop.attack.name}, {loop.connections} connections in loops",
        f"{loop.entries:,}",
        f"{len(frame) / MIB:.1f} MiB",
        f"{answered} answers",
    )


@contextlib.contextmanager
def attacked(directory: Path) -> Iterator[tuple[Broker, Bystander]]:
    """A broker of its own, and another client of it."""
    source = os.environ.get("HOSTILE_SOURCE")
    broker = Broker(directory, environment={"PYTHONPATH": source} if source else {})
    try:
        broker.start()
        prepare(broker)
        with standing_by(broker.host_and_port, broker.process.pid) as bystander:
            yield broker, bystander
    finally:
        broker.end()


def measure_floods(directory: Path) -> None:
    """Send each flood of the forty checks at full size to one broker."""
    columns = (
        "check", "sent", "answer", "took", "most work in a wait of Kafka / HTTP / SQS",
        "their answers", "resident before / during / after",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    with target.attacked(directory, target.FULL_SIZE_CONFIG) as (broker, watched):
        for check in floods.FULL_SIZE:
            began_at = time.monotonic()
            with watched.unharmed() as seen:
                answer = check.attack(broker)
                took_s = time.monotonic() - began_at
            memory = (seen.before_bytes, seen.most_bytes, seen.after_bytes)
            cells = [
                str(check.number),
                check.name,
                answer,
                f"{took_s:.1f} s",
                " / ".join(f"{each:.0f}" for each in seen.longest_ms.values()) + " ms",
                " / ".join(f"{each:,}" for each in seen.answered.values()),
                " / ".join(f"{size_bytes / MIB:.0f}" for size_bytes in memory) + " MiB",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


def main(parts: list[str]) -> None:
    if parts == ["floods"]:
        with tempfile.TemporaryDirectory() as name:
            measure_floods(Path(name) / "broker")
        return
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if not parts or "announce" in parts:
            for count, together in itertools.product((40, 500), (False, True)):
                with attacked(directory / f"announced-{count}-{together}") as (broker, bystander):
                    measure_announcements(broker, bystander, count, together=together)
        for number, attack in enumerate(ATTACKS):
            if not parts or any(part in attack.name for part in parts):
                with attacked(directory / f"request-{number}") as (broker, bystander):
                    for entries in sorted({min(attack.served_entries, attack.entries), attack.entries}):
                        measure(broker, bystander, attack, entries)
        for number, loop in enumerate(LOOPS):
            if not parts or any(part in f"{loop.attack.name}, loops" for part in parts):
                with attacked(directory / f"loop-{number}") as (broker, bystander):
                    measure_loop(broker, bystander, loop)


if __name__ == "__main__":
    main(sys.argv[1:])
