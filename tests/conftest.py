"""Brokers for tests, each stopped by its own pid whatever the test did, and options of our own."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from alpacamq.model.topics import MAX_NAME_LENGTH

from .brokers import Broker

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("whole", deadline=None)
settings.register_profile("check", deadline=None, max_examples=10, stateful_step_count=20)
settings.load_profile("whole")
# A shell ignores SIGINT in what it runs in the background, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Workers of a parallel run are told how wide its terminal is; what commands print must not depend on that.
os.environ.pop("COLUMNS", None)
# A broker that runs in a thread of the tests must not write into what a command prints meanwhile.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

NewBroker = Callable[..., Broker]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write what happens into the transcripts"
    )
    parser.addoption("--screenshots", action="store_true", help="take the pictures of the console anew")


class _FailuresAtOnce:
    """Names a failure when it happens: a run that is cut off never gets to its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"failed: {report.nodeid} ({report.when}, {report.duration:.0f} s)")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(terminal))


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[NewBroker]:
    """Make brokers on directories under the test's own; not started yet."""
    made: list[Broker] = []

    def make(name: str = "data", **options: str) -> Broker:
        broker = Broker(tmp_path / name, **options)  # type: ignore[arg-type]
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.end()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own, fit for a broker that several tests share."""
    module = request.node.path.stem.removeprefix("test_")
    name = request.node.name.removeprefix("test_")
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", f"{module}-{name}")[:MAX_NAME_LENGTH]
