"""`python -m tests.chaos`: run faults against three nodes under load, and report what clients lost."""

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from .faults import FAULTS, possible_faults
from .run import LOADS, Plan, run

DEFAULT_LOADS = "groups,transactions"


def main() -> int:
    """Parse arguments and run; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long faults are injected")
    parser.add_argument("--count", type=int, help="inject this many faults instead")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--faults", default="", help=f"of {', '.join(FAULTS)}; default: all that are possible"
    )
    parser.add_argument("--loads", default=DEFAULT_LOADS, help=f"of {', '.join(LOADS)}")
    parser.add_argument(
        "--directory", type=Path, help="where history and logs stay; default: a temporary one"
    )
    arguments = parser.parse_args()
    possible = possible_faults()
    wanted = arguments.faults.split(",") if arguments.faults else list(possible)
    if unknown := sorted(set(wanted) - possible.keys()):
        parser.error(f"cannot inject here: {', '.join(unknown)}")
    if "groups" not in arguments.loads.split(","):
        parser.error("the load groups is needed: pauses are measured with it")
    if unknown := sorted(set(arguments.loads.split(",")) - LOADS.keys()):
        parser.error(f"no such load: {', '.join(unknown)}")
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="alpacamq-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}, faults {', '.join(wanted)}, history in {directory}", flush=True)
    report = run(
        Plan(
            seconds=arguments.seconds,
            seed=arguments.seed,
            faults=[possible[name] for name in wanted],
            loads=arguments.loads.split(","),
            count=arguments.count,
        ),
        directory,
    )
    print(report)
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
