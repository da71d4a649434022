"""A client that produces and commits offsets all the time, and how long it waited for the slowest of each."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.messages import committed_offsets as committed
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from .attacks import framed

_SIZE = Struct(">i")
TIMEOUT_S = 200.0
TOPIC = "bystander"
_COMMIT_VERSION = 7


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
    """The wait of a client, and the broker's processor time in it: the rest is other processes'."""

    waited_ms: float
    work_ms: float


class Repeated:
    """Sends one request again and again on a connection of its own until it is stopped."""

    def __init__(
        self,
        address: tuple[str, int],
        frame: bytes,
        read_error: Callable[[bytes], int],
        broker_pid: int | None,
    ) -> None:
        # Linux counts there, in nanoseconds, how long the broker's main thread has had a processor.
        self._work = None if broker_pid is None else Path(f"/proc/{broker_pid}/schedstat")
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = frame
        self._read_error = read_error
        self._stopping = threading.Event()
        self._longest_s = 0.0
        self._most_work_ms = 0.0
        self._began_at: float | None = None

    def send(self) -> None:
        """Send the request once and wait for its answer."""
        worked_ms = self._work_ms()
        self._began_at = began_at = time.monotonic()
        self._socket.sendall(self._frame)
        answer = receive_frame(self._socket)
        self._longest_s = max(self._longest_s, time.monotonic() - began_at)
        self._most_work_ms = max(self._most_work_ms, self._work_ms() - worked_ms)
        error = self._read_error(answer)
        assert error == 0, f"the bystander's request failed with error {error}"

    def run(self) -> None:
        """Send the request until stopped."""
        while not self._stopping.is_set():
            self.send()

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self._socket.close()

    def take_longest(self) -> Wait:
        """Return the longest wait since the last call, including one that is not over."""
        waiting_s = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        longest = Wait(max(self._longest_s, waiting_s) * 1000, self._most_work_ms)
        self._longest_s = self._most_work_ms = 0.0
        return longest

    def _work_ms(self) -> float:
        if self._work is None:
            return 0.0
        return int(self._work.read_bytes().split()[0]) / 1e6


def producing(address: tuple[str, int], broker_pid: int | None = None) -> Repeated:
    """A client that produces one record after the other."""
    batch = write_batch([Record(0, int(time.time() * 1000), None, b"x" * 100)])
    topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    frame = framed(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    # Behind the header, the topic's name and the partition's index.
    error_at = 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4
    return Repeated(
        address, frame, lambda answer: int.from_bytes(answer[error_at : error_at + 2], "big"), broker_pid
    )


def committing(address: tuple[str, int], broker_pid: int | None = None) -> Repeated:
    """A client that commits one offset after the other."""
    partition = committed.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = committed.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    frame = framed(committed.OffsetCommitRequest(group_id=TOPIC, topics=[topic]), _COMMIT_VERSION)
    return Repeated(address, frame, lambda answer: int.from_bytes(answer[-2:], "big"), broker_pid)


class Bystander(NamedTuple):
    """A client that runs while the broker is attacked."""

    producing: Repeated
    committing: Repeated


@contextmanager
def standing_by(address: tuple[str, int], broker_pid: int) -> Iterator[Bystander]:
    """A bystander at work."""
    bystander = Bystander(producing(address, broker_pid), committing(address, broker_pid))
    with ExitStack() as stack:
        for repeated in bystander:
            stack.callback(repeated.close)
            repeated.send()
            thread = threading.Thread(target=repeated.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(repeated.stop)
        yield bystander
