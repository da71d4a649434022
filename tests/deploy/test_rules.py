"""Rules, dashboards and the guide agree with each other and with the metrics catalogue."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from alpacamq.telemetry.metrics_catalogue import CATALOGUE, Kind

from .files import (
    DASHBOARDS,
    PROMETHEUS,
    ROOT,
    PanelQuery,
    Rule,
    alerts,
    panel_queries,
    recordings,
    selectors,
)

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
KNOWN = {
    metric.name + suffix: {*metric.labels, "job", "instance"} | ({"le"} if suffix == "_bucket" else set())
    for metric in CATALOGUE
    for suffix in SUFFIXES.get(metric.kind, ("",))
} | {"up": {"job", "instance"}}
RECORDED = {rule.name for rule in recordings()}


def promtool(*arguments: str) -> None:
    ran = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml", "recording.yml")


@needs_promtool
def test_every_alert_fires_for_an_unhealthy_broker_and_none_for_a_healthy_one() -> None:
    promtool("test", "rules", "alerts_test.yml")


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    text = (PROMETHEUS / "alerts_test.yml").read_text()
    for alert in alerts():
        assert text.count(f"alertname: {alert.name}\n") == 2


@pytest.mark.parametrize("rule", [*alerts(), *recordings()], ids=lambda rule: rule.name)
def test_rules_use_existing_metrics_and_labels(rule: Rule) -> None:
    check(rule.expression)


@pytest.mark.parametrize("query", list(panel_queries()), ids=lambda query: query.place)
def test_panels_use_existing_metrics_and_labels(query: PanelQuery) -> None:
    check(query.expression)


def check(expression: str) -> None:
    found = selectors(expression)
    assert found
    for selector in found:
        if selector.name in RECORDED:
            continue
        assert selector.name in KNOWN
        assert {matcher.name for matcher in selector.matchers.matchers} <= KNOWN[selector.name]


def test_the_dashboards_are_current() -> None:
    script = ROOT / "scripts" / "generate_dashboards.py"
    ran = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(DASHBOARDS) == 4


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_cover_each_other(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_guide_says_what_to_do_about_every_alert() -> None:
    guide = (ROOT / "docs" / "guide" / "monitoring.md").read_text()
    for alert in alerts():
        assert f"| `{alert.name}` |" in guide
