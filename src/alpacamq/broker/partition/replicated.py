"""The appends of a led partition that wait for its other replicas.

The core (`replication.leader`) decides when they are replicated; this object keeps them in order and ends
their wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from alpacamq.model.errors import (
    AlpacaError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
from alpacamq.replication.leader import PartitionLeader

from .appends import Acks, Append, fail


class _Waiting(NamedTuple):
    end_offset: int
    append: Append
    # Loop time; None: no limit.
    deadline: float | None


class Replicated:
    """The core of a led partition in one leader epoch, and the appends that wait for it."""

    __slots__ = ("_has_traced", "_timer", "_waiting", "core")

    def __init__(self, core: PartitionLeader) -> None:
        self.core = core
        # In ascending order of offsets.
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # Whether one of them may have a trace that does not know yet when it was flushed.
        self._has_traced = False

    def admit(self, appends: Sequence[Append]) -> Sequence[Append]:
        """Refuse what requires more replicas than there are in sync; return the rest."""
        if not self.core.is_below_min_isr:
            return appends
        try:
            self.core.check_writable()
        except NotEnoughReplicas as error:
            fail([append for append in appends if append.acks is Acks.ALL], error)
        return [append for append in appends if append.acks is not Acks.ALL]

    def wait(self, append: Append, end_offset: int) -> None:
        """Complete an append once everything before `end_offset` is replicated."""
        if self._waiting:
            # A duplicate may be anywhere before the end of the log; those behind it need no other place.
            end_offset = max(end_offset, self._waiting[-1].end_offset)
        deadline = None
        if append.timeout_ms is not None:
            deadline = asyncio.get_running_loop().time() + append.timeout_ms / 1000
            self._plan(deadline)
        self._has_traced |= append.trace is not None
        self._waiting.append(_Waiting(end_offset, append, deadline))

    def note_flushed(self, offset: int) -> None:
        """Note in traces that everything before `offset` is on this broker's disk."""
        if not self._has_traced:
            return
        for waiting in self._waiting:
            if waiting.end_offset > offset:
                return
            if waiting.append.trace is not None:
                waiting.append.trace.flushed()
        self._has_traced = False

    def take_replicated(self) -> list[Append]:
        """Remove and return the appends whose wait is over; too few replicas in sync end it with an error."""
        ready: list[Append] = []
        waiting = self._waiting
        try:
            while waiting and self.core.is_replicated(waiting[0].end_offset):
                ready.append(waiting.popleft().append)
        except NotEnoughReplicasAfterAppend as error:
            for each in waiting:
                each.append.outcome = error.with_traceback(None)
                ready.append(each.append)
            waiting.clear()
        return ready

    def take_all(self) -> list[Append]:
        """Remove and return every append: the partition is not led in this epoch any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        appends = [each.append for each in self._waiting]
        self._waiting.clear()
        return appends

    def adopt(self, former: "Replicated") -> None:
        """Continue the wait for appends of the epoch before, which this broker led as well."""
        self._waiting = former._waiting
        former._waiting = deque()
        former.take_all()
        deadlines = [each.deadline for each in self._waiting if each.deadline is not None]
        if deadlines:
            self._plan(min(deadlines))

    def fail_all(self, error: AlpacaError) -> None:
        fail(self.take_all(), error)

    def _plan(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        # The timer is not stopped when its append completes, so often nothing is due.
        late = _split(self._waiting, lambda each: each.deadline is not None and each.deadline <= now)
        deadlines = [each.deadline for each in self._waiting if each.deadline is not None]
        if deadlines:
            self._plan(min(deadlines))
        if late:
            fail(late, RequestTimedOut("written, but not all replicas in sync have it within the timeout"))


def _split(waiting: deque[_Waiting], is_taken: Callable[[_Waiting], bool]) -> Iterable[Append]:
    """Remove and return the appends for which `is_taken`."""
    taken = [each.append for each in waiting if is_taken(each)]
    if taken:
        kept = [each for each in waiting if not is_taken(each)]
        waiting.clear()
        waiting.extend(kept)
    return taken
