"""Connecting to an address by a deadline, the look-up of its name included."""

import socket
import time
from threading import Thread

from alpacamq.model.address import Address

from .errors import Unreachable


def dial(address: Address, deadline: float, *, named_by: str) -> socket.socket:
    """A connected socket, or Unreachable; `named_by` is how users name another address."""
    reason: object = "no time left"
    for family, kind, protocol, _, place in _resolve(address, deadline):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        attempt = socket.socket(family, kind, protocol)
        try:
            # An address that swallows packets must not eat the time of the next.
            attempt.settimeout(left_s / 2)
            attempt.connect(place)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            attempt.close()
            reason = error.strerror or error
        else:
            return attempt
    raise Unreachable(
        f"no broker answers at {address} ({reason}); is it running there? "
        f"Start one with `alpacamq serve`, or name another with {named_by}"
    )


def _resolve(address: Address, deadline: float) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """The places a host name stands for."""
    found: list[tuple[int, int, int, str, tuple[object, ...]]] = []
    failures: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failures.append(error if isinstance(error, OSError) else OSError(str(error)))

    # In a thread, as the system's resolver knows no deadline.
    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        why = (failures[0].strerror or failures[0]) if failures else "the name server does not answer"
        raise Unreachable(
            f"the host {address.host!r} cannot be found ({why}); check the address of the broker"
        )
    return list(found)


DEFAULT_PORT = 9092


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """The address in HOST, HOST:PORT or [IPv6]:PORT, or ValueError saying what is wrong with it."""
    text = text.strip()
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{default_port}"
    address = Address.parse(text)
    if address.port == 0:
        raise ValueError(f"{text!r}: port 0 is for listening, a broker is reached at 1 to 65535")
    return address
