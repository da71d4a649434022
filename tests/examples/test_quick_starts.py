"""The quick starts of other languages, as the pages show them: files, commands and output.

They download clients from the registries of their languages, so they are heavy; skipped without the
toolchain.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import NewBroker
from tests.test_docs import DOCS, HTTP, KAFKA, at_these_addresses, blocks, columns

# What each page needs, of which the last is started by its commands.
TOOLCHAINS = {
    "java": ("java", "mvn"),
    "go": ("go",),
    "javascript": ("npm", "node"),
    "rust": ("cc", "make", "cargo"),
}
FILE = re.compile(r"`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Downloads, and a build of librdkafka on a busy machine.
WITHIN_S = 1200

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(WITHIN_S)]


@pytest.mark.parametrize("language", TOOLCHAINS)
def test_quick_starts_print_the_documented_output(
    language: str, new_broker: NewBroker, tmp_path: Path
) -> None:
    for tool in TOOLCHAINS[language]:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    page = DOCS / "guide" / f"{language}.md"
    broker = new_broker("data")
    broker.start()
    addresses = {KAFKA: broker.address, HTTP: broker.http_address}
    project = tmp_path / "project"
    project.mkdir()
    files = dict(FILE.findall(page.read_text()))
    assert files
    output = ""
    for _, kind, code in blocks(page):
        if kind == "sh":
            output = _run(code, project)
        elif kind == "text":
            # After what npm prints. Maven resets the colours of a terminal that is none.
            assert columns(re.sub(r"\x1b\[[0-9;]*m", "", output)).endswith(columns(code)), output
        else:
            # Written where the page shows it: a tool may refuse to start a project beside files.
            name = next(name for name, text in files.items() if text == code)
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(at_these_addresses(code, addresses))


def _run(commands: str, directory: Path) -> str:
    done = subprocess.run(
        ["sh", "-e", "-c", commands],
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
