"""The gRPC API by programs of others: grpcurl, and h2spec, which checks HTTP/2. See `make grpctools`."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.grpc.client import publish
from tests.brokers import Broker

TIMEOUT_S = 120
INSTALLED = Path(__file__).parents[2] / ".venv" / "gotools"
# Of h2spec, which expects an answer with a body to GET, and 101 calls that stay open.
NOT_FOR_GRPC = {
    "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "Sends a PRIORITY frame on half-closed (remote) stream",
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
}


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{INSTALLED}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("tools") / "data")
    try:
        yield broker.start()
    finally:
        broker.end()


def grpcurl(broker: Broker, *arguments: str, data: object = None) -> str:
    options = [] if data is None else ["-d", json.dumps(data)]
    command = [tool("grpcurl"), "-plaintext", *options, broker.grpc_address, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_grpcurl_lists_and_describes_services(broker: Broker) -> None:
    listed = grpcurl(broker, "list").split()
    assert {"alpacamq.v1.Queue", "alpacamq.v1.Cluster", "grpc.health.v1.Health"} <= set(listed)
    assert "rpc Work ( stream .alpacamq.v1.WorkRequest )" in grpcurl(broker, "describe", "alpacamq.v1.Queue")


def test_grpcurl_receives_messages(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["hello"])
    request = {"topic": topic, "group": "g", "wait_ms": 5000}
    reply = json.loads(grpcurl(broker, "alpacamq.v1.Queue/Receive", data=request))
    assert [each["record"]["value"] for each in reply["messages"]] == ["aGVsbG8="]


def test_h2spec_finds_no_fault(broker: Broker, tmp_path: Path) -> None:
    host, _, port = broker.grpc_address.rpartition(":")
    command = [tool("h2spec"), "-h", host, "-p", port, "--path", "/grpc.health.v1.Health/Check", "-o", "10"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", ran.stdout)
    failed = set(re.findall(r"× \d+: (.*)", text))
    assert re.search(r"\d{3} passed", text), text
    assert not failed - NOT_FOR_GRPC
