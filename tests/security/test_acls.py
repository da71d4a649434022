"""Decisions by access rules: a table of cases, and the index against a plain reading of all rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.security import acls
from alpacamq.security.acls import (
    Acl,
    AclFilter,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from alpacamq.security.principals import user

ALICE, BOB = "User:alice", "User:bob"
HERE = "127.0.0.1"


def rule(
    operation: Operation,
    name: str = "orders",
    *,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
    prefixed: bool = False,
    deny: bool = False,
) -> Acl:
    return Acl(
        kind,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


@pytest.mark.parametrize(
    ("rules", "wanted", "is_allowed"),
    [
        pytest.param([], READ, False, id="nothing is allowed without a rule"),
        pytest.param([rule(READ)], READ, True, id="as the rule says"),
        pytest.param([rule(READ)], WRITE, False, id="another operation"),
        pytest.param([rule(ALL)], WRITE, True, id="all operations"),
        pytest.param([rule(READ, principal=BOB)], READ, False, id="another principal"),
        pytest.param([rule(READ, principal="User:*")], READ, True, id="everyone"),
        pytest.param([rule(READ, host="10.0.0.1")], READ, False, id="another host"),
        pytest.param([rule(READ, host=HERE)], READ, True, id="this host"),
        pytest.param([rule(READ, "*")], READ, True, id="every name"),
        pytest.param([rule(READ, "ord", prefixed=True)], READ, True, id="a prefix"),
        pytest.param([rule(READ, "ord")], READ, False, id="a prefix in a literal rule"),
        pytest.param([rule(READ, "orders2", prefixed=True)], READ, False, id="a longer prefix"),
        pytest.param([rule(READ, kind=ResourceType.GROUP)], READ, False, id="another kind of resource"),
        pytest.param([rule(READ)], DESCRIBE, True, id="READ includes DESCRIBE"),
        pytest.param([rule(WRITE)], DESCRIBE, True, id="WRITE includes DESCRIBE"),
        pytest.param([rule(DESCRIBE)], READ, False, id="DESCRIBE does not include READ"),
        pytest.param([rule(READ), rule(READ, deny=True)], READ, False, id="denial wins"),
        pytest.param([rule(READ), rule(ALL, "*", deny=True)], READ, False, id="denial of all wins"),
        pytest.param([rule(READ), rule(READ, deny=True)], DESCRIBE, True, id="denial includes nothing else"),
        pytest.param([rule(READ), rule(READ, principal=BOB, deny=True)], READ, True, id="denial to others"),
        pytest.param(
            [rule(READ, "*"), rule(READ, "or", prefixed=True, deny=True)], READ, False, id="denied prefix"
        ),
    ],
)
def test_decisions(rules: list[Acl], wanted: Operation, is_allowed: bool) -> None:
    authorizer = Authorizer(rules)
    for _ in range(2):  # the second is the one that was kept
        assert authorizer.may(ALICE, HERE, wanted, ResourceType.TOPIC, "orders") is is_allowed


def test_super_users_may_everything() -> None:
    authorizer = Authorizer([rule(ALL, "*", deny=True)], [user("alice")])
    assert authorizer.may(ALICE, HERE, WRITE, ResourceType.TOPIC, "orders")
    assert authorizer.may_any(ALICE, HERE, WRITE, ResourceType.TOPIC)
    assert not authorizer.may(BOB, HERE, WRITE, ResourceType.TOPIC, "orders")


def test_alter_configs_includes_describe_configs() -> None:
    authorizer = Authorizer([rule(Operation.ALTER_CONFIGS)])
    assert authorizer.may(ALICE, HERE, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "orders")


def test_kept_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_DECISIONS", 10)
    authorizer = Authorizer([rule(READ, "*")])
    for number in range(100):
        assert authorizer.may(ALICE, HERE, READ, ResourceType.TOPIC, f"t{number}")
        assert len(authorizer._decisions) <= 10


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
RULES = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["*", HERE, "10.0.0.1"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def applies(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in {name, "*"}


def plain_decision(rules: list[Acl], operation: Operation, name: str) -> bool:
    """Read all rules, one after the other."""
    about = [
        acl
        for acl in rules
        if acl.resource_type is ResourceType.TOPIC
        and acl.principal in {ALICE, "User:*"}
        and acl.host in {HERE, "*"}
        and applies(acl, name)
    ]
    enough = {operation, ALL} | ({READ, WRITE} if operation is DESCRIBE else set())
    denied = any(acl.permission is Permission.DENY and acl.operation in {operation, ALL} for acl in about)
    return not denied and any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in about)


@given(st.lists(RULES, max_size=12), st.sampled_from([READ, WRITE, DESCRIBE]))
def test_the_index_decides_like_a_reading_of_all_rules(rules: list[Acl], operation: Operation) -> None:
    authorizer = Authorizer(rules)
    names = ["a", "ab", "abc", "abcd", "b", "bc", "c"]
    for name in names:
        expected = plain_decision(rules, operation, name)
        assert authorizer.may(ALICE, HERE, operation, ResourceType.TOPIC, name) is expected, name
    if any(plain_decision(rules, operation, name) for name in names):
        assert authorizer.may_any(ALICE, HERE, operation, ResourceType.TOPIC)


@pytest.mark.parametrize(
    ("rules", "is_allowed"),
    [
        pytest.param([], False, id="no rule"),
        pytest.param([rule(WRITE, "a")], True, id="one topic"),
        pytest.param([rule(WRITE, "a"), rule(WRITE, "a", deny=True)], False, id="the one is denied"),
        pytest.param(
            [rule(WRITE, "ab"), rule(WRITE, "a", prefixed=True, deny=True)], False, id="by a prefix"
        ),
        pytest.param(
            [rule(WRITE, "a", prefixed=True), rule(WRITE, "ab", prefixed=True, deny=True)],
            True,
            id="a part of a prefix is denied",
        ),
        pytest.param([rule(WRITE, "*"), rule(WRITE, "a", deny=True)], True, id="all but one"),
        pytest.param([rule(WRITE, "a"), rule(ALL, "*", deny=True)], False, id="all are denied"),
    ],
)
def test_whether_any_topic_may_be_written(rules: list[Acl], is_allowed: bool) -> None:
    assert Authorizer(rules).may_any(ALICE, HERE, WRITE, ResourceType.TOPIC) is is_allowed


def test_a_decision_about_any_topic_is_not_one_about_a_topic_without_a_name() -> None:
    authorizer = Authorizer([rule(WRITE, "a")])
    assert authorizer.may_any(ALICE, HERE, WRITE, ResourceType.TOPIC)
    assert not authorizer.may(ALICE, HERE, WRITE, ResourceType.TOPIC, "")
    assert authorizer.may_any(ALICE, HERE, WRITE, ResourceType.TOPIC)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(AclFilter(), "abc", id="all"),
        pytest.param(AclFilter(name="orders"), "a", id="name, any pattern"),
        pytest.param(AclFilter(name="ord", pattern_type=PatternType.LITERAL), "", id="literal"),
        pytest.param(AclFilter(name="ord", pattern_type=PatternType.PREFIXED), "b", id="prefixed"),
        pytest.param(AclFilter(pattern_type=PatternType.PREFIXED), "b", id="prefixed, any name"),
        pytest.param(AclFilter(name="orders", pattern_type=PatternType.MATCH), "abc", id="match"),
        pytest.param(AclFilter(name="other", pattern_type=PatternType.MATCH), "c", id="match of all names"),
        pytest.param(AclFilter(operation=WRITE), "b", id="operation"),
        pytest.param(AclFilter(principal=BOB), "c", id="principal"),
        pytest.param(AclFilter(permission=Permission.DENY), "c", id="permission"),
        pytest.param(AclFilter(host=HERE), "", id="host"),
        pytest.param(AclFilter(resource_type=ResourceType.GROUP), "", id="resource type"),
    ],
)
def test_filters(wanted: AclFilter, expected: str) -> None:
    rules = {
        "a": rule(READ),
        "b": rule(WRITE, "ord", prefixed=True),
        "c": rule(READ, "*", principal=BOB, deny=True),
    }
    assert "".join(name for name, each in rules.items() if wanted.matches(each)) == expected
