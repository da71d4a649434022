"""Subscription patterns agree with Python's `re` where both support the syntax, and are never slow."""

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.coordinator.consumer.topic_pattern import LEGAL, MAX_LENGTH, MAX_NESTING, TopicPattern
from alpacamq.model.errors import InvalidRegularExpression

characters = st.sampled_from(["a", "A", "b", "0", "-", "_", ".", "^", "$", r"\.", r"\x61"])
classes = st.sampled_from(
    [r"\d", r"\w", r"\D", r"\W", r"\s", "[ab]", "[^a]", "[a-c_-]", "[]a]", r"[\d.]", "[b-]"]
)
patterns = st.recursive(
    characters | classes,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        inner.map(lambda part: f"(?:{part}|)"),
        inner.map(lambda part: f"(?i:{part})"),
        st.builds(
            lambda part, sign: f"(?P<name>{part}){sign}" if "name" not in part else f"({part}){sign}",
            inner,
            st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?", "{2,}"]),
        ),
    ),
    max_leaves=12,
)
names = st.text("aAbBc0-_.", min_size=1, max_size=10)


@settings(max_examples=500)
@given(pattern=patterns, name=names)
def test_patterns_match_whole_names_as_re_does(pattern: str, name: str) -> None:
    try:
        expected = re.compile(pattern, re.ASCII).fullmatch(name) is not None
    except re.error:  # Python allows a group's name once
        return
    assert TopicPattern(pattern).matches(name) == expected


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
        ("(a", "without '\\)'"),
        ("a)", "without '\\('"),
        ("[a", "ends too early"),
        ("[]", "ends too early"),
        ("a\\", "ends too early"),
        ("(?", "ends too early"),
        ("*a", "nothing to repeat"),
        ("(?i)*", "nothing to repeat"),
        ("a**", "cannot be repeated"),
        ("a{2}{3}", "cannot be repeated"),
        ("a*+", "cannot be repeated"),
        ("a{3,2}", "cannot repeat"),
        ("a{1001}", "cannot repeat"),
        ("[z-a]", "runs backwards"),
        (r"[a-\d]", "runs backwards"),
        ("[[:nope:]]", "not a character class"),
        (r"(a)\1", "not supported"),
        (r"\bword", "not supported"),
        (r"\pL", "not supported"),
        ("(?=a)", "not supported"),
        ("(?!a)", "not supported"),
        ("(?<=a)", "not supported"),
        ("(?<!a)", "not supported"),
        ("(?P<>a)", "proper name"),
        ("(?P<na", "proper name"),
        (r"\x{110000}", "too large a number"),
        (r"\x{zz}", "without a number"),
        (r"\x{61", "without a number"),
        (r"\x6", "without a number"),
        ("a" * (MAX_LENGTH + 1), "too long"),
        ("(" * (MAX_NESTING + 1) + ")" * (MAX_NESTING + 1), "nested"),
        ("(.{100}){100}", "too large"),
        ("((((((a?){9}){9}){9}){9}){9}){9}", "too large"),
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
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){20}", "(a*)*(a*)*(a*)*b", "(a?){80}a{80}b", "((){999}){999}b"],
)
def test_patterns_that_are_exponential_elsewhere_are_fast(pattern: str) -> None:
    compiled = TopicPattern(pattern)
    assert not any(compiled.matches("a" * length + "-") for length in range(1, 248))


def test_every_legal_character_matches_a_dot() -> None:
    assert all(TopicPattern(".").matches(character) for character in LEGAL)
