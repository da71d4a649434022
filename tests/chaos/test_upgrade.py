"""A rolling upgrade to a version with a further level; `tests.chaos.upgrade` can begin with any revision."""

from pathlib import Path

import pytest

from tests.waiting import eventually

from .nodes import CURRENT, ChaosNodes
from .upgrade import NEXT, NEXT_LEVEL, run_upgrade


def go_back(nodes: ChaosNodes) -> None:
    """Start a node with the version that it had before the level was raised."""
    node = nodes.by_id[3]
    node.stop()
    nodes.install(3, CURRENT)
    nodes.by_id[3].start()
    eventually(lambda: not nodes.by_id[3].is_running, within_s=60, what="the node refuses to start")
    assert nodes.by_id[3].exit_code == 1
    last = nodes.by_id[3].last_output().splitlines()[-1]
    assert last == (
        f"alpacamq: the cluster uses alpacamq.version level {NEXT_LEVEL}; this broker supports 1 to "
        f"{NEXT_LEVEL - 1}"
    )
    nodes.install(3, NEXT)
    nodes.restart(3)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_nodes_are_upgraded_one_at_a_time_and_then_the_level_is_raised(tmp_path: Path) -> None:
    report = run_upgrade(tmp_path, ["groups", "queues"], [CURRENT, NEXT], go_back)
    assert not report.anomalies, report
    assert not report.refused, report
    assert report.counts
