"""A real Prometheus scrapes a busy broker: every panel and every alert finds its series."""

import math
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from alpacamq.telemetry.metrics_catalogue import (
    AUDIT_DROPPED,
    AUDIT_EVENTS,
    CATALOGUE,
    FORWARDED_ERRORS,
    FORWARDED_SECONDS,
    SIGNING_KEY_FAILURES,
    SIGNING_KEYS,
)
from tests.brokers import Broker
from tests.certificates import Authority, tls_section
from tests.waiting import eventually

from .busy import Traffic
from .files import alerts, panel_queries, recordings, selectors
from .scraper import Prometheus, prometheus

SCRAPES = 4
# Exposed with other brokers, with an audit log, or with an OAuth provider.
NOT_HERE = (
    FORWARDED_SECONDS,
    FORWARDED_ERRORS,
    AUDIT_EVENTS,
    AUDIT_DROPPED,
    SIGNING_KEYS,
    SIGNING_KEY_FAILURES,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    root = tmp_path_factory.mktemp("scraped")
    authority = Authority(root)
    # Certificates have metrics of their own.
    broker = Broker(root / "data", config=tls_section(authority, authority.server()))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="module")
def traffic(broker: Broker) -> Iterator[Traffic]:
    traffic = Traffic(broker)
    traffic.round()
    yield traffic
    traffic.close()


@pytest.fixture(scope="module")
def scraping(
    broker: Broker, traffic: Traffic, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with prometheus(tmp_path_factory.mktemp("prometheus"), broker.http_address) as server:

        def seen() -> bool:
            traffic.round()
            counted = server.query("count_over_time(alpacamq_sqs_errors_total[1m])")
            return bool(counted) and float(counted[0]["value"][1]) >= SCRAPES

        eventually(seen, within_s=60, what="Prometheus has scraped")
        yield server


@pytest.fixture(scope="module")
def text(broker: Broker, traffic: Traffic) -> str:
    return httpx.get(f"http://{broker.http_address}/metrics").raise_for_status().text


def test_exactly_the_metrics_of_the_catalogue_are_exposed_with_their_labels(text: str) -> None:
    shown = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in CATALOGUE:
        if metric in NOT_HERE:
            assert metric.name.removesuffix("_total") not in shown
            continue
        family = shown.pop(metric.name.removesuffix("_total"))
        assert family.type == metric.kind
        assert family.documentation == metric.help
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*metric.labels}
    assert not shown


def test_no_series_is_exposed_twice(text: str) -> None:
    names = [line.rpartition(" ")[0] for line in text.splitlines()]
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_the_metrics(text: str) -> None:
    ran = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_every_panel_of_every_dashboard_has_data(scraping: Prometheus) -> None:
    for panel in panel_queries():
        found = scraping.query(panel.expression)
        assert found, f"{panel.place} is empty: {panel.expression}"
        assert any(math.isfinite(float(each["value"][1])) for each in found), f"{panel.place} has no number"


def test_every_rule_is_evaluated_on_existing_series(scraping: Prometheus) -> None:
    for rule in [*alerts(), *recordings()]:
        scraping.query(rule.expression)
        for selector in selectors(rule.expression):
            assert scraping.query(str(selector.name)), f"{rule.name}: there is no {selector.name}"
    assert {rule["health"] for rule in scraping.rules()} == {"ok"}


def test_only_the_expected_alerts_fire(scraping: Prometheus) -> None:
    firing = {alert["labels"]["alertname"] for alert in scraping.alerts() if alert["state"] == "firing"}
    assert firing <= {"AlpacaMQDeadLetters"}
