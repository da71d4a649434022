"""Positions in a log as users write them."""

import argparse

import pytest

from alpacamq.cli.position import AtOffset, AtTime, Earliest, Latest, Position, Selection, parse_position


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("earliest", Earliest(), id="the start"),
        pytest.param("latest", Latest(), id="the end"),
        pytest.param("1200", AtOffset(1200), id="an offset"),
        pytest.param("1970-01-02T00:00:00Z", AtTime(86_400_000), id="a time"),
        pytest.param("1970-01-02T01:00:00+01:00", AtTime(86_400_000), id="a time elsewhere"),
        pytest.param("1970-01-02", AtTime(86_400_000), id="a day begins at midnight UTC"),
        pytest.param("1970-01-01T00:00:01.001", AtTime(1001), id="a millisecond"),
        pytest.param("9999w", AtTime(0), id="longer ago than 1970"),
    ],
)
def test_positions(text: str, expected: Position) -> None:
    assert parse_position(text) == expected


@pytest.mark.parametrize("text", ["", "-5", "first", "1y", "٣", str(2**63), "2026-13-01"])
def test_invalid_positions(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a position: earliest, latest"):
        parse_position(text)


def test_selections() -> None:
    assert Selection.parse("orders") == Selection("orders", [])
    assert Selection.parse("orders:0,12") == Selection("orders", [0, 12])
    for wrong in (":1", "orders:", "orders:1,", "orders:-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            Selection.parse(wrong)
