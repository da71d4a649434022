"""The recent rebalances of a group, for operators. Not stored: a restart forgets them."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import msgspec

from .messages import GroupRequest

# Bounds of one group; there are up to 10,000 groups.
KEPT = 16
MAX_MEMBERS = 3
MAX_ID_LENGTH = 128


class RebalanceCause(StrEnum):
    """Why a group has rebalanced."""

    MEMBER_JOINED = "member-joined"
    MEMBER_LEFT = "member-left"
    # A static member came back with another subscription.
    MEMBER_REPLACED = "member-replaced"
    # A member has changed its subscription, process, rack or tags, or the leader of a classic group requests
    # a rebalance.
    MEMBER_REJOINED = "member-rejoined"
    SUBSCRIPTION_CHANGED = "subscription-changed"
    TOPICS_CHANGED = "topics-changed"
    TOPOLOGY_CHANGED = "topology-changed"
    SESSION_EXPIRED = "session-expired"
    # A member of a classic group did not request its assignment in time.
    SYNC_TIMED_OUT = "sync-timed-out"
    # A member of a consumer or streams group did not give up its assignment in time.
    REVOCATION_TIMED_OUT = "revocation-timed-out"


class RebalanceState(StrEnum):
    """How far a rebalance is. One is interrupted if the next begins before its end."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"


class Rebalanced(msgspec.Struct, kw_only=True):
    """One rebalance; `generation` is the new one, None before it is known.

    `members` are those that caused it, `member_count` is that of the group at its end.
    """

    cause: RebalanceCause
    members: tuple[str, ...]
    started_ms: int
    state: RebalanceState = RebalanceState.RUNNING
    ended_ms: int | None = None
    generation: int | None = None
    member_count: int | None = None


class RebalanceHistory:
    """The last rebalances of one group, and the running one."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[Rebalanced] = deque(maxlen=KEPT)

    @property
    def is_running(self) -> bool:
        return bool(self._entries) and self._entries[-1].state is RebalanceState.RUNNING

    def begin(self, cause: RebalanceCause, members: Sequence[str], now_ms: int) -> None:
        """Record the start of a rebalance, which interrupts the running one."""
        if self.is_running:
            running = self._entries[-1]
            running.state, running.ended_ms = RebalanceState.INTERRUPTED, now_ms
        named = tuple(member_id[:MAX_ID_LENGTH] for member_id in members[:MAX_MEMBERS])
        self._entries.append(Rebalanced(cause=cause, members=named, started_ms=now_ms))

    def set_generation(self, generation: int) -> None:
        """Record the number of the running rebalance."""
        if self.is_running:
            self._entries[-1].generation = generation

    def end(self, generation: int, member_count: int, now_ms: int) -> None:
        """Record the end of the running rebalance, if there is one."""
        if self.is_running:
            running = self._entries[-1]
            running.state, running.ended_ms = RebalanceState.COMPLETED, now_ms
            running.generation, running.member_count = generation, member_count

    def newest_first(self) -> tuple[Rebalanced, ...]:
        """Return copies of all entries."""
        return tuple(msgspec.structs.replace(entry) for entry in reversed(self._entries))


class RebalancesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The rebalances of a group, newest first."""

    rebalances: tuple[Rebalanced, ...]


class RebalancesRequest(GroupRequest[RebalancesReply], frozen=True, kw_only=True):
    """List the recent rebalances of a group."""

    IS_IDEMPOTENT: ClassVar[bool] = True
