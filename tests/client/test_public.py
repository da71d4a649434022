"""What the package exports, what importing it loads, and that users' code passes mypy."""

import subprocess
import sys
from pathlib import Path

import pytest

import alpacamq

EXAMPLE = Path(__file__).with_name("typing_example.py")
ROOT = Path(__file__).parents[2]
BROKER_PACKAGES = (
    "broker",
    "api",
    "log",
    "node",
    "queues",
    "coordinator",
    "consensus",
    "timers",
    "telemetry",
)


def loaded_by(statement: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import alpacamq",
        "import alpacamq; alpacamq.connect",
        "import alpacamq.aio",
        "import alpacamq; alpacamq.Worker",
        "import alpacamq; alpacamq.testing",
        "import alpacamq; [getattr(alpacamq, name) for name in alpacamq.__all__]",
    ],
)
def test_the_client_loads_nothing_of_the_broker(statement: str) -> None:
    loaded = loaded_by(statement)
    for package in BROKER_PACKAGES:
        assert f"alpacamq.{package}" not in loaded


def test_importing_the_package_loads_nothing_else() -> None:
    assert {name for name in loaded_by("import alpacamq") if name.startswith("alpacamq")} == {"alpacamq"}


@pytest.mark.parametrize("statement", ["import alpacamq.aio", "import alpacamq; alpacamq.connect"])
def test_importing_the_client_does_not_load_grpc_or_schema_languages(statement: str) -> None:
    """They take most of the time; they are loaded when a client connects, or uses a schema."""
    loaded = loaded_by(statement)
    for module in ("grpclib", "google.protobuf", "alpacamq.registry.avro", "alpacamq.client.http", "uvloop"):
        assert module not in loaded


def test_the_broker_does_not_load_the_client() -> None:
    loaded = loaded_by("import alpacamq.node.main, alpacamq.node.serve")
    assert "alpacamq.client" not in loaded


def test_every_exported_name_exists() -> None:
    for name in alpacamq.__all__:
        assert getattr(alpacamq, name) is not None
    assert set(alpacamq.__all__) <= set(dir(alpacamq))
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = alpacamq.no_such_name


def test_code_of_users_passes_mypy_strict() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            str(EXAMPLE),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout
