"""Tests of the documentation: examples run, links resolve, generated parts are current."""

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from benchmarks import page as benchmarks_page

from alpacamq.api.rest.table import ROUTES
from alpacamq.broker.health import ALL
from alpacamq.cli.doctor import LOW_DISK
from alpacamq.cli.reference import all_commands
from alpacamq.model.errors import AlpacaError, UnknownTopic
from alpacamq.model.topics import SETTINGS
from alpacamq.node.config import OPTIONS, load
from alpacamq.telemetry.metrics_catalogue import CATALOGUE

from . import tokens
from .brokers import Broker
from .conftest import NewBroker
from .integration.nodes import running_nodes

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
START = DOCS / "guide" / "getting-started.md"
OPERATIONS = DOCS / "guide" / "operations.md"
BACKUP = DOCS / "guide" / "backup.md"
REPAIR = DOCS / "guide" / "repair.md"
CLUSTER = DOCS / "guide" / "cluster.md"
# tests/deploy/test_runbook.py runs it.
RUNBOOK = DOCS / "guide" / "runbook.md"
SECURITY = DOCS / "guide" / "security.md"
PYTHON_CLIENT = DOCS / "guide" / "python.md"
TENANTS = DOCS / "guide" / "tenants.md"
TOKENS = DOCS / "guide" / "tokens.md"
TROUBLES = DOCS / "guide" / "troubleshooting.md"
# Examples that need Spark, or are pipelines; tests/spark runs them.
PIPELINES = DOCS / "guide" / "pipelines.md"
SITE = sorted([README, *DOCS.rglob("*.md")])
GUIDE = [page for page in SITE if page != PIPELINES]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DEVELOPMENT = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((DOCS / "internals").glob("*.md")),
    *sorted((DOCS / "decisions").glob("*.md")),
]
# The addresses of the APIs in the pages.
KAFKA, HTTP, SQS, REGISTRY = "localhost:9092", "localhost:8080", "localhost:9324", "localhost:8081"
GRPC = "localhost:9095"
ANY_PORTS = {f"ALPACAMQ_{api}_LISTEN": "127.0.0.1:0" for api in ("KAFKA", "HTTP", "SQS", "REGISTRY", "GRPC")}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
# Of pictures that depend on the colours of the reader, which Markdown has no form for.
IMAGE = re.compile(r'<(?:source|img) [^>]*?(?:srcset|src)="([^"]+)"')
SPACES = re.compile(r" +")
# The first words of topic settings that no other system has settings with.
OWN_SETTINGS = {"queue", "trace", "table", "confluent", "cleanup", "retention", "segment", "flush"}
# Names of clients, of Spark and of the system, and examples.
OTHERS_NAMES = {
    *("ack_wait", "request_timeout_ms", "endpoint_url", "set_sasl_credentials", "commit_sync"),
    *("sasl_oauth_token_provider", "preferred_username", "send_offsets_to_transaction"),
    *("from_protobuf", "member_int", "member_string", "sync_file_range", "a_b"),
}
REGISTRY_PATHS = (
    "/schemas",
    "/subjects",
    "/config",
    "/mode",
    "/compatibility",
    "/contexts",
    "/v1",
    "/descriptions",
)
EXAMPLE_S = 60
SPARK_S = 300
# Commands that no example can run, by the beginning of their lines, with the reason.
ELSEWHERE: Mapping[str, str] = {
    "make ": "the targets that are named exist; each is short, and most are what the tests themselves do",
    ". .venv/bin/activate": "examples run with the commands of the environment on their path",
    "scripts/setup ": "tests/test_setup.py",
    "pip install ": "not without an index of packages",
    "python3 -m venv ": "not without an index of packages",
    "../spark-4.0/": "not without an index of packages",
    "confluent-kafka ": "continues the line above",
    ".venv/bin/python -m benchmarks": "takes minutes",
    "kafka-configs.sh ": "tests/compat/test_broker_settings.py",
    "spark-pipelines run ": "tests/spark/test_pipeline_commands.py",
    "alpacamq serve ": "every test here starts the broker like this",
    "mvn ": "tests/examples/test_quick_starts.py",
    "go ": "tests/examples/test_quick_starts.py",
    "npm ": "tests/examples/test_quick_starts.py",
    "node ": "tests/examples/test_quick_starts.py",
    "cargo ": "tests/examples/test_quick_starts.py",
    "openssl rand ": "tests here write a password of their own",
    "chmod 600 ": "as above",
}


@dataclass(frozen=True)
class Example:
    """A runnable block of a page and its documented output."""

    page: Path
    line: int
    tool: str
    code: str
    output: str

    @property
    def pattern(self) -> str:
        """Return the output as a regular expression, in which … matches any text.

        The number of spaces between columns depends on their content.
        """
        return re.escape(columns(self.output)).replace("…", ".*")

    def command(self, script: Path) -> list[str]:
        return [sys.executable, str(script)] if self.tool == "python" else ["sh", "-e", str(script)]


def columns(text: str) -> str:
    """Collapse runs of spaces."""
    return "\n".join(SPACES.sub(" ", line).strip(" ") for line in text.split("\n"))


def blocks(page: Path) -> list[tuple[int, str, str]]:
    text = page.read_text()
    return [(text[: block.start()].count("\n") + 1, block[1], block[2]) for block in BLOCK.finditer(text)]


def examples(page: Path) -> list[Example]:
    """Yield every runnable block; the text block after it is its output."""
    return [
        Example(page, line, tool, code, output if after == "text" else "")
        for (line, language, code), (_, after, output) in pairwise([*blocks(page), (0, "", "")])
        if (tool := tool_of(language, code))
    ]


def tool_of(language: str, code: str) -> str | None:
    """Return the tool that runs a block: Python, or a command of a shell; None if it is not runnable."""
    if language == "sh":
        if "alpacactl pipeline " in code:
            return "spark"
        alpacamq = ("verify", "config", "repair", "backup", "restore")
        known = ("kcat", "alpacactl", "curl", *(f"alpacamq {command}" for command in alpacamq))
        return next((tool.partition(" ")[0] for tool in known if f"{tool} " in code), None)
    return "python" if language == "python" else None


def pages_with(tool: str) -> list[Path]:
    return [page for page in GUIDE if any(example.tool == tool for example in examples(page))]


def run_examples(page: Path, tools: set[str], broker: Broker, directory: Path) -> None:
    """Run a page's examples with these tools, in order: later ones may depend on earlier ones."""
    addresses = {
        KAFKA: broker.address,
        HTTP: broker.http_address,
        SQS: broker.sqs_address,
        REGISTRY: broker.registry_address,
        GRPC: broker.grpc_address,
    }
    run_examples_at(page, tools, addresses, directory)


def run_examples_at(
    page: Path, tools: set[str], addresses: Mapping[str, str], directory: Path, *, may_print: bool = False
) -> None:
    """Run a page's examples; with `may_print`, those without documented output may print anything."""
    commands = directory / "bin"
    commands.mkdir(exist_ok=True)
    for name, module in (("alpacactl", "alpacamq.cli.main"), ("alpacamq", "alpacamq.node.main")):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        (commands / name).chmod(0o755)
    for example in examples(page):
        if example.tool not in tools:
            continue
        if example.code.strip() == "alpacactl doctor" and is_disk_low(directory):
            continue  # it prints a warning here
        script = directory / f"example-{example.line}"
        script.write_text(at_these_addresses(example.code, addresses))
        ran = subprocess.run(
            example.command(script),
            capture_output=True,
            text=True,
            check=False,
            timeout=SPARK_S if example.tool == "spark" else EXAMPLE_S,
            cwd=directory,
            env={
                **os.environ,
                "PATH": f"{commands}:{os.environ['PATH']}",
                "ALPACACTL_BROKER": addresses[KAFKA],
                "ALPACACTL_HTTP": addresses[HTTP],
                "ALPACACTL_CONFIG": str(directory / "alpacactl.toml"),
                "COLUMNS": "0",  # unlimited width
            },
        )
        where = f"{page.name}:{example.line}"
        assert ran.returncode == 0, f"{where}\n{ran.stderr}"
        is_any = may_print and not example.output
        assert is_any or re.fullmatch(at_these_addresses(example.pattern, addresses), columns(ran.stdout)), (
            f"{where}\n{ran.stdout}\n{ran.stderr}"
        )


def is_disk_low(directory: Path) -> bool:
    """Return whether `alpacactl doctor` warns of this machine's disk."""
    usage = shutil.disk_usage(directory)
    return usage.free < LOW_DISK * usage.total


def at_these_addresses(text: str, addresses: Mapping[str, str]) -> str:
    for api, address in addresses.items():
        text = text.replace(api, address)
    return text


@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("python") if page not in pages_with("alpacactl") + pages_with("curl")],
    ids=lambda page: page.stem,
)
def test_python_examples_print_the_documented_output(
    page: Path, new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker()
    broker.start()
    run_examples(page, {"python"}, broker, tmp_path)


def test_the_examples_of_the_python_client_work_with_three_nodes(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    with running_nodes(tmp_path / "nodes") as nodes:
        addresses = {KAFKA: nodes.kafka, HTTP: "unused", GRPC: ",".join(node.grpc for node in nodes)}
        run_examples_at(PYTHON_CLIENT, {"python"}, addresses, tmp_path)


NEEDS_KCAT = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


@NEEDS_KCAT
def test_readme_examples_print_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    """Run together: the first program receives what kcat has written."""
    assert pages_with("kcat") == [README], "no other test runs kcat"
    broker = new_broker()
    broker.start()
    run_examples(README, {"kcat", "curl", "python"}, broker, tmp_path)


@NEEDS_KCAT
def test_the_picture_of_the_readme_shows_what_its_commands_print(tmp_path: Path) -> None:
    picture = tmp_path / "first-message.svg"
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "record_terminal.py", "--output", picture],
        check=True,
        timeout=EXAMPLE_S,
    )
    ready = re.compile(r"ready after [\d.]+ s")
    committed = (DOCS / "images" / "first-message.svg").read_text()
    assert ready.sub("", picture.read_text()) == ready.sub("", committed), "run scripts/record_terminal.py"


@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("alpacactl") if page not in {CLUSTER, RUNBOOK, SECURITY, TENANTS, TOKENS}],
    ids=lambda page: page.stem,
)
def test_alpacactl_examples_print_the_documented_output(
    page: Path, new_broker: NewBroker, tmp_path: Path
) -> None:
    """Run together with the Python examples between them, which prepare the data."""
    broker = new_broker()
    broker.start()
    run_examples(page, {"alpacactl", "curl", "python"}, broker, tmp_path)


def test_cluster_examples_print_the_documented_output(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    with running_nodes(tmp_path / "nodes") as nodes:
        http = ",".join(node.http for node in nodes)
        addresses = {
            KAFKA: nodes.kafka,
            HTTP: http,
            SQS: nodes.by_id[2].sqs,
            REGISTRY: "unused",
            GRPC: "unused",
        }
        run_examples_at(CLUSTER, {"alpacactl", "python"}, addresses, tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("curl") if page not in [*pages_with("alpacactl"), SECURITY, README]],
    ids=lambda page: page.stem,
)
def test_curl_examples_print_the_documented_output(page: Path, new_broker: NewBroker, tmp_path: Path) -> None:
    """Run together with the Python examples between them."""
    broker = new_broker()
    broker.start()
    run_examples(page, {"curl", "python"}, broker, tmp_path)


@pytest.mark.parametrize("page", [SECURITY, TENANTS], ids=lambda page: page.stem)
def test_security_examples_print_the_documented_output(
    page: Path, new_broker: NewBroker, tmp_path: Path
) -> None:
    """Run on a broker with the page's own configuration."""
    users = tmp_path / "users"
    users.write_text("admin:secret\n")
    users.chmod(0o600)
    for file, password in {"admin": "secret", "alice": "a long password", "new": "x"}.items():
        (tmp_path / f"{file}.txt").write_text(f"{password}\n")
    configuration = next(code for _, language, code in blocks(page) if language == "toml")
    section = "[security]" + configuration.partition("[security]")[2]
    broker = new_broker(config=section.replace("/etc/alpacamq/users", str(users)))
    broker.start()
    run_examples(page, {"alpacactl", "curl", "python"}, broker, tmp_path)


def test_token_examples_print_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    """Run on a broker with the page's own configuration, and a token of its provider."""
    (tmp_path / "users").write_text("admin:secret\nalice:secret\n")
    (tmp_path / "token-secret").write_text("a long random text")
    for file in ("users", "token-secret"):
        (tmp_path / file).chmod(0o600)
    (tmp_path / "keys.json").write_bytes(tokens.jwks())
    (tmp_path / "alice.txt").write_text("secret\n")
    (tmp_path / "token.txt").write_text(tokens.token(iss="https://login.example.com/"))
    sections = [code.partition("[security]")[2] for _, language, code in blocks(TOKENS) if language == "toml"]
    config = "\n".join(["[security]", f"users_file = '{tmp_path}/users'", *sections])
    config = config.replace("/etc/alpacamq", str(tmp_path))
    url = 'jwks_url = "https://login.example.com/.well-known/jwks.json"'
    assert url in config
    broker = new_broker(config=config.replace(url, f"jwks_file = '{tmp_path}/keys.json'"))
    broker.start()
    run_examples(TOKENS, {"alpacactl", "curl", "python"}, broker, tmp_path)


@NEEDS_KCAT
@pytest.mark.heavy
def test_the_five_minute_start_prints_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    """Run the README, then the whole start page, including Spark, on one broker."""
    broker = new_broker("data")
    broker.start()
    run_examples(README, {"kcat", "curl", "python"}, broker, tmp_path)
    told = [example.tool for example in examples(START)]
    assert {"alpacactl", "curl", "spark"} <= set(told)
    run_examples(START, set(told), broker, tmp_path)


def test_operations_commands_print_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker("data")
    broker.start()
    broker.stop()
    assert any(example.tool == "alpacamq" for example in examples(OPERATIONS))
    run_examples(OPERATIONS, {"alpacamq"}, broker, tmp_path)


def test_backup_commands_print_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker().start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as http:
        http.post("/topics/orders/messages", json={"value": "one"}).raise_for_status()
    run_examples(BACKUP, {"alpacamq"}, broker, tmp_path)


def test_repair_commands_print_the_documented_output(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker("backup")
    broker.start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as http:
        http.post("/topics", json={"name": "orders", "partitions": 1}).raise_for_status()
        for number in range(3):
            body = {"value": f"order number {number}"}
            http.post("/topics/orders/messages", json=body).raise_for_status()
        offsets = [{"topic": "orders", "partition": 0, "offset": 2}]
        http.post("/groups/shop/offsets", json={"offsets": offsets}).raise_for_status()
    broker.stop()
    assert broker.data_dir == tmp_path / "backup"
    run_examples(REPAIR, {"alpacamq"}, broker, tmp_path)


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_is_run(page: Path) -> None:
    """Each is run by a test of this file, or is a known exception."""
    for line, language, code in blocks(page):
        if language != "sh" or tool_of(language, code) is not None:
            continue
        for command in code.splitlines():
            assert command.strip().startswith(tuple(ELSEWHERE)), f"{page.name}:{line}: {command}"


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_has_a_language(page: Path) -> None:
    """A block without one is skipped by these tests and by the site."""
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences[0::2]) <= {
        "sh",
        "python",
        "py",
        "text",
        "toml",
        "ini",
        "json",
        "properties",
        "yaml",
        # Files of quick starts.
        "xml",
        "java",
        "go",
        "js",
        "rust",
        "",
    }
    assert set(fences[1::2]) <= {""}


def test_the_readme_shows_clients_of_every_api() -> None:
    assert {example.tool for example in examples(README)} == {"curl", "kcat", "python"}


@pytest.mark.parametrize(
    "configuration",
    [code for page in GUIDE for _, language, code in blocks(page) if language == "toml"],
)
def test_configuration_examples_are_accepted(configuration: str, tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(configuration)
    load(path, {}, {})


def test_start_errors_match_the_troubleshooting_page(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker("data")
    broker.start()
    said = [row for row in TROUBLES.read_text().splitlines() if row.startswith("| `")][:5]
    attempts: tuple[tuple[list[str], dict[str, str]], ...] = (
        (["--data-dir", "other", "--kafka", broker.address], {}),
        (["--data-dir", str(broker.data_dir)], {}),
        (["--data-dir", str(broker.data_dir)], {"ALPACAMQ_NODE_ID": "7"}),
        (["--data-dir", "other"], {"ALPACAMQ_KAFKA_LISTNE": "localhost:9092"}),
        (["--data-dir", "other", "--sqs", "0.0.0.0:0"], {}),
    )
    for row, (arguments, variables) in zip(said, attempts, strict=True):
        if "belongs to node" in row:
            broker.stop()
        ran = subprocess.run(
            [sys.executable, "-m", "alpacamq.node.main", "serve", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=EXAMPLE_S,
            cwd=tmp_path,
            env={**os.environ, **ANY_PORTS, **variables},
        )
        promised = re.escape(row.split("`")[1]).replace("…", ".*")
        assert ran.returncode == 1
        assert re.search(promised, ran.stderr), ran.stderr


def test_generated_tables_are_current() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", benchmarks_page.PAGES, ids=lambda page: page.name)
def test_benchmark_tables_match_the_results(page: Path) -> None:
    assert benchmarks_page.current(page.read_text()) == page.read_text(), "run make docs"


def test_a_benchmark_without_results_says_so() -> None:
    page = "<!-- results: never_asked -->\n<!-- end -->"
    assert "Not measured yet" in benchmarks_page.current(page)


def test_an_error_without_a_cause_or_remedy_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    reference = importlib.import_module("error_reference")
    reference.check_texts()

    class NewError(AlpacaError):
        """A test adds it."""

    class Unexplained(UnknownTopic):
        pass

    monkeypatch.setattr(reference.rest, "CODES", {**reference.rest.CODES, NewError: 400})
    with pytest.raises(reference.MissingText, match="without a remedy in error_reference: NewError"):
        reference.check_texts()
    with pytest.raises(reference.MissingText, match="Unexplained has no docstring"):
        reference.cause_of(Unexplained)


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_and_options_exist(page: Path) -> None:
    """Of text like `alpacactl topics list` and `log.segment_bytes`."""
    commands = {command.words for command in all_commands()}
    nouns = {words[0] for words in commands}
    for noun, verb in re.findall(r"`alpacactl ([a-z]+)(?: ([a-z-]+)\b)?", page.read_text()):
        assert noun in nouns, f"{page.name}: alpacactl {noun}"
        assert not verb or (noun,) in commands or (noun, verb) in commands, (
            f"{page.name}: alpacactl {noun} {verb}"
        )
    options = set(OPTIONS)
    sections = {key.partition(".")[0] for key in options}
    for name in re.findall(r"`([a-z]+\.[a-z_]+_[a-z_]+)(?: = [^`]*)?`", page.read_text()):
        assert name in options or name.partition(".")[0] not in sections, f"{page.name}: {name}"


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_metrics_and_alerts_exist(page: Path) -> None:
    text = page.read_text()
    names = {each.name for each in CATALOGUE}
    names |= {f"{name}{suffix}" for name in names for suffix in ("_bucket", "_count", "_sum")}
    assert set(re.findall(r"\balpacamq_[a-z_]+", text)) - {"alpacamq_spark"} <= names
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    assert set(re.findall(r"`(AlpacaMQ[A-Z]\w+)`", text)) <= set(re.findall(r"alert: (\w+)", alerts))


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_topic_settings_exist(page: Path) -> None:
    """Of text like `queue.ttl.ms` and `retention.ms=1000`, whose values are valid."""
    for name, value in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=([^`]*))?`", page.read_text()):
        if name.partition(".")[0] in OWN_SETTINGS:
            assert name in SETTINGS, f"{page.name}: {name}"
            if value and value == value.lower():
                SETTINGS[name].parse(name, value)


@pytest.fixture(scope="module")
def names_in_the_code() -> set[str]:
    """Every name and word of the sources, of any kind."""
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".proto", ".js"}]
    files += (ROOT / "deploy").rglob("*.y*ml")
    return {name for path in files for name in re.findall(r"\w+", path.read_text())}


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_events_and_fields_exist(page: Path, names_in_the_code: set[str]) -> None:
    """Of text like `certificates_not_reloaded`: events of the log, settings, fields and statuses."""
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text()))
    assert named - OTHERS_NAMES <= names_in_the_code


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_requests_exist(page: Path) -> None:
    """Of text like `GET /topics/{topic}`; the schema registry has its own paths."""
    known = {(route.method, shape(route.path)) for route in ROUTES}
    for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^\s`?]*)", page.read_text()):
        if not path.startswith(REGISTRY_PATHS) and path != "/":
            assert (method, shape(path)) in known, f"{page.name}: {method} {path}"


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_options_of_commands_exist(page: Path) -> None:
    """Of text like `alpacactl topics create NAME --partitions 6`."""
    commands = {command.words: command.parser for command in all_commands()}
    for line in re.findall(r"`alpacactl ([^`]+)`", page.read_text()):
        words = line.split()
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        for key in (tuple(words[:2]), tuple(words[:1])):
            if key in commands:
                assert options <= options_of(commands[key], words), f"{page.name}: alpacactl {line}"
                break


def options_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """Return the options of a command, and of its own commands that are among these words."""
    found = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word in set(words) & set(action.choices):
                found |= options_of(action.choices[word], words)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_linked_headings_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        linked = page.parent / target if target else page
        if "://" not in target and linked.suffix == ".md":
            assert heading in anchors(linked), f"{page.name} links to {target}#{heading}"


def shape(path: str) -> str:
    """Return a path without the names of its parameters."""
    return re.sub(r"\{[^}]*\}|[A-Z]+", "{}", path)


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page in links."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def test_every_health_check_is_documented() -> None:
    page = (DOCS / "guide" / "monitoring.md").read_text()
    assert re.findall(r"^\| `([a-z_]+)` \| .* \| (?:`/readyz`, )?`/healthz` \|$", page, re.MULTILINE) == list(
        ALL
    )


def test_every_queue_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "guide" / "queues.md").read_text()
    for name, setting in SETTINGS.items():
        if name.startswith("queue."):
            default = setting.text(setting.default)
            assert f"| `{name}` | {f'`{default}`' if default else 'empty'} |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = page.read_text()
    for target in (*LINK.findall(text), *IMAGE.findall(text)):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", DEVELOPMENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_modules_exist(page: Path) -> None:
    """A page for developers names a module by its path, or by the end of that beside the package."""
    text = page.read_text()
    folders = ("src", "tests", "benchmarks", "scripts")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    packages = re.findall(r"`((?:[a-z0-9_]+/)+)(?:[a-z0-9_]+\.py)?`", text)
    for name in re.findall(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.py)`", text):
        found = [each for each in files if each.endswith(f"/{name}")]
        if len(found) > 1 and "/" not in name:
            found = [
                each for each in found if each.endswith(tuple(f"/{package}{name}" for package in packages))
            ]
        assert found, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text())) | set(
        re.findall(r"^make ([a-z-]+)", page.read_text(), re.MULTILINE)
    )
    assert named <= targets


def test_every_statement_about_another_system_has_a_source() -> None:
    """Of the comparison: a link for each cell, but those that deny a feature or name the own protocol."""
    text = (DOCS / "comparison.md").read_text()
    features, sources = (
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in part.splitlines()
            if line.startswith("| ")
        ]
        for part in (
            text.partition("## Feature by feature")[2].partition("\n## ")[0],
            text.partition("## Sources")[2],
        )
    )
    found = dict(sources[1:])
    for name, _, *cells in features[1:]:
        for system, cell in zip(
            ("Kafka", "Redpanda", "RabbitMQ", "NATS", "Pulsar", "SQS"), cells, strict=True
        ):
            is_own = (name, system) in {
                ("Kafka clients", "Kafka"),
                ("AWS SDKs for SQS", "SQS"),
                ("plain HTTP", "SQS"),
            }
            if not is_own and cell not in {"no", "nothing", "a service", "the service's own"}:
                assert f"{system}: [" in found[name], f"{name}: {system}"


def test_every_dependency_is_explained() -> None:
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
