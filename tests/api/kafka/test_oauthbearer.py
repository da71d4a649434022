"""SASL OAUTHBEARER on the wire, and bearer tokens over HTTP, of one broker."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from alpacamq.broker.access import FREE_FAILURES
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest
from alpacamq.protocol.messages.sasl import SaslHandshakeRequest
from tests import tokens
from tests.brokers import Broker
from tests.waiting import eventually

from .logins import PASSWORD, USER, is_served, plain, secured, send_token
from .wire import Wire, wired

LOG_S = 10.0
LIFETIME_MS = 1500
MECHANISM = "OAUTHBEARER"
HOSTS = (f"127.0.3.{number}" for number in itertools.count(1))

Connect = Callable[[], AbstractContextManager[Wire]]


def provider(path: Path) -> list[str]:
    path.write_bytes(tokens.jwks())
    return [
        f"jwks_file = '{path}'",
        f"jwt_issuer = '{tokens.ISSUER}'",
        f"jwt_audience = '{tokens.AUDIENCE}'",
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate, and whose rules let alice describe a topic."""
    directory = tmp_path_factory.mktemp("oauth")
    settings = provider(directory / "keys.json")
    yield from secured(directory / "needed", "authentication = true", *settings)


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients may authenticate, for a short time."""
    directory = tmp_path_factory.mktemp("oauth")
    settings = provider(directory / "keys.json")
    yield from secured(directory / "optional", f"session_lifetime_ms = {LIFETIME_MS}", *settings)


@pytest.fixture
def connect(broker: Broker) -> Connect:
    """Connections from an address of this test: failures of others do not count against it."""
    host = next(HOSTS)
    return lambda: wired(broker.host_and_port, host)


@pytest.fixture
def wire(connect: Connect) -> Iterator[Wire]:
    with connect() as wire:
        yield wire


def handshake(wire: Wire, mechanism: str = MECHANISM, version: int = 1) -> ErrorCode:
    response = wire.ask(SaslHandshakeRequest(mechanism=mechanism), version)
    assert MECHANISM in response.mechanisms
    return ErrorCode(response.error_code)


def message(token: str, acts_for: str = "") -> bytes:
    authzid = f"a={acts_for}" if acts_for else ""
    return f"n,{authzid},\x01auth=Bearer {token}\x01\x01".encode()


def log_in(wire: Wire, token: str) -> Any:
    assert handshake(wire) == ErrorCode.NONE
    return send_token(wire, message(token))


def refusal(wire: Wire, first: bytes) -> str:
    """Send a first message that is refused; return the reason."""
    assert handshake(wire) == ErrorCode.NONE
    challenge = send_token(wire, first)
    assert challenge.error_code == ErrorCode.NONE
    reason = json.loads(challenge.auth_bytes)
    assert reason["status"] == "invalid_token"
    final = send_token(wire, b"\x01")
    assert final.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert final.error_message == reason["error_description"]
    assert wire.is_closed
    return str(final.error_message)


def test_a_client_with_a_token_is_served_until_the_token_ends(wire: Wire) -> None:
    response = log_in(wire, tokens.token())
    assert (response.error_code, response.auth_bytes) == (0, b"")
    assert 0 < response.session_lifetime_ms <= tokens.HOUR_S * 1000
    assert is_served(wire)


def test_messages_without_headers_follow_version_0_of_the_handshake(connect: Connect) -> None:
    with connect() as wire:
        assert handshake(wire, version=0) == ErrorCode.NONE
        wire.send_frame(message(tokens.token()))
        assert wire.receive_frame() == b""
        assert is_served(wire)
    with connect() as wire:
        assert handshake(wire, version=0) == ErrorCode.NONE
        wire.send_frame(message("x.y.z"))
        assert json.loads(wire.receive_frame())["status"] == "invalid_token"
        wire.send_frame(b"\x01")
        assert wire.is_closed


def test_the_session_is_as_long_as_the_setting_if_the_token_is_longer(open_broker: Broker) -> None:
    with wired(open_broker.host_and_port) as wire:
        assert log_in(wire, tokens.token()).session_lifetime_ms == LIFETIME_MS


def test_a_connection_is_closed_if_it_is_used_after_the_end_of_its_token(
    broker: Broker, connect: Connect
) -> None:
    with connect() as wire:
        # Accepted as far as clocks may differ; the session is as short as possible.
        assert log_in(wire, tokens.token(exp=int(time.time()) - 1)).session_lifetime_ms == 3000

        def is_refused() -> bool:
            try:
                return not is_served(wire)
            except ConnectionError:
                return True

        eventually(is_refused, what="the end of the session")
    broker.errors.wait_for("Metadata after the end of the session", within_s=LOG_S)


def log_in_again(wire: Wire, token: str) -> Any:
    """Authenticate again; refused within a second of the last time."""
    eventually(lambda: handshake(wire) == ErrorCode.NONE, what="a second handshake")
    return send_token(wire, message(token))


def test_a_client_authenticates_again_with_a_new_token_of_the_same_user(wire: Wire) -> None:
    assert log_in(wire, tokens.token()).error_code == 0
    assert log_in_again(wire, tokens.token(jti="another")).auth_bytes == b""
    assert is_served(wire)


def test_a_client_cannot_authenticate_again_as_another_user(wire: Wire) -> None:
    assert log_in(wire, tokens.token()).error_code == 0
    assert b"change its user" in log_in_again(wire, tokens.token("bob")).auth_bytes
    wire.send(MetadataRequest(topics=[]))
    assert wire.is_closed


def test_a_client_may_name_the_user_it_acts_for_if_it_is_the_same(connect: Connect) -> None:
    with connect() as wire:
        assert handshake(wire) == ErrorCode.NONE
        assert send_token(wire, message(tokens.token(), "alice")).auth_bytes == b""
        assert is_served(wire)
    with connect() as wire:
        assert "acting for another" in refusal(wire, message(tokens.token(), "admin"))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"aud": "another"}, "another audience"),
        ({"iss": "another"}, "another issuer"),
        ({"exp": 1}, "expired"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"headers": {"kid": "/etc/passwd"}}, "not known"),
        ({"headers": {"kid": "https://evil.example.com/keys"}}, "not known"),
        ({"key": "evil", "headers": {"kid": "rsa"}}, "signature"),
    ],
)
def test_a_token_that_is_not_accepted_is_refused_and_others_are_served(
    broker: Broker, connect: Connect, changes: dict[str, Any], fault: str
) -> None:
    with connect() as other, connect() as wire:
        assert log_in(other, tokens.token()).error_code == 0
        assert fault in refusal(wire, message(tokens.token(**changes)))
        assert is_served(other)
    broker.errors.wait_for(f"authentication_failed.*{fault}", within_s=LOG_S)


@pytest.mark.parametrize(
    "first",
    [b"", b"\x01", b"n,,\x01auth=Basic x\x01\x01", b"\xff", plain(USER, PASSWORD), message("x" * 60_000)],
    ids=["empty", "abort", "not a bearer", "not UTF-8", "PLAIN", "60 KB"],
)
def test_a_malformed_message_is_refused(wire: Wire, first: bytes) -> None:
    assert refusal(wire, first)


def test_nothing_is_served_after_a_refused_token(open_broker: Broker) -> None:
    with wired(open_broker.host_and_port) as wire:
        assert is_served(wire)  # it need not authenticate
        assert handshake(wire) == ErrorCode.NONE
        assert send_token(wire, message("x.y.z")).auth_bytes
        wire.send(MetadataRequest(topics=[]))
        assert wire.is_closed


def test_many_forged_tokens_of_an_address_are_refused_without_looking_at_them(connect: Connect) -> None:
    def reason() -> str:
        with connect() as wire:
            return refusal(wire, message(tokens.token(key="evil", headers={"kid": "rsa"})))

    assert any("too many failed logins" in reason() for _ in range(3 * FREE_FAILURES))


def test_the_mechanism_is_offered_only_with_a_provider(tmp_path: Path) -> None:
    for broker in secured(tmp_path / "plain", "authentication = true"):
        with wired(broker.host_and_port) as wire:
            response = wire.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1)
            assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert MECHANISM not in response.mechanisms
        answer = httpx.get(f"http://{broker.http_address}/topics", headers=bearer(tokens.token()))
        assert (answer.status_code, "unknown API key" in answer.text) == (401, True)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_is_accepted_over_http(broker: Broker) -> None:
    with httpx.Client(base_url=f"http://{broker.http_address}") as http:
        token = tokens.token()
        for _ in range(2):  # the second time without verifying it
            assert http.get("/topics", headers=bearer(token)).status_code == 200
        created = http.post("/keys", json={"description": "d"}, headers=bearer(token)).json()
        assert created["owner"] == "alice"
        assert http.get("/topics", headers=bearer(created["key"])).status_code == 200


@pytest.fixture
def ruled_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with access rules, and admin as its administrator."""
    lines = ("authentication = true", "acls = true", "super_users = ['User:admin']")
    yield from secured(tmp_path / "ruled", *lines, *provider(tmp_path / "keys.json"))


def test_a_token_creates_keys_that_end_with_it_and_an_administrator_others(ruled_broker: Broker) -> None:
    exp = int(time.time()) + tokens.HOUR_S
    with httpx.Client(base_url=f"http://{ruled_broker.http_address}") as http:
        own = bearer(tokens.token(exp=exp))
        created = http.post("/keys", json={}, headers=own).json()
        assert abs(created["expires"] - exp * 1000) < 10
        assert http.post("/keys", json={"expires_in_ms": 1000}, headers=own).status_code == 201
        day = {"expires_in_ms": 24 * 3600 * 1000}
        assert http.post("/keys", json=day, headers=own).status_code == 403
        # A key that is replaced has a new end.
        assert http.post(f"/keys/{created['id']}/rotate", json={}, headers=own).status_code == 403
        admin = bearer(tokens.token("admin", exp=exp))
        assert http.post("/keys", json={}, headers=admin).json()["expires"] is None
        assert http.post("/keys", json=day, headers=admin).status_code == 201


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        (lambda: tokens.token(exp=1), "expired"),
        (lambda: tokens.token(aud="another"), "another audience"),
        (lambda: tokens.token(key="evil", headers={"kid": "rsa"}), "signature"),
        (lambda: tokens.token(headers={"kid": "no"}), "not known"),
        (lambda: "x.y.z", "malformed"),
        (lambda: "nonsense", "malformed"),
        (lambda: "x" * 16_390, "at most 16384"),
    ],
)
def test_a_token_that_is_not_accepted_gets_401_over_http(
    broker: Broker, token: Callable[[], str], fault: str
) -> None:
    answer = httpx.get(f"http://{broker.http_address}/topics", headers=bearer(token()))
    assert (answer.status_code, fault in answer.text) == (401, True), answer.text
    assert "WWW-Authenticate" in answer.headers


def test_a_token_of_a_megabyte_is_refused_over_http(broker: Broker) -> None:
    answer = httpx.get(f"http://{broker.http_address}/topics", headers=bearer("x" * (1 << 20)))
    assert answer.status_code == 431
    assert (
        httpx.get(f"http://{broker.http_address}/topics", headers=bearer(tokens.token())).status_code == 200
    )
