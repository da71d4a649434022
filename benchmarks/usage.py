"""Measures the cost of work: wall time, CPU time of server and client, the server's memory."""

import resource
import time
from types import TracebackType
from typing import Self

import msgspec
import psutil

MIB = 1 << 20


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one sample."""

    wall_s: float
    server_cpu_s: float
    client_cpu_s: float
    # All other processes on the machine, and the kernel.
    others_cpu_s: float
    server_rss_mib: float

    def over(self, seconds: float) -> "Usage":
        """Return the cost attributed to the part of the time that counts, without the client's set-up."""
        return msgspec.structs.replace(self, wall_s=seconds)

    @property
    def server_cores(self) -> float:
        """The number of cores used by the server; 1.0 is one whole core."""
        return self.server_cpu_s / self.wall_s

    @property
    def client_cores(self) -> float:
        return self.client_cpu_s / self.wall_s

    @property
    def others_cores(self) -> float:
        return self.others_cpu_s / self.wall_s


class Meter:
    """Measures between entering and leaving; the client is this process and its awaited children.

    The processes of a cluster are measured together.
    """

    def __init__(self, *server_pids: int) -> None:
        self._servers = [psutil.Process(pid) for pid in server_pids]
        self._usage: Usage | None = None

    def __enter__(self) -> Self:
        self._server_cpu_s = self._server_seconds()
        self._client_cpu_s = _client_seconds()
        self._machine_cpu_s = _machine_seconds()
        self._began_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall_s = time.monotonic() - self._began_at
        if error is None:
            server_cpu_s = self._server_seconds() - self._server_cpu_s
            client_cpu_s = _client_seconds() - self._client_cpu_s
            machine_cpu_s = _machine_seconds() - self._machine_cpu_s
            self._usage = Usage(
                wall_s=wall_s,
                server_cpu_s=server_cpu_s,
                client_cpu_s=client_cpu_s,
                others_cpu_s=max(machine_cpu_s - server_cpu_s - client_cpu_s, 0.0),
                server_rss_mib=sum(each.memory_info().rss for each in self._servers) / MIB,
            )

    @property
    def usage(self) -> Usage:
        assert self._usage is not None, "still measuring"
        return self._usage

    def _server_seconds(self) -> float:
        spent = [each.cpu_times() for each in self._servers]
        return sum(each.user + each.system for each in spent)


def _machine_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _client_seconds() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in spent)
