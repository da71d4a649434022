"""Reads the files of deploy/ for tests: the queries of dashboards, alerts and recording rules."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import promql_parser
import yaml

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
# What Grafana puts in place of its variables when everything is chosen, and for a scrape every second.
VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$instance": ".*", "$topic": ".*", "$group": ".*"}


class PanelQuery(NamedTuple):
    """One query of a dashboard, as Grafana would send it."""

    place: str
    expression: str


class Rule(NamedTuple):
    """An alert or a recorded metric."""

    name: str
    expression: str
    annotations: dict[str, str]


def panel_queries() -> Iterator[PanelQuery]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                yield PanelQuery(f"{path.stem}: {panel['title']}, {target['refId']}", expression)


def rules(file: str, kind: str) -> list[Rule]:
    document = yaml.safe_load((PROMETHEUS / file).read_text())
    return [
        Rule(rule[kind], rule["expr"], rule.get("annotations", {}))
        for group in document["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[Rule]:
    return rules("alerts.yml", "alert")


def recordings() -> list[Rule]:
    return rules("recording.yml", "record")


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The series that a query looks at; fails where it is not a query."""
    found: list[promql_parser.VectorSelector] = []

    def note(part: promql_parser.Expr) -> bool:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        return True

    promql_parser.walk(promql_parser.parse(expression), note)
    return found
