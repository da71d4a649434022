"""Incremental fetch sessions (KIP-227): a client sends its partitions once, then only changes.

Responses omit partitions without news. Sessions are a cache: a client whose session was evicted gets an
error and starts another.
"""

from collections import OrderedDict
from collections.abc import Iterator

from alpacamq.model.errors import AlpacaError
from alpacamq.protocol.fetch_codec import FetchCall, PartitionFetched, PartitionWanted

MAX_SESSIONS = 1000
MAX_SESSION_PARTITIONS = 20_000
MAX_CACHED_PARTITIONS = 200_000

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_INT32 = 2**31 - 1

PartitionKey = tuple[bytes, int]


class FetchSessionNotFound(AlpacaError):
    """The session does not exist or was evicted."""


class InvalidFetchSessionEpoch(AlpacaError):
    """The epoch of a request is not the next of its session."""


class FetchSession:
    """The partitions that one client fetches, and what it last received of each."""

    def __init__(self, session_id: int, by_id: bool, owner: str) -> None:
        self.id = session_id
        self.by_id = by_id
        # The principal of the client: others can neither see nor end the session.
        self.owner = owner
        self.next_epoch = 1
        self.wanted: OrderedDict[PartitionKey, PartitionWanted] = OrderedDict()
        self._told: dict[PartitionKey, tuple[int, int]] = {}

    def update(self, call: FetchCall) -> None:
        """Apply the partitions that a request adds, changes and removes."""
        for topic, partitions in call.topics:
            for partition in partitions:
                self.wanted[topic, partition.partition] = partition
        for topic, indexes in call.forgotten:
            for index in indexes:
                self.wanted.pop((topic, index), None)
                self._told.pop((topic, index), None)

    def is_news(self, key: PartitionKey, fetched: PartitionFetched) -> bool:
        """Return whether this is news to the client."""
        told = (fetched.high_watermark, fetched.log_start_offset)
        if fetched.records_bytes or fetched.error_code or fetched.preferred_read_replica >= 0:
            return True
        return self._told.get(key) != told

    def tell(self, key: PartitionKey, fetched: PartitionFetched) -> None:
        """Note what is sent. Partitions with records move to the end, so that none starves others."""
        if fetched.error_code:
            self._told.pop(key, None)
        else:
            self._told[key] = (fetched.high_watermark, fetched.log_start_offset)
        if fetched.records_bytes and key in self.wanted:
            self.wanted.move_to_end(key)

    def topics(self) -> Iterator[tuple[bytes, list[PartitionWanted]]]:
        """Return all requested partitions, adjacent ones of a topic grouped."""
        topic = b""
        partitions: list[PartitionWanted] = []
        for (name, _), wanted in self.wanted.items():
            if name != topic and partitions:
                yield topic, partitions
                partitions = []
            topic = name
            partitions.append(wanted)
        if partitions:
            yield topic, partitions


class FetchSessions:
    """The sessions of all clients; the least recently used is evicted first."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._last_id = 0

    def open(self, call: FetchCall, *, by_id: bool, owner: str) -> FetchSession | None:
        """Return the updated session of a request, None for a request without one."""
        session = self._sessions.get(call.session_id)
        if session is not None and session.owner != owner:
            session = None
        if call.session_epoch in {FINAL_EPOCH, INITIAL_EPOCH}:
            if session is not None:
                del self._sessions[session.id]
            return None if call.session_epoch == FINAL_EPOCH else self._create(call, by_id, owner)
        if session is None or session.by_id != by_id:
            raise FetchSessionNotFound(f"unknown fetch session {call.session_id}")
        if session.next_epoch != call.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session.id} is at epoch {session.next_epoch}, not {call.session_epoch}"
            )
        before = len(session.wanted)
        session.update(call)
        if len(session.wanted) > before and (
            len(session.wanted) > MAX_SESSION_PARTITIONS or self._cached() > MAX_CACHED_PARTITIONS
        ):
            del self._sessions[session.id]
            raise FetchSessionNotFound(f"fetch session {session.id} is too large")
        session.next_epoch = session.next_epoch % _MAX_INT32 + 1
        self._sessions.move_to_end(session.id)
        return session

    def _create(self, call: FetchCall, by_id: bool, owner: str) -> FetchSession | None:
        wanted = sum(len(partitions) for _, partitions in call.topics)
        if wanted == 0 or wanted > MAX_SESSION_PARTITIONS:
            return None
        cached = wanted + self._cached()
        while self._sessions and (len(self._sessions) >= MAX_SESSIONS or cached > MAX_CACHED_PARTITIONS):
            cached -= len(self._sessions.popitem(last=False)[1].wanted)
        self._last_id = self._last_id % _MAX_INT32 + 1
        session = FetchSession(self._last_id, by_id, owner)
        session.update(call)
        self._sessions[session.id] = session
        return session

    def _cached(self) -> int:
        return sum(len(session.wanted) for session in self._sessions.values())
