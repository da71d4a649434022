"""`alpacamq health` against real brokers."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority, tls_section
from tests.conftest import NewBroker
from tests.integration.nodes import Nodes
from tests.waiting import eventually


def health(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alpacamq.node.main", "health", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("option", [(), ("--live",)], ids=["ready", "live"])
def test_a_broker_that_serves_is_healthy(new_broker: NewBroker, option: tuple[str, ...]) -> None:
    broker = new_broker().start()
    ran = health("--http", broker.http_address, *option)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


def test_the_configuration_of_the_broker_is_used(new_broker: NewBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = tls_section(authority, authority.server()) + "\n[http]\ntls = true\n"
    broker = new_broker(config=config).start()
    host, _, port = broker.http_address.rpartition(":")
    file = tmp_path / "health.toml"
    file.write_text(config + f'listen = "{host}:{port}"\n')
    assert health("--config", str(file)).stdout == "ok\n"


def test_without_the_http_api_the_listener_of_kafka_clients_counts(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    file = tmp_path / "health.toml"
    broker = new_broker(config="[http]\nenabled = false\n").start()
    file.write_text(f'[http]\nenabled = false\n[kafka]\nlisten = "{broker.address}"\n')
    assert health("--config", str(file)).stdout == "ok\n"
    broker.stop()
    assert health("--config", str(file)).returncode == 1


def test_a_broker_that_does_not_run_or_is_none_is_unhealthy(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    other = health("--http", broker.address)
    assert other.returncode == 1
    broker.stop()
    ran = health("--http", broker.http_address)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "does not answer" in ran.stderr


def test_a_node_that_waits_for_its_cluster_responds_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    alone = nodes.by_id[1]
    try:
        alone.start()
        eventually(lambda: health("--http", alone.http, "--live").returncode == 0, what="the node responds")
        ran = health("--http", alone.http)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "waiting for its cluster" in ran.stderr
    finally:
        alone.end()


def test_a_free_port_cannot_be_asked(tmp_path: Path) -> None:
    ran = health("--http", "127.0.0.1:0")
    assert ran.returncode == 1
    assert "http.listen" in ran.stderr
