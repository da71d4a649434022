"""A peer for queue mode: Redis streams with a consumer group, append-only file on, as Debian packages it."""

import asyncio
import shutil
import socket
import subprocess
import time
from pathlib import Path

import uvloop

from .jars import Unavailable, free_port
from .servers import START_S, Server

BATCH = 10
STREAM = b"bench"


class RedisStreams:
    """redis-server on loopback, its append-only file synced every second as ours is by default."""

    def __init__(self, command: str) -> None:
        self._command = command
        told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
        self.name = f"Redis streams {told.partition('v=')[2].split()[0]}"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        began_at = time.monotonic()
        with (directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [self._command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory),
                 "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while time.monotonic() - began_at < START_S:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return Server(self.name, f"127.0.0.1:{port}", process, time.monotonic() - began_at)
        process.kill()
        process.wait()
        raise Unavailable("it did not start")


def redis_streams() -> RedisStreams:
    """The peer, if it is installed."""
    if (found := shutil.which("redis-server")) is None:
        raise Unavailable("redis-server is not installed")
    return RedisStreams(found)


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes, answers: int = 1) -> object:
        self._writer.write(request)
        answer: object = None
        for _ in range(answers):
            answer = await self._read()
        return answer

    async def _read(self) -> object:
        line = await self._reader.readuntil(b"\r\n")
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return None if rest == b"-1" else [await self._read() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else (await self._reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return rest

    def close(self) -> None:
        self._writer.close()


async def _connect(address: str) -> _Connection:
    host, _, port = address.rpartition(":")
    return _Connection(*await asyncio.open_connection(host, int(port), limit=1 << 24))


def fill(address: str, messages: int, body: bytes) -> None:
    """Add `messages` to a new stream with a group."""

    async def send() -> None:
        connection = await _connect(address)
        await connection.ask(_command(b"DEL", STREAM))
        await connection.ask(_command(b"XGROUP", b"CREATE", STREAM, b"g", b"0", b"MKSTREAM"))
        add = _command(b"XADD", STREAM, b"*", b"v", body) * 1000
        for _ in range(messages // 1000):
            await connection.ask(add, answers=1000)
        connection.close()

    uvloop.run(send())


def drain(address: str, messages: int, consumers: int) -> None:
    """Receive and acknowledge exactly `messages`, ten at a time, by as many consumers at once."""
    left = messages

    async def consume(name: bytes) -> None:
        nonlocal left
        connection = await _connect(address)
        receive = _command(
            b"XREADGROUP", b"GROUP", b"g", name, b"COUNT", b"%d" % BATCH, b"STREAMS", STREAM, b">"
        )
        while left > 0:
            answer = await connection.ask(receive)
            if not isinstance(answer, list):
                continue
            entries = answer[0][1]
            left -= len(entries)
            await connection.ask(_command(b"XACK", STREAM, b"g", *(entry[0] for entry in entries)))
        connection.close()

    async def everyone() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(consumers):
                tasks.create_task(consume(b"c%d" % number))

    uvloop.run(everyone())
    assert left == 0, f"{-left} messages more than were sent"
