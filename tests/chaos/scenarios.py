"""`python -m tests.chaos.scenarios`: runs the scenarios of deploy/chaos, and says whether what must hold did.

Prints a line for each, and writes verdicts with their numbers as JSON. Exits with 1 if one failed.
"""

import argparse
import sys
import tempfile
import tomllib
from pathlib import Path
from random import SystemRandom

import msgspec

from .containers import compose_nodes, missing_for_containers
from .faults import FAULTS, possible_faults
from .nodes import chaos_nodes
from .run import LOADS, Driver, Plan, Report, run

FILE = Path(__file__).parent.parent.parent / "deploy" / "chaos" / "scenarios.toml"


# How the nodes are started; what happens to them and what must hold is the same.
DRIVERS: dict[str, Driver] = {"processes": chaos_nodes, "compose": compose_nodes}


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults, and the limits that must hold."""

    about: str
    faults: list[str]
    loads: list[str] = msgspec.field(default_factory=lambda: ["groups", "queues"])
    count: int
    max_pause_s: float
    max_recovery_s: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario has shown. `failures` is empty if everything held."""

    scenario: str
    # What the nodes ran on.
    on: str
    seed: int
    acknowledged: int
    faults: int
    longest_pause_s: float
    slowest_recovery_s: float
    failures: list[str]
    # Why it was not run.
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.scenario}: skipped: {self.skipped}"
        verdict = "FAILED" if self.failures else "ok"
        first = (
            f"{self.scenario}: {verdict}: {self.faults} faults, {self.acknowledged} records acknowledged, "
            f"longest pause {self.longest_pause_s:.2f} s, "
            f"in sync again after at most {self.slowest_recovery_s:.1f} s"
        )
        return "\n".join([first, *(f"  {failure}" for failure in self.failures)])


def scenarios() -> dict[str, Scenario]:
    """Read the scenarios."""
    return msgspec.convert(tomllib.loads(FILE.read_text()), dict[str, Scenario])


def judge(name: str, scenario: Scenario, report: Report, on: str = "processes") -> Verdict:
    """Compare what a run has shown with what must hold."""
    failures = [f"{each.kind.name}: {each}" for each in report.anomalies]
    for outcome in report.outcomes:
        where = f"{outcome.fault} of {', '.join(map(str, outcome.nodes))}"
        if outcome.pause_s > scenario.max_pause_s:
            failures.append(f"{where}: {outcome.pause_s:.2f} s without an acknowledgement")
        if outcome.in_sync_s > scenario.max_recovery_s:
            failures.append(f"{where}: in sync again only after {outcome.in_sync_s:.1f} s")
    acknowledged = report.counts["records acknowledged"]
    if not acknowledged:
        failures.append("nothing was acknowledged at all")
    return Verdict(
        scenario=name,
        on=on,
        seed=report.seed,
        acknowledged=acknowledged,
        faults=len(report.outcomes),
        longest_pause_s=max((each.pause_s for each in report.outcomes), default=0.0),
        slowest_recovery_s=max((each.in_sync_s for each in report.outcomes), default=0.0),
        failures=failures,
    )


def main() -> int:
    """Parse arguments and run."""
    known = scenarios()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--loads", help=f"of {', '.join(LOADS)}, groups among them")
    parser.add_argument("--on", choices=list(DRIVERS), default="processes", help="what the nodes run on")
    parser.add_argument("--directory", type=Path, help="where histories, logs and verdicts stay")
    parsed = parser.parse_args()
    if unknown := sorted(set(parsed.names) - known.keys()):
        parser.error(f"no such scenario: {', '.join(unknown)}")
    in_containers = parsed.on == "compose"
    if in_containers and (reason := missing_for_containers()):
        parser.error(f"--on compose {reason}")
    root = parsed.directory or Path(tempfile.mkdtemp(prefix="alpacamq-scenarios-"))
    possible = possible_faults(in_containers=in_containers)
    verdicts = []
    for name in parsed.names or known:
        scenario = known[name]
        if missing := [fault for fault in scenario.faults if fault not in possible]:
            skipped = f"{', '.join(missing)} cannot be injected here: see docs/internals/chaos.md"
            verdicts.append(_not_judged(name, parsed, skipped=skipped))
            print(verdicts[-1], flush=True)
            continue
        directory = root / name
        directory.mkdir(parents=True, exist_ok=True)
        plan = Plan(
            seconds=0,
            seed=parsed.seed,
            faults=[FAULTS[fault] for fault in scenario.faults],
            loads=parsed.loads.split(",") if parsed.loads else scenario.loads,
            count=scenario.count,
        )
        try:
            report = run(plan, directory, DRIVERS[parsed.on])
        except AssertionError as error:
            # A fault says what did not hold, or something was waited for in vain.
            verdicts.append(_not_judged(name, parsed, failure=str(error)))
        else:
            verdicts.append(judge(name, scenario, report, parsed.on))
        print(verdicts[-1], flush=True)
    (root / "verdicts.json").write_bytes(msgspec.json.format(msgspec.json.encode(verdicts), indent=1))
    print(f"seed {parsed.seed}; verdicts and histories in {root}")
    return 1 if any(each.failures for each in verdicts) else 0


def _not_judged(name: str, parsed: argparse.Namespace, *, skipped: str = "", failure: str = "") -> Verdict:
    return Verdict(
        scenario=name,
        on=parsed.on,
        seed=parsed.seed,
        acknowledged=0,
        faults=0,
        longest_pause_s=0,
        slowest_recovery_s=0,
        failures=[failure] if failure else [],
        skipped=skipped,
    )


if __name__ == "__main__":
    sys.exit(main())
