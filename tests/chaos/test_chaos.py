"""Two faults against three nodes under load; `make chaos` runs many."""

from pathlib import Path

import pytest

from .faults import FAULTS
from .network import missing_for_cuts
from .run import Plan, run


@pytest.mark.heavy
def test_nothing_is_lost_when_nodes_are_killed(tmp_path: Path) -> None:
    faults = [FAULTS["kill"], FAULTS["restart"]]
    report = run(Plan(seconds=0, count=2, seed=1, faults=faults, loads=["groups"]), tmp_path)
    assert not report.anomalies, report
    assert not report.refused, report
    assert report.counts


@pytest.mark.heavy
@pytest.mark.skipif(missing_for_cuts() is not None, reason=f"network cuts: {missing_for_cuts()}")
def test_nothing_is_lost_when_nodes_are_cut_off(tmp_path: Path) -> None:
    faults = [FAULTS["isolate"], FAULTS["mute"], FAULTS["deafen"], FAULTS["cut-pair"]]
    report = run(Plan(seconds=0, count=4, seed=1, faults=faults, loads=["groups"]), tmp_path)
    assert not report.anomalies, report
    assert report.counts
