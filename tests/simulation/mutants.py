"""Changes every condition of the cluster's cores, one at a time, and runs their tests and simulations.

A mutant that no test notices shows a rule that is not tested, or one that is not needed. Survivors are
looked up in `mutants_accepted.txt`; any other is reported, and the run fails.

    python -m tests.simulation.mutants raft            all mutants of a core
    python -m tests.simulation.mutants raft --list     what would be tried
"""

import argparse
import ast
import copy
import importlib
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation.__main__ import run_until_failure

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
ACCEPTED = Path(__file__).parent / "mutants_accepted.txt"
TIMEOUT_S = 90.0
DEFAULT_SEEDS = 150
FIRST_SEEDS = 8
# Without the plugins that these tests do not need: they take longer than the tests.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", *(word for plugin in PLUGINS for word in ("-p", plugin)))


@dataclass(frozen=True, slots=True)
class Core:
    """A core under test: its modules, and what must notice a change."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    scenario: str | None


CORES = {
    "raft": Core(
        ("consensus/raft.py", "consensus/leader.py", "consensus/log.py"), ("tests/consensus",), "raft"
    ),
    "replication": Core(("replication/*.py",), ("tests/replication",), "cluster"),
    "controller": Core(("cluster/controller.py",), ("tests/cluster",), "cluster"),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    function: str
    before: str
    after: str
    # Called in the process that runs it: it takes longer than all the rest.
    make_source: Callable[[], str]

    @property
    def name(self) -> str:
        """What the list of accepted mutants calls it. Without the line, which moves."""
        return f"{self.module}:{self.function}: {self.before} => {self.after}"


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
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.ops = [other()]
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
                    make_source = partial(_replaced, tree, parent, field, place, variant)
                    mutant = Mutant(module, line, function, before, after, make_source)
                    found.setdefault(f"{line} {mutant.name}", mutant)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.name))


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


def _replaced(tree: ast.Module, parent: ast.AST, field: str, place: int | None, variant: ast.AST) -> str:
    original = getattr(parent, field)
    changed = variant if place is None else [*original[:place], variant, *original[place + 1 :]]
    setattr(parent, field, changed)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    finally:
        setattr(parent, field, original)


class MutantFinder(MetaPathFinder, Loader):
    """Imports a mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = "alpacamq." + mutant.module.removesuffix(".py").replace("/", ".")
        self._source = mutant.make_source()

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, f"{self._name} (mutant)", "exec"), module.__dict__)  # noqa: S102


def survive(mutant: Mutant, core: Core, seeds: int) -> None:
    """Run the simulation and the tests with the mutant. Runs in a process of its own; 0 if all passes."""
    sys.meta_path.insert(0, MutantFinder(mutant))
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)

    def passes(first: int, end: int) -> bool:
        return core.scenario is None or run_until_failure(core.scenario, first, end - first)

    # Most mutants do not survive a few seeds, which take less time than the tests.
    first_seeds = min(FIRST_SEEDS, seeds)
    is_alive = (
        passes(0, first_seeds) and not pytest.main([*PYTEST, *core.tests]) and passes(first_seeds, seeds)
    )
    os._exit(0 if is_alive else 1)


def run_all(to_run: Sequence[Mutant], core: Core, seeds: int, processes: int) -> Iterator[Mutant]:
    """Yield the mutants that survive. A mutant that goes on for too long is killed, in both senses."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for shared in (*PLUGINS, "tests.conftest"):
        importlib.import_module(shared)  # once, not in every process
    context = multiprocessing.get_context("fork")
    left = deque(to_run)
    running: dict[int, tuple[Mutant, BaseProcess, float]] = {}
    while left or running:
        while left and len(running) < processes:
            mutant = left.popleft()
            process: BaseProcess = context.Process(target=survive, args=(mutant, core, seeds))
            process.start()
            running[process.sentinel] = (mutant, process, time.monotonic() + TIMEOUT_S)
        wait(running, timeout=1.0)
        for sentinel, (mutant, process, deadline) in list(running.items()):
            if process.is_alive() and time.monotonic() > deadline:
                process.kill()
            if not process.is_alive():
                process.join()
                del running[sentinel]
                if process.exitcode == 0:
                    yield mutant


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


def run_core(name: str, seeds: int, processes: int, only: Callable[[Mutant], bool]) -> bool:
    """Try every mutant of a core, and report those that survive without a reason."""
    core = CORES[name]
    known = accepted()
    tried = [mutant for module in modules_of(core) for mutant in mutants(module) if only(mutant)]
    to_run = [mutant for mutant in tried if mutant.name not in known]
    begun = time.monotonic()
    survivors = 0
    for mutant in run_all(to_run, core, seeds, processes):
        survivors += 1
        print(f"SURVIVED {mutant.line} {mutant.name}", flush=True)
    minutes = (time.monotonic() - begun) / 60
    print(
        f"{name}: {len(tried)} mutants, {len(to_run) - survivors} killed, "
        f"{len(tried) - len(to_run)} accepted, {survivors} survived, {minutes:.1f} minutes"
    )
    return not survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cores", nargs="*", help=f"of {', '.join(CORES)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    is_good = True
    for name in args.cores or CORES:
        if args.list:
            for module in modules_of(CORES[name]):
                for mutant in mutants(module):
                    print(mutant.line, mutant.name)
        else:
            is_good &= run_core(name, args.seeds, args.processes, lambda mutant: args.only in mutant.name)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
