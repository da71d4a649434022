"""A journal that a group member writes while it runs, so that its history survives a kill -9.

Times are CLOCK_MONOTONIC, which all processes of a machine share. Deliveries are written before the
commit that covers them: a record that is committed but in no journal was lost.
"""

import os
import time
from pathlib import Path

import msgspec

# Deliveries are written in runs of at most this duration, so that no relevant pause hides in one.
RUN_NS = 20_000_000


class Assigned(msgspec.Struct, frozen=True, tag="assigned"):
    """Partitions were assigned to the member, in a generation (or epoch) of its group."""

    at_ns: int
    generation: int
    partitions: tuple[int, ...]


class Revoked(msgspec.Struct, frozen=True, tag="revoked"):
    """The member gave up partitions, or found that it had lost them earlier."""

    at_ns: int
    partitions: tuple[int, ...]
    was_lost: bool = False


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """Consecutive records of one partition: offsets, delivery times, and the first one's creation time."""

    partition: int
    first: int
    last: int
    began_ns: int
    ended_ns: int
    created_ms: int


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The broker has acknowledged a commit."""

    at_ns: int
    offsets: dict[int, int]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The broker or the client library returned an error."""

    at_ns: int
    reason: str


Event = Assigned | Revoked | Delivered | Committed | Refused


class Journal:
    """Writes a journal, and tracks the delivered offset of each partition."""

    def __init__(self, path: Path) -> None:
        self.positions: dict[int, int] = {}
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._runs: dict[int, Delivered] = {}

    def assigned(self, generation: int, partitions: list[int]) -> None:
        self._write(Assigned(time.monotonic_ns(), generation, tuple(sorted(partitions))))

    def revoked(self, partitions: list[int], *, was_lost: bool = False) -> None:
        self.flush()
        for partition in partitions:
            self.positions.pop(partition, None)
        self._write(Revoked(time.monotonic_ns(), tuple(sorted(partitions)), was_lost))

    def delivered(self, partition: int, offset: int, created_ms: int) -> None:
        now_ns = time.monotonic_ns()
        run = self._runs.get(partition)
        if run is not None and run.last + 1 == offset and now_ns - run.began_ns < RUN_NS:
            self._runs[partition] = Delivered(partition, run.first, offset, run.began_ns, now_ns, created_ms)
        else:
            if run is not None:
                self._write(run)
            self._runs[partition] = Delivered(partition, offset, offset, now_ns, now_ns, created_ms)
        self.positions[partition] = offset + 1

    def committed(self, offsets: dict[int, int]) -> None:
        self._write(Committed(time.monotonic_ns(), offsets))

    def refused(self, reason: object) -> None:
        self._write(Refused(time.monotonic_ns(), str(reason)))

    def flush(self) -> None:
        """Write the deliveries so far."""
        for run in self._runs.values():
            self._write(run)
        self._runs.clear()

    def _write(self, event: Event) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")


class JournalReader:
    """Reads a journal: the events so far."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._path = path
        self._at = 0
        self._decoder = msgspec.json.Decoder(Event)

    def read_more(self) -> list[Event]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at += len(whole)
            self.events += [self._decoder.decode(line) for line in whole.splitlines()]
        return self.events
