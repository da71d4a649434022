"""A client of the cluster listener that can misbehave: it writes bytes, not values."""

import asyncio
from struct import Struct

from alpacamq.broker.peers.connection import CALL, with_length
from alpacamq.broker.peers.handshake import ClientHandshake, LocalNode, Peer, Purpose

from .nodes import SECRET, SOON_S, Node, local

HEAD = Struct(">BI")
CALL_HEAD = Struct(">BII")


class Raw:
    """One connection; `sent` holds every byte of the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent: list[bytes] = []

    @classmethod
    async def connect(cls, node: Node) -> "Raw":
        return cls(*await asyncio.open_connection(node.address.host, node.address.port))

    @classmethod
    async def authenticated(
        cls,
        node: Node,
        this: LocalNode | None = None,
        purpose: Purpose = Purpose.CALLS,
        secret: bytes = SECRET,
    ) -> "Raw":
        raw = await cls.connect(node)
        client = ClientHandshake(this or local(1), None, purpose, secret)
        raw.send(client.opening)
        proof = client.received(await raw.frame(), "server")
        assert isinstance(proof, bytes)
        raw.send(proof)
        assert isinstance(client.received(await raw.frame(), "server"), Peer)
        return raw

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)
        self.writer.write(with_length(payload))

    def call(self, request_id: int, body: bytes, timeout_ms: int = 60_000) -> None:
        self.writer.write(with_length(CALL_HEAD.pack(CALL, request_id, timeout_ms) + body))

    async def frame(self) -> bytes:
        async with asyncio.timeout(SOON_S):
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def reply(self) -> tuple[int, int, bytes]:
        """Return kind, request id and body of the next frame."""
        frame = await self.frame()
        kind, request_id = HEAD.unpack_from(frame)
        return kind, request_id, frame[HEAD.size :]

    async def is_closed(self) -> bool:
        """Wait until the listener closes the connection."""
        async with asyncio.timeout(SOON_S):
            try:
                while await self.reader.read(1 << 20):
                    pass
            except ConnectionError:
                pass
        self.close()
        return True

    def close(self) -> None:
        self.writer.transport.abort()
