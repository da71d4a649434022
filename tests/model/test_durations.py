"""Durations as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        (" 10 minutes ", 600_000),
        ("1 millisecond", 1),
    ],
)
def test_parse(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize("text", ["", "5", "-5m", "5 M", "1.5h", "5 months", "1234567890123s", "٣s"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**11))
def test_formatted_durations_are_parsed_back(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms
