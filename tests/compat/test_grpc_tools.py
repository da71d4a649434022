"""The gRPC API by grpcurl and ghz, which `make grpctools` installs."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.grpc.client import publish
from tests.brokers import Broker

TIMEOUT_S = 120
INSTALLED = Path(__file__).parents[2] / ".venv" / "gotools"


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


@pytest.mark.parametrize(
    ("method", "calls", "messages"),
    [("Producer/Send", 200, 1), ("Producer/Produce", 10, 100)],
    ids=["calls", "streams"],
)
def test_ghz_loads_calls_and_streams_without_an_error(
    broker: Broker, method: str, calls: int, messages: int
) -> None:
    topic = f"load-{messages}"
    publish(broker.http_address, topic, [])
    record = {"topic": topic, "records": [{"value": "eA=="}]}
    command = [
        tool("ghz"), "--insecure", "--format", "json", "--total", str(calls), "--concurrency", "5",
        "--call", f"alpacamq.v1.{method}", "--stream-call-count", str(messages),
        "--data", json.dumps(record), broker.grpc_address,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    report = json.loads(ran.stdout)
    assert report["statusCodeDistribution"] == {"OK": calls}
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=TIMEOUT_S) as client:
        found = client.get(f"/topics/{topic}").json()
    assert sum(each["end_offset"] for each in found["partitions"]) == calls * messages
