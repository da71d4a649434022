"""A fake broker with scripted responses, for faults that a real one does not have."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import pack, unpack

from alpacamq.model.address import Address
from alpacamq.protocol.apis import APIS
from alpacamq.protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from alpacamq.protocol.schema import encode

# Takes the place of the correlation id of the request that is answered.
ECHO = b"ECHO"


def frame(body: bytes) -> bytes:
    """Return a response frame with this body."""
    return pack(">i", len(body) + 4) + ECHO + body


def handshake(offered: Sequence[ApiVersion] | None = None, *, version: int = 3) -> bytes:
    """Return an ApiVersions response, by default with the versions of our broker."""
    ours = [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in APIS.values()
    ]
    return frame(encode(ApiVersionsResponse(api_keys=ours if offered is None else offered), version))


@contextmanager
def peer(*answers: bytes) -> Iterator[Address]:
    """Takes one connection, gives the answers in turn, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=_serve, args=(server, answers), daemon=True)
        serving.start()
        yield Address("127.0.0.1", server.getsockname()[1])
        serving.join(10)


def _serve(server: socket.socket, answers: Sequence[bytes]) -> None:
    server.settimeout(10)
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as requests:
        for answer in answers:
            (size,) = unpack(">i", requests.read(4))
            request = requests.read(size)
            connection.sendall(answer.replace(ECHO, request[4:8], 1))
