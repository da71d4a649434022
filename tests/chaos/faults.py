"""Faults of nodes, networks, disks, clocks and certificates: each is injected, held and removed."""

import re
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPSConnection
from random import Random

from tests.cli.command import InProcess
from tests.powercut.disk import Cut
from tests.powercut.disk import missing_for_cuts as missing_for_power_cuts
from tests.waiting import eventually

from .network import missing_for_cuts
from .nodes import CALL_S, NOTHING, ChaosNodes, Cluster, Needs
from .system_calls import ALL, missing_for_calls

PAUSE_S = 20.0
CUT_S = 15.0
FULL_S = 10.0
ERRORS_S = 10.0
SLOW_S = 15.0
# As of a disk that is busy with something else: a sync takes the longest.
SLOW_SYNC_MS = 400
SLOW_CALL_MS = 2
STEP_S = 15.0
STEP_HOURS = 6
CERTIFICATE_S = 10.0
EXPIRES_S = 3.0
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
    inject: Callable[[Cluster, int, Random], Injected]
    needs: Needs = NOTHING
    # Whether it is possible for nodes in containers.
    in_containers: bool = True


def _kill(nodes: Cluster, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].kill()
    return Injected((victim,), random.uniform(2, 4), lambda: nodes.restart(victim))


def _kill_quickly(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Kill a node and start it at once: before the others may have noticed."""
    nodes.by_id[victim].kill()
    return Injected((victim,), 0, lambda: nodes.restart(victim))


def _restart(nodes: Cluster, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].stop()
    return Injected((victim,), random.uniform(0, 2), lambda: nodes.restart(victim))


def _drain(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Move the leaders off a node, and let them return."""
    alpacactl = InProcess(nodes.kafka, ",".join(node.http for node in nodes))
    alpacactl.ok("cluster", "drain", str(victim), "--leaders-only")

    def heal() -> None:
        alpacactl.ok("cluster", "drain", str(victim), "--cancel")

    return Injected((victim,), random.uniform(1, 3), heal)


def _pause(nodes: Cluster, victim: int, random: Random) -> Injected:
    nodes.by_id[victim].suspend()
    return Injected((victim,), PAUSE_S, nodes.by_id[victim].resume)


def _cut(nodes: Cluster, directions: Iterable[tuple[int, int]], victim: int) -> Injected:
    assert nodes.network is not None
    nodes.network.cut(directions)
    return Injected((victim,), CUT_S, nodes.network.heal)


def _isolate(nodes: Cluster, victim: int, random: Random) -> Injected:
    others = [number for number in nodes.by_id if number != victim]
    both = [pair for other in others for pair in ((victim, other), (other, victim))]
    return _cut(nodes, both, victim)


def _mute(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Let a node hear the others, and be heard by none."""
    return _cut(nodes, [(victim, other) for other in nodes.by_id if other != victim], victim)


def _deafen(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Let a node be heard, and hear none."""
    return _cut(nodes, [(other, victim) for other in nodes.by_id if other != victim], victim)


def _cut_pair(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Cut one of the three wires: each node still reaches one other."""
    other = random.choice([number for number in nodes.by_id if number != victim])
    return _cut(nodes, [(victim, other), (other, victim)], victim)


def _fill(nodes: Cluster, victim: int, random: Random) -> Injected:
    nodes.fill_disk(victim)

    def heal() -> None:
        nodes.empty_disk(victim)
        if not nodes.by_id[victim].is_running:
            nodes.restart(victim)

    return Injected((victim,), FULL_S, heal)


def _cut_power(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Cut the power of all nodes at once."""
    assert isinstance(nodes, ChaosNodes)
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
) -> Callable[[Cluster, int, Random], Injected]:
    """Return the fault in which calls of a node on files with `match` in their path fail with EIO."""

    def inject(nodes: Cluster, victim: int, random: Random) -> Injected:
        nodes.calls[victim].fail(reads=reads, writes=writes, syncs=syncs, match=match)

        def heal() -> None:
            assert nodes.calls[victim].end(), f"no call of node {victim} has failed"
            nodes.stop(victim)
            nodes.restart(victim)

        return Injected((victim,), ERRORS_S, heal)

    return inject


def _fail_metadata(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Let writes to the metadata log fail, and change the metadata, so that there are some."""
    injected = _fail_calls(METADATA, writes=ALL, syncs=ALL)(nodes, victim, random)
    nodes.change_metadata("records")
    return injected


def _fail_start(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Restart a node that cannot read its partitions."""
    node = nodes.by_id[victim]
    node.stop()
    nodes.calls[victim].fail(reads=ALL, match=PARTITIONS)
    node.start()

    def heal() -> None:
        assert nodes.calls[victim].end(), f"no call of node {victim} has failed"
        nodes.stop(victim)
        nodes.restart(victim)

    return Injected((victim,), ERRORS_S, heal)


def _slow_down(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Let every call on the disk take longer, and syncs much longer."""
    nodes.calls[victim].delay(reads_ms=SLOW_CALL_MS, writes_ms=SLOW_CALL_MS, syncs_ms=SLOW_SYNC_MS)

    def heal() -> None:
        assert nodes.calls[victim].end(), f"no call of node {victim} was slow"
        assert nodes.by_id[victim].is_running, f"node {victim} has ended because its disk was slow"

    return Injected((victim,), SLOW_S, heal)


def _step_clock(hours: int) -> Callable[[Cluster, int, Random], Injected]:
    """Return the fault in which the clock of a node is stepped, and back at the end."""

    def inject(nodes: Cluster, victim: int, random: Random) -> Injected:
        nodes.calls[victim].set_clock(hours * 3600)

        def heal() -> None:
            nodes.calls[victim].end()
            assert nodes.by_id[victim].is_running, f"node {victim} has ended because its clock was stepped"

        return Injected((victim,), STEP_S, heal)

    return inject


def _expire_certificate(nodes: Cluster, victim: int, random: Random) -> Injected:
    """Let the certificate of a node expire, and replace it without a restart."""
    node = nodes.by_id[victim]
    starts = len(node.events("ready"))
    expired = len(node.events("certificate_expired"))

    def replace(valid_days: float) -> None:
        loads = len(node.events("certificates_reloaded"))
        nodes.issue_certificate(victim, valid_days)
        node.reload()
        eventually(lambda: len(node.events("certificates_reloaded")) > loads, what="a new certificate")

    replace(EXPIRES_S / 86_400)
    eventually(lambda: "certificate has expired" in _refusal(nodes, node.http), what="an expired certificate")

    def heal() -> None:
        # The metric of the alert, and the log, say so while the node serves with it.
        assert _seconds_left(node.http) < 0
        eventually(lambda: len(node.events("certificate_expired")) > expired, what="an event in the log")
        replace(90)
        assert not _refusal(nodes, node.http)
        assert _seconds_left(node.http) > 0
        assert len(node.events("ready")) == starts, f"node {victim} was started again"

    return Injected((victim,), CERTIFICATE_S, heal)


def _refusal(nodes: Cluster, address: str) -> str:
    """Return why a client refuses the certificate of a node; empty if it does not."""
    connection = nodes.connect(address)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        connection.close()
    return ""


def _seconds_left(address: str) -> float:
    """Return when the certificate of a node expires, as its metrics say."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = HTTPSConnection(address, timeout=CALL_S, context=context)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = re.search(
        r'^alpacamq_certificate_expiry_seconds{setting="tls.certificate"} (\S+)', text, re.MULTILINE
    )
    assert found, "no metric of the certificate"
    return float(found[1])


_NETWORK, _DISKS, _CALLS = Needs(network=True), Needs(disks=True), Needs(calls=True)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", _kill),
        Fault("quick-kill", _kill_quickly),
        Fault("restart", _restart),
        Fault("drain", _drain),
        Fault("pause", _pause),
        Fault("isolate", _isolate, _NETWORK),
        Fault("mute", _mute, _NETWORK),
        Fault("deafen", _deafen, _NETWORK),
        Fault("cut-pair", _cut_pair, _NETWORK),
        Fault("full-disk", _fill, _DISKS),
        Fault("power-cut", _cut_power, _DISKS, in_containers=False),
        Fault("sync-error", _fail_calls(f"{PARTITIONS}records-", syncs=1), _CALLS),
        Fault("sync-errors", _fail_calls(PARTITIONS, syncs=ALL), _CALLS),
        Fault("write-errors", _fail_calls(PARTITIONS, writes=ALL), _CALLS),
        Fault("read-errors", _fail_calls(PARTITIONS, reads=ALL), _CALLS),
        Fault("metadata-errors", _fail_metadata, _CALLS),
        Fault("start-errors", _fail_start, _CALLS),
        Fault("slow-disk", _slow_down, _CALLS),
        Fault("clock-forward", _step_clock(STEP_HOURS), _CALLS),
        Fault("clock-back", _step_clock(-STEP_HOURS), _CALLS),
        Fault("expired-certificate", _expire_certificate, Needs(tls=True)),
    )
}


def possible_faults(*, in_containers: bool = False) -> dict[str, Fault]:
    """Return the faults that can be injected on this machine."""
    missing = {
        "network": missing_for_cuts(),
        "disks": missing_for_power_cuts(),
        "calls": missing_for_calls(),
    }
    return {
        name: fault
        for name, fault in FAULTS.items()
        if not any(reason and getattr(fault.needs, need) for need, reason in missing.items())
        and (fault.in_containers or not in_containers)
    }


def hold(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
