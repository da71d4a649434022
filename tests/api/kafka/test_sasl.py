"""SASL on the wire: what authenticates a connection, and every way in which it is refused."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

import httpx
import pytest

from alpacamq.broker.access import FREE_FAILURES
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.metadata import MetadataRequest
from alpacamq.protocol.messages.sasl import SaslAuthenticateRequest
from tests.brokers import Broker
from tests.waiting import eventually

from .logins import (
    ALL,
    PASSWORD,
    PLAIN,
    USER,
    exchange_of,
    handshake,
    is_served,
    log_in,
    plain,
    secured,
    send_token,
)
from .wire import Wire, versions, wired

LIFETIME_MS = 1500
LOG_S = 10.0
BEFORE_AUTHENTICATION_BYTES = 64 << 10

Connect = Callable[[], AbstractContextManager[Wire]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate."""
    yield from secured(tmp_path_factory.mktemp("sasl") / "needed", "authentication = true")


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients may authenticate."""
    yield from secured(tmp_path_factory.mktemp("sasl") / "optional")


@pytest.fixture(scope="module")
def short_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate again and again."""
    lifetime = f"session_lifetime_ms = {LIFETIME_MS}"
    yield from secured(tmp_path_factory.mktemp("sasl") / "short", "authentication = true", lifetime)


HOSTS = (f"127.0.1.{number}" for number in itertools.count(1))


@pytest.fixture
def connect(broker: Broker) -> Connect:
    """Connections from an address of this test: failures of others do not count against it."""
    host = next(HOSTS)
    return lambda: wired(broker.host_and_port, host)


@pytest.fixture
def wire(connect: Connect) -> Iterator[Wire]:
    with connect() as wire:
        yield wire


@pytest.mark.parametrize("mechanism", ALL)
def test_a_client_that_authenticates_is_served(wire: Wire, mechanism: str) -> None:
    assert wire.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1")).api_keys
    response = log_in(wire, mechanism)
    assert (response.error_code, response.session_lifetime_ms) == (0, 0)
    assert is_served(wire)


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize(("name", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    connect: Connect, mechanism: str, name: str, password: str
) -> None:
    with connect() as other, connect() as wire:
        assert log_in(other, mechanism).error_code == 0
        response = log_in(wire, mechanism, name, password)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == "wrong user name or password"
        assert wire.is_closed
        assert is_served(other)


@pytest.mark.parametrize("version", versions(SaslAuthenticateRequest))
def test_every_version_of_sasl_authenticate(wire: Wire, version: int) -> None:
    assert handshake(wire, PLAIN) == ErrorCode.NONE
    assert send_token(wire, plain(USER, PASSWORD), version).error_code == 0
    assert is_served(wire)


@pytest.mark.parametrize("mechanism", ALL)
def test_messages_without_headers_follow_version_0_of_the_handshake(wire: Wire, mechanism: str) -> None:
    assert handshake(wire, mechanism, 0) == ErrorCode.NONE
    if mechanism == PLAIN:
        wire.send_frame(plain(USER, PASSWORD))
        assert wire.receive_frame() == b""
    else:
        exchange = exchange_of(mechanism)
        wire.send_frame(exchange.first)
        wire.send_frame(exchange.final(wire.receive_frame()))
        exchange.verify(wire.receive_frame())
    assert is_served(wire)


def test_a_wrong_password_without_a_header_closes_the_connection(wire: Wire) -> None:
    assert handshake(wire, PLAIN, 0) == ErrorCode.NONE
    wire.send_frame(plain(USER, "wrong"))
    assert wire.is_closed


def test_nothing_else_is_served_before_authentication(broker: Broker, connect: Connect) -> None:
    with connect() as other, connect() as wire:
        assert log_in(other, PLAIN).error_code == 0
        wire.send(MetadataRequest(topics=[]))
        assert wire.is_closed
        broker.errors.wait_for("Metadata before authentication", within_s=LOG_S)
        assert is_served(other)


@pytest.mark.parametrize("mechanism", ALL)
def test_nothing_else_is_served_during_authentication(wire: Wire, mechanism: str) -> None:
    assert handshake(wire, mechanism) == ErrorCode.NONE
    wire.send(MetadataRequest(topics=[]))
    assert wire.is_closed


def test_a_large_frame_is_refused_before_authentication_and_accepted_after(
    broker: Broker, connect: Connect
) -> None:
    with connect() as wire:
        wire.send_frame(b"", size=BEFORE_AUTHENTICATION_BYTES + 1)
        assert wire.is_closed
        broker.errors.wait_for("the limit before authentication is 65536", within_s=LOG_S)
    with connect() as wire:
        assert log_in(wire, PLAIN).error_code == 0
        # Unknown tagged fields make a request as large as one likes.
        wire.send_frame(
            b"\0\x12\0\x03\0\0\0\x07\xff\xff\x01\x05\xa0\x8d\x06" + bytes(100_000) + b"\2t\0021\0"
        )
        assert wire.receive_frame()[:4] == b"\0\0\0\x07"


def test_an_unknown_mechanism_is_refused_with_the_list(wire: Wire) -> None:
    assert handshake(wire, "GSSAPI") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert wire.is_closed


def test_a_second_handshake_during_an_exchange_is_refused(wire: Wire) -> None:
    assert handshake(wire, PLAIN) == ErrorCode.NONE
    assert handshake(wire, PLAIN) == ErrorCode.ILLEGAL_SASL_STATE
    assert wire.is_closed


@pytest.mark.parametrize("mechanism", ALL)
def test_a_handshake_after_authentication_is_refused_and_changes_nothing(wire: Wire, mechanism: str) -> None:
    assert log_in(wire, mechanism).error_code == 0
    assert handshake(wire, mechanism) == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(wire)
    assert send_token(wire, plain("bob", "other")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(wire)


def test_a_message_before_the_handshake_is_refused(wire: Wire) -> None:
    assert send_token(wire, plain(USER, PASSWORD)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert wire.is_closed


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"alice", id="one part"),
        pytest.param(b"\0alice\0secret\0more", id="four parts"),
        pytest.param(b"\0\xff\0secret", id="not UTF-8"),
        pytest.param(plain(USER, PASSWORD, acts_for="bob"), id="for another user"),
        pytest.param(plain("", ""), id="no name"),
        pytest.param(plain(USER, "x" * 60_000), id="long password"),
    ],
)
def test_a_malformed_plain_message_is_refused(wire: Wire, token: bytes) -> None:
    assert handshake(wire, PLAIN) == ErrorCode.NONE
    assert send_token(wire, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed


def test_a_client_may_name_the_user_it_acts_for_if_it_is_the_same(wire: Wire) -> None:
    assert handshake(wire, PLAIN) == ErrorCode.NONE
    assert send_token(wire, plain(USER, PASSWORD, acts_for=USER)).error_code == 0


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"p=tls-unique,,n=alice,r=abc", id="channel binding"),
        pytest.param(b"n,a=bob,n=alice,r=abc", id="for another user"),
        pytest.param(b"n,,n=alice,r=abc,tokenauth=true", id="delegation token"),
        pytest.param(b"n,,m=x,n=alice,r=abc", id="mandatory extension"),
    ],
)
def test_a_malformed_first_scram_message_is_refused(wire: Wire, first: bytes) -> None:
    assert handshake(wire, "SCRAM-SHA-256") == ErrorCode.NONE
    assert send_token(wire, first).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed


def final_with_changed_nonce(final: bytes) -> bytes:
    binding, nonce, proof = final.split(b",")
    return b",".join([binding, nonce + b"x", proof])


def final_with_channel_binding(final: bytes) -> bytes:
    return b"c=eSws" + final[final.index(b",") :]  # base64 of "y,,"


@pytest.mark.parametrize(
    ("change", "fault"), [(final_with_changed_nonce, "nonce"), (final_with_channel_binding, "binding")]
)
def test_a_changed_final_scram_message_is_refused(
    wire: Wire, change: Callable[[bytes], bytes], fault: str
) -> None:
    assert handshake(wire, "SCRAM-SHA-256") == ErrorCode.NONE
    exchange = exchange_of("SCRAM-SHA-256")
    first = send_token(wire, exchange.first)
    response = send_token(wire, change(exchange.final(first.auth_bytes)))
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert fault in response.error_message
    assert wire.is_closed


def test_a_final_scram_message_of_another_connection_is_refused(connect: Connect) -> None:
    exchange = exchange_of("SCRAM-SHA-512")
    with connect() as wire:
        assert handshake(wire, "SCRAM-SHA-512") == ErrorCode.NONE
        final = exchange.final(send_token(wire, exchange.first).auth_bytes)
        assert send_token(wire, final).error_code == 0
    with connect() as wire:
        assert handshake(wire, "SCRAM-SHA-512") == ErrorCode.NONE
        assert send_token(wire, exchange.first).error_code == 0
        assert send_token(wire, final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed


@pytest.mark.parametrize("mechanism", ALL)
def test_many_wrong_passwords_of_an_address_are_refused_without_looking_at_them(
    broker: Broker, connect: Connect, mechanism: str
) -> None:
    def refusal() -> str:
        with connect() as wire:
            response = log_in(wire, mechanism, "nobody", "wrong")
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            return str(response.error_message)

    attempts = 3 * FREE_FAILURES
    assert any("too many failed logins" in refusal() for _ in range(attempts))
    with wired(broker.host_and_port, next(HOSTS)) as other:
        assert log_in(other, mechanism).error_code == 0


def test_a_client_need_not_authenticate_where_that_is_optional(open_broker: Broker) -> None:
    with wired(open_broker.host_and_port) as wire:
        assert is_served(wire)


@pytest.mark.parametrize("mechanism", ALL)
def test_a_client_may_authenticate_where_that_is_optional(open_broker: Broker, mechanism: str) -> None:
    with wired(open_broker.host_and_port) as wire:
        assert is_served(wire)
        assert log_in(wire, mechanism).error_code == 0
        assert is_served(wire)
    with wired(open_broker.host_and_port) as wire:
        assert log_in(wire, mechanism, USER, "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed


def test_a_connection_is_closed_if_it_is_used_after_the_end_of_its_session(short_broker: Broker) -> None:
    with wired(short_broker.host_and_port) as wire:
        assert log_in(wire, PLAIN).session_lifetime_ms == LIFETIME_MS

        def is_refused() -> bool:
            try:
                return not is_served(wire)
            except ConnectionError:
                return True

        eventually(is_refused, what="the end of the session")
    short_broker.errors.wait_for("Metadata after the end of the session", within_s=LOG_S)


def handshake_again(wire: Wire, mechanism: str) -> None:
    """Begin to authenticate again; refused within a second of the last time."""
    eventually(lambda: handshake(wire, mechanism) == ErrorCode.NONE, what="a second handshake")


def log_in_again(wire: Wire, mechanism: str) -> Any:
    handshake_again(wire, mechanism)
    if mechanism == PLAIN:
        return send_token(wire, plain(USER, PASSWORD))
    exchange = exchange_of(mechanism)
    first = send_token(wire, exchange.first)
    return send_token(wire, exchange.final(first.auth_bytes))


@pytest.mark.parametrize("mechanism", ALL)
def test_a_client_can_authenticate_again(short_broker: Broker, mechanism: str) -> None:
    with wired(short_broker.host_and_port) as wire:
        assert log_in(wire, mechanism).session_lifetime_ms == LIFETIME_MS
        response = log_in_again(wire, mechanism)
        assert (response.error_code, response.session_lifetime_ms) == (0, LIFETIME_MS)
        assert is_served(wire)


def test_a_client_can_authenticate_again_after_the_end_of_its_session(short_broker: Broker) -> None:
    with wired(short_broker.host_and_port) as wire:
        assert log_in(wire, PLAIN).error_code == 0
        end = monotonic() + LIFETIME_MS / 1000
        eventually(lambda: monotonic() > end, what="the end of the session")
        assert log_in_again(wire, PLAIN).error_code == 0
        assert is_served(wire)


def test_a_client_cannot_authenticate_again_as_another_user(short_broker: Broker) -> None:
    with wired(short_broker.host_and_port) as wire:
        assert log_in(wire, PLAIN).error_code == 0
        handshake_again(wire, PLAIN)
        response = send_token(wire, plain("bob", "other"))
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "change its user" in response.error_message
        assert wire.is_closed


@pytest.fixture(scope="module")
def keys(broker: Broker) -> Iterator[httpx.Client]:
    """The API keys of alice, over HTTP."""
    with httpx.Client(base_url=f"http://{broker.http_address}", auth=(USER, PASSWORD.encode())) as client:
        yield client


def new_key(keys: httpx.Client, **options: Any) -> tuple[str, str]:
    """Return the id of a new key, and the key."""
    key = str(keys.post("/keys", json={"description": "of a test", **options}).json()["key"])
    return key.split("_")[1], key


def test_an_api_key_is_the_password_of_its_id(keys: httpx.Client, wire: Wire) -> None:
    response = log_in(wire, PLAIN, *new_key(keys))
    assert (response.error_code, response.session_lifetime_ms) == (0, 0)
    assert is_served(wire)


def test_the_session_of_a_client_ends_with_its_api_key(keys: httpx.Client, wire: Wire) -> None:
    response = log_in(wire, PLAIN, *new_key(keys, expires_in_ms=60_000))
    assert response.error_code == 0
    assert 0 < response.session_lifetime_ms <= 60_000


def test_an_api_key_of_another_id_or_secret_is_refused(keys: httpx.Client, connect: Connect) -> None:
    key_id, key = new_key(keys)
    for name, password in ((USER, key), (key_id, f"{key}x"), (key_id, PASSWORD)):
        with connect() as wire:
            assert log_in(wire, PLAIN, name, password).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wire.is_closed


def test_a_deleted_or_rotated_api_key_closes_the_connections_of_its_clients(
    keys: httpx.Client, connect: Connect
) -> None:
    (deleted, _), (rotated, _), (kept, _) = pairs = [new_key(keys) for _ in range(3)]
    with connect() as first, connect() as second, connect() as third:
        for wire, (key_id, key) in zip((first, second, third), pairs, strict=True):
            assert log_in(wire, PLAIN, key_id, key).error_code == 0
        assert keys.delete(f"/keys/{deleted}").is_success
        assert keys.post(f"/keys/{rotated}/rotate", json={"overlap_ms": 60_000}).is_success
        assert first.is_closed
        assert second.is_closed
        assert is_served(third)
        assert kept
