"""`alpacactl doctor` on healthy and on ill brokers."""

import json
from pathlib import Path
from typing import Any

import pytest

from alpacamq.cli.doctor import Finding, Metrics, Status, _clock, _resources
from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.integration.nodes import running_nodes
from tests.waiting import eventually

from .command import Command, InProcess, Ran


def by_check(findings: Any, node: int | None = 1) -> dict[str, Any]:
    return {each["check"]: each for each in findings if each["node"] == node}


def examined(broker: Broker) -> tuple[Ran, dict[str, Any]]:
    command = Command(broker.address, broker.http_address)
    ran = command("doctor", "-o", "json")
    return ran, by_check(json.loads(ran.text))


def test_a_healthy_broker_passes_every_check(ctl: Command) -> None:
    findings = ctl.json("doctor")
    # The disk of this machine may be nearly full.
    assert {each["status"] for each in findings if each["check"] != "disk"} == {"ok"}
    assert by_check(findings).keys() == {
        *("state", "kafka address", "http address", "grpc address", "clock", "health", "disk", "open files"),
    }
    assert by_check(findings, None).keys() == {"controller", "partitions", "versions"}
    assert "FAILED" not in ctl.ok("doctor")


def test_a_broker_that_is_not_there_is_unreachable(ctl: Command) -> None:
    gone = InProcess("127.0.0.1:1", "127.0.0.1:1")
    assert "no broker answers" in gone.fails(3, "doctor")


def test_an_address_that_clients_cannot_reach_fails(new_broker: NewBroker) -> None:
    broker = new_broker(config='[kafka]\nadvertised = "127.0.0.1:1"\n').start()
    ran, found = examined(broker)
    assert ran.code == 1
    assert "1 of " in ran.errors
    assert found["kafka address"]["status"] == "failed"
    assert "kafka.advertised" in found["kafka address"]["advice"]


def test_a_low_limit_of_files_is_a_warning(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", open_files_limit=1024)
    try:
        ran, found = examined(broker.start())
        assert ran.code == 0
        assert found["open files"]["status"] == "warning"
        assert "LimitNOFILE" in found["open files"]["advice"]
    finally:
        broker.end()


def test_a_node_that_has_ended_fails_and_the_others_are_checked(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        nodes.by_id[3].end()
        ctl = InProcess(nodes.kafka, f"{nodes.by_id[1].http},{nodes.by_id[2].http}")

        def is_known() -> bool:
            status = ctl.json("cluster", "status")
            return any(each["fenced"] for each in status["nodes"])

        eventually(is_known, what="the end of the node is known")
        ran = ctl("doctor", "-o", "json")
        findings = json.loads(ran.text)
        assert ran.code == 1
        assert by_check(findings, 3)["state"]["status"] == "failed"
        assert by_check(findings, 1)["disk"]["status"] == by_check(findings, 2)["disk"]["status"]


def finding(check: str, status: Status, detail: str, advice: str = "") -> Finding:
    return Finding(node=1, check=check, status=status, detail=detail, advice=advice)


@pytest.mark.parametrize(
    ("text", "check", "status"),
    [
        ("alpacamq_disk_free_bytes 4\nalpacamq_disk_size_bytes 100", "disk", "failed"),
        ("alpacamq_disk_free_bytes 10\nalpacamq_disk_size_bytes 100", "disk", "warning"),
        ("alpacamq_disk_free_bytes 20\nalpacamq_disk_size_bytes 100", "disk", "ok"),
        ("process_open_fds 9000\nprocess_max_fds 10000", "open files", "warning"),
        (
            'alpacamq_certificate_expiry_seconds{setting="tls.certificate"} -5',
            "certificate tls.certificate",
            "failed",
        ),
        (
            'alpacamq_certificate_expiry_seconds{setting="tls.certificate"} 864000',
            "certificate tls.certificate",
            "warning",
        ),
        (
            'alpacamq_certificate_expiry_seconds{setting="tls.certificate"} 8640000',
            "certificate tls.certificate",
            "ok",
        ),
        ('alpacamq_health{check="disk"} 0', "health", "failed"),
    ],
)
def test_resources_are_judged_by_metrics(text: str, check: str, status: str) -> None:
    found = {each.check: each for each in _resources(finding, Metrics.parse(text))}
    assert found[check].status == status
    assert bool(found[check].advice) == (status != "ok")


def test_a_clock_that_differs_from_that_of_the_cluster_fails() -> None:
    ahead = _clock(finding, "", Metrics.parse("alpacamq_clock_ahead_seconds 2.5"))
    assert (ahead.status, ahead.detail) == ("failed", "2.5 s ahead of the clock of the cluster")


def test_a_clock_that_differs_from_that_here_is_a_warning() -> None:
    behind = _clock(finding, "Thu, 01 Jan 2026 00:00:00 GMT", Metrics({}))
    assert behind.status == "warning"
