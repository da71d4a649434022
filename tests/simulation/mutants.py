"""Changes every condition of the cluster's cores, one at a time, and runs their tests and simulations.

A mutant that no test notices shows a rule that is not tested, or one that is not needed. Survivors are
looked up in `mutants_accepted.txt`; any other is reported, and the run fails. A mutant is given to the tests
and seeds that run the changed line, the shortest first: to the others it makes no difference.

    python -m tests.simulation.mutants raft            all mutants of a core
    python -m tests.simulation.mutants raft --quick    without properties and simulations, which kill more
    python -m tests.simulation.mutants raft --list     what would be tried
"""

import argparse
import ast
import copy
import importlib
import inspect
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.simulation.__main__ import run_until_failure, runner

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
ACCEPTED = Path(__file__).parent / "mutants_accepted.txt"
# How much processor time a test or a seed may take: in times of what it takes without a mutant, traced, and
# at least. Not time by the clock, so that a busy machine kills no mutant.
LIMIT = 4
MIN_LIMIT_S = 2.0
DEFAULT_SEEDS = 150
NOT_RUN = 99  # exit code
# Without the plugins that these tests do not need: they take longer than the tests.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
PYTEST = ("-q", "-s", "-p", "no:cacheprovider", *(word for plugin in PLUGINS for word in ("-p", plugin)))


@dataclass(frozen=True, slots=True)
class Core:
    """A core under test: its modules, and what must notice a change."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    scenario: str


CORES = {
    "raft": Core(
        ("consensus/raft.py", "consensus/leader.py", "consensus/log.py"), ("tests/consensus",), "raft"
    ),
    "replication": Core(("replication/*.py",), ("tests/replication",), "cluster"),
    "controller": Core(
        (
            "cluster/controller.py",
            "cluster/partition_control.py",
            "cluster/partition_state.py",
            "cluster/sessions.py",
            "cluster/topic_control.py",
            "cluster/placement.py",
        ),
        (
            "tests/cluster/test_partition_state.py",
            "tests/cluster/test_placement.py",
            "tests/cluster/test_controller.py",
            "tests/cluster/test_stories.py",
            "tests/cluster/test_delegation_tokens.py",
            "tests/cluster/test_ended_sessions.py",
            "tests/cluster/test_controller_properties.py",
        ),
        "cluster",
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    # Of the changed expression. None runs without one of them.
    lines: range
    function: str
    before: str
    after: str
    # Called in the process that runs it: it takes longer than all the rest.
    make_source: Callable[[], str]
    # Of the mutants of a function that would have the same name, by line.
    number: int = 1

    @property
    def name(self) -> str:
        """What the list of accepted mutants calls it. Without the line, which moves."""
        name = f"{self.module}:{self.function}: {self.before} => {self.after}"
        return name if self.number == 1 else f"{name} ({self.number})"

    @property
    def line(self) -> int:
        return self.lines.start

    def runs_in(self, coverage: "Coverage") -> bool:
        return any((self.module, line) in coverage.lines for line in self.lines)


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
EXTREMES = {"max": "min", "min": "max"}


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what could stand in a node's place."""
    match node:
        case ast.Compare(ops=operators):
            for position, operator in enumerate(operators):
                for other in COMPARISONS.get(type(operator), ()):
                    changed = copy.deepcopy(node)
                    changed.ops[position] = other()
                    yield changed
        case ast.BoolOp(values=values):
            for position in range(len(values)):
                rest = values[:position] + values[position + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int(value))) if value == 1:
            yield node.left
        case ast.Call(func=ast.Name(id=name), args=args) if name in EXTREMES and len(args) > 1:
            yield ast.Call(ast.Name(EXTREMES[name], ast.Load()), args, node.keywords)
            yield from args
        case (
            ast.If(test=ast.Name() | ast.Attribute() | ast.Call())
            | ast.IfExp(test=ast.Name() | ast.Attribute() | ast.Call())
        ):
            changed_if = copy.deepcopy(node)
            changed_if.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed_if
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)


def mutants(module: str) -> list[Mutant]:
    """Return every mutant of a module."""
    text = (SOURCE / "alpacamq" / module).read_text()
    tree = ast.parse(text)
    functions = _functions(tree)
    found: dict[str, Mutant] = {}
    for parent in ast.walk(tree):
        if isinstance(parent, ast.Assert | ast.AnnAssign | ast.keyword):
            continue
        for field, value in ast.iter_fields(parent):
            for place, child in _children(value):
                line = getattr(child, "lineno", 0)
                if not line or (
                    isinstance(parent, ast.FunctionDef | ast.Module | ast.ClassDef)
                    and (not isinstance(child, ast.If))
                ):
                    continue
                for variant in variants(child):
                    function = functions.get(line, "")
                    if not function:
                        continue
                    before, after = _shown(child), _shown(variant)
                    if isinstance(child, ast.Constant):
                        before, after = _shown(parent), _shown(_with(parent, field, place, variant))
                    end = child.test if isinstance(child, ast.If) else child
                    lines = range(line, (getattr(end, "end_lineno", None) or line) + 1)
                    make_source = partial(_replaced, tree, parent, field, place, variant)
                    mutant = Mutant(module, lines, function, before, after, make_source)
                    found.setdefault(f"{line} {mutant.name}", mutant)
    seen: Counter[str] = Counter()
    numbered: list[Mutant] = []
    for mutant in sorted(found.values(), key=lambda mutant: (mutant.line, mutant.name)):
        seen[mutant.name] += 1
        numbered.append(replace(mutant, number=seen[mutant.name]))
    return numbered


def _children(value: object) -> Iterator[tuple[int | None, ast.AST]]:
    if isinstance(value, ast.AST):
        yield None, value
    elif isinstance(value, list):
        for place, child in enumerate(value):
            if isinstance(child, ast.AST):
                yield place, child


def _functions(tree: ast.Module) -> dict[int, str]:
    """Map lines to the functions that contain them, without their asserts: those mark bugs, not rules."""
    lines: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1):
                lines[line] = node.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines.pop(line, None)
    return lines


def _shown(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.IfExp):
        node = node.test
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))


def _with(parent: ast.AST, field: str, place: int | None, variant: ast.AST) -> ast.AST:
    """Return a copy of a node with a variant in the place of one of its children."""
    changed = copy.copy(parent)
    original = getattr(parent, field)
    setattr(
        changed,
        field,
        variant if place is None else [*original[:place], variant, *original[place + 1 :]],
    )
    return changed


def _replaced(tree: ast.Module, parent: ast.AST, field: str, place: int | None, variant: ast.AST) -> str:
    original = getattr(parent, field)
    changed = variant if place is None else [*original[:place], variant, *original[place + 1 :]]
    setattr(parent, field, changed)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    finally:
        setattr(parent, field, original)


def install(mutant: Mutant) -> None:
    """Give the functions of a module, which is imported, the code of its mutant."""
    name = "alpacamq." + mutant.module.removesuffix(".py").replace("/", ".")
    codes = _codes(compile(mutant.make_source(), f"{name} (mutant)", "exec"))
    own = [each for each in vars(sys.modules[name]).values() if getattr(each, "__module__", None) == name]
    members = [member for each in own if isinstance(each, type) for member in vars(each).values()]
    for each in (*own, *members):
        function = getattr(each, "fget", None) or getattr(each, "__func__", each)
        if isinstance(function, FunctionType) and (code := codes.pop(function.__qualname__, None)):
            function.__code__ = code
    left = {qualname.split(".")[-1] for qualname in codes}
    assert mutant.function not in left, f"{mutant.function} of {mutant.module} cannot be replaced"


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Map the functions and methods of a module to their code."""
    found: dict[str, CodeType] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            is_class = not each.co_flags & inspect.CO_OPTIMIZED
            found.update(_codes(each) if is_class else {each.co_qualname: each})
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a test or a seed runs of a core, and how long that takes."""

    lines: frozenset[tuple[str, int]]
    seconds: float


@contextmanager
def traced_lines(modules: Sequence[str], found: set[tuple[str, int]]) -> Iterator[None]:
    """Add the lines of these modules that run in this thread."""
    base = SOURCE / "alpacamq"
    names = {str(base / module): module for module in modules}

    def trace_call(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        module = names.get(frame.f_code.co_filename)
        if module is None:
            return None

        def trace_line(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            found.add((module, frame.f_lineno))
            return trace_line

        return trace_line

    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(None)


class MutantRun:
    """A plugin of pytest: runs the collected tests, and simulations, with each mutant.

    Each in a process of its own, forked when all is imported: that takes longer than most mutants live.
    """

    def __init__(self, core: Core, seeds: int, processes: int, *, is_quick: bool) -> None:
        self._core = core
        self._seeds = 0 if is_quick else seeds
        self._is_quick = is_quick
        self._processes = processes
        self._context = multiprocessing.get_context("fork")
        self.survivors = 0

    def run(self, to_run: Sequence[Mutant]) -> None:
        """Print the mutants that survive. Raises RuntimeError if the tests fail without a mutant."""
        self._to_run = to_run
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        importlib.import_module("tests.conftest")  # sets a profile
        # The same examples for every mutant; that one fails is enough.
        settings.register_profile(
            "mutants", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")
        runner(self._core.scenario)
        if pytest.main([*PYTEST, *self._core.tests], plugins=[self]):
            raise RuntimeError("pytest failed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self._is_quick:
            session.items[:] = [item for item in session.items if not _is_property(item)]
        self._items = session.items
        of_tests, of_seeds = self._coverage(session)
        print(f"{len(of_tests)} tests, {len(of_seeds)} seeds, {len(self._to_run)} mutants", flush=True)
        self._tests = sorted(zip(of_tests, session.items, strict=True), key=lambda pair: pair[0].seconds)
        self._seed_coverage = of_seeds
        for mutant in self._survivors(session):
            self.survivors += 1
            print(f"SURVIVED {mutant.line} {mutant.name}", flush=True)
        return True

    def _coverage(self, session: pytest.Session) -> list[list[Coverage]]:
        """Measure the tests and the seeds, beside each other."""
        receivers = []
        for measure in (partial(self._measured_tests, session), self._measured_seeds):
            receiver, sender = self._context.Pipe(duplex=False)
            self._context.Process(target=_send, args=(measure, sender)).start()
            sender.close()
            receivers.append(receiver)
        try:
            return [receiver.recv() for receiver in receivers]
        except EOFError:
            raise RuntimeError("the tests fail without a mutant") from None

    def _measured_tests(self, session: pytest.Session) -> list[Coverage]:
        found: list[Coverage] = []
        for item, next_item in itertools.zip_longest(self._items, self._items[1:]):
            with self._measured(found):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            assert not session.testsfailed, item.nodeid
        return found

    def _measured_seeds(self) -> list[Coverage]:
        found: list[Coverage] = []
        for seed in range(self._seeds):
            with self._measured(found):
                assert run_until_failure(self._core.scenario, seed, 1), seed
        return found

    @contextmanager
    def _measured(self, found: list[Coverage]) -> Iterator[None]:
        lines: set[tuple[str, int]] = set()
        begun = time.process_time()
        with traced_lines(modules_of(self._core), lines):
            yield
        found.append(Coverage(frozenset(lines), time.process_time() - begun))

    def _survivors(self, session: pytest.Session) -> Iterator[Mutant]:
        left = deque(self._to_run)
        running: dict[int, tuple[Mutant, BaseProcess]] = {}
        while left or running:
            while left and len(running) < self._processes:
                mutant = left.popleft()
                process: BaseProcess = self._context.Process(target=self._survive, args=(mutant, session))
                process.start()
                running[process.sentinel] = (mutant, process)
            for sentinel in wait(running):
                assert isinstance(sentinel, int)
                mutant, process = running.pop(sentinel)
                process.join()
                if process.exitcode == NOT_RUN:
                    raise RuntimeError(f"{mutant} could not be run")
                if process.exitcode == 0:
                    yield mutant

    def _survive(self, mutant: Mutant, session: pytest.Session) -> None:
        """Run the tests and the simulation in this process, and end it: with 0 if all passes."""
        try:
            install(mutant)
        except Exception as error:  # noqa: BLE001 - reported, and the run ends
            print(f"{mutant.name}: {error!r}", flush=True)
            os._exit(NOT_RUN)
        _discard_output()
        tests = [(coverage, item) for coverage, item in self._tests if mutant.runs_in(coverage)]
        seeds = [(cov, seed) for seed, cov in enumerate(self._seed_coverage) if mutant.runs_in(cov)]
        is_alive = passes_tests(session, tests) and passes_seeds(self._core.scenario, seeds)
        os._exit(0 if is_alive else 1)


def _send(measure: Callable[[], list[Coverage]], sender: Connection) -> None:
    """Measure in this process, and end it."""
    errors = os.dup(2)
    _discard_output()
    try:
        sender.send(measure())
    except AssertionError as error:
        os.write(errors, f"failed: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _discard_output() -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)


def _is_property(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "obj", None), "hypothesis") or item.name == "runTest"  # of a state machine


def passes_tests(session: pytest.Session, tests: Sequence[tuple[Coverage, pytest.Item]]) -> bool:
    for (coverage, item), following in itertools.zip_longest(tests, tests[1:]):
        _limit(coverage)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following and following[1])
        if session.testsfailed:
            return False
    return True


def passes_seeds(scenario: str, seeds: Sequence[tuple[Coverage, int]]) -> bool:
    for coverage, seed in seeds:
        _limit(coverage)
        if not run_until_failure(scenario, seed, 1):
            return False
    return True


def _limit(coverage: Coverage) -> None:
    """Let a mutant that goes on for ever end by the signal."""
    signal.setitimer(signal.ITIMER_VIRTUAL, max(LIMIT * coverage.seconds, MIN_LIMIT_S))


def accepted() -> dict[str, str]:
    """Read the mutants that may survive, and why."""
    reasons: dict[str, str] = {}
    reason = ""
    for line in ACCEPTED.read_text().splitlines():
        if line.startswith("#"):
            reason = line
        elif line.strip():
            reasons[line.strip()] = reason
    return reasons


def modules_of(core: Core) -> list[str]:
    base = SOURCE / "alpacamq"
    found = [path for pattern in core.modules for path in sorted(base.glob(pattern))]
    return [str(path.relative_to(base)) for path in found if path.name != "__init__.py"]


def run_core(
    name: str, seeds: int, processes: int, only: Callable[[Mutant], bool], *, is_quick: bool
) -> bool:
    """Try every mutant of a core, and report those that survive without a reason."""
    core = CORES[name]
    modules = modules_of(core)
    known = accepted()
    found = [mutant for module in modules for mutant in mutants(module)]
    names = {mutant.name for mutant in found}
    stale = [each for each in known if each.split(":")[0] in modules and each not in names]
    for each in stale:
        print(f"STALE {each}: remove it from {ACCEPTED.name}")
    tried = [mutant for mutant in found if only(mutant)]
    to_run = [mutant for mutant in tried if mutant.name not in known]
    begun = time.monotonic()
    run = MutantRun(core, seeds, processes, is_quick=is_quick)
    run.run(to_run)
    minutes = (time.monotonic() - begun) / 60
    print(
        f"{name}: {len(tried)} mutants, {len(to_run) - run.survivors} killed, "
        f"{len(tried) - len(to_run)} accepted, {run.survivors} survived, {minutes:.1f} minutes"
    )
    return not run.survivors and not stale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cores", nargs="*", help=f"of {', '.join(CORES)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--quick", action="store_true", help="without properties and simulations")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    is_good = True
    for name in args.cores or CORES:
        if args.list:
            for module in modules_of(CORES[name]):
                for mutant in mutants(module):
                    print(mutant.line, mutant.name)
        else:
            is_good &= run_core(
                name,
                args.seeds,
                args.processes,
                lambda mutant: args.only in mutant.name,
                is_quick=args.quick,
            )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
