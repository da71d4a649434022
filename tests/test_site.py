"""The documentation site builds strictly, loads nothing from other hosts, and links every page."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from alpacamq.queues.chunks import NEXT_STATES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "images").glob("*.svg"))
# Markup and styles that make a browser load something. Links are not followed by themselves.
LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//|@import|url\(["']?https?:"""
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site") / "site"
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "build_site.py", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return directory


def navigation(entry: object) -> Iterator[str]:
    """Yield the pages in the navigation, at any depth."""
    match entry:
        case str():
            yield entry
        case list():
            for each in entry:
                yield from navigation(each)
        case dict():
            for each in entry.values():
                yield from navigation(each)


def test_every_page_is_in_the_navigation_once() -> None:
    named = list(navigation(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(named) == sorted(pages | {"repository/ARCHITECTURE.md"})


def test_the_site_has_every_page_and_every_linked_file(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists()
    assert (site / "repository" / "ARCHITECTURE.html").exists()
    assert (site / "repository" / "examples" / "pipelines" / "archive.toml").exists()


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = LOADED.search(path.read_text())
        assert found is None, f"{path.relative_to(site)}: {found and found[0]}"


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "build_site.py").write_text((ROOT / "scripts" / "build_site.py").read_text())
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "a site"\n')
    for text, told in (("[there](nowhere.md)", "nowhere.md"), ("[there](#nowhere)", "anchor does not exist")):
        (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n")
        ran = subprocess.run(
            [sys.executable, tmp_path / "scripts" / "build_site.py"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode != 0
        assert told in ran.stdout + ran.stderr
        assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_has_a_description_and_a_dark_variant(picture: Path) -> None:
    root = ET.parse(picture).getroot()  # noqa: S314 - our own
    for part in ("title", "desc"):
        told = root.find(f"{SVG}{part}")
        assert told is not None
        assert told.text
    assert "prefers-color-scheme: dark" in picture.read_text()
    assert "://" not in picture.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert any(picture.name in page.read_text() for page in DOCS.rglob("*.md"))


def test_the_state_diagram_shows_the_transitions_of_the_code() -> None:
    root = ET.parse(DOCS / "images" / "queue-states.svg").getroot()  # noqa: S314 - our own
    drawn = {path.get("id") for path in root.iter(f"{SVG}path")} - {None}
    assert drawn == {
        f"{state.name}-{'done' if after is None else after.name}".lower()
        for state, afters in NEXT_STATES.items()
        for after in afters
    }
