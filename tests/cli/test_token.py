"""`alpacactl token`."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.cli.reference import all_commands
from tests.brokers import Broker

from .command import InProcess, Ran


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with two users and delegation tokens."""
    directory = tmp_path_factory.mktemp("token")
    users, secret = directory / "users", directory / "secret"
    users.write_text("admin:of-admin\nbob:of-bob\n")
    secret.write_text("a random text for tests")
    for file in (users, secret):
        file.chmod(0o600)
    lines = [
        "[security]",
        "authentication = true",
        "acls = true",
        "super_users = ['User:admin']",
        f"users_file = '{users}'",
        f"delegation_token_secret_file = '{secret}'",
    ]
    broker = Broker(directory / "data", config="\n".join(lines))
    try:
        yield broker.start()
    finally:
        broker.end()


class As(InProcess):
    """Runs commands as a user."""

    def __init__(self, broker: Broker, directory: Path, user: str) -> None:
        super().__init__(broker.address, broker.http_address)
        file = directory / f"password-{user}"
        file.write_text(f"of-{user}\n")
        self._login = ("--user", user, "--password-file", str(file))

    def __call__(self, *arguments: str, stdin: bytes = b"", columns: int | None = None) -> Ran:
        return super().__call__(*self._login, *arguments, stdin=stdin, columns=columns)


@pytest.fixture
def admin(secured: Broker, tmp_path: Path) -> As:
    return As(secured, tmp_path, "admin")


@pytest.fixture
def bob(secured: Broker, tmp_path: Path) -> As:
    return As(secured, tmp_path, "bob")


def test_a_token_is_created_listed_renewed_and_ended(bob: As) -> None:
    created = bob.json("token", "create", "--max-lifetime", "2h", "--renewer", "admin")
    assert created["latest"] - created["issued"] == 2 * 3600 * 1000
    assert (created["owner"], created["renewers"]) == ("bob", ["admin"])
    (listed,) = [each for each in bob.json("token", "list") if each["id"] == created["id"]]
    assert listed == {name: value for name, value in created.items() if name != "hmac"}
    assert created["hmac"] not in bob.ok("token", "list")
    renewed = bob.json("token", "renew", created["id"], "--period", "1h")
    assert created["issued"] < renewed["expires"] < created["expires"]
    assert "--yes" in bob.fails(2, "token", "expire", created["id"])
    bob.ok("token", "expire", created["id"], "--period", "10m", "--yes")
    bob.ok("token", "expire", created["id"], "--yes")
    assert created["id"] not in bob.ok("token", "list")
    missing = bob.fails(4, "token", "renew", created["id"])
    assert f"there is no delegation token '{created['id']}'" in missing


EXAMPLES = [example for each in all_commands() if each.words[0] == "token" for example in each.examples]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_work(admin: As, example: str) -> None:
    created = admin.json("token", "create")
    admin.ok(*shlex.split(example.replace("TOKEN", created["id"]))[1:])


def test_a_token_for_another_owner_needs_a_rule(admin: As, bob: As) -> None:
    assert "DELEGATION_TOKEN_AUTHORIZATION_FAILED" in bob.fails(1, "token", "create", "--owner", "alice")
    rule = ("--principal", "bob", "--operation", "create-tokens", "--user-principal", "alice")
    admin.ok("acl", "add", *rule)
    (found,) = admin.json("acl", "list", "--user-principal", "alice")
    assert (found["resource"], found["name"], found["operation"]) == ("user", "User:alice", "create-tokens")
    created = bob.json("token", "create", "--owner", "alice")
    assert (created["owner"], created["requester"]) == ("alice", "bob")
    assert created["id"] in [each["id"] for each in admin.json("token", "list", "--owner", "alice")]
    assert "OWNER_MISMATCH" in bob.fails(1, "token", "renew", created["id"])
    admin.ok("acl", "remove", *rule, "--yes")
