"""Requests in any version, sent as they are and answered exactly: what well-behaved clients never show."""

import itertools
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from struct import Struct
from typing import Any, TypeVar

from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode

TIMEOUT_S = 20.0
CLIENT_ID = "wire"

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")
_BY_REQUEST = {api.request: api for api in APIS.values()}

R = TypeVar("R", bound=Message)


class Wire:
    """One connection. Versions are the latest unless told otherwise."""

    def __init__(
        self, address: tuple[str, int], host: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S, source_address=(host, 0))
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=address[0])
        self._correlation_ids = itertools.count()
        # As the broker's log names the connection.
        self.name = ":".join(map(str, self.socket.getsockname()))

    def ask(self, request: Message, version: int | None = None) -> Any:
        """The response to one request."""
        self.send(request, version)
        return self.receive(type(request), version)

    def send(self, request: Message, version: int | None = None) -> None:
        api = _BY_REQUEST[type(request)]
        number = api.max_version if version is None else version
        client_id = CLIENT_ID.encode()
        header = _HEADER.pack(api.key, number, next(self._correlation_ids), len(client_id)) + client_id
        if number >= api.flexible_from:
            header += b"\x00"
        self.send_frame(header + encode(request, number))

    def receive(self, request: type[Message], version: int | None = None) -> Any:
        """The next response, which is one to a `request`."""
        api = _BY_REQUEST[request]
        number = api.max_version if version is None else version
        return decode(api.response, number, memoryview(self.receive_frame()), _header_bytes(api, number))

    def send_frame(self, payload: bytes, size: int | None = None) -> None:
        """Send bytes as a frame that claims `size`, the true one unless told otherwise."""
        self.socket.sendall(_SIZE.pack(len(payload) if size is None else size) + payload)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        return self._exactly(size)

    @property
    def has_bytes(self) -> bool:
        """Whether the broker sends something; waits for it, and reads none of it."""
        return bool(select([self.socket], [], [], TIMEOUT_S)[0])

    @property
    def is_closed(self) -> bool:
        """Whether the broker closes the connection without another byte; waits for it."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)


def _header_bytes(api: Api, version: int) -> int:
    return 5 if version >= api.flexible_from and api.key != ApiKey.API_VERSIONS else 4


@contextmanager
def wired(address: tuple[str, int], host: str = "", context: ssl.SSLContext | None = None) -> Iterator[Wire]:
    """A connection, from the address `host` of this machine if there is one."""
    wire = Wire(address, host, context)
    try:
        yield wire
    finally:
        wire.close()


def versions(request: type[Message]) -> range:
    """All that are served."""
    api = _BY_REQUEST[request]
    return range(api.min_version, api.max_version + 1)


def at_most(request: type[Message], version: int) -> int:
    """The version, or the nearest that is served."""
    served = versions(request)
    return min(max(version, served.start), served.stop - 1)
