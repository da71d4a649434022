"""Faults of nodes, networks and disks: each is injected, held for a while and removed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from tests.cli.command import InProcess
from tests.powercut.disk import Cut
from tests.powercut.disk import missing_for_cuts as missing_for_power_cuts

from .disk_errors import ALL, missing_for_errors
from .network import missing_for_cuts
from .nodes import ChaosNodes

PAUSE_S = 20.0
CUT_S = 15.0
FULL_S = 10.0
ERRORS_S = 10.0
# The metadata log, and the vote beside its snapshots.
METADATA = "metadata"
PARTITIONS = "partitions/"


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that is there: the nodes that have it, and how it ends."""

    nodes: tuple[int, ...]
    hold_s: float
    heal: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    name: str
    # Injects it, into the node given or into one that it chooses by chance.
    inject: Callable[[ChaosNodes, int, Random], Injected]
    needs_network: bool = False
    needs_disks: bool = False
    needs_errors: bool = False


def _kill(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].kill()
    return Injected((victim,), random.uniform(2, 4), lambda: nodes.restart(victim))


def _kill_quickly(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Kill a node and start it at once: before the others may have noticed."""
    nodes.by_id[victim].kill()
    return Injected((victim,), 0, lambda: nodes.restart(victim))


def _restart(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].stop()
    return Injected((victim,), random.uniform(0, 2), lambda: nodes.restart(victim))


def _drain(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Move the leaders off a node, and let them return."""
    alpacactl = InProcess(nodes.kafka, ",".join(node.http for node in nodes))
    alpacactl.ok("cluster", "drain", str(victim), "--leaders-only")

    def heal() -> None:
        alpacactl.ok("cluster", "drain", str(victim), "--cancel")

    return Injected((victim,), random.uniform(1, 3), heal)


def _pause(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].suspend()
    return Injected((victim,), PAUSE_S, nodes.by_id[victim].resume)


def _cut(nodes: ChaosNodes, directions: Iterable[tuple[int, int]], victim: int) -> Injected:
    assert nodes.network is not None
    nodes.network.cut(directions)
    return Injected((victim,), CUT_S, nodes.network.heal)


def _isolate(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    others = [number for number in nodes.by_id if number != victim]
    both = [pair for other in others for pair in ((victim, other), (other, victim))]
    return _cut(nodes, both, victim)


def _mute(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Let a node hear the others, and be heard by none."""
    return _cut(nodes, [(victim, other) for other in nodes.by_id if other != victim], victim)


def _deafen(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Let a node be heard, and hear none."""
    return _cut(nodes, [(other, victim) for other in nodes.by_id if other != victim], victim)


def _cut_pair(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Cut one of the three wires: each node still reaches one other."""
    other = random.choice([number for number in nodes.by_id if number != victim])
    return _cut(nodes, [(victim, other), (other, victim)], victim)


def _fill(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    nodes.fill_disk(victim)

    def heal() -> None:
        nodes.empty_disk(victim)
        if not nodes.by_id[victim].is_running:
            nodes.restart(victim)

    return Injected((victim,), FULL_S, heal)


def _cut_power(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Cut the power of all nodes at once."""
    for disk in nodes.disks.values():
        disk.push_out_some(random)
    how = random.choice(list(Cut))
    for disk in nodes.disks.values():
        disk.cut(how)
    for node in nodes:
        node.kill()

    def heal() -> None:
        for number in nodes.by_id:
            nodes.reboot(number)
        nodes.restart(*nodes.by_id)

    return Injected(tuple(nodes.by_id), 0, heal)


def _fail_calls(
    match: str = "", *, reads: int = 0, writes: int = 0, syncs: int = 0
) -> Callable[[ChaosNodes, int, Random], Injected]:
    """Return the fault in which calls of a node on files with `match` in their path fail with EIO."""

    def inject(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
        nodes.errors[victim].begin(reads=reads, writes=writes, syncs=syncs, match=match)

        def heal() -> None:
            failed = nodes.errors[victim].end()
            assert any(failed), f"no call of node {victim} has failed"
            nodes.stop(victim)
            nodes.restart(victim)

        return Injected((victim,), ERRORS_S, heal)

    return inject


def _fail_metadata(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Let writes to the metadata log fail, and change the metadata, so that there are some."""
    injected = _fail_calls(METADATA, writes=ALL, syncs=ALL)(nodes, victim, random)
    nodes.change_metadata("records")
    return injected


def _fail_start(nodes: ChaosNodes, victim: int, random: Random) -> Injected:
    """Restart a node that cannot read its partitions."""
    node = nodes.by_id[victim]
    node.stop()
    nodes.errors[victim].begin(reads=ALL, match=PARTITIONS)
    node.start()

    def heal() -> None:
        failed = nodes.errors[victim].end()
        assert any(failed), f"no call of node {victim} has failed"
        nodes.stop(victim)
        nodes.restart(victim)

    return Injected((victim,), ERRORS_S, heal)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", _kill),
        Fault("quick-kill", _kill_quickly),
        Fault("restart", _restart),
        Fault("drain", _drain),
        Fault("pause", _pause),
        Fault("isolate", _isolate, needs_network=True),
        Fault("mute", _mute, needs_network=True),
        Fault("deafen", _deafen, needs_network=True),
        Fault("cut-pair", _cut_pair, needs_network=True),
        Fault("full-disk", _fill, needs_disks=True),
        Fault("power-cut", _cut_power, needs_disks=True),
        Fault("sync-error", _fail_calls(f"{PARTITIONS}records-", syncs=1), needs_errors=True),
        Fault("sync-errors", _fail_calls(PARTITIONS, syncs=ALL), needs_errors=True),
        Fault("write-errors", _fail_calls(PARTITIONS, writes=ALL), needs_errors=True),
        Fault("read-errors", _fail_calls(PARTITIONS, reads=ALL), needs_errors=True),
        Fault("metadata-errors", _fail_metadata, needs_errors=True),
        Fault("start-errors", _fail_start, needs_errors=True),
    )
}


def possible_faults() -> dict[str, Fault]:
    """Return the faults that can be injected on this machine."""
    has_network, has_disks = missing_for_cuts() is None, missing_for_power_cuts() is None
    has_errors = missing_for_errors() is None
    return {
        name: fault
        for name, fault in FAULTS.items()
        if (has_network or not fault.needs_network)
        and (has_disks or not fault.needs_disks)
        and (has_errors or not fault.needs_errors)
    }


def hold(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
