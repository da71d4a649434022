"""Sessions of brokers with the controller: what it knows about them beyond the metadata log.

All of it is lost when another node becomes controller, and comes back with the next heartbeats. Until a
broker has been heard, nothing that needs its word is decided.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from alpacamq.model.ids import BrokerId

from .partition_state import PartitionId

# A broker that runs sends a heartbeat, or repeats one, within this share of the time after which it is dead.
GRACE_SHARE = 3


@dataclass(slots=True)
class Session:
    """The session of one broker."""

    # When it ends without another heartbeat; None once it has ended.
    ends_ms: int | None = None
    # Whether it was prolonged once without a heartbeat, after a pause of the controller.
    has_grace: bool = False
    # Whether the broker has told this controller which of its replicas are damaged.
    is_heard: bool = False
    damaged: frozenset[PartitionId] = frozenset()
    # Whether it registered with another directory than before, or an older state of it.
    has_lost_data: bool = False
    # Whether its disk is full or fails: it can neither lead nor keep up.
    is_disk_failing: bool = False
    applied_index: int = 0
    # The metadata that it must have applied before it is unfenced.
    registered_index: int = 0
    # Since its leaders have moved: the metadata that says so, and when to stop waiting for it.
    shutdown_index: int | None = None
    shutdown_ends_ms: int = 0
    # How far its wall clock was ahead of cluster time at its last heartbeat; None if it did not say.
    clock_ahead_ms: int | None = None


# Of a broker that is not registered.
_NO_SESSION = Session()


class Sessions:
    """The sessions of all brokers."""

    def __init__(self, dead_ms: int) -> None:
        self._dead_ms = dead_ms
        self._sessions: dict[int, Session] = {}

    def of(self, broker_id: int) -> Session:
        return self._sessions.setdefault(broker_id, Session())

    def begin(self, broker_id: BrokerId, now_ms: int) -> Session:
        """Begin the session of a new registration."""
        session = self._sessions[broker_id] = Session(ends_ms=now_ms + self._dead_ms)
        return session

    def extend(self, broker_id: BrokerId, now_ms: int) -> Session:
        session = self.of(broker_id)
        session.ends_ms = now_ms + self._dead_ms
        session.has_grace = False
        return session

    def give_grace(self, now_ms: int) -> None:
        """Let no session end for a while, once: heartbeats that came meanwhile wait to be handled."""
        for session in self._sessions.values():
            if session.ends_ms is not None and not session.has_grace:
                session.has_grace = True
                session.ends_ms = max(session.ends_ms, now_ms + self._dead_ms // GRACE_SHARE)

    def end(self, broker_id: BrokerId) -> None:
        """End a session; what the broker said about damage is kept until it says otherwise."""
        self.of(broker_id).ends_ms = None

    def forget(self, broker_id: BrokerId) -> None:
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        ends_ms = self.of(broker_id).ends_ms
        return ends_ms is not None and now_ms < ends_ms

    def is_damaged(self, broker_id: int, partition: PartitionId) -> bool:
        return partition in self._sessions.get(broker_id, _NO_SESSION).damaged

    def is_heard(self, broker_id: int) -> bool:
        return self._sessions.get(broker_id, _NO_SESSION).is_heard

    def has_lost_data(self, broker_id: int) -> bool:
        return self._sessions.get(broker_id, _NO_SESSION).has_lost_data

    def is_disk_failing(self, broker_id: int) -> bool:
        return self._sessions.get(broker_id, _NO_SESSION).is_disk_failing

    def ended(self, now_ms: int) -> list[BrokerId]:
        """Return the brokers whose sessions have run out."""
        return [
            BrokerId(broker_id)
            for broker_id, session in self._sessions.items()
            if session.ends_ms is not None and session.ends_ms <= now_ms
        ]

    @property
    def next_end_ms(self) -> int | None:
        return min(
            (each.ends_ms for each in self._sessions.values() if each.ends_ms is not None), default=None
        )

    def clocks_ahead_ms(self) -> list[int]:
        """Return how far the clocks of the brokers with a session are ahead of cluster time."""
        return [
            session.clock_ahead_ms
            for session in self._sessions.values()
            if session.ends_ms is not None and session.clock_ahead_ms is not None
        ]

    def have_applied(self, brokers: Iterable[int], index: int) -> bool:
        """Return whether all of these brokers have applied the metadata up to `index`."""
        return all(self.of(broker).applied_index >= index for broker in brokers)
