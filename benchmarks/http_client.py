"""A client that costs little: HTTP/1.1 on a raw connection, one request under way at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

import uvloop


class HttpClient:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 24))

    async def ask(self, head: bytes, body: bytes = b"") -> bytes:
        """The body of the answer to `head` (request line and headers, without a length) and `body`."""
        self._writer.write(b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in answer.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        content = await self._reader.readexactly(length) if length else b""
        if answer[9:12] not in (b"200", b"201", b"204"):
            raise RuntimeError(f"{answer[:200]!r} {content[:500]!r}")
        return content

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def together(address: str, workers: Sequence[Callable[[HttpClient], Awaitable[None]]]) -> None:
    """Run every worker on a connection of its own until all have ended."""

    async def one(work: Callable[[HttpClient], Awaitable[None]]) -> None:
        client = await HttpClient.connect(address)
        try:
            await work(client)
        finally:
            await client.close()

    async def everyone() -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in workers:
                tasks.create_task(one(work))

    uvloop.run(everyone())
