"""`alpacactl user`, and commands that log in."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.cli.key import SCOPES
from alpacamq.cli.main import main
from alpacamq.client.connect import parse_address
from alpacamq.client.http.connection import Credentials, HttpApi, Problem
from tests.brokers import Broker

from .command import As, Command, InProcess
from .terminals import Terminal

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate; one user is in its configuration."""
    directory = tmp_path_factory.mktemp("user")
    users = directory / "users"
    users.write_text("admin:of-admin\n")
    users.chmod(0o600)
    config = f"[security]\nauthentication = true\nusers_file = '{users}'\n"
    broker = Broker(directory / "data", config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def anyone(secured: Broker) -> Command:
    return InProcess(secured.address, secured.http_address)


@pytest.fixture
def admin(secured: Broker, tmp_path: Path) -> As:
    return As(secured, tmp_path, "admin", "of-admin")


@pytest.fixture
def name(topic: str) -> str:
    """A user name of the test's own."""
    return f"user-{topic}"


def test_a_user_is_created_listed_and_logs_in(admin: As, secured: Broker, tmp_path: Path, name: str) -> None:
    admin.ok("user", "create", name, stdin=b"tea\n")
    assert {"name": name, "iterations": dict.fromkeys(MECHANISMS[:2], 4096)} in admin.json("user", "list")
    assert any(
        line.split() == [name, MECHANISMS[0], "4096"] for line in admin.ok("user", "list").splitlines()
    )
    user = As(secured, tmp_path, name, "tea")
    for mechanism in MECHANISMS:
        user.ok("topics", "list", "--sasl-mechanism", mechanism)
        wrong = As(secured, tmp_path, name, "cake").fails(1, "topics", "list", "--sasl-mechanism", mechanism)
        assert "wrong user name or password" in wrong
        assert "cake" not in wrong


def test_a_user_may_have_one_mechanism_and_more_iterations(
    admin: As, secured: Broker, tmp_path: Path, name: str
) -> None:
    password = tmp_path / "new"
    password.write_text("tea")
    options = ("--new-password-file", str(password), "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    admin.ok("user", "create", name, *options)
    assert {"name": name, "iterations": {"SCRAM-SHA-512": 8192}} in admin.json("user", "list")
    user = As(secured, tmp_path, name, "tea")
    user.ok("topics", "list", "--sasl-mechanism", "SCRAM-SHA-512")
    assert "wrong user name" in user.fails(1, "topics", "list")


def test_a_new_password_replaces_the_old_one_for_every_mechanism(
    admin: As, secured: Broker, tmp_path: Path, name: str
) -> None:
    admin.ok("user", "create", name, stdin=b"tea\n")
    admin.ok("user", "passwd", name, stdin=b"cake\n")
    for mechanism in MECHANISMS:
        As(secured, tmp_path, name, "cake").ok("topics", "list", "--sasl-mechanism", mechanism)
        As(secured, tmp_path, name, "tea").fails(1, "topics", "list", "--sasl-mechanism", mechanism)


def test_a_user_is_deleted(admin: As, secured: Broker, tmp_path: Path, name: str) -> None:
    admin.ok("user", "create", name, stdin=b"tea\n")
    assert "--yes" in admin.fails(2, "user", "delete", name)
    admin.ok("user", "delete", name, "--yes")
    As(secured, tmp_path, name, "tea").fails(1, "topics", "list")
    assert f"there is no user '{name}'" in admin.fails(4, "user", "delete", name, "--yes")
    assert f"there is no user '{name}'" in admin.fails(4, "user", "passwd", name)


def test_what_cannot_be_done_is_explained(admin: As, name: str) -> None:
    admin.ok("user", "create", name, stdin=b"tea\n")
    assert f"alpacactl user passwd {name}" in admin.fails(1, "user", "create", name)
    assert "first line" in admin.fails(2, "user", "create", f"{name}-2")
    few = admin("user", "create", f"{name}-2", "--iterations", "100", stdin=b"tea\n")
    assert (few.code, "between 4096 and 16384" in few.errors) == (1, True)
    configured = admin("user", "create", "admin", stdin=b"tea\n")
    assert (configured.code, "security.users_file" in configured.errors) == (1, True)


def test_a_command_without_a_user_is_told_what_is_missing(anyone: Command) -> None:
    assert "give a user and a password" in anyone.fails(3, "topics", "list")
    assert "--password-file FILE or $ALPACAMQ_PASSWORD" in anyone.fails(2, "topics", "list", "--user", "ann")


def test_the_user_can_be_in_the_environment_or_in_a_context(
    secured: Broker, anyone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("ALPACAMQ_USER", "admin")
        environment.setenv("ALPACAMQ_PASSWORD", "of-admin")
        anyone.ok("topics", "list")
    password = tmp_path / "password"
    password.write_text("of-admin\n")
    where = ["--broker", secured.address, "--user", "admin", "--password-file", str(password)]
    assert main(["config", "set", "cafe", *where]) == 0
    assert main(["topics", "list"]) == 0


def test_messages_are_produced_and_consumed_by_a_user(admin: As, topic: str) -> None:
    admin.ok("produce", topic, stdin=b"tea\n")
    assert "tea" in admin.ok("consume", topic, "--exit")


def test_a_password_is_typed_twice(secured: Broker, tmp_path: Path, name: str) -> None:
    environment = {
        **os.environ,
        "ALPACACTL_BROKER": secured.address,
        "ALPACAMQ_USER": "admin",
        "ALPACAMQ_PASSWORD": "of-admin",
    }

    def typed(verb: str, *passwords: str) -> int:
        command = [sys.executable, "-m", "alpacamq.cli.main", "user", verb, name]
        with Terminal(command, environment) as terminal:
            for prompt, password in zip((f"New password of {name}", "Again"), passwords, strict=True):
                terminal.wait_for(prompt)
                terminal.press(f"{password}\n")
            code = terminal.ended()
            assert not any(password in terminal.text for password in passwords)
            return code

    assert typed("create", "first-secret", "other-secret") == 1
    assert typed("create", "first-secret", "first-secret") == 0
    As(secured, tmp_path, name, "first-secret").ok("topics", "list")
    assert typed("passwd", "second-secret", "second-secret") == 0
    As(secured, tmp_path, name, "second-secret").ok("topics", "list")


def test_a_login_password_is_asked_for_on_a_terminal(secured: Broker) -> None:
    command = [sys.executable, "-m", "alpacamq.cli.main", "topics", "list", "--user", "admin"]
    with Terminal(command, {**os.environ, "ALPACACTL_BROKER": secured.address}) as terminal:
        terminal.wait_for("Password of admin")
        terminal.press("of-admin\n")
        assert terminal.ended() == 0


def test_commands_over_http_log_in(admin: As, anyone: Command, secured: Broker, tmp_path: Path) -> None:
    assert admin.json("cluster", "status")["node"] == 1
    assert "send a user and password" in anyone.fails(1, "cluster", "status")
    wrong = As(secured, tmp_path, "admin", "wrong")
    assert "wrong user name or password" in wrong.fails(1, "cluster", "status")


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_may_have_hyphens_or_underscores(admin: As, scope: str) -> None:
    for spelt in (scope, scope.replace("-", "_"), scope.replace("-", "_").upper()):
        created = admin.json("key", "create", "--scope", spelt)
        assert created["scopes"] == [scope]
        admin.ok("key", "delete", created["id"], "--yes")


def test_keys_are_created_listed_and_deleted(admin: As, secured: Broker) -> None:
    created = admin.json("key", "create", "--scope", "read", "--expires", "90d", "--description", "reports")
    assert created["owner"] == "admin"
    assert created["key"].startswith(f"amq_{created['id']}_")
    (listed,) = admin.json("key", "list")
    assert (listed["id"], listed["scopes"], listed["description"]) == (created["id"], ["read"], "reports")
    assert created["key"] not in admin.ok("key", "list")
    with HttpApi(parse_address(secured.http_address), credentials=Credentials(key=created["key"])) as api:
        assert api.get(("topics",), dict[str, object])
        with pytest.raises(Problem, match="CREATE is not allowed"):
            api.send("POST", ("topics",), dict[str, object], {"name": "forbidden"})
    admin.ok("key", "delete", created["id"], "--yes")
    assert admin.json("key", "list") == []
    assert created["id"] in admin.fails(4, "key", "delete", created["id"], "--yes")
