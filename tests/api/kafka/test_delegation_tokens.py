"""Delegation tokens: their requests, and the clients that log in with them."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from alpacamq.protocol.messages.metadata import MetadataRequest
from alpacamq.protocol.messages.sasl import SaslHandshakeRequest
from alpacamq.security.audit import AuditEvent
from alpacamq.security.scram import ClientExchange, Mechanism
from tests.brokers import KEPT, Broker
from tests.waiting import eventually

from .logins import PLAIN, is_served, plain, send_token
from .wire import Wire, versions, wired

DAY_MS = 24 * 3600 * 1000
MAX_MS, RENEW_MS = 3 * DAY_MS, DAY_MS
SECRET = "a random text for tests"  # noqa: S105 - of tests
USERS = ("admin", "alice", "bob", "carol")
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
UNKNOWN = b"x" * 64


def serving(path: Path, *settings: str, data: Path | None = None) -> Iterator[Broker]:
    """A broker with users whose passwords are their names."""
    path.mkdir(parents=True)
    users, secret = path / "users", path / "secret"
    users.write_text("".join(f"{name}:{name}\n" for name in USERS))
    secret.write_text(f"{SECRET}\n")
    for file in (users, secret):
        file.chmod(0o600)
    lines = [
        "authentication = true",
        "acls = true",
        "super_users = ['User:admin']",
        f"users_file = '{users}'",
        *(each.replace("SECRET", str(secret)) for each in settings),
    ]
    broker = Broker(data or path / "data", config="\n".join([KEPT, "[security]", *lines]))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    root = tmp_path_factory.mktemp("tokens")
    yield from serving(
        root / "broker",
        "delegation_token_secret_file = 'SECRET'",
        f"delegation_token_max_lifetime_ms = {MAX_MS}",
        f"delegation_token_expiry_time_ms = {RENEW_MS}",
        f"[audit]\nenabled = true\ntopic = false\nfile = '{root / 'broker' / 'audit.log'}'",
    )


def log_in(wire: Wire, name: str) -> Wire:
    assert wire.ask(SaslHandshakeRequest(mechanism=PLAIN), 1).error_code == 0
    assert send_token(wire, plain(name, name)).error_code == 0
    return wire


@pytest.fixture
def alice(broker: Broker) -> Iterator[Wire]:
    with wired(broker.host_and_port) as wire:
        yield log_in(wire, "alice")


@pytest.fixture
def bob(broker: Broker) -> Iterator[Wire]:
    with wired(broker.host_and_port) as wire:
        yield log_in(wire, "bob")


@pytest.fixture
def admin(broker: Broker) -> Iterator[Wire]:
    with wired(broker.host_and_port) as wire:
        yield log_in(wire, "admin")


def user(name: str) -> TokenPrincipal:
    return TokenPrincipal(principal_type="User", principal_name=name)


def create(wire: Wire, *renewers: str, owner: str | None = None, max_ms: int = -1) -> Any:
    response = wire.ask(
        CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else None,
            owner_principal_name=owner,
            renewers=[user(name) for name in renewers],
            max_lifetime_ms=max_ms,
        )
    )
    assert response.error_code == 0, ErrorCode(response.error_code)
    return response


def described(wire: Wire, *owners: str) -> dict[str, Any]:
    wanted = [user(name) for name in owners] or None
    response = wire.ask(DescribeDelegationTokenRequest(owners=wanted))
    assert response.error_code == 0
    return {token.token_id: token for token in response.tokens}


def log_in_with(wire: Wire, mechanism: str, token_id: str, hmac: bytes) -> Any:
    """Log in with a token; return the last response."""
    assert wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    password = b64encode(hmac).decode()
    exchange = ClientExchange(Mechanism(mechanism), token_id, password, b"n" * 24, is_token=True)
    first = send_token(wire, exchange.first)
    return first if first.error_code else send_token(wire, exchange.final(first.auth_bytes))


@pytest.mark.parametrize("version", versions(CreateDelegationTokenRequest))
def test_a_token_has_an_owner_and_two_ends(alice: Wire, version: int) -> None:
    token = alice.ask(CreateDelegationTokenRequest(renewers=[user("bob")]), version)
    assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "alice")
    assert (token.max_timestamp_ms, token.expiry_timestamp_ms) == (
        token.issue_timestamp_ms + MAX_MS,
        token.issue_timestamp_ms + RENEW_MS,
    )
    assert len(token.hmac) == 64
    found = described(alice, "alice")[token.token_id]
    assert (found.hmac, found.expiry_timestamp) == (token.hmac, token.expiry_timestamp_ms)
    assert found.renewers == [user("bob")]


@pytest.mark.parametrize(
    ("wanted_ms", "max_ms", "expiry_ms"),
    [
        (1000, 1000, 1000),
        (2 * DAY_MS, 2 * DAY_MS, RENEW_MS),
        (2**63 - 1, MAX_MS, RENEW_MS),
        (0, MAX_MS, RENEW_MS),
    ],
)
def test_the_lifetime_is_limited(alice: Wire, wanted_ms: int, max_ms: int, expiry_ms: int) -> None:
    token = create(alice, max_ms=wanted_ms)
    assert token.max_timestamp_ms - token.issue_timestamp_ms == max_ms
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == expiry_ms


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_with_a_token_acts_for_its_owner(broker: Broker, admin: Wire, mechanism: str) -> None:
    token = create(admin)
    with wired(broker.host_and_port) as wire:
        response = log_in_with(wire, mechanism, token.token_id, token.hmac)
        assert response.error_code == 0
        assert 0 < response.session_lifetime_ms <= RENEW_MS
        assert is_served(wire)


def test_a_client_with_a_token_cannot_use_tokens(broker: Broker, alice: Wire) -> None:
    token = create(alice)
    with wired(broker.host_and_port) as wire:
        assert log_in_with(wire, MECHANISMS[0], token.token_id, token.hmac).error_code == 0
        for request in (
            CreateDelegationTokenRequest(),
            RenewDelegationTokenRequest(hmac=token.hmac),
            ExpireDelegationTokenRequest(hmac=token.hmac),
            DescribeDelegationTokenRequest(),
        ):
            assert wire.ask(request).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_hmac_and_an_unknown_token_are_refused_alike(
    broker: Broker, alice: Wire, mechanism: str
) -> None:
    token = create(alice)
    refusals = []
    for token_id, hmac in ((token.token_id, UNKNOWN), ("0" * 32, token.hmac)):
        with wired(broker.host_and_port) as wire:
            refusals.append(log_in_with(wire, mechanism, token_id, hmac))
            assert wire.is_closed
    assert refusals[0] == refusals[1]
    assert refusals[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_name_of_a_token_is_no_user_and_a_user_no_token(broker: Broker, alice: Wire) -> None:
    token = create(alice)
    with wired(broker.host_and_port) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism=PLAIN), 1).error_code == 0
        password = b64encode(token.hmac).decode()
        refused = send_token(wire, plain(token.token_id, password))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with wired(broker.host_and_port) as wire:
        refused = log_in_with(wire, MECHANISMS[0], "alice", b"alice")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def renew(wire: Wire, hmac: bytes, period_ms: int = -1) -> Any:
    return wire.ask(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))


def expire(wire: Wire, hmac: bytes, period_ms: int = -1) -> Any:
    return wire.ask(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))


def test_the_owner_and_renewers_renew_and_end_a_token(alice: Wire, bob: Wire) -> None:
    token = create(alice, "bob")
    for wire in (alice, bob):
        renewed = renew(wire, token.hmac, DAY_MS // 2)
        assert renewed.error_code == 0
        assert token.issue_timestamp_ms < renewed.expiry_timestamp_ms < token.expiry_timestamp_ms
    assert renew(bob, token.hmac, 5 * MAX_MS).expiry_timestamp_ms >= token.expiry_timestamp_ms
    assert expire(bob, token.hmac, 1000_000).error_code == 0
    assert described(alice)[token.token_id].expiry_timestamp < token.expiry_timestamp_ms
    ended = expire(bob, token.hmac)
    assert (ended.error_code, ended.expiry_timestamp_ms > 0) == (0, True)
    assert token.token_id not in described(alice)
    for response in (renew(alice, token.hmac), expire(alice, token.hmac)):
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_others_cannot_renew_or_end_a_token(alice: Wire, bob: Wire, admin: Wire) -> None:
    token = create(alice)
    for wire in (bob, admin):
        for response in (renew(wire, token.hmac), expire(wire, token.hmac)):
            assert response.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert response.expiry_timestamp_ms == -1
    assert renew(bob, UNKNOWN).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_an_expired_token_can_only_be_ended(broker: Broker, alice: Wire) -> None:
    token = create(alice, max_ms=1)
    expired = ErrorCode.DELEGATION_TOKEN_EXPIRED
    eventually(lambda: renew(alice, token.hmac).error_code == expired, what="the end of the token")
    assert expire(alice, token.hmac, 1000).error_code == expired
    assert token.token_id not in described(alice)
    with wired(broker.host_and_port) as wire:
        refused = log_in_with(wire, MECHANISMS[0], token.token_id, token.hmac)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert expire(alice, token.hmac).error_code == 0


def test_a_token_for_another_owner_needs_a_right(broker: Broker, alice: Wire, admin: Wire) -> None:
    token = create(admin, owner="carol")
    assert (token.principal_name, token.token_requester_principal_name) == ("carol", "admin")
    refused = alice.ask(
        CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="carol")
    )
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    # The requester sees it, and only the owner renews it.
    assert token.token_id in described(admin, "admin")
    assert renew(admin, token.hmac).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    with wired(broker.host_and_port) as wire:
        assert renew(log_in(wire, "carol"), token.hmac).error_code == 0


def test_tokens_of_others_are_not_shown(alice: Wire, bob: Wire, admin: Wire) -> None:
    token = create(alice)
    assert token.token_id not in described(bob)
    assert token.token_id not in described(bob, "alice")
    assert token.token_id in described(admin, "alice")
    assert token.token_id not in described(admin, "bob")
    assert bob.ask(DescribeDelegationTokenRequest(owners=[])).tokens == []


def test_tokens_that_a_list_leaves_out_are_not_audited_as_denied(
    broker: Broker, alice: Wire, bob: Wire
) -> None:
    token = create(alice)
    assert token.token_id not in described(bob)
    own = create(bob).token_id

    def events() -> list[AuditEvent]:
        lines = broker.data_dir.with_name("audit.log").read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=AuditEvent) for line in lines]

    eventually(lambda: any(each.resource == own for each in events()))  # what came before is written as well
    assert [each for each in events() if each.principal == "User:bob" and not each.allowed] == []


@pytest.mark.parametrize(
    ("principal", "code"),
    [
        (TokenPrincipal(principal_type="Group", principal_name="x"), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (TokenPrincipal(principal_type="User", principal_name=""), ErrorCode.INVALID_REQUEST),
        (TokenPrincipal(principal_type="User", principal_name="*"), ErrorCode.INVALID_REQUEST),
        (TokenPrincipal(principal_type="User", principal_name="n" * 300), ErrorCode.INVALID_REQUEST),
    ],
)
def test_renewers_are_users(alice: Wire, principal: TokenPrincipal, code: ErrorCode) -> None:
    assert alice.ask(CreateDelegationTokenRequest(renewers=[principal])).error_code == code
    many = [user(f"u{number}") for number in range(101)]
    assert alice.ask(CreateDelegationTokenRequest(renewers=many)).error_code == ErrorCode.INVALID_REQUEST


def test_a_token_of_an_anonymous_owner_is_refused(admin: Wire) -> None:
    request = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="ANONYMOUS")
    assert admin.ask(request).error_code == ErrorCode.INVALID_REQUEST
    request = CreateDelegationTokenRequest(owner_principal_type="Robot", owner_principal_name="r2")
    assert admin.ask(request).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_tokens_survive_a_restart_and_end_with_the_secret(tmp_path: Path) -> None:
    setting = "delegation_token_secret_file = 'SECRET'"
    data = tmp_path / "data"
    for broker in serving(tmp_path / "first", setting, data=data):
        with wired(broker.host_and_port) as wire:
            token = create(log_in(wire, "alice"))
    for broker in serving(tmp_path / "second", setting, data=data):
        with wired(broker.host_and_port) as wire:
            assert log_in_with(wire, MECHANISMS[0], token.token_id, token.hmac).error_code == 0
        (tmp_path / "second" / "secret").write_text("another random text")
        broker.stop()
        broker.start()
        with wired(broker.host_and_port) as wire:
            refused = log_in_with(wire, MECHANISMS[0], token.token_id, token.hmac)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with wired(broker.host_and_port) as wire:
            assert described(log_in(wire, "alice")) == {}
            assert renew(wire, token.hmac).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_without_a_secret_there_are_no_tokens(tmp_path: Path) -> None:
    for broker in serving(tmp_path / "broker"):
        with wired(broker.host_and_port) as wire:
            log_in(wire, "alice")
            for request in (
                CreateDelegationTokenRequest(),
                RenewDelegationTokenRequest(hmac=UNKNOWN),
                ExpireDelegationTokenRequest(hmac=UNKNOWN),
                DescribeDelegationTokenRequest(),
            ):
                assert wire.ask(request).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            assert is_served(wire)
        with wired(broker.host_and_port) as wire:
            refused = log_in_with(wire, MECHANISMS[0], "0" * 32, UNKNOWN)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "not enabled" in refused.error_message


def test_an_anonymous_client_cannot_use_tokens(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    config = f"{KEPT}\n[security]\ndelegation_token_secret_file = '{secret}'"
    broker = Broker(tmp_path / "data", config=config)
    try:
        broker.start()
        with wired(broker.host_and_port) as wire:
            assert wire.ask(MetadataRequest(topics=[])).error_code == 0
            refused = wire.ask(CreateDelegationTokenRequest())
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    finally:
        broker.end()
