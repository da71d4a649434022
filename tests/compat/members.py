"""Starts, watches, stops and kills members of groups."""

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.brokers import Output
from tests.waiting import eventually

STOP_S = 30.0
# On a busy machine a member may be silent for seconds, and reads again what it could not commit.
SESSION_MS = 30_000
CLOSING_S = 40.0


class Style(NamedTuple):
    """A client and its assignor."""

    client: str
    assignor: str

    def __str__(self) -> str:
        return f"{self.client}-{self.assignor}"


class Member:
    """One member process."""

    def __init__(
        self,
        style: Style,
        address: str,
        group: str,
        topic: str,
        *,
        instance: str = "",
        session_ms: int = SESSION_MS,
    ) -> None:
        command = [sys.executable, "-m", "tests.compat.member", style.client, address, group, topic]
        command += ["--assignor", style.assignor, "--session-ms", str(session_ms)]
        if instance:
            command += ["--instance", instance]
        # A test run that dies without its clean-up must leave no members running.
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.output = Output(self._process.stdout)
        self._errors = Output(self._process.stderr)

    def stop(self) -> None:
        """Leave the group and end."""
        self._process.send_signal(signal.SIGTERM)
        self._end()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._end()

    def end(self) -> None:
        """Kill the process if it is still running."""
        if self._process.poll() is None:
            self.kill()

    @property
    def owned(self) -> tuple[int, ...]:
        """The partitions it reported last."""
        said = [line for line in list(self.output.lines) if line.startswith("owns")]
        return _numbers(said[-1]) if said else ()

    @property
    def losses(self) -> list[tuple[int, ...]]:
        """The partitions it had to give up, each time."""
        given_up = [_numbers(line) for line in list(self.output.lines) if line.startswith("lost")]
        return [partitions for partitions in given_up if partitions]

    @property
    def values(self) -> list[str]:
        """The values it has read, in order."""
        return [value for _, _, value in self.reads]

    @property
    def reads(self) -> list[tuple[str, str, str]]:
        """The partition, offset and value of each record it has read, in order."""
        lines = [line for line in list(self.output.lines) if line.startswith("read")]
        return [
            (partition, offset, value)
            for _, partition, offset, value in (each.split(" ", 3) for each in lines)
        ]

    def full_output(self) -> str:
        """Return all its output, for failure messages."""
        lines = [line for line in self.output.lines if not line.startswith("read")]
        return "\n".join([*lines, f"({len(self.values)} records)", self._errors.text()])

    def _end(self) -> None:
        self._process.wait(STOP_S)
        self.output.drain()
        self._errors.drain()


def _numbers(line: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", line))


@contextmanager
def members_of(address: str, group: str, topic: str) -> Iterator[Callable[..., Member]]:
    """Start members of one group; all are ended on exit."""
    started: list[Member] = []

    def start(style: Style, *, instance: str = "", session_ms: int = SESSION_MS) -> Member:
        member = Member(style, address, group, topic, instance=instance, session_ms=session_ms)
        started.append(member)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.end()


def settled(members: Sequence[Member], partitions: int, *, within_s: float = CLOSING_S) -> None:
    """Wait until each partition has one owner and they are evenly distributed."""

    def is_settled() -> bool:
        owned = [partition for member in members for partition in member.owned]
        return sorted(owned) == list(range(partitions)) and all(
            abs(len(member.owned) - partitions / len(members)) < 1 for member in members
        )

    try:
        eventually(is_settled, within_s=within_s)
    except AssertionError:
        raise AssertionError("\n\n".join(member.full_output() for member in members)) from None


def all_read(members: Sequence[Member], values: Sequence[str], *, within_s: float = CLOSING_S) -> None:
    """Wait until every value has been read by a member."""

    def missing() -> Counter[str]:
        return Counter(values) - Counter(value for member in members for value in member.values)

    try:
        eventually(lambda: not missing(), within_s=within_s)
    except AssertionError:
        stories = "\n\n".join(member.full_output() for member in members)
        raise AssertionError(f"not read: {list(missing())[:20]}\n{stories}") from None


def read_once(members: Sequence[Member], values: Sequence[str]) -> None:
    """Check that every value was read by one member, once."""
    surplus = Counter(value for member in members for value in member.values) - Counter(values)
    if not surplus:
        return
    # Tells records that were written twice, at different offsets, from those read twice.
    places: dict[str, list[str]] = {}
    for member in members:
        for partition, offset, value in member.reads:
            places.setdefault(value, []).append(f"{partition}/{offset}")
    repeated = "\n".join(f"{value}: {', '.join(places[value])}" for value in list(surplus)[:20])
    stories = "\n\n".join(member.full_output() for member in members)
    raise AssertionError(f"read more than once, at partition/offset:\n{repeated}\n{stories}")
