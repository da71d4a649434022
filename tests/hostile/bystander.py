"""A client that produces small batches all the time, and how long it waited for the slowest of them."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from .attacks import framed

_SIZE = Struct(">i")
TIMEOUT_S = 200.0
TOPIC = "bystander"


def receive_frame(connection: socket.socket) -> bytes:
    """The payload of the next frame; ConnectionError when the broker hung up instead."""
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the broker hung up")
        view = view[count:]
    return bytes(data)


class Wait(NamedTuple):
    """How long a client waited, and for how much of the broker's work: the rest is other processes'."""

    waited_ms: float
    work_ms: float


class Bystander:
    """Produces one record after the other until it is stopped."""

    def __init__(self, address: tuple[str, int], broker_pid: int | None = None) -> None:
        # Linux counts there, in nanoseconds, how long the broker's main thread has had a processor.
        self._work = None if broker_pid is None else Path(f"/proc/{broker_pid}/schedstat")
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        batch = write_batch([Record(0, int(time.time() * 1000), None, b"x" * 100)])
        topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        self._frame = framed(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
        self._stopping = threading.Event()
        self._longest_s = 0.0
        self._most_work_ms = 0.0
        self._began_at: float | None = None
        self.count = 0

    def produce(self) -> None:
        """Produce one record and wait for its acknowledgement."""
        worked_ms = self._work_ms()
        self._began_at = began_at = time.monotonic()
        self._socket.sendall(self._frame)
        answer = receive_frame(self._socket)
        self._longest_s = max(self._longest_s, time.monotonic() - began_at)
        self._most_work_ms = max(self._most_work_ms, self._work_ms() - worked_ms)
        self.count += 1
        # Behind the header, the topic's name and the partition's index.
        error = int.from_bytes(answer[4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4 :][:2], "big")
        assert error == 0, f"the bystander's produce failed with error {error}"

    def run(self) -> None:
        """Produce until stopped."""
        for _ in itertools.takewhile(lambda _: not self._stopping.is_set(), itertools.count()):
            self.produce()

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self._socket.close()

    def take_longest(self) -> Wait:
        """The longest wait since this was asked last, one that is not over included."""
        waiting_s = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        longest = Wait(max(self._longest_s, waiting_s) * 1000, self._most_work_ms)
        self._longest_s = self._most_work_ms = 0.0
        return longest

    def _work_ms(self) -> float:
        if self._work is None:
            return 0.0
        return int(self._work.read_bytes().split()[0]) / 1e6


@contextmanager
def standing_by(address: tuple[str, int], broker_pid: int) -> Iterator[Bystander]:
    """A bystander at work."""
    bystander = Bystander(address, broker_pid)
    bystander.produce()
    thread = threading.Thread(target=bystander.run)
    thread.start()
    try:
        yield bystander
    finally:
        bystander.stop()
        thread.join()
        bystander.close()
