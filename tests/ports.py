"""Ports of loopback for the servers that tests start, restart and kill.

While a server is down its port is free. So that nothing else takes it then, ports are not from the range of
outgoing connections, and each process that runs tests has a block of its own, also beside another suite.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path

# Enough for all brokers that a process starts: a client that a test has left behind would connect to a broker
# of a later one.
_BLOCK = 1000
_FIRST_PORTS = range(12_000, 32_000, _BLOCK)
# Some servers take ports behind the one that they are given, which are in the block, too.
_LONGEST_STEP = 100


def free_ports(count: int, *, steps: Sequence[int] = (0,)) -> list[int]:
    """Return ports that nothing listens on and that were not returned lately.

    Nothing listens on those either that are so many `steps` behind them.
    """
    ports: list[int] = []
    for port in islice(_ports(), _BLOCK - _LONGEST_STEP):
        if all(_is_free(port + step) for step in steps):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"{count} ports are asked for, but {len(ports)} of {_BLOCK} are free")


def lasting_address() -> str:
    """Return an address to keep across restarts."""
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


@cache
def _ports() -> Iterator[int]:
    """Go round the ports of a block that is this process's until it ends."""
    directory = Path(tempfile.gettempdir(), f"alpacamq-test-ports-{os.getuid()}")
    directory.mkdir(exist_ok=True)
    for first in random.SystemRandom().sample(_FIRST_PORTS, len(_FIRST_PORTS)):
        # Held, and with it the lock, until the process ends.
        lock = os.open(directory / str(first), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return cycle(range(first, first + _BLOCK - _LONGEST_STEP))
    raise RuntimeError(f"All {len(_FIRST_PORTS)} blocks of ports are taken, see {directory}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
