"""`python -m tests.chaos.upgrade REVISION`: upgrade three nodes one at a time, under load.

They run the revision first, then the working tree, and at last the working tree as a version that supports
one more level of `alpacamq.version`, to which the level is raised. `-` leaves out the first part.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from alpacamq.client.kafka.connection import Connection
from alpacamq.cluster.image import CURRENT_LEVEL, VERSION_FEATURE
from alpacamq.model.address import Address
from alpacamq.protocol.messages.quorum import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

from .history import FaultBegun, FaultEnded, History
from .loads import RecordsLoad
from .nodes import CURRENT, ChaosNodes, Version, chaos_nodes
from .run import LOADS, Outcome, Report, longest_pause_s, under_load

NEXT = Version("next", module="tests.chaos.next_version")
NEXT_LEVEL = CURRENT_LEVEL + 1
# How long nodes of both versions are left to work together, after each node.
MIXED_S = 4.0


def raise_level(nodes: ChaosNodes, level: int, *, through: int = 1) -> str:
    """Finalize a level of `alpacamq.version`; return the error that the node answers, if any."""
    update = FeatureUpdateKey(feature=VERSION_FEATURE, max_version_level=level, upgrade_type=1)
    connection = Connection(Address.parse(nodes.by_id[through].kafka))
    try:
        answer = connection.call(UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse)
        return answer.error_message or ""
    finally:
        connection.close()


def upgrade(nodes: ChaosNodes, version: Version, history: History, report: Report) -> None:
    """Restart one node after the other with another version, the controller last."""
    last = nodes.controller.id
    for number in sorted(nodes.by_id, key=lambda number: (number == last, number)):
        begun_s = time.monotonic()
        history.write(FaultBegun(f"upgrade to {version.name}", (number,)))
        nodes.by_id[number].stop()
        nodes.install(number, version)
        nodes.restart(number)
        started_s = time.monotonic()
        nodes.wait_until_in_sync(RecordsLoad.topic)
        in_sync_s = time.monotonic() - started_s
        time.sleep(MIXED_S)
        history.write(FaultEnded(f"upgrade to {version.name}", (number,)))
        pause_s = longest_pause_s(history, None, begun_s)
        report.outcomes.append(Outcome(f"upgrade to {version.name}", (number,), pause_s, in_sync_s))
        print(f"node {number} runs {version.name}: pause {pause_s:.2f} s", flush=True)


def upgrade_all(nodes: ChaosNodes, versions: Sequence[Version], history: History, report: Report) -> None:
    """Upgrade to each of these versions; raise the level before and after the last one."""
    for version in versions:
        if version is NEXT:
            assert "does not support" in raise_level(nodes, NEXT_LEVEL)
        upgrade(nodes, version, history, report)
    begun_s = time.monotonic()
    assert raise_level(nodes, NEXT_LEVEL) == ""
    time.sleep(MIXED_S)
    pause_s = longest_pause_s(history, None, begun_s)
    report.outcomes.append(Outcome("level raised", tuple(nodes.by_id), pause_s, 0.0))


def run_upgrade(
    directory: Path,
    loads: Sequence[str],
    versions: Sequence[Version],
    then: Callable[[ChaosNodes], None] = lambda _nodes: None,
) -> Report:
    """Start the first version and upgrade to the others; `then` gets the nodes when all is checked."""
    first, *others = versions
    with chaos_nodes(directory, version=first) as nodes:
        kinds = {name: LOADS[name] for name in loads}
        report = under_load(nodes, kinds, directory, partial(upgrade_all, nodes, others))
        then(nodes)
        return report


def main(revision: str, loads: str = ",".join(LOADS)) -> int:
    """Run it and print the report; 1 if a promise was broken."""
    from benchmarks.earlier_version import checked_out

    with ExitStack() as stack:
        versions = [CURRENT, NEXT]
        if revision != "-":
            tree = stack.enter_context(checked_out(revision))
            versions.insert(0, Version(revision, launcher=("env", f"PYTHONPATH={tree / 'src'}")))
        directory = Path(tempfile.mkdtemp(prefix="alpacamq-upgrade-"))
        print(f"history in {directory}", flush=True)
        report = run_upgrade(directory, loads.split(","), versions)
    print(report)
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
