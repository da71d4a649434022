"""A snapshot taken while its machine runs: one entry after each event."""

from collections.abc import Iterator
from typing import Protocol

from alpacamq.model.state_machine import Change


class Machine(Protocol):
    """A state machine that can be stored."""

    def snapshot(self) -> Iterator[Change]: ...


class SlowSnapshot:
    """Takes one snapshot after the other, as the host of a machine does between events."""

    def __init__(self) -> None:
        self._entries: Iterator[Change] | None = None
        self._taken: list[Change] = []
        self._later: list[Change] = []

    def after_event(self, machine: Machine, changes: list[Change]) -> list[Change] | None:
        """Take one more entry; return the whole snapshot if it was the last."""
        if self._entries is None:
            self._entries = machine.snapshot()
            self._taken, self._later = [], []
        else:
            self._later += changes
        if (entry := next(self._entries, None)) is not None:
            self._taken.append(entry)
            return None
        self._entries = None
        return self._taken + self._later

    def give_up(self) -> None:
        """Discard the snapshot, because the machine is replaced."""
        self._entries = None
