"""Names of certificates, and the rules that make principals of them."""

import pytest

from alpacamq.model.errors import InvalidConfig
from alpacamq.security.certificates import PrincipalRules, Subject, distinguished_name

ALICE: Subject = (
    (("countryName", "DE"),),
    (("organizationName", "Example"),),
    (("organizationalUnitName", "shop"),),
    (("commonName", "Alice"),),
)


def named(name: str) -> Subject:
    return ((("commonName", name),),)


def test_a_name_begins_with_its_most_specific_part() -> None:
    assert distinguished_name(ALICE) == "CN=Alice,OU=shop,O=Example,C=DE"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("a,b", r"CN=a\,b", id="a comma separates parts"),
        pytest.param("a+b", r"CN=a\+b", id="a plus joins attributes"),
        pytest.param("#a", r"CN=\#a", id="a number sign at the beginning"),
        pytest.param(" a ", r"CN=\ a\ ", id="spaces at both ends"),
        pytest.param('a"\\<>;', r"CN=a\"\\\<\>\;", id="the other special characters"),
    ],
)
def test_special_characters_are_escaped_so_that_names_cannot_be_forged(value: str, expected: str) -> None:
    assert distinguished_name(named(value)) == expected


def test_attributes_of_one_part_are_joined() -> None:
    assert distinguished_name(((("commonName", "a"), ("userId", "7")),)) == "CN=a+UID=7"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param("DEFAULT", "User:CN=Alice,OU=shop,O=Example,C=DE", id="the whole name"),
        pytest.param("RULE:^CN=(.*?),OU=.*$/$1/", "User:Alice", id="a part of it"),
        pytest.param("RULE:^CN=(.*?),OU=(.*?),.*$/$2.$1/L", "User:shop.alice", id="parts in lower case"),
        pytest.param("RULE:^CN=(.*?),.*$/$1/U", "User:ALICE", id="in upper case"),
        pytest.param(r"RULE:CN=(\w+),.*/$1\/x/", "User:Alice/x", id="a slash"),
        pytest.param("RULE:^CN=bob.*$/b/, RULE:^CN=(\\w+),.*$/$1/L ,DEFAULT", "User:alice", id="the second"),
        pytest.param("RULE:^CN=bob.*$/b/,DEFAULT", "User:CN=Alice,OU=shop,O=Example,C=DE", id="the last"),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, expected: str) -> None:
    assert str(PrincipalRules(rules).principal(ALICE)) == expected


@pytest.mark.parametrize(
    ("rules", "subject"),
    [
        pytest.param("RULE:^CN=bob$/b/", ALICE, id="no rule matches"),
        pytest.param("RULE:CN=Alice/a/", ALICE, id="a rule matches whole names only"),
        pytest.param("RULE:.*//", ALICE, id="an empty name"),
        pytest.param("RULE:CN=(.*)/$1/", named("ANONYMOUS"), id="the name of unknown clients"),
        pytest.param("RULE:CN=(.*)/$1/", named("*"), id="the name of everyone"),
        pytest.param("DEFAULT", (), id="no subject"),
        pytest.param("DEFAULT", named("a\nb"), id="control characters"),
        pytest.param("DEFAULT", named("x" * 2000), id="a very long name"),
    ],
)
def test_a_certificate_without_a_usable_name_has_no_principal(rules: str, subject: Subject) -> None:
    assert PrincipalRules(rules).principal(subject) is None


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param("", "'' is not a rule", id="empty"),
        pytest.param("default", "'default' is not a rule", id="another word"),
        pytest.param("RULE:a", "has no end", id="no replacement"),
        pytest.param("RULE:(/x/", "pattern '('", id="an invalid pattern"),
        pytest.param("RULE:(?=a)/x/", "pattern", id="a pattern that is not linear"),
        pytest.param("RULE:a/$1/", "has no group 1", id="an unknown group"),
        pytest.param("DEFAULT DEFAULT", "separated by commas", id="no comma"),
    ],
)
def test_invalid_rules_are_refused_with_the_reason(rules: str, expected: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        PrincipalRules(rules)
    assert expected in str(refused.value)
