"""A relay between a client and a broker, which tests cut, or make swallow what passes."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Relay:
    """Listens on a port of its own and passes bytes on to an address."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected = asyncio.Event()
        # Whether responses of the broker are dropped.
        self.swallows = False
        # How many bytes of responses are passed before all connections are reset; None if they are not.
        self.response_bytes_left: int | None = None
        self.cuts = 0
        # Bytes that the client has sent.
        self.received = 0
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset all connections."""
        self.cuts += 1
        for each in self._writers:
            each.transport.abort()

    async def reconnected(self) -> None:
        """Wait for the next connection."""
        self._connected.clear()
        await self._connected.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.swallows = False
        self.connections += 1
        self._writers.add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
            self._writers.add(up_writer)
            self._connected.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, up_writer, is_request=True))
                group.create_task(self._pass(up_reader, writer, is_request=False))
        except* OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if is_request:
                    self.received += len(data)
                elif self.swallows:
                    continue
                elif self.response_bytes_left is not None:
                    data = data[: self.response_bytes_left]
                    self.response_bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
                if self.response_bytes_left == 0:
                    self.response_bytes_left = None
                    self.cut()
        writer.transport.abort()
        self._writers.discard(writer)
