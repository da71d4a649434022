"""Health as orchestrators ask for it: recovering, on a full disk, stopped and let go on."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.integration.disks import tmpfs
from tests.ports import lasting_address
from tests.waiting import eventually

# Loaded by the broker's own interpreter: its disk does not list the topic `slow` before a file is there.
SLOW_DISK = """
import os, time
from alpacamq.log.disk import SystemDisk
names = SystemDisk.names
def slow_names(self, path):
    while path.name.startswith("slow-") and not os.path.exists({release!r}):
        time.sleep(0.01)
    return names(self, path)
SystemDisk.names = slow_names
"""
STALL_S = 3.0


def client_of(address: str) -> Callable[[str], httpx.Response | None]:
    """Send a request on a new connection; None while the port is closed."""

    def ask(path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://{address}{path}", timeout=30)
        except httpx.ConnectError:
            return None

    return ask


def fill(path: Path) -> None:
    """Write until nothing more goes in."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def failing(answer: httpx.Response) -> dict[str, str]:
    """The checks that fail, with what they say."""
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    checks: dict[str, Any] = answer.json()["checks"]
    return {name: check["detail"] for name, check in checks.items() if check["status"] != "ok"}


@pytest.fixture
def recovering(new_broker: NewBroker, tmp_path: Path) -> tuple[Broker, Path]:
    """A broker that is in the middle of its recovery until the file is made."""
    release = tmp_path / "release"
    broker = new_broker(http=lasting_address(), sqs=lasting_address()).start()
    made = httpx.post(f"http://{broker.http_address}/topics", json={"name": "slow", "partitions": 2})
    made.raise_for_status()
    broker.stop()
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK.format(release=str(release)))
    broker.environment["PYTHONPATH"] = str(tmp_path)
    broker.spawn()
    return broker, release


def test_a_recovering_broker_reports_its_progress(recovering: tuple[Broker, Path]) -> None:
    broker, release = recovering
    ask = client_of(broker.http_address)
    eventually(lambda: (answer := ask("/readyz")) is not None and "partition 1 of 2" in answer.text)

    for path in ("/readyz", "/healthz"):
        answer = ask(path)
        assert answer is not None
        assert "partition 1 of 2" in failing(answer)["recovery"]
        assert answer.json()["type"] == "urn:alpacamq:problem:recovering"
    alive = ask("/livez")
    assert alive is not None
    assert alive.status_code == 200
    for address in (broker.http_address, broker.sqs_address):
        refused = client_of(address)("/topics")
        assert refused is not None
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"

    release.touch()
    broker.wait_until_ready()
    ready = ask("/readyz")
    assert ready is not None
    assert ready.json() == {
        "status": "ok",
        "reads": "ok",
        "writes": "ok",
        "checks": {name: {"status": "ok"} for name in ("recovery", "cluster", "disk")},
    }


def test_a_client_that_retries_after_recovery_is_served_on_the_same_connection(
    recovering: tuple[Broker, Path],
) -> None:
    broker, release = recovering
    eventually(lambda: client_of(broker.http_address)("/livez") is not None)
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as client:
        assert client.get("/topics").status_code == 503
        release.touch()
        broker.wait_until_ready()
        assert client.get("/topics").status_code == 200


def test_a_broker_stopped_during_recovery_ends_cleanly(
    recovering: tuple[Broker, Path],
) -> None:
    broker, release = recovering
    eventually(lambda: client_of(broker.http_address)("/livez") is not None)
    broker.process.send_signal(signal.SIGTERM)
    release.touch()
    assert broker.exit_code() == 0


def test_a_full_disk_leaves_a_broker_ready_for_reads_only(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", size_kib=6000) as disk:
        broker = Broker(disk.path / "data").start()
        try:
            with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as http:
                publish = "/topics/t/messages"
                http.post(publish, json={"value": "x", "partition": 0}).raise_for_status()
                assert http.get("/readyz").json()["writes"] == "ok"
                filling = disk.path / "filling"
                fill(filling)

                ready = http.get("/readyz")
                assert ready.status_code == 200
                assert (ready.json()["status"], ready.json()["reads"]) == ("read-only", "ok")
                assert ready.json()["writes"].startswith(f"refused: {disk.path / 'data'} is full")
                assert http.get(publish).json()["messages"][0]["value"] == "x"
                unready = http.get("/readyz", params={"needs": "writes"})
                assert str(disk.path / "data") in failing(unready)["disk"]
                assert unready.json()["reads"] == "ok"
                assert http.post(publish, json={"value": "y" * 10_000, "partition": 0}).status_code == 507
                found = failing(http.get("/healthz"))
                assert found.keys() == {"disk", "writes"}
                assert "t-0 refused its last write" in found["writes"]
                shown = http.get("/metrics").text
                assert 'alpacamq_health{check="disk"} 0' in shown
                assert 'alpacamq_health{check="writes"} 0' in shown
                assert 'alpacamq_health{check="partitions"} 1' in shown
                assert http.get("/livez").status_code == 200

                # By itself, without a write that shows it.
                filling.unlink()
                eventually(lambda: http.get("/healthz").status_code == 200)
                assert http.get("/readyz", params={"needs": "writes"}).json()["status"] == "ok"
                assert 'alpacamq_health{check="writes"} 1' in http.get("/metrics").text
                assert not (disk.path / "data" / ".probe").exists()
                http.post(publish, json={"value": "y", "partition": 0}).raise_for_status()
                assert http.get("/healthz").status_code == 200
        finally:
            broker.end()


def test_a_suspended_process_reports_a_blocked_event_loop(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        assert http.get("/healthz").status_code == 200
        broker.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + STALL_S
        eventually(lambda: time.monotonic() > until)
        broker.process.send_signal(signal.SIGCONT)

        eventually(lambda: http.get("/healthz").status_code == 503)
        answer = http.get("/healthz")
        assert failing(answer).keys() == {"event_loop"}
        assert "it stalled for" in failing(answer)["event_loop"]
        assert "alpacamq_event_loop_stalls_total 1" in http.get("/metrics").text
        assert http.get("/readyz").status_code == 200
        # Its own code is not to blame: no stack is shown.
        assert broker.errors.find("event_loop_stalled")
        assert not broker.errors.find("event_loop_blocked")
