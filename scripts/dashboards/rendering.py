"""Renders a dashboard as JSON for Grafana."""

import json
from collections.abc import Sequence
from typing import Any

from .panels import BROKERS, Dashboard, Panel, Row

WIDTH, HEIGHT, STAT_HEIGHT = 8, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rendered(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["alpacamq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "links": [{"type": "dashboards", "tags": ["alpacamq"], "title": "AlpacaMQ", "asDropdown": True}],
        "panels": list(_panels(dashboard.rows)),
    }
    return json.dumps(document, indent=2) + "\n"


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    labels = {"job": "alpacamq_build_info", "instance": 'alpacamq_build_info{job=~"$job"}'}
    labels |= {label: f"{metric}{{{BROKERS}}}" for label, metric in dashboard.filters.items()}
    return [
        source,
        *(
            {
                "name": label,
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({selector}, {label})",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
            for label, selector in labels.items()
        ),
    ]


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        at = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": at, "panels": []})
        top += 1
        is_strip = row.panels[0].kind == "stat"
        width, height = (24 // len(row.panels), STAT_HEIGHT) if is_strip else (WIDTH, HEIGHT)
        for place, panel in enumerate(row.panels):
            across = 24 // width
            at = {"x": place % across * width, "y": top + place // across * height, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, **_panel(panel), "gridPos": at})
        top += -(-len(row.panels) // (24 // width)) * height
    return panels


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
