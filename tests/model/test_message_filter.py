"""Filter expressions: what matches, and what is not an expression."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.message_filter import MAX_CHARACTERS, Filter, InvalidFilter
from alpacamq.model.records import Header, Record

VALUE = (
    b'{"total": 120, "ok": true, "items": [{"sku": "x"}], "tags": ["a", 1], "id": 12345678901234567890, '
    b'"a b": 1}'
)
ORDER = Record(3, 1000, b"alice", VALUE, (Header("source", b"shop"), Header("raw", b"\xff")))
TEXT = Record(4, 1000, None, b"one cup of tea")
BYTES = Record(5, 1000, b"\xff", b"\xff\xfe")
TOMBSTONE = Record(6, 1000, b"alice", None)


@pytest.mark.parametrize(
    "expression",
    [
        "value.total > 100",
        "100 < value.total",
        "value.total == 120 and value.total != 121 and value.total <= 120.0",
        "value.ok",
        "not value.total",
        "value.ok == true and not (value.ok == 1)",
        'value.items[0].sku == "x" and value.items[-1]["sku"] == "x"',
        "value.items[1] == null and value.none.of.these == null",
        "value.id == 12345678901234567890 and value.id != 12345678901234567891",
        'value["a b"] == 1',
        'value.tags contains "a" and value.tags contains 1 and not value.tags contains true',
        'value contains "\\"sku\\": \\"x\\"" and not value contains "SKU"',
        'headers.source == "shop" and headers contains "raw" and headers.raw == null',
        "partition == 7 and offset >= 3 and timestamp < 1001",
        'key == "bob" or key == "alice" and value.ok',
        'not (key == "alice" and key == "bob")',
        'not value.total < "121"',
    ],
)
def test_an_expression_matches(expression: str) -> None:
    assert Filter(expression).matches(7, ORDER)
    assert not Filter(f"not ({expression})").matches(7, ORDER)


@pytest.mark.parametrize(
    ("expression", "record"),
    [
        pytest.param('value contains "cup" and value >= "one"', TEXT, id="text"),
        pytest.param("value == null and key == null", BYTES, id="bytes"),
        pytest.param("value == null", TOMBSTONE, id="tombstone"),
        pytest.param('not value contains "a" and not value.a > 1', TOMBSTONE, id="a member of nothing"),
        pytest.param('value contains "[["', Record(0, 0, None, b"[" * 100_000), id="deep nesting"),
    ],
)
def test_values_that_are_not_json_match(expression: str, record: Record) -> None:
    assert Filter(expression).matches(0, record)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        pytest.param("", "character 1: expected key", id="nothing"),
        pytest.param("value.", "character 7: expected the name of a member, not the end", id="no member"),
        pytest.param("value == 'x'", 'character 10: unexpected "\'"', id="the other quotes"),
        pytest.param("body == 1", "character 1: expected key, value, headers", id="an unknown field"),
        pytest.param("value == 1 1", "character 12: expected and, or, or the end", id="too much"),
        pytest.param("(value", "expected )", id="no closing parenthesis"),
        pytest.param("value[1.5]", "an index must be a whole number", id="a fraction as an index"),
        pytest.param('value == "\\q"', "is not as in JSON", id="an unknown escape"),
        pytest.param('__import__("os")', "character 1: expected", id="code"),
        pytest.param("not " * 30 + "value", "more than 20 levels", id="too deep"),
        pytest.param(" and ".join(["value"] * 30), "more than 20 comparisons", id="too many comparisons"),
        pytest.param("v" * (MAX_CHARACTERS + 1), "longer than", id="too long"),
    ],
)
def test_what_is_not_an_expression_is_refused_with_its_place(expression: str, problem: str) -> None:
    with pytest.raises(InvalidFilter) as refused:
        Filter(expression)
    assert problem in str(refused.value)


WORDS = st.sampled_from(
    [
        "value",
        "key",
        ".a",
        "[0]",
        '["b"]',
        "==",
        "<",
        "contains",
        "and",
        "or",
        "not",
        "(",
        ")",
        "1",
        '"x"',
        "true",
    ]
)


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=40), st.binary(max_size=40))
def test_any_text_is_refused_or_decides_for_any_message(text: str, value: bytes) -> None:
    try:
        found = Filter(text)
    except InvalidFilter:
        return
    assert found.matches(0, Record(0, 0, value, value)) in (True, False)
