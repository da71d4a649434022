"""Users and their passwords through the Kafka API."""

import secrets
from collections.abc import Iterator

import pytest

from alpacamq.cluster.commands import MAX_SECURITY_CHANGES
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism, salted_password
from tests.brokers import Broker

from .logins import ALL, PLAIN, USER, is_served, log_in, secured
from .wire import Wire, wired

SHA_256, SHA_512, UNKNOWN = 1, 2, 3
MECHANISMS = {SHA_256: Mechanism.SHA_256, SHA_512: Mechanism.SHA_512}


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with access rules, of which bob is the administrator."""
    settings = ("authentication = true", "acls = true", "super_users = ['User:bob']")
    yield from secured(tmp_path_factory.mktemp("users") / "broker", *settings)


@pytest.fixture
def administrator(secured_broker: Broker) -> Iterator[Wire]:
    with wired(secured_broker.host_and_port) as wire:
        assert log_in(wire, PLAIN, "bob", "other").error_code == 0
        yield wire


def upsertion(
    name: str,
    mechanism: int = SHA_256,
    iterations: int = DEFAULT_ITERATIONS,
    password: str = "x",  # noqa: S107 - of a test
) -> ScramCredentialUpsertion:
    salt = secrets.token_bytes(16)
    kind = MECHANISMS.get(mechanism, Mechanism.SHA_256)
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(kind, password, salt, iterations),
    )


def alter(
    wire: Wire, *upsertions: ScramCredentialUpsertion, deleted: tuple[tuple[str, int], ...] = ()
) -> list[tuple[str, ErrorCode]]:
    deletions = [ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deleted]
    response = wire.ask(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions))
    return [(each.user, ErrorCode(each.error_code)) for each in response.results]


def describe(wire: Wire, *names: str) -> dict[str, ErrorCode | dict[int, int]]:
    """The iterations of each user by mechanism, or its error."""
    wanted = [UserName(name=name) for name in names] if names else None
    response = wire.ask(DescribeUserScramCredentialsRequest(users=wanted))
    assert response.error_code == 0
    return {
        each.user: ErrorCode(each.error_code)
        if each.error_code
        else {info.mechanism: info.iterations for info in each.credential_infos}
        for each in response.results
    }


def test_users_are_created_described_and_deleted(wire: Wire, topic: str) -> None:
    name = f"user-{topic}"
    assert alter(wire, upsertion(name)) == [(name, ErrorCode.NONE)]
    assert alter(wire, upsertion(name, SHA_512, 8192)) == [(name, ErrorCode.NONE)]
    assert describe(wire, name) == {name: {SHA_256: 4096, SHA_512: 8192}}
    assert describe(wire)[name] == {SHA_256: 4096, SHA_512: 8192}
    assert alter(wire, deleted=((name, SHA_256),)) == [(name, ErrorCode.NONE)]
    assert describe(wire, name) == {name: {SHA_512: 8192}}
    assert alter(wire, deleted=((name, SHA_512),)) == [(name, ErrorCode.NONE)]
    assert describe(wire, name) == {name: ErrorCode.RESOURCE_NOT_FOUND}
    assert name not in describe(wire)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(upsertion("u", UNKNOWN), ErrorCode.UNSUPPORTED_SASL_MECHANISM, id="mechanism"),
        pytest.param(upsertion("u", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, id="few iterations"),
        pytest.param(
            upsertion("u", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL, id="many iterations"
        ),
        pytest.param(upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL, id="no name"),
        pytest.param(upsertion("a\nb"), ErrorCode.UNACCEPTABLE_CREDENTIAL, id="control character"),
        pytest.param(
            ScramCredentialUpsertion(
                name="u", mechanism=SHA_512, iterations=4096, salt=bytes(16), salted_password=bytes(32)
            ),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            id="length of the hash",
        ),
        pytest.param(
            ScramCredentialUpsertion(
                name="u", mechanism=SHA_256, iterations=4096, salt=b"short", salted_password=bytes(32)
            ),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            id="short salt",
        ),
    ],
)
def test_an_invalid_credential_is_refused_and_others_of_the_request_are_not(
    wire: Wire, topic: str, change: ScramCredentialUpsertion, code: ErrorCode
) -> None:
    name = f"user-{topic}"
    assert dict(alter(wire, change, upsertion(name))) == {change.name: code, name: ErrorCode.NONE}
    assert name in describe(wire)
    assert describe(wire, "u")["u"] == ErrorCode.RESOURCE_NOT_FOUND


def test_what_does_not_exist_cannot_be_deleted(wire: Wire, topic: str) -> None:
    name = f"user-{topic}"
    assert alter(wire, deleted=((name, SHA_256),)) == [(name, ErrorCode.RESOURCE_NOT_FOUND)]
    alter(wire, upsertion(name))
    assert alter(wire, deleted=((name, SHA_512),)) == [(name, ErrorCode.RESOURCE_NOT_FOUND)]


def test_a_user_is_altered_once_in_a_request(wire: Wire, topic: str) -> None:
    name = f"user-{topic}"
    assert alter(wire, upsertion(name), upsertion(name, SHA_512)) == [(name, ErrorCode.DUPLICATE_RESOURCE)]
    assert describe(wire, name) == {name: ErrorCode.RESOURCE_NOT_FOUND}
    alter(wire, upsertion(name))
    both = alter(wire, upsertion(name, SHA_512), deleted=((name, SHA_256),))
    assert both == [(name, ErrorCode.DUPLICATE_RESOURCE)]
    assert describe(wire, name) == {name: {SHA_256: 4096}}
    assert describe(wire, name, name) == {name: ErrorCode.DUPLICATE_RESOURCE}


def test_a_request_alters_a_limited_number_of_users(wire: Wire) -> None:
    deleted = tuple((f"user-{number}", SHA_256) for number in range(MAX_SECURITY_CHANGES + 1))
    assert {code for _, code in alter(wire, deleted=deleted)} == {ErrorCode.INVALID_REQUEST}
    assert {code for _, code in alter(wire, deleted=deleted[1:])} == {ErrorCode.RESOURCE_NOT_FOUND}


def test_users_of_the_configuration_are_neither_listed_nor_altered(administrator: Wire) -> None:
    assert alter(administrator, upsertion(USER)) == [(USER, ErrorCode.INVALID_REQUEST)]
    assert USER not in describe(administrator)


def test_users_need_rights_on_the_cluster(secured_broker: Broker) -> None:
    with wired(secured_broker.host_and_port) as wire:
        assert log_in(wire, PLAIN).error_code == 0
        assert alter(wire, upsertion("eve"), deleted=(("carol", SHA_256),)) == [
            ("carol", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            ("eve", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ]
        response = wire.ask(DescribeUserScramCredentialsRequest(users=None))
        assert (response.error_code, response.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


@pytest.mark.parametrize("mechanism", ALL)
def test_a_password_counts_at_the_next_login_and_open_connections_stay(
    secured_broker: Broker, administrator: Wire, topic: str, mechanism: str
) -> None:
    name = f"user-{topic}"
    of = SHA_512 if mechanism == "SCRAM-SHA-512" else SHA_256
    alter(administrator, upsertion(name, of, password="first"))  # noqa: S106 - of a test
    with wired(secured_broker.host_and_port) as wire:
        assert log_in(wire, mechanism, name, "first").error_code == 0
        alter(administrator, upsertion(name, of, password="second"))  # noqa: S106 - of a test
        assert is_served(wire)
        with wired(secured_broker.host_and_port) as late:
            refused = log_in(late, mechanism, name, "first")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with wired(secured_broker.host_and_port) as late:
            assert log_in(late, mechanism, name, "second").error_code == 0
        alter(administrator, deleted=((name, of),))
        assert is_served(wire)
        with wired(secured_broker.host_and_port) as late:
            refused = log_in(late, mechanism, name, "second")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
