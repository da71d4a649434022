"""Share sessions: a share consumer sends its partitions once, then only changes.

A session is bound to the connection that opened it. When that closes, or the session is evicted, the
records of its member are released.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from alpacamq.coordinator.share.messages import MemberExpired
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicId

MAX_SESSIONS = 2000
MAX_SESSION_PARTITIONS = 10_000
MAX_CACHED_PARTITIONS = 200_000
IDLE_SECONDS = 120.0

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_INT32 = 2**31 - 1

PartitionKey = tuple[TopicId, int]
SessionKey = tuple[str, str]


class ShareSessionNotFound(AlpacaError):
    """The session does not exist or has ended."""


class InvalidShareSessionEpoch(AlpacaError):
    """The epoch of a request is not the next of its session."""


class ShareSessionLimitReached(AlpacaError):
    """The limit of sessions in use is reached."""


class ShareSession:
    """The partitions that one member fetches from, and those that it may hold records of.

    A member has a session with each broker that leads partitions for it.
    """

    def __init__(self, key: SessionKey, ended: Callable[["ShareSession"], None]) -> None:
        self.key = key
        self.next_epoch = 1
        self.partitions: OrderedDict[PartitionKey, None] = OrderedDict()
        self.held: dict[str, set[int]] = {}
        self.used_at = 0.0
        self.is_open = True
        self._ended = ended

    def update(self, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Apply the partitions that a request adds and removes."""
        for key in added:
            self.partitions.setdefault(key)
        for key in forgotten:
            self.partitions.pop(key, None)

    def served(self, key: PartitionKey) -> None:
        """Move partitions with records to the end, so that none starves others."""
        if key in self.partitions:
            self.partitions.move_to_end(key)

    def departure(self) -> MemberExpired:
        """Return the records to release when the session ends: those of other brokers' partitions are not."""
        group, member_id = self.key
        partitions = {topic: tuple(sorted(indexes)) for topic, indexes in self.held.items()}
        topics = tuple(sorted(self.held))
        return MemberExpired(group=group, member_id=member_id, topics=topics, partitions=partitions)

    def end(self) -> None:
        """Unbind the ended session from its connection."""
        self.is_open = False
        self._ended(self)


class ShareSessions:
    """The sessions of all members."""

    def __init__(self, give_back: Callable[[MemberExpired], None]) -> None:
        self._give_back = give_back
        self._sessions: OrderedDict[SessionKey, ShareSession] = OrderedDict()
        self._cached_partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        key: SessionKey,
        partitions: Iterable[PartitionKey],
        now: float,
        ended: Callable[[ShareSession], None],
    ) -> ShareSession:
        """Open a session, replacing the one that the member has.

        The member keeps its records: it opens a new session when it has lost track of epochs.
        """
        held: dict[str, set[int]] = {}
        if (former := self._sessions.get(key)) is not None:
            held = former.held
            self._remove(former)
        if len(self._sessions) >= MAX_SESSIONS or self._cached_partitions >= MAX_CACHED_PARTITIONS:
            self._make_room(now)
        session = ShareSession(key, ended)
        session.held = held
        session.used_at = now
        self._sessions[key] = session
        self._update(session, partitions, (), now)
        return session

    def proceed(
        self,
        key: SessionKey,
        epoch: int,
        now: float,
        added: Iterable[PartitionKey] = (),
        forgotten: Iterable[PartitionKey] = (),
    ) -> ShareSession:
        """Return the updated session of a request with this epoch."""
        session = self.find(key)
        if epoch != session.next_epoch:
            raise InvalidShareSessionEpoch(
                f"the share session of member {key[1]!r} is at epoch {session.next_epoch}, not {epoch}"
            )
        session.used_at = now
        self._sessions.move_to_end(key)
        self._update(session, added, forgotten, now)
        session.next_epoch = session.next_epoch % _MAX_INT32 + 1
        return session

    def find(self, key: SessionKey) -> ShareSession:
        """Return the session of a member; raise ShareSessionNotFound."""
        if (session := self._sessions.get(key)) is None:
            raise ShareSessionNotFound(f"member {key[1]!r} of group {key[0]!r} has no share session")
        return session

    def drop(self, session: ShareSession) -> None:
        """End a session and release the records of its member."""
        if self._sessions.get(session.key) is session:
            self._remove(session)
            self._give_back(session.departure())

    def drop_of(self, key: SessionKey) -> None:
        """End the session of a member, if it has one."""
        if (session := self._sessions.get(key)) is not None:
            self.drop(session)

    def close(self, session: ShareSession) -> MemberExpired:
        """End a session on request of its member; the caller releases its records."""
        if self._sessions.get(session.key) is session:
            self._remove(session)
        return session.departure()

    def _make_room(self, now: float) -> None:
        """Evict the least recently used session if it is idle long enough."""
        idlest = next(iter(self._sessions.values()))
        if now - idlest.used_at < IDLE_SECONDS:
            raise ShareSessionLimitReached(
                f"{len(self._sessions)} share sessions with {self._cached_partitions} partitions "
                "are in use already"
            )
        self.drop(idlest)

    def _update(
        self,
        session: ShareSession,
        added: Iterable[PartitionKey],
        forgotten: Iterable[PartitionKey],
        now: float,
    ) -> None:
        before = len(session.partitions)
        session.update(added, forgotten)
        grown = len(session.partitions) - before
        self._cached_partitions += grown
        try:
            if len(session.partitions) > MAX_SESSION_PARTITIONS:
                raise ShareSessionLimitReached(
                    f"a share session must not have more than {MAX_SESSION_PARTITIONS} partitions"
                )
            while grown > 0 and self._cached_partitions > MAX_CACHED_PARTITIONS:
                self._make_room(now)
        except ShareSessionLimitReached:
            self.drop(session)
            raise

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self._cached_partitions -= len(session.partitions)
        session.end()
