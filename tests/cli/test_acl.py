"""`alpacactl acl`."""

import shlex

import pytest

from alpacamq.cli.acl import OPERATIONS
from alpacamq.cli.key import SCOPES
from alpacamq.cli.reference import all_commands
from alpacamq.security.acls import OPERATIONS as OF_RESOURCES
from alpacamq.security.acls import Operation
from tests.brokers import Broker
from tests.secured import ADMIN, ALICE, SecuredBroker

from .command import Command, InProcess

EXAMPLES = [example for each in all_commands() if each.words[0] == "acl" for example in each.examples]


@pytest.fixture
def admin(secured: SecuredBroker) -> Command:
    return InProcess(secured.address(ADMIN))


def test_rules_are_added_listed_and_removed(admin: Command) -> None:
    admin.ok(
        "acl", "add", "--principal", "alice", "--operation", "read", "--operation", "describe",
        "--topic", "orders", "--host", "10.0.0.1",
    )  # fmt: skip
    rule = {
        "resource": "topic",
        "name": "orders",
        "pattern": "literal",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "permission": "allow",
    }
    assert admin.json("acl", "list") == [{**rule, "operation": each} for each in ("read", "describe")]
    admin.ok("acl", "remove", "--principal", "alice", "--operation", "read", "--yes")
    assert [each["operation"] for each in admin.json("acl", "list")] == ["describe"]
    admin.ok("acl", "remove", "--topic", "orders", "--yes")
    assert admin.json("acl", "list") == []


def test_a_rule_for_each_resource_is_added(admin: Command) -> None:
    admin.ok(
        "acl", "add", "--principal", "alice", "--operation", "all", "--topic", "a", "--topic", "b",
        "--group", "g", "--transactional-id", "x", "--cluster", "--deny",
    )  # fmt: skip
    listed = [(each["resource"], each["name"], each["permission"]) for each in admin.json("acl", "list")]
    assert listed == [
        ("topic", "a", "deny"),
        ("topic", "b", "deny"),
        ("group", "g", "deny"),
        ("cluster", "kafka-cluster", "deny"),
        ("transactional-id", "x", "deny"),
    ]


def test_the_rules_that_apply_to_a_topic_are_listed(admin: Command) -> None:
    admin.ok("acl", "add", "--principal", "a", "--operation", "read", "--topic", "ord", "--prefix")
    admin.ok("acl", "add", "--principal", "b", "--operation", "read", "--topic", "*")
    admin.ok("acl", "add", "--principal", "c", "--operation", "read", "--topic", "other")
    listed = {each["principal"] for each in admin.json("acl", "list", "--topic", "orders")}
    assert listed == {"User:a", "User:b"}


def test_removing_takes_only_rules_with_this_name(admin: Command) -> None:
    admin.ok("acl", "add", "--principal", "a", "--operation", "read", "--topic", "ord", "--prefix")
    admin.ok("acl", "add", "--principal", "b", "--operation", "read", "--topic", "orders")
    admin.ok("acl", "remove", "--topic", "orders", "--yes")
    assert [each["principal"] for each in admin.json("acl", "list")] == ["User:a"]
    admin.ok("acl", "remove", "--topic", "ord", "--prefix", "--yes")
    assert admin.json("acl", "list") == []


def test_nothing_is_removed_without_a_confirmation_or_a_condition(admin: Command) -> None:
    admin.ok("acl", "add", "--principal", "a", "--operation", "read", "--topic", "orders")
    for arguments in (["--principal", "a"], ["--yes"]):
        assert admin("acl", "remove", *arguments).code == 2
    assert len(admin.json("acl", "list")) == 1


def test_a_rule_needs_a_resource_and_a_fitting_operation(admin: Command) -> None:
    assert admin("acl", "add", "--principal", "a", "--operation", "read").code == 2
    ran = admin("acl", "add", "--principal", "a", "--operation", "cluster-action", "--topic", "t")
    assert ran.code == 1
    assert "there is no operation CLUSTER_ACTION on TOPIC" in ran.errors


def test_a_client_without_the_right_is_told_so(secured: SecuredBroker) -> None:
    ran = InProcess(secured.address(ALICE))("acl", "list")
    assert ran.code == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in ran.errors


def test_a_broker_without_rules_names_the_setting(broker: Broker) -> None:
    ran = InProcess(broker.address, broker.http_address)("acl", "list")
    assert ran.code == 1
    assert "security.acls" in ran.errors


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_work(admin: Command, example: str) -> None:
    admin.ok(*shlex.split(example)[1:])


def test_an_operation_may_have_hyphens_or_underscores(admin: Command) -> None:
    for spelt in ("describe-configs", "describe_configs", "DESCRIBE_CONFIGS"):
        rule = ("--principal", "speller", "--operation", spelt, "--topic", "orders")
        admin.ok("acl", "add", *rule)
        (listed,) = admin.json("acl", "list", "--principal", "speller")
        assert listed["operation"] == "describe-configs"
        admin.ok("acl", "remove", *rule, "--yes")


def test_every_operation_can_be_given() -> None:
    operations = set().union(*OF_RESOURCES.values())
    assert {Operation[each.upper().replace("-", "_")] for each in SCOPES} == operations
    given = {Operation[each.upper().replace("-", "_")] for each in OPERATIONS}
    assert given == operations - {Operation.TWO_PHASE_COMMIT} | {Operation.ALL}
