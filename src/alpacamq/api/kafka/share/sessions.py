"""Share sessions: what each share consumer fetches from, named once, then only what changes.

A session is bound to the connection that opened it. When that ends, or the session has to make room for
another, its member holds nothing any more.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from alpacamq.coordinator.share.messages import Departure
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
    """The session was never opened, or has ended."""


class InvalidShareSessionEpoch(AlpacaError):
    """Requests of a session come in order; this one is not the next."""


class ShareSessionLimitReached(AlpacaError):
    """As many sessions are in use as the broker allows."""


class ShareSession:
    """What one member fetches from, and the topics it may hold records of."""

    def __init__(self, key: SessionKey, ended: Callable[["ShareSession"], None]) -> None:
        self.key = key
        self.next_epoch = 1
        self.partitions: OrderedDict[PartitionKey, None] = OrderedDict()
        self.topics_held: set[str] = set()
        self.used_at = 0.0
        self.is_open = True
        self._ended = ended

    def update(self, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Take in what a request adds and gives up."""
        for key in added:
            self.partitions.setdefault(key)
        for key in forgotten:
            self.partitions.pop(key, None)

    def served(self, key: PartitionKey) -> None:
        """What had records goes last, so that no partition starves another."""
        if key in self.partitions:
            self.partitions.move_to_end(key)

    def departure(self) -> Departure:
        """What is to be given back when the session ends."""
        group, member_id = self.key
        return Departure(group=group, member_id=member_id, topics=tuple(sorted(self.topics_held)))

    def end(self) -> None:
        """Tell whoever bound the session to a connection that it is no more."""
        self.is_open = False
        self._ended(self)


class ShareSessions:
    """The sessions of all members."""

    def __init__(self, give_back: Callable[[Departure], None]) -> None:
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
        """Begin a session, instead of the one the member has.

        What the member holds stays with it: it opens a session anew when it has lost count of the epochs.
        """
        topics_held: set[str] = set()
        if (former := self._sessions.get(key)) is not None:
            topics_held = former.topics_held
            self._remove(former)
        if len(self._sessions) >= MAX_SESSIONS or self._cached_partitions >= MAX_CACHED_PARTITIONS:
            self._make_room(now)
        session = ShareSession(key, ended)
        session.topics_held = topics_held
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
        """The session that a request with this epoch belongs to, brought up to date."""
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
        """The member's session, or ShareSessionNotFound."""
        if (session := self._sessions.get(key)) is None:
            raise ShareSessionNotFound(f"member {key[1]!r} of group {key[0]!r} has no share session")
        return session

    def drop(self, session: ShareSession) -> None:
        """End a session and let others have what its member holds."""
        if self._sessions.get(session.key) is session:
            self._remove(session)
            self._give_back(session.departure())

    def drop_of(self, key: SessionKey) -> None:
        """End the session of a member, if it has one."""
        if (session := self._sessions.get(key)) is not None:
            self.drop(session)

    def close(self, session: ShareSession) -> Departure:
        """End a session at its member's wish; what it holds is for the caller to give back."""
        if self._sessions.get(session.key) is session:
            self._remove(session)
        return session.departure()

    def _make_room(self, now: float) -> None:
        """End the session that was not used for longest, if that is long enough."""
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
                    f"a share session may have {MAX_SESSION_PARTITIONS} partitions at most"
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
