"""Metrics of the process, its event loop and its disk."""

import os
import platform
import resource
import time
from contextlib import suppress
from pathlib import Path

from alpacamq import __version__
from alpacamq.broker.broker import Broker
from alpacamq.broker.health import all_checks
from alpacamq.telemetry import metrics_catalogue as m

from .exposition import Exposition

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# Field of /proc/self/stat after the name in parentheses: start of the process, in ticks since boot.
_STARTED_FIELD = 19


def collect(text: Exposition, broker: Broker) -> None:
    labels = (__version__, platform.python_version(), str(broker.settings.node_id), broker.cluster_id)
    text.add(m.BUILD_INFO, {labels: 1})
    text.add(m.HEALTH, {(name,): int(check.is_ok) for name, check in all_checks(broker).items()})
    usage = resource.getrusage(resource.RUSAGE_SELF)
    text.one(m.CPU_SECONDS, usage.ru_utime + usage.ru_stime)
    with suppress(OSError):  # not available without /proc
        size_pages, resident_pages, *_ = Path("/proc/self/statm").read_text().split()
        text.one(m.RESIDENT_MEMORY, int(resident_pages) * _PAGE_BYTES)
        text.one(m.VIRTUAL_MEMORY, int(size_pages) * _PAGE_BYTES)
        text.one(m.OPEN_FDS, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        text.one(m.START_TIME, _started_at())
    text.one(m.MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError):  # the health check reports the disk error; the other metrics are still needed
        room = os.statvfs(broker.settings.data_directory)
        text.one(m.DISK_FREE, room.f_bavail * room.f_frsize)
        text.one(m.DISK_SIZE, room.f_blocks * room.f_frsize)
    text.histograms(m.LOOP_LAG, [((), broker.event_loop.lag)])
    text.one(m.LOOP_STALLS, broker.event_loop.stalls)
    if broker.metrics is not None:
        text.histograms(m.FLUSH_SECONDS, [((), broker.metrics.flushes.seconds)])
        text.one(m.FLUSH_FAILURES, broker.metrics.flushes.failed)
        text.one(m.FLUSHES_POSTPONED, broker.metrics.flushes.postponed)


def _started_at() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot_at + int(fields[_STARTED_FIELD]) / _TICKS, 2)
