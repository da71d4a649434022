"""Generates the dashboards under deploy/grafana; with --check only reports outdated ones."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from dashboards.cluster import CLUSTER
from dashboards.internals import INTERNALS
from dashboards.overview import OVERVIEW
from dashboards.panels import Dashboard
from dashboards.rendering import rendered
from dashboards.topics import TOPICS

GRAFANA = Path(__file__).parent.parent / "deploy" / "grafana"
DASHBOARDS: Mapping[str, Dashboard] = {
    "overview.json": OVERVIEW,
    "topics-and-queues.json": TOPICS,
    "cluster.json": CLUSTER,
    "broker-internals.json": INTERNALS,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if one is out of date"
    )
    check_only = parser.parse_args().check
    outdated = []
    for name, dashboard in DASHBOARDS.items():
        path = GRAFANA / name
        if not path.exists() or path.read_text() != rendered(dashboard):
            outdated.append(name)
            if not check_only:
                path.write_text(rendered(dashboard))
    if check_only and outdated:
        print(f"{', '.join(outdated)}: out of date, run scripts/generate_dashboards.py", file=sys.stderr)
    return 1 if check_only and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
