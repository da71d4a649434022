"""A real Prometheus scrapes three nodes: targets, rules, every panel, and alerts that faults provoke."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.certificates import Authority, tls_section
from tests.chaos.nodes import FILLER
from tests.integration.nodes import Node, Nodes
from tests.ports import free_ports
from tests.powercut.disk import MountOptions, PowerCutDisk, missing_for_cuts
from tests.waiting import eventually

from .busy import Traffic
from .files import panel_queries, recordings
from .scraper import Prometheus, prometheus

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
WAIT_S = 90.0
SCRAPES = 4
# Soon enough for `AlpacaMQCertificateExpires`, and later than the run.
EXPIRES_DAYS = 3
DISK_MIB = 160
# What fires for each fault, and for nothing before it.
CERTIFICATES = ("AlpacaMQCertificateExpires", "AlpacaMQCertificateNotLoaded")
ONE_DOWN = ("AlpacaMQDown", "AlpacaMQUnderReplicated", "AlpacaMQLeaderImbalance")
NO_MAJORITY = ("AlpacaMQNoController", "AlpacaMQBrokerFenced", "AlpacaMQUnhealthy")


@dataclass(frozen=True, slots=True)
class Monitored:
    """The nodes, and the server that watches them."""

    nodes: Nodes
    server: Prometheus
    authority: Authority

    def wait_for(self, *alerts: str) -> None:
        eventually(
            lambda: self.server.firing() >= set(alerts),
            within_s=WAIT_S,
            what=f"{', '.join(alerts)}; {', '.join(self.server.firing())} fire",
        )

    def wait_until_quiet(self, *alerts: str) -> None:
        eventually(lambda: not self.server.firing() & set(alerts), within_s=WAIT_S, what=f"no {alerts}")


class Of:
    """The addresses of a node."""

    def __init__(self, node: Node) -> None:
        self.address = node.kafka
        self.http_address = node.http
        self.sqs_address = node.sqs
        self.grpc_address = node.grpc


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("monitored")


@pytest.fixture(scope="module")
def monitored(root: Path) -> Iterator[Monitored]:
    authority = Authority(root / "certificates")
    nodes = Nodes(root, 3, "\n" + tls_section(authority, authority.server()))
    try:
        nodes.start()
        targets = [node.http for node in nodes]
        with prometheus(root, *targets, fires_after="1s") as server:
            admin = AdminClient({"bootstrap.servers": nodes.kafka, "log_level": 0})
            admin.create_topics([NewTopic("kept", 6, 3)])["kept"].result(WAIT_S)
            yield Monitored(nodes, server, authority)
    finally:
        for node in nodes:
            node.end()


def test_every_panel_and_every_recording_has_data_of_three_nodes(monitored: Monitored) -> None:
    server, nodes = monitored.server, monitored.nodes
    traffic = [Traffic(Of(node), f"-{node.id}") for node in nodes]

    def is_seen() -> bool:
        for each in traffic:
            each.round()
        counted = server.query("count_over_time(alpacamq_sqs_errors_total[1m])")
        counts = {each["metric"]["instance"]: float(each["value"][1]) for each in counted}
        return all(counts.get(node.http, 0) >= SCRAPES for node in nodes)

    try:
        eventually(is_seen, within_s=WAIT_S, what="Prometheus has scraped all nodes")
        assert server.targets() == {node.http: "up" for node in nodes}
        for panel in panel_queries():
            found = server.query(panel.expression)
            assert found, f"{panel.place} is empty: {panel.expression}"
            assert any(math.isfinite(float(each["value"][1])) for each in found), panel.place
        assert {rule["health"] for rule in server.rules()} == {"ok"}
        for recording in recordings():
            seen = {each["metric"]["instance"] for each in server.query(recording.name)}
            assert seen == {node.http for node in nodes}, recording.name
        assert not server.firing() & set(CERTIFICATES + ONE_DOWN + NO_MAJORITY)
    finally:
        for each in traffic:
            each.close()


def test_certificates_that_expire_soon_and_ones_that_are_not_loaded(monitored: Monitored) -> None:
    server = monitored.authority.server(valid_days=EXPIRES_DAYS)
    node = monitored.nodes.by_id[1]
    node.reload()
    monitored.wait_for(CERTIFICATES[0])
    key = server.key.read_bytes()
    server.key.write_bytes(b"not a key")
    node.reload()
    monitored.wait_for(*CERTIFICATES)
    server.key.write_bytes(key)
    monitored.authority.server()
    for node in monitored.nodes:
        node.reload()
    monitored.wait_until_quiet(CERTIFICATES[0])


def test_a_node_that_is_down(monitored: Monitored) -> None:
    node = monitored.nodes.by_id[3]
    node.kill()
    monitored.wait_for(*ONE_DOWN)
    node.start()
    monitored.wait_until_quiet(*ONE_DOWN)


def test_a_cluster_without_a_majority(monitored: Monitored) -> None:
    nodes = monitored.nodes
    for number in (2, 3):
        nodes.by_id[number].kill()
    monitored.wait_for(*NO_MAJORITY)
    for number in (2, 3):
        nodes.by_id[number].start()
    monitored.wait_until_quiet(*NO_MAJORITY)


@pytest.mark.skipif(missing_for_cuts() is not None, reason=str(missing_for_cuts()))
def test_a_disk_that_is_almost_full(tmp_path: Path) -> None:
    disk = PowerCutDisk(tmp_path, MountOptions("synced", "commit=600"), size_mib=DISK_MIB)
    disk.mount()
    node = Node(tmp_path, 1, free_ports(4), "", data=disk.path / "data")
    try:
        node.start().wait_until_ready()
        with prometheus(tmp_path, node.http, fires_after="1s") as server:
            (disk.path / FILLER).write_bytes(bytes(int(DISK_MIB * 0.8) << 20))
            eventually(lambda: "AlpacaMQDiskAlmostFull" in server.firing(), within_s=WAIT_S)
    finally:
        node.end()
        disk.remove()
