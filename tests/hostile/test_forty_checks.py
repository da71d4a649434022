"""Hostile clients are refused, while clients of every API work and the broker stays as it is."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from .checks import Check, floods, login, rights, tokens, web, wire
from .target import FULL_SIZE_CONFIG, Target, Watched, attacked

CHECKS: list[Check] = sorted(
    [*wire.CHECKS, *login.CHECKS, *tokens.CHECKS, *rights.CHECKS, *floods.CHECKS, *web.CHECKS],
    key=lambda each: each.number,
)
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "hostile-requests.md"
BEGIN, END = "<!-- checks: begin -->\n", "<!-- checks: end -->\n"


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Watched]]:
    with attacked(tmp_path_factory.mktemp("checks") / "broker") as found:
        yield found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.number} {check.name}")
def test_a_hostile_client_is_refused_and_harms_no_other(check: Check, attack: tuple[Target, Watched]) -> None:
    target, watched = attack
    with watched.unharmed():
        answer = check.attack(target)
    assert fnmatchcase(answer, check.answer), answer


def test_every_number_has_a_check() -> None:
    assert {check.number for check in CHECKS} == set(range(1, 41))


@pytest.fixture(scope="module")
def full_size_attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Watched]]:
    with attacked(tmp_path_factory.mktemp("floods") / "broker", FULL_SIZE_CONFIG) as found:
        yield found


@pytest.mark.heavy
@pytest.mark.parametrize("check", floods.FULL_SIZE, ids=lambda check: f"{check.number} {check.name}")
def test_a_flood_of_full_size_harms_no_other(check: Check, full_size_attack: tuple[Target, Watched]) -> None:
    target, watched = full_size_attack
    with watched.unharmed():
        answer = check.attack(target)
    assert fnmatchcase(answer, check.answer), answer


def test_the_page_lists_every_check(request: pytest.FixtureRequest) -> None:
    """Rewritten with --rewrite-transcripts."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = [
        f"| {check.number} | {_cell(check.name)} | {_cell(check.answer.replace('*', '…'))} |"
        for check in CHECKS
    ]
    table = "\n".join(["| check | sent | answer |", "|---|---|---|", *rows]) + "\n"
    expected = before + BEGIN + table + END + after
    if request.config.getoption("--rewrite-transcripts"):
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
