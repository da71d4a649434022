"""What a benchmark is given: how long to measure, on what, and where to report."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .apache_kafka import Unavailable, apache_kafka
from .c_client import CannotBuild, CClient
from .clients import Client
from .confluent import ConfluentClient
from .machine import client_versions
from .report import Report
from .servers import AlpacaMQ, Contender, Server, running

# Not the usual place for temporary files, which is often memory: data must meet a disk.
ROOM = Path("/var/tmp")  # noqa: S108 - a fresh directory is made inside


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

    @property
    def repeats(self) -> int:
        """Samples per figure."""
        return 1 if self.is_quick else 3

    def scaled(self, full: int, quick: int) -> int:
        """An amount of work."""
        return quick if self.is_quick else full

    def new_directory(self) -> Path:
        self._directories += 1
        return self.directory / f"server-{self._directories}"

    @contextmanager
    def server(self, contender: Contender) -> Iterator[Server]:
        """A fresh server on an empty directory, for the duration of the block."""
        # What earlier servers left to be written would be waited for by the first fsync of this one.
        os.sync()
        with running(contender, self.new_directory()) as server:
            yield server

    def note_unavailable(self, report: Report) -> None:
        for what, reason in self.unavailable:
            report.skip(what, reason)


@contextmanager
def session(*, is_quick: bool) -> Iterator[Session]:
    """Everything set up that this machine allows; a quick run has no peer."""
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
                contenders.append(apache_kafka())
            except Unavailable as error:
                opened.unavailable.append(("Apache Kafka", str(error)))
        yield opened
