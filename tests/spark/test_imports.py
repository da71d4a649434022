"""The connector stands outside the broker, as a client; and looking at it costs Spark little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted([*(SOURCE / "alpacamq_spark").rglob("*.py"), *(SOURCE / "pyspark_alpacamq").rglob("*.py")])
MAY_IMPORT = {"alpacamq.model", "alpacamq.client", "alpacamq.registry"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_of_the_broker_only_vocabulary_and_client_are_imported(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if name.split(".")[0] == "alpacamq":
                assert ".".join(name.split(".")[:2]) in MAY_IMPORT, f"{module.name} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_owns(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module} has no docstring"


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("pyspark_alpacamq", {"pyarrow", "numpy", "alpacamq.client"}, id="what Spark looks at"),
        pytest.param("alpacamq_spark.write.writer", {"pandas"}, id="what commits"),
        pytest.param("alpacamq_spark.read.reader", {"pandas"}, id="what reads"),
    ],
)
def test_nothing_heavy_is_loaded_that_is_not_needed(module: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}; print(sorted({unwanted!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
