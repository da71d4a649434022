"""A proxy between real clients and the broker that records every request."""

import socket
import threading
from struct import Struct

from .raw import frame

_SIZE = Struct(">i")


class Recorder:
    """Forwards bytes in both directions and records the frames sent to the broker."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._target: tuple[str, int] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def forward_to(self, target: tuple[str, int]) -> None:
        """Set the target of new connections."""
        self._target = target

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            assert self._target is not None, "a client connected before the broker was set"
            broker = socket.create_connection(self._target)
            threading.Thread(target=self._record, args=(client, broker), daemon=True).start()
            threading.Thread(target=_forward, args=(broker, client), daemon=True).start()

    def _record(self, client: socket.socket, broker: socket.socket) -> None:
        pending = bytearray()
        while data := _receive(client):
            broker.sendall(data)
            pending += data
            while len(pending) >= 4 and len(pending) >= 4 + _SIZE.unpack_from(pending)[0]:
                size = _SIZE.unpack_from(pending)[0]
                self.frames.append(frame(bytes(pending[4 : 4 + size])))
                del pending[: 4 + size]
        broker.close()


def _forward(source: socket.socket, target: socket.socket) -> None:
    while data := _receive(source):
        try:
            target.sendall(data)
        except OSError:
            return
    target.close()


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""
