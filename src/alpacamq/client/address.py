"""Where a broker is reached."""

from typing import NamedTuple

DEFAULT_PORT = 9092
MAX_PORT = 65535


class Address(NamedTuple):
    """A host and a port; prints as HOST:PORT with IPv6 addresses in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address in HOST, HOST:PORT or [IPv6]:PORT, or ValueError saying what is wrong with it."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(DEFAULT_PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare:
        raise ValueError(f"{text!r} has no host: write HOST:PORT")
    if ":" in bare and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is ambiguous: put the IPv6 host in brackets, [HOST]:PORT")
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"{port!r} is not a port: ports are 1 to {MAX_PORT}")
    return Address(bare, int(port))
