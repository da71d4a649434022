"""Builds the documentation site, from docs/ and from what its pages link to elsewhere in the repository.

Pages link to files outside of docs/ by their place, as readers of the repository expect. Those files
become part of the site, under repository/, and so do the ones they link to. The build is strict: a
link that leads nowhere ends it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
# Links inside code are not links.
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


class Pages:
    """The pages of the site in one directory, as zensical expects them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brought: set[Path] = set()

    def gather(self) -> None:
        """Add all files of docs/ and all files they link to."""
        for source in sorted(DOCS.rglob("*")):
            if source.is_file():
                self._bring(source)

    def _place(self, source: Path) -> Path:
        """Return the path of a repository file in the site."""
        if source.is_relative_to(DOCS):
            return self._directory / source.relative_to(DOCS)
        return self._directory / "repository" / source.relative_to(ROOT)

    def _bring(self, source: Path) -> None:
        if source in self._brought:
            return
        self._brought.add(source)
        place = self._place(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            place.write_text(self._relinked(source))
        else:
            shutil.copyfile(source, place)

    def _relinked(self, page: Path) -> str:
        """Return the text of a page with its links rewritten for the site."""
        text = page.read_text()
        parts = []
        end = 0
        for code in CODE.finditer(text):
            parts += [LINK.sub(lambda link: self._link(page, link), text[end : code.start()]), code[0]]
            end = code.end()
        parts.append(LINK.sub(lambda link: self._link(page, link), text[end:]))
        return "".join(parts)

    def _link(self, page: Path, link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = (page.parent / link[2]).resolve()
        if target.is_dir():
            target /= "index.md"
        if not target.is_relative_to(ROOT) or not target.is_file():
            raise SystemExit(f"{page.relative_to(ROOT)} links to {link[2]}, which is not there")
        self._bring(target)
        return f"{link[1]}{os.path.relpath(self._place(target), self._place(page).parent)}{link[3]}"


def build(site: Path) -> int:
    """Build the site into `site`, which is replaced; return the exit code of the build."""
    with tempfile.TemporaryDirectory() as project_name:
        project = Path(project_name)
        shutil.copy(ROOT / "zensical.toml", project)
        Pages(project / "docs").gather()
        built = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=project,
            check=False,
        )
        if built.returncode == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.move(project / "site", site)
    return built.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", nargs="?", type=Path, default=ROOT / "site", help="where to; default: site")
    return build(parser.parse_args().site)


if __name__ == "__main__":
    sys.exit(main())
