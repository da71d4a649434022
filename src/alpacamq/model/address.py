"""Network addresses as HOST:PORT."""

import msgspec

MAX_PORT = 65535
_MAPPED = "::ffff:"
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


def client_host(host: str) -> str:
    """Return the address of a client: that of an IPv4 client of an IPv6 socket without the prefix."""
    return host.removeprefix(_MAPPED) if "." in host else host


class Address(msgspec.Struct, frozen=True):
    """A host and a port; prints as HOST:PORT with IPv6 addresses in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `text`. Raises ValueError with the reason."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or host.endswith(":") or (host.startswith("[") and not host.endswith("]")):
            raise ValueError(f"{text!r} has no port: write HOST:PORT, IPv6 hosts in brackets")
        if not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise ValueError(f"{port!r} is not a port: ports are 0 to {MAX_PORT}")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare:
            raise ValueError(f"{text!r} has no host: write 0.0.0.0:{port} for every interface")
        if ":" in bare and host == bare:
            raise ValueError(f"{text!r} is ambiguous: put the IPv6 host in brackets, [{bare}]:{port}")
        if not bare.isprintable() or any(character in bare for character in " /@[],\"'\\"):
            raise ValueError(f"{bare!r} is not a host name")
        return cls(bare, int(port))

    @property
    def is_wildcard(self) -> bool:
        """Whether this is the address of every interface, to which a remote client cannot connect."""
        return self.host in WILDCARDS

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
