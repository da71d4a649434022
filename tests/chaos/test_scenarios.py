"""The scenarios of deploy/chaos name faults that exist, and are judged by what must hold."""

from collections import Counter

import pytest

from .faults import FAULTS
from .run import Outcome, Report
from .scenarios import Scenario, judge, scenarios

LIMITS = Scenario(about="", faults=["kill"], count=1, max_pause_s=5, max_recovery_s=15)


def report(pause_s: float = 1, in_sync_s: float = 1, acknowledged: int = 10) -> Report:
    return Report(
        seed=1,
        outcomes=[Outcome("kill", (2,), pause_s, in_sync_s)],
        counts=Counter({"records acknowledged": acknowledged}),
    )


@pytest.mark.parametrize("name", scenarios())
def test_every_scenario_names_faults_that_exist(name: str) -> None:
    scenario = scenarios()[name]
    assert set(scenario.faults) <= FAULTS.keys()
    assert scenario.count >= len(scenario.faults)
    assert scenario.about


def test_a_run_within_the_limits_is_good() -> None:
    verdict = judge("failover", LIMITS, report())
    assert not verdict.failures
    assert str(verdict).startswith("failover: ok: 1 faults, 10 records acknowledged")


@pytest.mark.parametrize(
    ("found", "failure"),
    [
        (report(pause_s=5.5), "kill of 2: 5.50 s without an acknowledgement"),
        (report(in_sync_s=20), "kill of 2: in sync again only after 20.0 s"),
        (report(acknowledged=0), "nothing was acknowledged at all"),
    ],
)
def test_a_run_beyond_a_limit_fails(found: Report, failure: str) -> None:
    assert judge("failover", LIMITS, found).failures == [failure]
