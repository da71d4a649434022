"""Replicated partitions under crashes, partitions, pauses, lost disks, reassignment and failover.

Raft, controller, leaders and followers are the real ones. Runs a part of the seeds;
`make sim SCENARIO=cluster SEEDS=10000` runs more, `make sim SCENARIO=cluster SEED=…` one of them again.
"""

from collections import Counter

import pytest

from tests.simulation.cluster import run

SEEDS_PER_TEST = 16


@pytest.mark.parametrize("first", range(0, 96, SEEDS_PER_TEST))
def test_acknowledged_records_survive_faults(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_PER_TEST):
        seen += run(seed).seen
    # Otherwise the simulation no longer tests what it is for.
    for event in (
        "acknowledged",
        "elections",
        "elected from the ELR",
        "controllers",
        "in-sync sets shrunk",
        "in-sync sets grown",
        "proposals in doubt",
        "truncated records",
        "lost disks",
    ):
        assert seen[event] > 0, event


def test_the_same_seed_gives_the_same_events() -> None:
    assert run(7) == run(7)
