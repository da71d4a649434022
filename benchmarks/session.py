"""The context of a benchmark: duration, servers, clients, reports."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from .apache_kafka import apache_kafka
from .c_client import CannotBuild, CClient
from .clients import Client
from .confluent import ConfluentClient
from .jars import Unavailable
from .machine import client_versions
from .report import Report
from .servers import AlpacaMQ, Contender, Server, running

# Not the usual directory for temporary files, which is often in memory: data must be on a disk.
ROOM = Path("/var/tmp")  # noqa: S108 - a new directory is created inside

# The machine is idle while at most this much of a core is in use.
QUIET_CORES = 0.2
SETTLE_STEP_S = 0.5
PATIENCE_S = 300.0


class Session:
    """One run of the benchmarks, quick or in full."""

    def __init__(self, directory: Path, contenders: Sequence[Contender], clients: Sequence[Client]) -> None:
        self.directory = directory
        self.contenders = contenders
        self.clients = clients
        self.client_versions = client_versions()
        self.unavailable: list[tuple[str, str]] = []
        self.is_quick = False
        self._directories = 0
        self._patience_s = PATIENCE_S

    @property
    def repeats(self) -> int:
        """Samples per measurement."""
        return 1 if self.is_quick else 3

    def scaled(self, full: int, quick: int) -> int:
        """Return an amount of work."""
        return quick if self.is_quick else full

    def settle(self) -> None:
        """Wait until the machine is idle, before a sample is taken.

        By then, writes left by the previous sample are done, and other work on the machine has ended.
        The total wait of a run is limited; after that, samples are taken at once and record the other
        load.
        """
        if self.is_quick:
            return
        while self._patience_s > 0:
            busy_share = psutil.cpu_percent(SETTLE_STEP_S) / 100
            if busy_share * (os.cpu_count() or 1) <= QUIET_CORES:
                return
            self._patience_s -= SETTLE_STEP_S

    def new_directory(self) -> Path:
        self._directories += 1
        return self.directory / f"server-{self._directories}"

    @contextmanager
    def server(self, contender: Contender) -> Iterator[Server]:
        """Run a new server on an empty directory, for the duration of the block."""
        # The first fsync of this server would wait for writes left by earlier ones.
        os.sync()
        with running(contender, self.new_directory()) as server:
            yield server

    def note_unavailable(self, report: Report) -> None:
        for what, reason in self.unavailable:
            report.skip(what, reason)


@contextmanager
def session(*, is_quick: bool) -> Iterator[Session]:
    """Set up everything available on this machine; a quick run has no peer."""
    with tempfile.TemporaryDirectory(prefix="alpacamq-bench-", dir=ROOM) as made:
        directory = Path(made)
        clients: list[Client] = [ConfluentClient()]
        contenders: list[Contender] = [AlpacaMQ()]
        opened = Session(directory, contenders, clients)
        opened.is_quick = is_quick
        try:
            c_client = CClient.build(directory)
        except CannotBuild as error:
            opened.unavailable.append((CClient.name, str(error)))
        else:
            clients.append(c_client)
            opened.client_versions["librdkafka in the C client"] = c_client.library_version
        if is_quick:
            opened.unavailable.append(("Apache Kafka", "a quick run is without its peer"))
        else:
            try:
                contenders.append(_started_once(apache_kafka(), directory / "peer"))
            except Unavailable as error:
                opened.unavailable.append(("Apache Kafka", str(error)))
        yield opened


def _started_once(contender: Contender, directory: Path) -> Contender:
    """Return a peer that has been seen to start, so that no benchmark ends because it does not."""
    with running(contender, directory):
        return contender
