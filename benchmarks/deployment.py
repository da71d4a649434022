"""What do three nodes on one machine need: time to start, memory and processor when idle, time to restore?

Memory is proportional (PSS: pages that processes share are divided among them) and resident, for each node.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time

import httpx
import psutil

from . import topics
from .clients import Load
from .clusters import AlpacaCluster, ClusterServer
from .machine import REPOSITORY
from .report import OURS, Floor, Report
from .session import Session
from .usage import MIB

READY = Floor(at_most=10.0)
IDLE_MEMORY = Floor(at_most=150.0)
RESTORE = Floor(at_least=200.0)
READY_S = 60.0
POLL_S = 0.01
MESSAGE_BYTES = 1000
PARTITIONS = 12
# Of decimal megabytes.
MB = 1_000_000


def run(session: Session, report: Report) -> None:
    _nodes(session, report)
    _restore(session, report)


def _nodes(session: Session, report: Report) -> None:
    """Start three nodes on empty directories, and look at them a minute later."""
    ready_s: list[float] = []
    pss: list[float] = []
    rss: list[float] = []
    cores: list[float] = []
    idle_s = session.scaled(60, 2)
    for _ in range(session.scaled(3, 1)):
        session.settle()
        began_at = time.monotonic()
        with session.server(AlpacaCluster()) as cluster:
            assert isinstance(cluster, ClusterServer)
            for address in cluster.http.values():
                _wait_until_ready(address)
            ready_s.append(time.monotonic() - began_at)
            time.sleep(idle_s)
            processes = [psutil.Process(pid) for pid in cluster.pids]
            before = [_cpu_s(process) for process in processes]
            time.sleep(idle_s)
            for process, spent_s in zip(processes, before, strict=True):
                memory = process.memory_full_info()
                pss.append(memory.pss / MIB)
                rss.append(memory.rss / MIB)
                cores.append((_cpu_s(process) - spent_s) / idle_s)
    case = "three nodes"
    report(case=f"{case}, until each is ready", server=OURS, unit="s", samples=ready_s, floor=READY)
    idle = f"{case}, each after a minute without clients"
    report(case=idle, server=OURS, unit="MiB resident", samples=rss, floor=IDLE_MEMORY)
    report(case=idle, server=OURS, unit="MiB proportional", samples=pss)
    report(case=idle, server=OURS, unit="cores", samples=cores)


def _wait_until_ready(address: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            if httpx.get(f"http://{address}/readyz", timeout=READY_S).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > until:
            raise TimeoutError(f"{address} is not ready")
        time.sleep(POLL_S)


def _cpu_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def _restore(session: Session, report: Report) -> None:
    """Back up a stopped node, and make a data directory of the copy."""
    directory = session.new_directory()
    count = session.scaled(1_000_000, 20_000)
    rates: dict[str, list[float]] = {"backup": [], "restore": []}
    cpu_s: dict[str, list[float]] = {"backup": [], "restore": []}
    backup, restored = directory.with_name("backup"), directory.with_name("restored")
    try:
        server = session.contenders[0].start(directory)
        try:
            topics.create(server.address, "kept", PARTITIONS)
            load = Load(topic="kept", partitions=PARTITIONS, size=MESSAGE_BYTES, count=count)
            session.clients[-1].produce(server.address, load, "all")
            server.stop()
        finally:
            server.kill()
        for _ in range(session.repeats):
            for name, source, target in (
                ("backup", ("--data-dir", directory / "data"), ("--to", backup)),
                ("restore", ("--from", backup), ("--data-dir", restored)),
            ):
                shutil.rmtree(target[1], ignore_errors=True)
                os.sync()  # what was written before is not a part of it
                session.settle()
                took = _command(name, *map(str, (*source, *target)))
                rates[name].append(took["size_bytes"] / MB / took["seconds"])
                cpu_s[name].append(took["cpu_s"] / (took["size_bytes"] / 1e9))
    finally:
        for path in (directory, backup, restored):
            shutil.rmtree(path, ignore_errors=True)
    size = f"{count * MESSAGE_BYTES / 1e9:g} GB in {PARTITIONS} partitions"
    for name, samples in rates.items():
        case = f"{name} of {size}"
        floor = RESTORE if name == "restore" else None
        report(case=case, server=OURS, unit="MB/s", samples=samples, floor=floor)
        report(case=case, server=OURS, unit="CPU s per GB", samples=cpu_s[name])


def _command(*words: str) -> dict[str, float]:
    """Run a command of `alpacamq`; return its report and the processor time it took."""
    command = [sys.executable, "-m", "alpacamq.node.main", *words, "-o", "json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, env={"PYTHONPATH": str(REPOSITORY / "src")}
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(ran.stdout), "cpu_s": cpu_s}
