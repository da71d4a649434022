"""Output of results: alignment, colours, and exact values in JSON and YAML."""

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.cli import cells
from alpacamq.cli.cells import Cell, Tint, age_text, printable, size_text, span_text, width
from alpacamq.cli.output import Table, json_text, print_message, render, wants_colour
from alpacamq.cli.record_forms import cell

# What terminals may take for more than text.
HOSTILE = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\n", "\t"}


def rendered(table: Table, columns: int = 0, *, is_coloured: bool = False) -> list[str]:
    return "\n\n".join(render(table, columns, is_coloured=is_coloured)).split("\n")


def test_numbers_are_right_aligned_and_text_left_aligned() -> None:
    table = Table(["topic", "messages", "size"], [["a", 5, cells.size(2048)], ["bcd", 12345, None]])
    assert rendered(table) == [
        "TOPIC  MESSAGES     SIZE",
        "a             5  2.0 KiB",
        "bcd       12345        -",
    ]


def test_colours_take_no_columns() -> None:
    table = Table(["group", "state"], [["a", cells.state("Stable")], ["b", cells.state("Dead")]])
    plain = rendered(table)
    coloured = rendered(table, is_coloured=True)
    assert coloured != plain
    for tint in Tint:
        coloured = [line.replace(f"\x1b[{tint.value}m", "") for line in coloured]
    assert [line.replace("\x1b[0m", "") for line in coloured] == plain


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "stream", "environ", "expected"),
    [
        pytest.param("auto", Terminal(), {}, True, id="a terminal"),
        pytest.param("auto", io.StringIO(), {}, False, id="a pipe"),
        pytest.param("auto", Terminal(), {"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param("auto", Terminal(), {"NO_COLOR": ""}, True, id="NO_COLOR that is empty"),
        pytest.param("auto", Terminal(), {"TERM": "dumb"}, False, id="a terminal that cannot"),
        pytest.param("always", io.StringIO(), {"NO_COLOR": "1"}, True, id="told to"),
        pytest.param("never", Terminal(), {}, False, id="told not to"),
    ],
)
def test_colour_is_for_terminals_unless_overridden(
    choice: str,
    stream: io.StringIO,
    environ: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setitem(os.environ, name, value)
    assert wants_colour(choice, stream) is expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (200 << 10, "200 KiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_have_units(number: int, text: str) -> None:
    assert size_text(number) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [
        (0, "10000 d ago"),
        (863_999_997_000, "3 s ago"),
        (863_999_999_500, "now"),
        (864_000_090_000, "in 90 s"),
        (863_999_700_000, "5 min ago"),
        (864_028_800_000, "in 8 h"),
        (863_827_200_000, "2 d ago"),
    ],
)
def test_times_are_relative_to_now(then: int, text: str) -> None:
    assert age_text(then, 864_000_000_000) == text


@given(st.integers(0, 10**15))
def test_a_span_is_one_number_and_a_unit(length_ms: int) -> None:
    number, unit = span_text(length_ms).split()
    assert int(number) >= 0
    assert unit in ("s", "min", "h", "d")


@given(st.text())
def test_a_table_contains_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()


@given(st.lists(st.lists(st.text(max_size=12), min_size=2, max_size=2), min_size=1, max_size=5))
def test_columns_are_aligned(rows: list[list[str]]) -> None:
    table = Table(["a", "b"], [[first, Cell("x")] for first, _ in rows])
    lines = rendered(table)
    assert len({width(line) for line in lines}) == 1


def test_wide_letters_take_two_columns() -> None:
    assert width("日本") == 4
    assert width("e\u0301") == 1


@given(st.text())
def test_json_stays_equivalent_and_cannot_control_the_terminal(text: str) -> None:
    shown = json_text([text], indent=2)
    assert json.loads(shown) == [text]
    assert not set(shown) & HOSTILE


def test_a_message_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("it says:\n\x1b]0;mine\x07\x9b2J\r")
    assert capsys.readouterr().err == "it says:\n\\u001b]0;mine\\u0007\\u009b2J\\u000d\n"


def test_names_in_a_list_cannot_control_the_terminal() -> None:
    assert cells.cell_of(["a", "b\x1b[2J"]).text == '"a,b\\u001b[2J"'


def test_text_is_quoted_once() -> None:
    assert cells.cell_of(cell("é\n\x9b".encode())).text == r'"\u00e9\n\u009b"'
    assert cells.cell_of(cell("é\n".encode())).text == r'"é\n"'
