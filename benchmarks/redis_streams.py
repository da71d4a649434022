"""A peer for queue mode: Redis streams with a consumer group, append-only file on, as Debian packages it."""

import re
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from .dialogue import Dialogue, Turns, together
from .jars import Unavailable, free_port
from .servers import Server, started

GROUP = b"bench"
FILLED = 1000
# An entry: an array of an id and of its fields, of which there is one.
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nv\r\n\$(\d+)\r\n")
_ENTRIES = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n\S+\r\n\*(\d+)\r\n")


class RedisStreams:
    """redis-server on loopback, its append-only file synced every second as ours is by default."""

    def __init__(self, command: str) -> None:
        self._command = command
        told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
        self.name = f"Redis streams {told.partition('v=')[2].split()[0]}"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        log = directory / "server.log"
        began_at = time.monotonic()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [self._command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory),
                 "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        return started(self.name, process, port, log, began_at)


def redis_streams() -> RedisStreams:
    """Return the peer, if it is installed. Raises Unavailable."""
    if (found := shutil.which("redis-server")) is None:
        raise Unavailable("redis-server is not installed (Debian: apt-get install redis-server)")
    return RedisStreams(found)


def create(address: str, stream: str) -> None:
    """Create a stream with a group."""

    def create() -> Dialogue:
        answer = yield _command(b"XGROUP", b"CREATE", stream.encode(), GROUP, b"0", b"MKSTREAM")
        assert answer == b"+OK\r\n", answer

    together(address, [create()])


def publish(address: str, stream: str, turns: Turns, body: bytes, *, connections: int, batch: int) -> None:
    """Add messages to a stream, `batch` together, and wait for their ids."""
    request = _command(b"XADD", stream.encode(), b"*", b"v", body)

    def send() -> Dialogue:
        for _ in turns:
            # An answer is an id as a bulk string: two lines.
            data = yield request * batch
            while data.count(b"\n") < 2 * batch:
                data += yield b""
            assert b"-ERR" not in data, data[:300]

    together(address, [send() for _ in range(connections)])


def drain(address: str, stream: str, messages: int, consumers: int, batch: int) -> None:
    """Receive and acknowledge exactly `messages`, `batch` at a time, by as many consumers at once.

    What has been received is acknowledged with the request for the next.
    """
    key = stream.encode()
    left = messages

    def consume(name: bytes) -> Dialogue:
        nonlocal left
        ids: list[bytes] = []
        while left:
            wanted = min(batch, left)
            left -= wanted
            read = _command(
                b"XREADGROUP", b"GROUP", GROUP, name, b"COUNT", b"%d" % wanted, b"STREAMS", key, b">"
            )
            ids = yield from _acknowledged(key, ids, read)
            left += wanted - len(ids)
        yield from _acknowledged(key, ids)

    together(address, [consume(b"c%d" % number) for number in range(consumers)])
    assert left == 0, f"{left} messages were not received"


def _acknowledged(key: bytes, ids: list[bytes], read: bytes = b"") -> Generator[bytes, bytes, list[bytes]]:
    """Acknowledge entries, and receive the next; return their ids."""
    acknowledge = _command(b"XACK", key, GROUP, *ids) if ids else b""
    if not acknowledge + read:
        return []
    data = yield acknowledge + read
    if ids:
        while b"\r\n" not in data:
            data += yield b""
        answer, _, data = data.partition(b"\r\n")
        assert answer == b":%d" % len(ids), answer
    while read:
        head = _ENTRIES.match(data)
        if head is not None:
            found = list(_ENTRY.finditer(data, head.end()))
            if len(found) == int(head[1]) and len(data) >= found[-1].end() + int(found[-1][2]) + 2:
                return [each[1] for each in found]
        assert not data.startswith((b"-", b"*-1")), data[:300]
        data += yield b""
    return []


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
