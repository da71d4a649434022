"""A peer for queue mode: NATS JetStream, a stream in files with a durable pull consumer.

The server is built from its published source with Go, once, into the user's cache. The client speaks the
protocol itself: a Python client library would be the limit.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from .dialogue import Dialogue, Turns, together
from .jars import CACHE, Unavailable, free_port
from .servers import Server, started

VERSION = "2.15.2"
SOURCE = "github.com/nats-io/nats-server/v2"
BUILD_S = 600.0
CONSUMER = "bench"
EXPIRES_NS = 60_000_000_000
IN_FLIGHT = 1000
# Synced every second, as ours is by default.
_CONFIGURATION = """\
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}", sync_interval: "1s" }}
"""
_DELIVERED = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) (\d+)\r\n")
_RESPONSE = re.compile(rb"MSG \S+ 1 (\d+)\r\n")
_HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\n'


class Nats:
    """nats-server on loopback."""

    name = f"NATS JetStream {VERSION}"

    def __init__(self, program: Path) -> None:
        self._program = program

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        configuration = directory / "server.conf"
        configuration.write_text(_CONFIGURATION.format(port=port, directory=directory))
        log = directory / "server.log"
        began_at = time.monotonic()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [self._program, "-c", configuration],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return started(self.name, process, port, log, began_at)


def nats() -> Nats:
    """Return the peer, built on first use. Raises Unavailable."""
    program = CACHE / f"nats-server-{VERSION}"
    if not program.exists():
        _build(program)
    return Nats(program)


def _build(program: Path) -> None:
    if (go := shutil.which("go")) is None:
        raise Unavailable("there is no go to build it with")
    with tempfile.TemporaryDirectory() as scratch:
        command = [go, "install", f"{SOURCE}@v{VERSION}"]
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                cwd=scratch,
                env={**os.environ, "GOBIN": scratch},
                timeout=BUILD_S,
            )
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"go cannot build it: {error.stderr.decode()[-300:].strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"go does not build it within {BUILD_S:.0f} s") from error
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(scratch) / "nats-server", program)


def create(address: str, stream: str) -> None:
    """Create a stream with a subject of its name, and a pull consumer."""

    def create() -> Dialogue:
        settings = {
            "name": stream,
            "subjects": [stream],
            "storage": "file",
            "num_replicas": 1,
        }
        inbox = b"_INBOX.create"
        yield from _api(inbox, f"STREAM.CREATE.{stream}", settings, _HELLO % inbox)
        consumer = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 100_000}
        request = {"stream_name": stream, "config": consumer}
        yield from _api(inbox, f"CONSUMER.CREATE.{stream}.{CONSUMER}", request)

    together(address, [create()])


def publish(address: str, stream: str, turns: Turns, body: bytes, *, connections: int, batch: int) -> None:
    """Publish messages, `batch` together, and wait for their acknowledgements."""

    def send(number: int) -> Dialogue:
        inbox = b"_INBOX.publish.%d" % number
        request = _publish(stream, inbox, body)
        before = _HELLO % inbox
        for _ in turns:
            data = yield before + request * batch
            while data.count(b'"seq":') < batch or not data.endswith(b"}\r\n"):
                data += yield b""
            assert b'"error"' not in data, data[:300]
            before = _pong(data)

    together(address, [send(number) for number in range(connections)])


def drain(address: str, stream: str, messages: int, consumers: int, batch: int) -> None:
    """Receive and acknowledge exactly `messages`, `batch` at a time, by as many consumers at once."""
    turns = _turns(messages, batch)

    def consume(number: int) -> Dialogue:
        inbox = b"_INBOX.drain.%d" % number
        before = _HELLO % inbox
        for count in turns:
            pull = b'{"batch":%d,"expires":%d}' % (count, EXPIRES_NS)
            data = yield before + _publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{CONSUMER}", inbox, pull)
            while not _is_whole(found := list(_DELIVERED.finditer(data)), data, count):
                data += yield b""
            before = _pong(data) + b"".join([b"PUB %b 4\r\n+ACK\r\n" % each[1] for each in found])
        data = yield before + b"PING\r\n"
        while b"PONG\r\n" not in data:
            data += yield b""

    together(address, [consume(number) for number in range(consumers)])

    # Acknowledgements are not answered: the state of the consumer shows that all have been taken.
    def check() -> Dialogue:
        inbox = b"_INBOX.check"
        before = _HELLO % inbox
        while True:
            info = yield from _api(inbox, f"CONSUMER.INFO.{stream}.{CONSUMER}", {}, before)
            assert not info["num_pending"] + info["num_redelivered"], info
            if not info["num_ack_pending"]:
                return
            before = b""

    together(address, [check()])


def _turns(messages: int, batch: int) -> "itertools.chain[int]":
    """Return the sizes of batches, to be shared by connections."""
    whole, rest = divmod(messages, batch)
    return itertools.chain(itertools.repeat(batch, whole), [rest] if rest else [])


def _publish(subject: str, inbox: bytes, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body)


def _api(
    inbox: bytes, subject: str, request: Mapping[str, object], before: bytes = b""
) -> Generator[bytes, bytes, dict[str, int]]:
    data = yield before + _publish(f"$JS.API.{subject}", inbox, json.dumps(request).encode())
    while (found := _RESPONSE.search(data)) is None or len(data) < found.end() + int(found[1]) + 2:
        data += yield b""
    response: dict[str, int] = json.loads(data[found.end() : found.end() + int(found[1])])
    assert "error" not in response, response
    return response


def _is_whole(found: list[re.Match[bytes]], data: bytes, count: int) -> bool:
    return len(found) == count and len(data) >= found[-1].end() + int(found[-1][2]) + 2


def _pong(data: bytes) -> bytes:
    """Return the answer to a ping among the received bytes."""
    return b"PONG\r\n" if b"PING\r\n" in data else b""
