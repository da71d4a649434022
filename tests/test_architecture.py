"""Rules for imports between packages, and for pure packages."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
OURS = SOURCE / "alpacamq"

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


def modules() -> list[Path]:
    return sorted(path for path in OURS.rglob("*.py") if not path.stem.endswith(("_pb2", "_grpc")))


def package_of(module: Path) -> str:
    return module.relative_to(OURS).parts[0]


def imports(module: Path) -> Iterator[str]:
    """Yield the absolute dotted names that a module imports."""
    here = ["alpacamq", *module.relative_to(OURS).with_suffix("").parts]
    if module.name == "__init__.py":
        here.pop()
        here.append("__init__")
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            stem = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(OURS)))
def test_a_module_imports_only_what_its_package_may(module: Path) -> None:
    package = package_of(module)
    allowed = MODULES[package] if package in MODULES else MAY_IMPORT[package] | {package}
    for name in imports(module):
        parts = name.split(".")
        if parts[0] == "alpacamq" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in allowed, f"{package} may not import {name}"
        if package in PURE | {"model"}:
            assert parts[0] not in IMPURE_MODULES, f"{package} is pure and may not import {name}"


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(OURS)))
def test_every_module_has_a_docstring(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module} has no docstring"


def test_every_package_is_in_the_import_table() -> None:
    packages = {path.name for path in OURS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == MAY_IMPORT.keys()


def dotted(module: Path) -> str:
    parts = module.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    names = {dotted(module) for module in modules()}
    found: dict[str, set[str]] = {}
    for module in modules():
        imported = found.setdefault(dotted(module), set())
        if dotted(module) == "alpacamq":
            continue  # it imports when a name is used
        for name in imports(module):
            # `from package import name`: a module, or a name in the package's __init__.
            owner = name if name in names else name.rpartition(".")[0]
            if owner in names and owner != dotted(module):
                imported.add(owner)
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


def attributes(module: Path) -> Iterator[ast.Attribute]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute):
            yield node


def test_no_api_reaches_the_log_of_a_partition() -> None:
    for module in modules():
        if package_of(module) == "api":
            for node in attributes(module):
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert node.attr != "log" or is_own, f"{module}:{node.lineno} reaches a log"


def test_only_the_log_reads_files_by_descriptor() -> None:
    # So that every read of stored records passes the Disk port, and tests can make it fail.
    for module in modules():
        if package_of(module) != "log":
            for node in attributes(module):
                assert node.attr not in ("pread", "preadv"), f"{module}:{node.lineno} reads past the disk"


def test_only_the_cli_imports_spark_and_only_when_a_command_runs() -> None:
    for module in modules():
        tree = ast.parse(module.read_text())
        if any(name.startswith("alpacamq_spark") for name in imports(module)):
            assert package_of(module) == "cli", f"{module} may not import alpacamq_spark"
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith(LATER) for name in names), f"{module} imports {names} too early"


def test_third_party_imports_are_declared() -> None:
    declared = (
        (SOURCE.parent / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("]")[0]
    )
    for module in modules():
        for name in imports(module):
            top = name.split(".")[0]
            if top not in {"alpacamq", LATER, *OPTIONAL, *sys.stdlib_module_names}:
                package = PACKAGE_OF.get(top, top.replace("_", "-"))
                assert package in declared, f"{module} imports {top}"
