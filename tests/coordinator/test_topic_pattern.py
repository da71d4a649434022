"""Subscription patterns match whole topic names, are never slow, and are refused with a reason."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.consumer.assignment import MAX_PATTERN_LENGTH, TopicPattern
from alpacamq.model.errors import InvalidRegularExpression

names = st.text("aAbBc0-_.", min_size=1, max_size=10)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        pytest.param("orders", ["orders"], ["orders2", "my-orders", "order"], id="whole names"),
        pytest.param("^orders-.*$", ["orders-", "orders-eu"], ["orders", "x-orders-eu"], id="anchored"),
        pytest.param(r"\Aorders\z", ["orders"], ["orders2"], id="anchored otherwise"),
        pytest.param("a|b-[0-9]+", ["a", "b-7", "b-42"], ["b-", "a-1"], id="choice"),
        pytest.param("(?i)Orders", ["orders", "ORDERS"], ["order"], id="without case"),
        pytest.param("x(?i)y|z", ["xY", "Z"], ["XY"], id="without case from here"),
        pytest.param("(?i:x)y", ["Xy", "xy"], ["xY"], id="without case in a group"),
        pytest.param("(?i)a(?-i)b", ["Ab"], ["aB"], id="with case again"),
        pytest.param("(?ims-U)a", ["A"], ["b"], id="flags about lines change nothing"),
        pytest.param(r"\Qa.b\E.", ["a.bc"], ["axbc", "a.b"], id="quoted"),
        pytest.param(r"\Qa.b", ["a.b"], ["axb"], id="quoted to the end"),
        pytest.param("[[:alpha:]]+[[:^alpha:]]", ["ab1", "a."], ["ab", "1a"], id="named classes"),
        pytest.param(r"[^\w]", [".", "-"], ["a", "_"], id="negated"),
        pytest.param(r"\x{61}\x62", ["ab"], ["x61"], id="by number"),
        pytest.param("(?P<env>prod|test)-(?<kind>.+)", ["prod-a", "test-b"], ["dev-a"], id="named groups"),
        pytest.param("a{2,3}", ["aa", "aaa"], ["a", "aaaa"], id="counted"),
        pytest.param("(a*)*b", ["b", "aaab"], ["aaa"], id="repeated repetitions"),
        pytest.param("a{x}", [], ["a", "aa"], id="braces without a count are literals"),
        pytest.param("a$b|^^c$$", ["c"], ["ab", "a"], id="anchors in odd places"),
        pytest.param(r"caf\n|ä|[ä]", [], ["caf", "a"], id="characters that topic names cannot contain"),
        pytest.param("", [], ["a"], id="nothing"),
    ],
)
def test_matching_names(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = TopicPattern(pattern)
    assert [name for name in matching + others if compiled.matches(name)] == matching


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing \\)"),
        ("[a", "missing ]"),
        ("*a", "no argument for repetition operator: \\*"),
        ("a{1001}", "invalid repetition size"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)", "invalid perl operator"),
        ("a\ud800", "not valid Unicode"),
        ("a" * (MAX_PATTERN_LENGTH + 1), "longer than 4096"),
        ("((){999}){999}b", "invalid repetition size"),
        ("((((((a?){9}){9}){9}){9}){9}){9}", "invalid repetition size"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRegularExpression, match=reason):
        TopicPattern(pattern)


@given(pattern=st.text("ab\\Q[]()^$.|*+?{}0,:-<>Pix", max_size=30), name=names)
def test_any_text_is_a_pattern_or_rejected(pattern: str, name: str) -> None:
    with suppress(InvalidRegularExpression):
        TopicPattern(pattern).matches(name)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){20}", "(a*)*(a*)*(a*)*b", "(a?){80}a{80}b"],
)
def test_patterns_that_are_exponential_elsewhere_are_fast(pattern: str) -> None:
    compiled = TopicPattern(pattern)
    assert not any(compiled.matches("a" * length + "-") for length in range(1, 248))
