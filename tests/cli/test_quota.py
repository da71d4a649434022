"""`alpacactl quota`."""

import shlex
from collections.abc import Iterator

import pytest

from alpacamq.cli.reference import all_commands
from tests.secured import ADMIN, SecuredBroker, secured_broker

from .command import Command, InProcess

EXAMPLES = [example for each in all_commands() if each.words[0] == "quota" for example in each.examples]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("quota"), acls=False) as broker:
        yield broker


@pytest.fixture
def admin(secured: SecuredBroker) -> Iterator[Command]:
    command = InProcess(secured.address(ADMIN))
    yield command
    for each in command.json("quota", "list"):
        entity = [
            option
            for type_, name in each["entity"].items()
            for option in ([f"--default-{_option(type_)}"] if name is None else [f"--{_option(type_)}", name])
        ]
        command.ok("quota", "remove", *entity, "--yes")


def _option(type_: str) -> str:
    return "principal" if type_ == "user" else type_


def test_quotas_are_set_listed_and_removed(admin: Command) -> None:
    admin.ok("quota", "set", "--principal", "User:alice", "producer_byte_rate=1000", "request_percentage=2.5")
    admin.ok("quota", "set", "--default-principal", "--client-id", "app", "consumer_byte_rate=2000")
    alice = {"entity": {"user": "alice"}, "values": {"producer_byte_rate": 1000, "request_percentage": 2.5}}
    assert admin.json("quota", "list", "--principal", "alice") == [alice]
    assert admin.json("quota", "list", "--client-id", "app") == [
        {"entity": {"client-id": "app", "user": None}, "values": {"consumer_byte_rate": 2000}}
    ]
    assert len(admin.json("quota", "list")) == 2
    admin.ok("quota", "remove", "--principal", "alice", "producer_byte_rate", "--yes")
    assert admin.json("quota", "list", "--principal", "alice")[0]["values"] == {"request_percentage": 2.5}
    admin.ok("quota", "remove", "--principal", "alice", "--yes")
    assert admin.json("quota", "list", "--principal", "alice") == []


def test_a_table_names_whose_quotas_they_are(admin: Command) -> None:
    admin.ok("quota", "set", "--default-ip", "connection_count=5")
    admin.ok("quota", "set", "--principal", "alice", "--default-client-id", "producer_byte_rate=10")
    lines = admin.ok("quota", "list").splitlines()
    assert [line.split() for line in lines] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        ["alice", "(default)", "-", "producer_byte_rate", "10"],
        ["-", "-", "(default)", "connection_count", "5"],
    ]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_work(admin: Command, example: str) -> None:
    admin.ok("quota", "set", "--principal", "alice", "producer_byte_rate=1")
    admin.ok("quota", "set", "--default-ip", "connection_count=100")
    admin.ok(*shlex.split(example)[1:])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["set", "producer_byte_rate=1"], "name whose quotas"),
        (["set", "--principal", "alice", "producer_byte_rate"], "NAME=VALUE"),
        (["set", "--principal", "alice", "producer_byte_rate=much"], "greater than 0"),
        (["set", "--principal", "alice", "producer_byte_rate=0"], "greater than 0"),
        (["set", "--principal", "alice", "producer_byte_rate=1", "producer_byte_rate=2"], "twice"),
        (["set", "--principal", "", "producer_byte_rate=1"], "must not be empty"),
        (["set", "--ip", "1.2.3.4", "--default-ip", "connection_count=1"], "not allowed with"),
        (["remove"], "name whose quotas"),
    ],
)
def test_invalid_usage_is_refused_with_a_reason(admin: Command, arguments: list[str], reason: str) -> None:
    assert reason in admin.fails(2, "quota", *arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["set", "--principal", "alice", "speed=1"], "unknown quota 'speed'"),
        (["set", "--ip", "somewhere", "connection_count=1"], "not an IP address"),
        (["set", "--ip", "1.2.3.4", "--principal", "alice", "connection_count=1"], "cannot be combined"),
        (["remove", "--principal", "alice", "--yes"], "there is no quota of user alice"),
        (["remove", "--default-client-id", "--yes"], "there is no quota of client-id (default)"),
    ],
)
def test_what_the_broker_refuses_is_an_error(admin: Command, arguments: list[str], reason: str) -> None:
    assert reason in admin.fails(1, "quota", *arguments)
