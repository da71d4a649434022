"""`python -m tests.chaos.upgrade VERSION…`: upgrade three nodes from version to version, under load.

A version is a revision of this repository, `current` for the working tree, or `next` for the working tree
as a version that supports one more level of `alpacamq.version`, to which the level is raised in the end.
Going back to a former version is an upgrade as well:

    python -m tests.chaos.upgrade v0.2 current v0.2 current next
"""

import argparse
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
from tests.integration.nodes import GRPC_ON_ANY_PORT, REGISTRY_ON_ANY_PORT

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
    """Upgrade to each of these versions; raise the level if all nodes support it at last."""
    for version in versions:
        assert "does not support" in raise_level(nodes, NEXT_LEVEL)
        upgrade(nodes, version, history, report)
    if versions[-1] is not NEXT:
        return
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


def main() -> int:
    """Parse arguments, run it and print the report; 1 if a promise was broken."""
    from benchmarks.earlier_version import checked_out

    parser = argparse.ArgumentParser(prog="python -m tests.chaos.upgrade", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--loads", default=",".join(LOADS), help=f"of {', '.join(LOADS)}")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        known = {version.name: version for version in (CURRENT, NEXT)}
        for name in arguments.versions:
            if name not in known:
                source = stack.enter_context(checked_out(name)) / "src"
                has_registry = (source / "alpacamq" / "api" / "registry").is_dir()
                has_grpc = (source / "alpacamq" / "api" / "grpc").is_dir()
                options = (
                    *(REGISTRY_ON_ANY_PORT if has_registry else ()),
                    *(GRPC_ON_ANY_PORT if has_grpc else ()),
                )
                known[name] = Version(name, launcher=("env", f"PYTHONPATH={source}"), options=options)
        directory = Path(tempfile.mkdtemp(prefix="alpacamq-upgrade-"))
        print(f"history in {directory}", flush=True)
        versions = [known[name] for name in arguments.versions]
        report = run_upgrade(directory, arguments.loads.split(","), versions)
    print(report)
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
