"""Brokers for tests, each ended by its own pid, and command line options of the test suite."""

import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from alpacamq.model.topics import MAX_NAME_LENGTH
from alpacamq.model.version import is_compiled

from .broker_cluster import make_broker
from .brokers import Broker
from .secured import SecuredBroker, secured_broker

# Durations of examples mean nothing on a busy machine.
settings.register_profile("whole", deadline=None)
settings.register_profile("check", deadline=None, max_examples=10, stateful_step_count=20)
settings.load_profile("whole")
# A shell ignores SIGINT in background processes, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with SIGHUP. A handler here, which does nothing, is the default again in children.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# Workers of a parallel run get the width of its terminal; the output of commands must not depend on it.
os.environ.pop("COLUMNS", None)
# Without byte code, most of the time of a process that a test starts would go into compiling the sources.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

NewBroker = Callable[..., Broker]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write actual results into the transcripts"
    )
    parser.addoption(
        "--nodes",
        type=int,
        default=1,
        help="run tests/compat and tests/spark with a cluster of so many nodes",
    )
    parser.addoption("--screenshots", action="store_true", help="retake the screenshots of the console")


class _FailuresAtOnce:
    """Prints a failure when it happens: an interrupted run never gets to its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = "" if crash is None else f": {crash.message.partition(chr(10))[0]}"
            self._terminal.write_line(
                f"failed: {report.nodeid} ({report.when}, {report.duration:.0f} s){reason}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip tests that replace a method of a compiled class, which cannot be replaced."""
    try:
        return (yield)
    except (AttributeError, ExceptionGroup) as error:
        if is_compiled():
            for each in _leaves(error):
                if isinstance(each, AttributeError) and str(each).endswith("is read-only"):
                    pytest.skip(str(each))
        raise


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yield the errors of a group, such as that of the tasks beside the test, or the only one."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return more workers than processors: half of the time, tests wait for timeouts and processes."""
    processors = os.cpu_count() or 1
    return processors + 2


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(terminal))


@pytest.fixture(scope="session")
def node_count() -> int:
    """The nodes of each broker of a test: one, but for tests that --nodes is for."""
    return 1


@pytest.fixture
def new_broker(tmp_path: Path, node_count: int) -> Iterator[NewBroker]:
    """Create brokers on directories below the test's own, without starting them."""
    made: list[Broker] = []

    def make(name: str = "data", **options: str) -> Broker:
        broker = make_broker(tmp_path / name, node_count, **options)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.end()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name unique to the test, for a broker that several tests share."""
    module = request.node.path.stem.removeprefix("test_")
    name = request.node.name.removeprefix("test_")
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", f"{module}-{name}")[:MAX_NAME_LENGTH]


@pytest.fixture(scope="module")
def broker_with_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("rules")) as broker:
        yield broker


@pytest.fixture
def secured(broker_with_rules: SecuredBroker) -> SecuredBroker:
    """A broker with access rules, of which there are none yet."""
    broker_with_rules.revoke()
    return broker_with_rules
