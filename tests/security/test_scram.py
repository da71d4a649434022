"""SCRAM: vectors of RFC 7677, both sides together, and what a server refuses."""

from base64 import b64decode, b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.errors import AuthenticationFailed, InvalidCredential
from alpacamq.security.scram import (
    ClientExchange,
    Credential,
    Mechanism,
    ServerExchange,
    credential_of,
    has_password,
    normalized,
    salted_password,
)
from alpacamq.security.users import made_up_credential

NAME, PASSWORD = "user", "pencil"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)


def credential(mechanism: Mechanism = Mechanism.SHA_256, password: str = PASSWORD) -> Credential:
    return credential_of(mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096)


def test_the_proof_of_rfc_7677_is_accepted() -> None:
    server = ServerExchange(Mechanism.SHA_256)
    assert server.begin(CLIENT_FIRST) == NAME
    server.challenge(credential(), b"")
    # The nonce of the RFC is not Base64.
    server._nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server._server_first = f"r={server._nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert server.finish(CLIENT_FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def log_in(mechanism: Mechanism, name: str, password: str, stored: Credential) -> None:
    client = ClientExchange(mechanism, name, password, b"client")
    server = ServerExchange(mechanism)
    assert server.begin(client.first) == name
    client.verify(server.finish(client.final(server.challenge(stored, b"server"))))


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("name", ["alice", "a=b,c", "ünïcode", "=2C"])
def test_client_and_server_agree(mechanism: Mechanism, name: str) -> None:
    log_in(mechanism, name, PASSWORD, credential(mechanism))
    with pytest.raises(AuthenticationFailed, match="wrong user name or password"):
        log_in(mechanism, name, "pen", credential(mechanism))


@pytest.mark.parametrize("mechanism", Mechanism)
def test_passwords_are_compared_with_credentials(mechanism: Mechanism) -> None:
    assert has_password(mechanism, credential(mechanism), PASSWORD)
    assert not has_password(mechanism, credential(mechanism), PASSWORD + "x")


def test_passwords_are_normalized() -> None:
    assert normalized("I\u00adX\u00a0\u2168") == "IX IX"
    assert has_password(Mechanism.SHA_256, credential(Mechanism.SHA_256, "\u2168"), "IX")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(b"p=tls-unique,,n=user,r=abc", "channel binding", id="channel binding"),
        pytest.param(b"n,a=admin,n=user,r=abc", "another user", id="another authorization id"),
        pytest.param(b"n,,m=ext,n=user,r=abc", "mandatory", id="mandatory extension"),
        pytest.param(b"n,,n=user,r=", "malformed", id="no nonce"),
        pytest.param(b"n,,n=,r=abc", "malformed", id="no name"),
        pytest.param(b"n,,n=a=b,r=abc", "malformed", id="unescaped name"),
        pytest.param(b"n,,r=abc,n=user", "malformed", id="wrong order"),
        pytest.param(b"", "malformed", id="empty"),
        pytest.param(b"\xff\xfe", "malformed", id="not text"),
    ],
)
def test_a_first_message_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        ServerExchange(Mechanism.SHA_256).begin(message)


def exchange() -> tuple[ServerExchange, bytes]:
    client = ClientExchange(Mechanism.SHA_256, NAME, PASSWORD, b"client")
    server = ServerExchange(Mechanism.SHA_256)
    server.begin(client.first)
    return server, client.final(server.challenge(credential(), b"server"))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param(b",r=", b",r=x", "nonce", id="changed nonce"),
        pytest.param(b"c=biws", b"c=eSws", "channel binding", id="changed binding"),
        pytest.param(b",p=", b",p=AAAA", "malformed", id="proof of another length"),
        pytest.param(b",p=", b",q=", "malformed", id="no proof"),
    ],
)
def test_a_changed_last_message_is_refused(old: bytes, new: bytes, reason: str) -> None:
    server, final = exchange()
    with pytest.raises(AuthenticationFailed, match=reason):
        server.finish(final.replace(old, new))


def test_the_last_message_of_another_exchange_is_refused() -> None:
    _, replayed = exchange()
    client = ClientExchange(Mechanism.SHA_256, NAME, PASSWORD, b"client")
    server = ServerExchange(Mechanism.SHA_256)
    server.begin(client.first)
    server.challenge(credential(), b"another")
    with pytest.raises(AuthenticationFailed, match="nonce"):
        server.finish(replayed)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_do_more_than_fail(first: bytes, final: bytes) -> None:
    server, _ = exchange()
    with pytest.raises(AuthenticationFailed):
        server.finish(final)
    with suppress(AuthenticationFailed):
        ServerExchange(Mechanism.SHA_256).begin(b"n,," + first)


@pytest.mark.parametrize("iterations", [0, 1, 4095, 16_385, 10**9])
def test_weak_and_expensive_credentials_are_refused(iterations: int) -> None:
    with pytest.raises(InvalidCredential, match=f"not {iterations}$"):
        credential_of(Mechanism.SHA_256, bytes(32), SALT, iterations)


@pytest.mark.parametrize("iterations", ["1", "0", "1000000000", "-5", "x", ""])
def test_a_client_refuses_a_server_that_asks_for_too_little_or_too_much(iterations: str) -> None:
    client = ClientExchange(Mechanism.SHA_256, NAME, PASSWORD, b"client")
    nonce = b64encode(b"client").decode() + "x"
    with pytest.raises(AuthenticationFailed, match="iterations"):
        client.final(f"r={nonce},s=AAAA,i={iterations}".encode())


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ClientExchange(Mechanism.SHA_256, NAME, PASSWORD, b"client")
    server = ServerExchange(Mechanism.SHA_256)
    server.begin(client.first)
    client.final(server.challenge(credential(), b"server"))
    with pytest.raises(AuthenticationFailed, match="does not know"):
        client.verify(b"v=" + b64encode(bytes(32)))


@pytest.mark.parametrize("mechanism", Mechanism)
def test_an_unknown_user_always_gets_the_same_challenge(mechanism: Mechanism) -> None:
    first = made_up_credential(b"secret", mechanism, "alice")
    assert first == made_up_credential(b"secret", mechanism, "alice")
    others = [
        made_up_credential(b"other", mechanism, "alice"),
        made_up_credential(b"secret", mechanism, "bob"),
    ]
    assert first.salt not in [each.salt for each in others]
    with pytest.raises(AuthenticationFailed):
        log_in(mechanism, "alice", PASSWORD, first)
