"""The compose file: what it starts is what the broker accepts, and files that it mounts exist."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from alpacamq.node.config import load

from .files import ROOT

COMPOSE = ROOT / "deploy" / "compose"
DOCUMENT = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
NODES = {
    name: each for name, each in SERVICES.items() if "ALPACAMQ_HTTP_HOSTS" in each.get("environment", {})
}


def test_every_service_belongs_to_a_profile() -> None:
    assert {profile for each in SERVICES.values() for profile in each["profiles"]} == {
        "cluster",
        "dev",
        "tls",
    }


@pytest.mark.parametrize("name", NODES)
def test_the_broker_accepts_the_environment(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a long random text of the nodes\n")
    (tmp_path / "secret").chmod(0o600)
    variables = {
        variable: text.replace("/run/alpacamq/secret", str(tmp_path / "secret"))
        for variable, text in NODES[name]["environment"].items()
    }
    # Of the image.
    variables |= {
        f"ALPACAMQ_{api}_LISTEN": "0.0.0.0:0" for api in ("KAFKA", "HTTP", "SQS", "REGISTRY", "GRPC")
    }
    config = load(None, variables, {})
    assert str(config.listeners["host"].advertised) in {
        f"localhost:{port.rpartition(':')[0].rpartition(':')[2]}"
        for port in NODES[name]["ports"]
        if port.endswith(":19092")
    }
    if config.cluster.is_enabled:
        listed = {
            node.partition("@")[0]: node.partition("@")[2].removesuffix(":9093")
            for node in config.cluster.nodes
        }
        assert listed[str(config.node.id)] == name == NODES[name]["hostname"]
        assert set(listed.values()) <= SERVICES.keys()


@pytest.mark.parametrize("name", NODES)
def test_containers_have_limits_and_no_privileges(name: str) -> None:
    node = NODES[name]
    assert node["read_only"]
    assert node["cap_drop"] == ["ALL"]
    assert node["security_opt"] == ["no-new-privileges"]
    assert node["ulimits"]["nofile"]
    assert node["mem_limit"]
    assert all(port.startswith("${ALPACAMQ_BIND:-127.0.0.1}:") for port in node["ports"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_needs_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.partition(":")[0]
        if source.startswith("."):
            assert (COMPOSE / source).exists(), volume
        else:
            assert source in DOCUMENT["volumes"], volume
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert set(SERVICES[needed]["profiles"]) >= set(SERVICES[name]["profiles"])
        if how["condition"] == "service_completed_successfully":
            assert SERVICES[needed]["restart"] == "no"


def test_monitoring_starts_when_what_it_reads_is_healthy() -> None:
    healthy = {"condition": "service_healthy"}
    assert SERVICES["prometheus"]["depends_on"] == {f"alpaca-{number}": healthy for number in (1, 2, 3)}
    assert SERVICES["grafana"]["depends_on"] == {"prometheus": healthy}
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"alpaca-{number}:8080" for number in (1, 2, 3)]


def test_grafana_gets_our_dashboards_and_their_data_source() -> None:
    sources = yaml.safe_load((COMPOSE / "grafana" / "datasources" / "prometheus.yml").read_text())
    (provider,) = yaml.safe_load((COMPOSE / "grafana" / "dashboards" / "alpacamq.yml").read_text())[
        "providers"
    ]
    assert sources["datasources"][0]["isDefault"]
    (mounted,) = (each for each in SERVICES["grafana"]["volumes"] if provider["options"]["path"] in each)
    dashboards = sorted((COMPOSE / mounted.partition(":")[0]).glob("*.json"))
    assert [path.stem for path in dashboards] == [
        "broker-internals",
        "cluster",
        "overview",
        "topics-and-queues",
    ]
    assert all(json.loads(path.read_text())["panels"] for path in dashboards)
