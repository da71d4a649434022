"""How long a consumer group waits for each of its members: to be heard of, and to give up what it must."""

from .consumer_records import Current, Profile
from .deadlines import Deadlines


class MemberDeadlines:
    """The end of each member's session, and of its time to confirm a revocation."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions = Deadlines()
        self._revocations = Deadlines()

    @property
    def next_ms(self) -> int | None:
        """The earliest of all."""
        dues = (due for due in (self._sessions.next_ms, self._revocations.next_ms) if due is not None)
        return min(dues, default=None)

    def heard(self, member_id: str, now_ms: int) -> None:
        """Begin a member's session anew."""
        self._sessions.put(member_id, now_ms + self._session_timeout_ms)

    def watch(self, member_id: str, profile: Profile, current: Current, now_ms: int) -> None:
        """Begin a member's time for giving up what it has newly been told to, if anything."""
        self._revocations.put(member_id, now_ms + profile.rebalance_timeout_ms if current.revoking else None)

    def drop(self, member_id: str) -> None:
        """Wait no longer."""
        self._sessions.put(member_id, None)
        self._revocations.put(member_id, None)

    def take_due(self, now_ms: int) -> set[str]:
        """The members that have been waited for too long."""
        return {*self._sessions.take_due(now_ms), *self._revocations.take_due(now_ms)}
