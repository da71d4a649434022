"""Send every hostile request at full size to a broker of its own and print what it cost the others.

python -m tests.hostile [part of a name ...]
"""

import contextlib
import itertools
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from struct import pack

from alpacamq.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.brokers import Broker

from .attacks import ATTACKS, TARGET, TARGET_PARTITIONS, Attack, framed
from .bystander import TIMEOUT_S, TOPIC, Bystander, receive_frame, standing_by

MIB = 1 << 20
# Few enough to be served, so that it is the work itself that others may have to wait for.
SERVED_ENTRIES = 80_000
ANNOUNCED_BYTES = 100 * MIB
SENT_BYTES = 60_000


class Memory:
    """The highest resident memory of a broker while this is at work."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.highest_bytes = 0

    def _watch(self) -> None:
        while not self._ending.wait(0.01):
            with contextlib.suppress(Exception):
                self.highest_bytes = max(self.highest_bytes, self._broker.resident_bytes)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


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
    before = broker.resident_bytes
    bystander.take_longest_ms()
    with Memory(broker) as memory:
        began_at = time.monotonic()
        answer = send(broker, frame)
        took_s = time.monotonic() - began_at
        time.sleep(0.2)
        waited_ms = bystander.take_longest_ms()
    time.sleep(0.3)
    row(
        attack.name,
        f"{entries:,}",
        len(frame),
        answer,
        took_s,
        waited_ms,
        before,
        memory.highest_bytes,
        broker,
    )


def row(
    name: str, entries: str, size: int, answer: str, took_s: float, waited_ms: float, before: int, during: int,
    broker: Broker,
) -> None:  # fmt: skip
    memory = [f"{size_bytes / MIB:.0f}" for size_bytes in (before, during, broker.resident_bytes)]
    print(
        f"| {name} | {entries} | {size / MIB:.1f} MiB | {answer} | {took_s:.2f} s | {waited_ms:.0f} ms "
        f"| {' / '.join(memory)} MiB |",
        flush=True,
    )


def measure_announcements(broker: Broker, bystander: Bystander, count: int, *, together: bool) -> None:
    """Connections that announce a large frame, send the beginning of it and hang up."""
    before = broker.resident_bytes
    bystander.take_longest_ms()
    began_at = time.monotonic()
    with Memory(broker) as memory:
        connections = []
        for _ in range(count):
            connection = socket.create_connection(broker.host_and_port, timeout=TIMEOUT_S)
            connections.append(connection)
            connection.sendall(pack(">i", ANNOUNCED_BYTES) + bytes(SENT_BYTES))
            time.sleep(0.01)
            if not together:
                connection.close()
        time.sleep(1)
        for connection in connections:
            connection.close()
        time.sleep(1)
    waited_ms = bystander.take_longest_ms()
    row(
        "announces 100 MiB, sends 60 KB, hangs up",
        f"{count:,} connections {'at once' if together else 'in a row'}", SENT_BYTES, "none",
        time.monotonic() - began_at, waited_ms, before, memory.highest_bytes, broker,
    )  # fmt: skip


def main(parts: list[str]) -> None:
    source = os.environ.get("HOSTILE_SOURCE", "")
    environment = {"PYTHONPATH": source} if source else {}
    chosen = [a for a in ATTACKS if not parts or any(part in a.name for part in parts)]
    announce = not parts or "announce" in parts
    print(
        "| request | entries | size | answer | took | another produce waited | resident before / during / after |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for count, together in itertools.product((40, 500), (False, True)) if announce else ():
            with running(Path(directory) / f"announcements-{count}-{together}", environment) as broker:
                with standing_by(broker.host_and_port) as bystander:
                    measure_announcements(broker, bystander, count, together=together)
        for number, attack in enumerate(chosen):
            with running(Path(directory) / f"data-{number}", environment) as broker:
                with standing_by(broker.host_and_port) as bystander:
                    for entries in sorted({min(SERVED_ENTRIES, attack.entries), attack.entries}):
                        measure(broker, bystander, attack, entries)


@contextlib.contextmanager
def running(directory: Path, environment: dict[str, str]):  # type: ignore[no-untyped-def]
    broker = Broker(directory, environment=environment)
    try:
        broker.start()
        prepare(broker)
        yield broker
    finally:
        broker.end()


if __name__ == "__main__":
    main(sys.argv[1:])
