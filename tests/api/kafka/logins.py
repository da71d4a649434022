"""Clients that authenticate with SASL, message by message, and brokers that ask them to."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest
from alpacamq.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from alpacamq.security.scram import ClientExchange, Mechanism
from tests.brokers import KEPT, Broker

from .wire import Wire

PLAIN = "PLAIN"
# Offered by brokers with a provider of tokens.
OAUTHBEARER = "OAUTHBEARER"
ALL = [PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER, PASSWORD = "alice", "se:cret, größer"
USERS = f"{USER}:{PASSWORD}\nbob:other\n"


def secured(path: Path, *settings: str) -> Iterator[Broker]:
    """A broker with two users of its configuration, and these lines in [security]."""
    path.mkdir(parents=True)
    users = path / "users"
    users.write_text(USERS)
    users.chmod(0o600)
    lines = [f"users_file = '{users}'", *settings]
    broker = Broker(path / "data", config="\n".join([KEPT, "[security]", *lines]))
    try:
        yield broker.start()
    finally:
        broker.end()


def handshake(wire: Wire, mechanism: str, version: int = 1) -> ErrorCode:
    response = wire.ask(SaslHandshakeRequest(mechanism=mechanism), version)
    assert set(response.mechanisms) - {OAUTHBEARER} == set(ALL)
    return ErrorCode(response.error_code)


def send_token(wire: Wire, token: bytes, version: int | None = None) -> Any:
    return wire.ask(SaslAuthenticateRequest(auth_bytes=token), version)


def plain(name: str, password: str, acts_for: str = "") -> bytes:
    return f"{acts_for}\0{name}\0{password}".encode()


def exchange_of(mechanism: str, name: str = USER, password: str = PASSWORD) -> ClientExchange:
    return ClientExchange(Mechanism(mechanism), name, password, secrets.token_bytes(24))


def log_in(wire: Wire, mechanism: str, name: str = USER, password: str = PASSWORD) -> Any:
    """Authenticate, and return the last response."""
    assert handshake(wire, mechanism) == ErrorCode.NONE
    if mechanism == PLAIN:
        return send_token(wire, plain(name, password))
    exchange = exchange_of(mechanism, name, password)
    first = send_token(wire, exchange.first)
    assert first.error_code == 0
    last = send_token(wire, exchange.final(first.auth_bytes))
    if not last.error_code:
        exchange.verify(last.auth_bytes)
    return last


def is_served(wire: Wire) -> bool:
    return bool(wire.ask(MetadataRequest(topics=[])).error_code == ErrorCode.NONE)
