"""Rules for imports between packages, and for pure packages."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

SOURCE = Path(__file__).parent.parent / "src"
OURS = SOURCE / "alpacamq"
T = TypeVar("T", bound=ast.AST)

PURE = {
    "protocol",
    "consensus",
    "replication",
    "cluster",
    "coordinator",
    "queues",
    "timers",
    "registry",
    "security",
}
MAY_IMPORT = {
    "model": set(),
    "telemetry": set(),
    **{name: {"model"} for name in PURE},
    "cluster": {"model", "security"},
    "log": {"model"},
    "wire": set(),
    "v1": set(),
    "broker": {"model", "telemetry", "log", *PURE},
    "api": {"model", "telemetry", "wire", "v1", "broker", *PURE},
    "client": {"model", "protocol", "registry", "security", "wire", "v1"},
    "cli": {"model", "client", "registry", "wire", "telemetry"},
    "node": {"model", "telemetry", "log", "broker", "api", "client", "cli", *PURE},
}
# Modules beside the packages. The package itself imports names of the client when they are first used.
MODULES = {
    "__init__.py": {"aio", "testing", "client", "model"},
    "aio.py": {"client"},
    "testing.py": {"model"},
}
# Ours, but outside the broker: loaded when a command of the CLI needs it.
LATER = "alpacamq_spark"
# Used if it is installed.
OPTIONAL = {"opentelemetry"}
# Packages whose modules have another name.
PACKAGE_OF = {"google": "protobuf", "grpc_tools": "grpcio-tools", "re2": "google-re2"}
IMPURE_MODULES = {"asyncio", "socket", "os", "time", "random", "threading"}


class Attribute(NamedTuple):
    """An attribute that a module uses."""

    name: str
    line: int
    is_own: bool


class Module(NamedTuple):
    """What the rules are about; read once, because there are hundreds of modules."""

    path: Path
    has_docstring: bool
    # Absolute dotted names.
    imports: tuple[str, ...]
    # Those that loading the module imports.
    imports_at_once: tuple[str, ...]
    attributes: tuple[Attribute, ...]

    @property
    def package(self) -> str:
        return self.path.relative_to(OURS).parts[0]

    @property
    def dotted(self) -> str:
        parts = self.path.relative_to(SOURCE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules(root: Path = OURS) -> tuple[Module, ...]:
    paths = sorted(path for path in root.rglob("*.py") if not path.stem.endswith(("_pb2", "_grpc")))
    return tuple(map(read_module, paths))


def read_module(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    imports: list[str] = []
    attributes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += imported(path, node)
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            attributes.append(Attribute(node.attr, node.lineno, is_own))
    at_once = [
        name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(path, node)
    ]
    return Module(path, bool(ast.get_docstring(tree)), tuple(imports), tuple(at_once), tuple(attributes))


def imported(path: Path, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the absolute dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    here = path.relative_to(SOURCE).with_suffix("").parts
    base = here[: -node.level] if node.level else ()
    stem = [*base, *(node.module.split(".") if node.module else [])]
    return [".".join([*stem, alias.name]) for alias in node.names]


@pytest.mark.parametrize("package", sorted([*MAY_IMPORT, *MODULES]))
def test_a_module_imports_only_what_its_package_may(package: str) -> None:
    allowed = MODULES[package] if package in MODULES else MAY_IMPORT[package] | {package}
    for module in modules():
        if module.package != package:
            continue
        for name in module.imports:
            parts = name.split(".")
            if parts[0] == "alpacamq" and len(parts) > 1:
                assert parts[1] in allowed, f"{module.dotted} may not import {name}"
            if package in PURE | {"model"}:
                assert parts[0] not in IMPURE_MODULES, f"{module.dotted} is pure and may not import {name}"


def test_every_module_has_a_docstring() -> None:
    assert not [module.dotted for module in modules(SOURCE) if not module.has_docstring]


def test_every_package_is_in_the_import_table() -> None:
    packages = {path.name for path in OURS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == MAY_IMPORT.keys()


def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    names = {module.dotted for module in modules(SOURCE)}
    found: dict[str, set[str]] = {}
    for module in modules(SOURCE):
        here = found.setdefault(module.dotted, set())
        for name in module.imports:
            # `from package import name`: a module, or a name in the package's __init__.
            owner = name if name in names else name.rpartition(".")[0]
            if owner in names and owner != module.dotted:
                here.add(owner)
    return found


def test_there_are_no_import_cycles() -> None:
    left = graph()
    # Remove modules that import no remaining one, until none can be removed: a cycle remains.
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    while unused := [name for name in left if not any(name in imported for imported in left.values())]:
        for name in unused:
            del left[name]
    assert not left, sorted(left)


def test_no_api_reaches_the_log_of_a_partition() -> None:
    for module in modules():
        if module.package == "api":
            for name, line, is_own in module.attributes:
                assert name != "log" or is_own, f"{module.path}:{line} reaches a log"


def test_only_the_log_reads_files_by_descriptor() -> None:
    # So that every read of stored records passes the Disk port, and tests can make it fail.
    for module in modules():
        if module.package != "log":
            for name, line, _ in module.attributes:
                assert name not in ("pread", "preadv"), f"{module.path}:{line} reads past the disk"


def test_only_the_cli_imports_spark_and_only_when_a_command_runs() -> None:
    for module in modules():
        if any(name.startswith(LATER) for name in module.imports):
            assert module.package == "cli", f"{module.path} may not import {LATER}"
        assert not any(name.startswith(LATER) for name in module.imports_at_once), (
            f"{module.path} imports {LATER} too early"
        )


def test_third_party_imports_are_declared() -> None:
    declared = (
        (SOURCE.parent / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("]")[0]
    )
    for module in modules():
        for name in module.imports:
            top = name.split(".")[0]
            if top not in {"alpacamq", LATER, *OPTIONAL, *sys.stdlib_module_names}:
                package = PACKAGE_OF.get(top, top.replace("_", "-"))
                assert package in declared, f"{module.path} imports {top}"


COMPILED = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
    "wheel"
]["hooks"]["mypyc"]["include"]


def compiled_nodes(kind: type[T]) -> list[tuple[str, T]]:
    return [
        (path, node)
        for path in COMPILED
        for node in ast.walk(ast.parse((SOURCE.parent / path).read_text()))
        if isinstance(node, kind)
    ]


def test_modules_that_can_be_compiled_declare_no_class_with_keywords() -> None:
    """mypyc ignores them, so a struct would be made without `frozen` and `kw_only`."""
    found = [(path, each.name) for path, each in compiled_nodes(ast.ClassDef) if each.keywords]
    assert found == []


def test_modules_that_can_be_compiled_change_no_bound_of_a_loop() -> None:
    """`for _ in range(n)` looks at `n` before every turn when it is compiled."""
    loops = [
        (path, each)
        for path, each in compiled_nodes(ast.For)
        if isinstance(each.iter, ast.Call) and getattr(each.iter.func, "id", "") == "range"
    ]
    assert loops
    for path, loop in loops:
        bounds = {each.id for each in ast.walk(loop.iter) if isinstance(each, ast.Name)}
        changed = {
            each.id
            for line in loop.body
            for each in ast.walk(line)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        assert not bounds & changed, f"{path}:{loop.lineno}"


def test_coroutines_are_recognised_also_when_they_are_compiled() -> None:
    """Those are no `types.CoroutineType`, but a `collections.abc.Coroutine`."""
    assert [path for path in OURS.rglob("*.py") if "CoroutineType" in path.read_text()] == []
