"""Raw-socket writers that send one prebuilt request again and again.

They do almost nothing per request, so the server is the limit: how many small requests it answers, and
how long each waits for its acknowledgement.
"""

import selectors
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from . import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The result of a run; every request had one record."""

    requests: int
    wall_s: float
    # One per request if each was awaited; empty if they were pipelined.
    latencies_ns: "array[int]"

    @property
    def per_second(self) -> float:
        return self.requests / self.wall_s


def one_in_flight(address: str, topic: str, *, connections: int, size: int, seconds: float) -> Acknowledged:
    """Send the next request on each connection after the answer to the last."""
    request = wire.produce_request(topic, 0, wire.one_record_batch(size), acks=1)
    expected = wire.produce_response_bytes(topic)
    latencies = array("q")
    clock = time.monotonic_ns
    with _connected(address, connections) as sockets, selectors.EpollSelector() as selector:
        sent_at: dict[int, int] = {}
        for connection in sockets:
            selector.register(connection, selectors.EVENT_READ, connection)
        began_at = time.monotonic()
        until_ns = clock() + int(seconds * 1e9)
        for connection in sockets:
            sent_at[connection.fileno()] = clock()
            connection.send(request)
        while sent_at:
            for key, _ in selector.select(wire.SOCKET_TIMEOUT_S):
                connection = key.data
                answer = connection.recv(expected)
                if len(answer) < expected:
                    answer += wire.receive_exactly(connection, expected - len(answer))
                now_ns = clock()
                latencies.append(now_ns - sent_at[key.fd])
                wire.check_produced(answer, topic)
                if now_ns < until_ns:
                    sent_at[key.fd] = now_ns
                    connection.send(request)
                else:
                    del sent_at[key.fd]
        wall_s = time.monotonic() - began_at
    return Acknowledged(requests=len(latencies), wall_s=wall_s, latencies_ns=latencies)


def pipelined(
    address: str,
    request: bytes,
    response_bytes: int,
    *,
    connections: int,
    depth: int,
    seconds: float,
    prepare: Callable[[socket.socket], None] | None = None,
) -> Acknowledged:
    """Keep up to `depth` requests in flight on each connection, after it was prepared.

    Answers are counted by their known size; their content is not read.
    """
    block_of = max(depth // 2, 1)
    block = request * block_of
    with _connected(address, connections) as sockets, selectors.EpollSelector() as selector:
        if prepare is not None:
            for connection in sockets:
                prepare(connection)
        pipes = [_Pipe(connection, block, response_bytes * block_of) for connection in sockets]
        for pipe in pipes:
            selector.register(pipe.connection, selectors.EVENT_READ, pipe)
        began_at = time.monotonic()
        until = began_at + seconds
        blocks = 0
        for pipe in pipes * min(depth, 2):
            pipe.send_block()
            blocks += 1
        while any(pipe.owed_bytes for pipe in pipes):
            for key, _ in selector.select(wire.SOCKET_TIMEOUT_S):
                pipe = key.data
                for _ in range(pipe.receive()):
                    if time.monotonic() < until:
                        pipe.send_block()
                        blocks += 1
        wall_s = time.monotonic() - began_at
    return Acknowledged(requests=blocks * block_of, wall_s=wall_s, latencies_ns=array("q"))


def append(address: str, topic: str, partitions: int, messages: int, *, size: int, batch: int) -> None:
    """Write `messages` in batches, to one partition after the other."""
    data = wire.batch_of(batch, size)
    requests = [wire.produce_request(topic, partition, data, acks=1) for partition in range(partitions)]
    with wire.connect(address) as connection:
        for number in range(messages // batch):
            connection.sendall(requests[number % partitions])
            answer = wire.receive_exactly(connection, wire.produce_response_bytes(topic))
            wire.check_produced(answer, topic)


class _Pipe:
    """One connection that always has a block of requests in flight and another queued."""

    def __init__(self, connection: socket.socket, block: bytes, answer_bytes: int) -> None:
        self.connection = connection
        self.owed_bytes = 0
        self._block = block
        self._answer_bytes = answer_bytes
        self._received = 0

    def send_block(self) -> None:
        self.connection.sendall(self._block)
        self.owed_bytes += self._answer_bytes

    def receive(self) -> int:
        """Consume received bytes; return the number of blocks fully answered by them."""
        data = self.connection.recv(1 << 18)
        if not data:
            raise ConnectionError("the server hung up")
        self.owed_bytes -= len(data)
        self._received += len(data)
        whole, self._received = divmod(self._received, self._answer_bytes)
        return whole


@contextmanager
def _connected(address: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(wire.connect(address)) for _ in range(count)]
