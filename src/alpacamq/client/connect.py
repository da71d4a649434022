"""Connects to an address within a deadline that includes the name lookup."""

import socket
import time
from threading import Thread

from alpacamq.model.address import Address

from .errors import Unreachable


def connect(address: Address, deadline: float, *, named_by: str) -> socket.socket:
    """Return a connected socket, or raise Unreachable; `named_by` is the option that sets the address."""
    reason: object = "timed out"
    for family, kind, protocol, _, place in _resolve(address, deadline):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        attempt = socket.socket(family, kind, protocol)
        try:
            # An address that drops packets must not use up the time for the next.
            attempt.settimeout(left_s / 2)
            attempt.connect(place)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            attempt.close()
            reason = error.strerror or error
        else:
            return attempt
    raise Unreachable(
        f"no broker answers at {address} ({reason}); is it running? "
        f"Start one with `alpacamq serve`, or set another address with {named_by}"
    )


def _resolve(address: Address, deadline: float) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """Resolve a host name to socket addresses."""
    found: list[tuple[int, int, int, str, tuple[object, ...]]] = []
    failures: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failures.append(error if isinstance(error, OSError) else OSError(str(error)))

    # In a thread, because the system's resolver has no timeout.
    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        why = (failures[0].strerror or failures[0]) if failures else "the name server does not answer"
        raise Unreachable(
            f"cannot resolve the host {address.host!r} ({why}); check the address of the broker"
        )
    return list(found)


DEFAULT_PORT = 9092


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse HOST, HOST:PORT or [IPv6]:PORT; ValueError if it is invalid."""
    text = text.strip()
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{default_port}"
    address = Address.parse(text)
    if address.port == 0:
        raise ValueError(f"{text!r}: the port of a broker must be from 1 to 65535")
    return address


def parse_addresses(text: str, default_port: int = DEFAULT_PORT) -> tuple[Address, ...]:
    """Parse a list of addresses, separated by commas; ValueError if it is empty or one is invalid."""
    found = tuple(parse_address(each, default_port) for each in text.split(",") if each.strip())
    if not found:
        raise ValueError("no address is given")
    return found
