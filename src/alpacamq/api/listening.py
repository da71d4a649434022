"""Taking an address to listen on, the same for every door."""

import socket

from alpacamq.model.errors import AlpacaError

BACKLOG = 1024


class CannotListen(AlpacaError):
    """The address is taken or is not ours."""


def take_address(host: str, port: int, remedy: str) -> socket.socket:
    """A listening socket; `remedy` is what to do if the address cannot be had."""
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # At once: an address that is only bound could be taken by another broker as well.
        listening.listen(BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error
    return listening
