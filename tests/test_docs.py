"""The documentation does what it says: examples run, links lead somewhere, generated tables are current."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from alpacamq.model.topics import SETTINGS
from alpacamq.node.config import load

from .brokers import Broker
from .conftest import NewBroker

ROOT = Path(__file__).parent.parent
# Its examples need Spark, or are pipelines; tests/spark runs them.
PIPELINES = ROOT / "docs" / "guide" / "pipelines.md"
GUIDE = sorted(set((ROOT / "docs" / "guide").glob("*.md")) - {PIPELINES})
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Where pages say that the doors are.
KAFKA, HTTP, SQS = "localhost:9092", "localhost:8080", "localhost:9324"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
EXAMPLE_S = 60


@dataclass(frozen=True)
class Example:
    """A runnable block of a page and the output the page promises."""

    page: Path
    line: int
    tool: str
    code: str
    output: str

    @property
    def pattern(self) -> str:
        """The output as a regular expression: where a page has …, each run has something else."""
        return re.escape(self.output).replace("…", ".*")

    def command(self, script: Path) -> list[str]:
        return [sys.executable, str(script)] if self.tool == "python" else ["sh", "-e", str(script)]


def blocks(page: Path) -> list[tuple[int, str, str]]:
    text = page.read_text()
    return [(text[: block.start()].count("\n") + 1, block[1], block[2]) for block in BLOCK.finditer(text)]


def examples(page: Path) -> list[Example]:
    """Every block whose tool we know; the text block after it is its output."""
    return [
        Example(page, line, tool, code, output if after == "text" else "")
        for (line, language, code), (_, after, output) in pairwise([*blocks(page), (0, "", "")])
        if (tool := tool_of(language, code))
    ]


def tool_of(language: str, code: str) -> str | None:
    """What a block needs to run, if it is one to run: Python, or a shell with a tool."""
    if language == "sh":
        return next((tool for tool in ("kcat", "alpacactl", "curl") if f"{tool} " in code), None)
    return "python" if language == "python" else None


def pages_with(tool: str) -> list[Path]:
    return [
        page
        for page in [ROOT / "README.md", *GUIDE]
        if any(example.tool == tool for example in examples(page))
    ]


def run_examples(page: Path, tools: set[str], broker: Broker, directory: Path) -> None:
    """All of a page's examples with these tools, in order: later ones may build on earlier ones."""
    alpacactl = directory / "alpacactl"
    alpacactl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m alpacamq.cli.main "$@"\n')
    alpacactl.chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    doors = {KAFKA: broker.address, HTTP: broker.http_address, SQS: broker.sqs_address}
    for example in examples(page):
        if example.tool not in tools:
            continue
        script = directory / f"example-{example.line}"
        script.write_text(at_these_doors(example.code, doors))
        ran = subprocess.run(
            example.command(script),
            capture_output=True,
            text=True,
            check=False,
            timeout=EXAMPLE_S,
            env={
                **os.environ,
                "PATH": path,
                "ALPACACTL_BROKER": broker.address,
                "ALPACACTL_HTTP": broker.http_address,
                "COLUMNS": "0",  # as wide as it takes, whatever terminal the tests run in
            },
        )
        where = f"{page.name}:{example.line}"
        assert ran.returncode == 0, f"{where}\n{ran.stderr}"
        assert re.fullmatch(at_these_doors(example.pattern, doors), ran.stdout), (
            f"{where}\n{ran.stdout}\n{ran.stderr}"
        )


def at_these_doors(text: str, doors: Mapping[str, str]) -> str:
    for door, address in doors.items():
        text = text.replace(door, address)
    return text


@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("python") if page not in pages_with("alpacactl") + pages_with("curl")],
    ids=lambda page: page.stem,
)
def test_python_examples_do_what_the_page_says(page: Path, new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker()
    broker.start()
    run_examples(page, {"python"}, broker, tmp_path)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@pytest.mark.parametrize("page", pages_with("kcat"), ids=lambda page: page.stem)
def test_kcat_examples_do_what_the_page_says(page: Path, new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker()
    broker.start()
    run_examples(page, {"kcat"}, broker, tmp_path)


@pytest.mark.parametrize("page", pages_with("alpacactl"), ids=lambda page: page.stem)
def test_alpacactl_examples_do_what_the_page_says(page: Path, new_broker: NewBroker, tmp_path: Path) -> None:
    """Together with the Python ones between them, which prepare what is looked at."""
    broker = new_broker()
    broker.start()
    run_examples(page, {"alpacactl", "curl", "python"}, broker, tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("curl") if page not in pages_with("alpacactl")],
    ids=lambda page: page.stem,
)
def test_curl_examples_do_what_the_page_says(page: Path, new_broker: NewBroker, tmp_path: Path) -> None:
    """Together with the Python ones between them."""
    broker = new_broker()
    broker.start()
    run_examples(page, {"curl", "python"}, broker, tmp_path)


def test_the_readme_shows_clients_of_every_door() -> None:
    assert {example.tool for example in examples(ROOT / "README.md")} == {"curl", "kcat", "python"}


@pytest.mark.parametrize(
    "configuration",
    [code for page in GUIDE for _, language, code in blocks(page) if language == "toml"],
)
def test_configuration_examples_are_accepted(configuration: str, tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(configuration)
    load(path, {}, {})


def test_generated_tables_are_current() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_every_setting_of_queues_is_on_their_page_with_its_default() -> None:
    page = (ROOT / "docs" / "guide" / "queues.md").read_text()
    for name, setting in SETTINGS.items():
        if name.startswith("queue."):
            default = setting.text(setting.default)
            assert f"| `{name}` | {f'`{default}`' if default else 'empty'} |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", page.read_text())) | set(
        re.findall(r"^make ([a-z]+)", page.read_text(), re.MULTILINE)
    )
    assert named <= targets


def test_every_dependency_has_its_reason() -> None:
    declared = set(re.findall(r'^    "([a-z0-9-]+)>=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    reasons = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")[2]
    assert declared
    for name in declared:
        assert name in reasons, f"{name} is not explained in ARCHITECTURE.md"


def test_every_package_is_described() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text()
    for package in sorted((ROOT / "src" / "alpacamq").iterdir()):
        if (package / "__init__.py").exists():
            assert f"| `{package.name}` |" in table
