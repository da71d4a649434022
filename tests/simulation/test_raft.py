"""Raft under crashes, partitions, pauses, lost disks and changes of voters.

Runs a part of the seeds; `make sim SEEDS=10000` runs more, `make sim SEED=…` one of them again.
"""

from collections import Counter

import pytest

from tests.simulation.raft_cluster import run

SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, 200, SEEDS_PER_TEST))
def test_raft_keeps_its_invariants_under_faults(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_PER_TEST):
        seen += run(seed).seen
    # Otherwise the simulation no longer tests what it is for.
    for event in ("elections", "installed snapshot", "truncated log", "changed voters", "transfer"):
        assert seen[event] > 0, event


def test_the_same_seed_gives_the_same_events() -> None:
    first, second = run(7), run(7)
    assert first.trace_hash == second.trace_hash
    assert first.events == second.events


def test_different_seeds_give_different_events() -> None:
    assert run(7).trace_hash != run(8).trace_hash
