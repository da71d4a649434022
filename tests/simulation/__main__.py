"""Runs a simulation for many seeds, on every core: `python -m tests.simulation raft --seeds 10000`.

`--seed 123` runs one seed and prints its events.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

# Each has a function run(seed, trace_lines=…) that raises when an invariant does not hold, and otherwise
# returns an object with trace_hash and events.
SCENARIOS = {"raft": "tests.simulation.raft_cluster", "cluster": "tests.simulation.cluster"}
SEEDS_PER_TASK = 25
ALL_LINES = 1_000_000


def runner(scenario: str) -> Callable[..., Any]:
    run: Callable[..., Any] = importlib.import_module(SCENARIOS[scenario]).run
    return run


def failures(scenario: str, seeds: range) -> list[tuple[int, str]]:
    """Run seeds and return those that failed, with the reason."""
    run = runner(scenario)
    failed: list[tuple[int, str]] = []
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001 - whatever a seed finds is reported, and the others run
            failed.append((seed, f"{type(error).__name__}: {error}"))
    return failed


def run_one(scenario: str, seed: int) -> bool:
    """Run a seed and print its events."""
    try:
        outcome = runner(scenario)(seed, trace_lines=ALL_LINES)
    except Exception as error:  # noqa: BLE001 - printed with its events
        print(*getattr(error, "__notes__", ()), sep="\n")
        print(f"{type(error).__name__}: {error}")
        return False
    print(f"{scenario} seed {seed}: {outcome.events} events, trace {outcome.trace_hash}")
    return True


def run_until_failure(scenario: str, first: int, count: int) -> bool:
    """Run seeds up to the first that fails, in this process."""
    for seed in range(first, first + count):
        if failed := failures(scenario, range(seed, seed + 1)):
            print(*failed[0])
            return False
    return True


def run_many(scenario: str, first: int, count: int, processes: int) -> bool:
    """Run seeds on every core and print those that fail."""
    tasks = [
        range(start, min(start + SEEDS_PER_TASK, first + count))
        for start in range(first, first + count, SEEDS_PER_TASK)
    ]
    begun = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(processes) as pool:
        results: Iterator[list[tuple[int, str]]] = pool.map(failures, [scenario] * len(tasks), tasks)
        for seed, reason in (failure for result in results for failure in result):
            failed += 1
            print(f"{scenario} seed {seed}: {reason}", flush=True)
    minutes = (time.monotonic() - begun) / 60
    print(
        f"{scenario}: {count} seeds from {first}, {failed} failed, "
        f"{count / minutes / processes:.0f} seeds a minute and core"
    )
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fail-fast", action="store_true", help="end with the first seed that fails")
    args = parser.parse_args()
    is_good = True
    for scenario in args.scenarios or SCENARIOS:
        if args.seed is not None:
            is_good &= run_one(scenario, args.seed)
        elif args.fail_fast:
            is_good &= run_until_failure(scenario, args.first, args.seeds)
        else:
            is_good &= run_many(scenario, args.first, args.seeds, args.processes)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
