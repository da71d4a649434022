"""The socket by which a service manager hears its services."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

PATIENCE_S = 30


class Manager:
    """A service manager's end of systemd's notification protocol."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(PATIENCE_S)

    def receive(self) -> dict[str, str]:
        """Return the next message."""
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_for(self, name: str) -> dict[str, str]:
        """Return the next message with this assignment."""
        while name not in (message := self.receive()):
            pass
        return message

    def drain(self) -> None:
        """Receive until no message comes any more."""
        self._socket.settimeout(1)
        with suppress(TimeoutError):
            while True:
                self.receive()
        self._socket.settimeout(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
