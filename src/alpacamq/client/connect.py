"""Connects to an address within a deadline that includes the name lookup and the TLS handshake."""

import socket
import ssl
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread

from alpacamq.model.address import Address

from .errors import Unreachable, UnusableCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS with a broker. Its certificate and host name are always verified."""

    # Files in PEM format. The authorities that may have signed the broker's certificate; None for those
    # of the system.
    ca: str | None = None
    # The client's own certificate and its key.
    certificate: str | None = None
    key: str | None = None

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return the context for connections, which offer these protocols. Raises UnusableCertificate."""
        return _context(self, protocols)


@cache
def _context(tls: Tls, protocols: tuple[str, ...]) -> ssl.SSLContext:
    for path in (tls.ca, tls.certificate, tls.key):
        if path is not None and not Path(path).is_file():
            raise UnusableCertificate(f"{path} is not a file")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise UnusableCertificate(f"{tls.ca} contains no certificates: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key)
        except OSError as error:
            key = tls.key or "the key in it"
            reason = error.strerror or error
            raise UnusableCertificate(f"{tls.certificate} and {key} cannot be used: {reason}") from None
    return context


def connect(address: Address, deadline: float, *, named_by: str, tls: Tls | None = None) -> socket.socket:
    """Return a connected socket, or raise Unreachable; `named_by` is the option that sets the address."""
    connected = _connect(address, deadline, named_by)
    return connected if tls is None else _encrypted(connected, address, deadline, tls)


def _encrypted(connected: socket.socket, address: Address, deadline: float, tls: Tls) -> ssl.SSLSocket:
    try:
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        return tls.context().wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise Unreachable(
            f"the certificate of {address} is not accepted: {error.verify_message or error}; set the file of "
            "its authority with --ca FILE, ALPACAMQ_CA or a context"
        ) from None
    except TimeoutError:
        connected.close()
        raise Unreachable(
            f"{address} does not answer the TLS handshake; does this listener use TLS?"
        ) from None
    except OSError as error:
        connected.close()
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
        raise Unreachable(
            f"the TLS handshake with {address} failed ({reason}); does this listener use TLS?"
        ) from None
    except BaseException:
        connected.close()
        raise


def _connect(address: Address, deadline: float, named_by: str) -> socket.socket:
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
