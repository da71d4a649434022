"""One run: nodes, loads, faults one after another, then everything is read back and checked."""

import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from random import Random

from .checker import Anomaly, check
from .faults import Fault, hold
from .history import (
    Acked,
    Committed,
    Delayed,
    Ended,
    Failed,
    FaultBegun,
    FaultEnded,
    History,
    Read,
    Refused,
    Settled,
    read_events,
)
from .loads import Load, RecordsLoad, TransactionsLoad
from .nodes import NOTHING, Cluster, Needs, chaos_nodes
from .queue_loads import DelayLoad, QueueLoad, SqsLoad

WARM_UP_S = 3.0
BETWEEN_S = (1.0, 4.0)
SHOWN = 5
# The first is what pauses are measured with.
LOADS: dict[str, Callable[[Cluster, History, int], Load]] = {
    "groups": RecordsLoad,
    "transactions": TransactionsLoad,
    "queues": QueueLoad,
    "sqs": SqsLoad,
    "delays": DelayLoad,
}


# Runs nodes in a directory that have what faults need.
Driver = Callable[[Path, Needs], AbstractContextManager[Cluster]]

COUNTED: dict[type, str] = {
    Acked: "records acknowledged",
    Read: "read",
    Committed: "offsets committed",
    Ended: "transactions ended",
    Settled: "messages settled",
    Delayed: "messages delayed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    seconds: float
    seed: int
    faults: Sequence[Fault]
    loads: Sequence[str]
    # Inject this many faults instead of as many as fit into the time.
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault and how clients saw it."""

    fault: str
    nodes: tuple[int, ...]
    # The longest time without an acknowledgement, over the partitions that those nodes led and over all.
    pause_s: float
    # From the end of the fault until all replicas were in sync.
    in_sync_s: float


@dataclass(slots=True)
class Report:
    """What a run has shown."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    # Requests without a result, of clients that do not retry.
    failed: list[str] = field(default_factory=list)
    # Confirmed requests by kind.
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        lines = [f"seed {self.seed}: {len(self.outcomes)} faults; {counts}"]
        for name in sorted({each.fault for each in self.outcomes}):
            pauses = sorted(each.pause_s for each in self.outcomes if each.fault == name)
            slowest = max(each.in_sync_s for each in self.outcomes if each.fault == name)
            lines.append(
                f"  {name}: {len(pauses)} times, longest pause p50 {pauses[len(pauses) // 2]:.2f} s, "
                f"max {pauses[-1]:.2f} s; in sync again after up to {slowest:.1f} s"
            )
        kinds = Counter(each.kind for each in self.anomalies)
        lines.append("  anomalies: " + (", ".join(f"{k.name} {n}" for k, n in kinds.items()) or "none"))
        for kind in kinds:
            lines += [f"    {each}" for each in self.anomalies if each.kind is kind][:SHOWN]
        lines.append(f"  errors of clients: {len(self.refused)}")
        lines += [f"    {each}" for each in self.refused[:SHOWN]]
        lines.append(f"  failed requests of clients that do not retry: {len(self.failed)}")
        lines += [f"    {each}" for each in self.failed[:SHOWN]]
        return "\n".join(lines)


def run(
    plan: Plan,
    directory: Path,
    start: Driver = chaos_nodes,
) -> Report:
    """Inject faults under load into the nodes that `start` runs; history and logs stay in `directory`."""
    needs = reduce(operator.or_, (fault.needs for fault in plan.faults), NOTHING)
    with start(directory, needs) as nodes:
        loads = {name: LOADS[name] for name in plan.loads}
        return under_load(nodes, loads, directory, partial(_inject_faults, plan, nodes), plan.seed)


def under_load(
    nodes: Cluster,
    kinds: Mapping[str, Callable[[Cluster, History, int], Load]],
    directory: Path,
    act: Callable[[History, Report], None],
    seed: int = 1,
) -> Report:
    """Do something to nodes under load, and check what clients were promised."""
    history = History(directory / "history.jsonl")
    report = Report(seed)
    loads = [kind(nodes, history, seed) for kind in kinds.values()]
    for load in loads:
        load.prepare()
    for load in loads:
        load.start()
    time.sleep(WARM_UP_S)
    act(history, report)
    for load in loads:
        load.finish()
    history.close()
    events = list(read_events(history.path))
    report.anomalies = check(events)
    report.refused = [f"{each.client}: {each.error}" for each in events if isinstance(each, Refused)]
    report.failed = [
        f"{each.client} after {each.waited_s:.1f} s: {each.error}"
        for each in events
        if isinstance(each, Failed)
    ]
    report.counts.update(COUNTED[type(each)] for each in events if type(each) in COUNTED)
    return report


def _inject_faults(plan: Plan, nodes: Cluster, history: History, report: Report) -> None:
    random = Random(plan.seed)
    ends_s = time.monotonic() + plan.seconds
    injected = 0
    while injected < plan.count if plan.count is not None else time.monotonic() < ends_s:
        # Each kind once before any comes again.
        if injected % len(plan.faults) == 0:
            order = random.sample(plan.faults, len(plan.faults))
        fault = order[injected % len(plan.faults)]
        injected += 1
        time.sleep(random.uniform(*BETWEEN_S))
        victim = _choose_victim(nodes, random)
        led = {index for index, leader in nodes.leaders(RecordsLoad.topic).items() if leader == victim}
        begun_s = time.monotonic()
        history.write(FaultBegun(fault.name, (victim,)))
        found = fault.inject(nodes, victim, random)
        hold(found.hold_s)
        found.heal()
        history.write(FaultEnded(fault.name, found.nodes))
        healed_s = time.monotonic()
        nodes.wait_until_in_sync(RecordsLoad.topic)
        outcome = Outcome(
            fault.name,
            found.nodes,
            longest_pause_s(history, led if len(found.nodes) == 1 else None, begun_s),
            time.monotonic() - healed_s,
        )
        report.outcomes.append(outcome)
        print(
            f"{fault.name} of {found.nodes}, which led {sorted(led)}: pause {outcome.pause_s:.2f} s, "
            f"in sync after {outcome.in_sync_s:.1f} s",
            flush=True,
        )


def _choose_victim(nodes: Cluster, random: Random) -> int:
    """Choose the controller, or the leader of some partition."""
    leaders = sorted(leader for leader in nodes.leaders(RecordsLoad.topic).values() if leader > 0)
    if random.random() < 0.4 or not leaders:
        return nodes.controller.id
    return random.choice(leaders)


def longest_pause_s(history: History, partitions: set[int] | None, since_s: float) -> float:
    """Return the longest time without an acknowledgement since a time, over these partitions or all."""
    times: dict[int, list[float]] = {}
    for at_s, topic, partition in list(history.acked):
        if topic == RecordsLoad.topic and (partitions is None or partition in partitions):
            times.setdefault(partition, [since_s])
            if at_s > since_s:
                times[partition].append(at_s)
    now_s = time.monotonic()
    gaps = [later - earlier for each in times.values() for earlier, later in pairwise([*each, now_s])]
    return max(gaps, default=0.0)
