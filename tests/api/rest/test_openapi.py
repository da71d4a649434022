"""The description of the API is true: whatever is sent, the answer is one that it names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from alpacamq.api.rest.table import ROUTES
from tests.brokers import Broker

ROOT = Path(__file__).parents[3]
BROKER = """
[topics]
max_partitions = 200
default_partitions = 1
"""
# 413, 416 and 422 are for what is well-formed: too large, outside of the log, or senseless.
SCHEMATHESIS = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "403", "404", "409", "413", "416", "422", "429"]
negative_data_rejection.expected-statuses = ["4xx"]

# A redrive that was cancelled can still be looked at.
[[operations]]
include-path = "/redrives/{id}"
checks.use_after_free.enabled = false
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A broker of its own: what is sent here may delete what other tests made."""
    broker = Broker(tmp_path / "data", config=BROKER)
    try:
        url = f"http://{broker.start().http_address}"
        httpx.post(f"{url}/topics", json={"name": "known", "partitions": 2}).raise_for_status()
        yield url
        assert "Traceback" not in broker.errors.text()
    finally:
        broker.end()


def schemathesis(url: str, directory: Path, *options: str) -> None:
    """Run schemathesis against a broker; it must find nothing."""
    config = directory / "schemathesis.toml"
    config.write_text(SCHEMATHESIS)
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config)]
    command += ["run", f"{url}/openapi.json", "--suppress-health-check", "all", "--warnings", "off"]
    ran = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.api.rest.openapi_hooks"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_requests_are_answered_as_described(url: str, tmp_path: Path) -> None:
    schemathesis(url, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "2")


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_many_requests_are_answered_as_described(url: str, tmp_path: Path) -> None:
    schemathesis(url, tmp_path, "--max-examples", "100")


def test_every_route_is_described(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    described = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [each["operationId"] for methods in served["paths"].values() for each in methods.values()]
    assert len(set(names)) == len(names)
