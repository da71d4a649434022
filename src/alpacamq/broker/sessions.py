"""Sessions of the console: begins, checks and ends the logins of browsers."""

import secrets
from collections import OrderedDict

import msgspec

from alpacamq.model.ports import Clock
from alpacamq.security.principals import user
from alpacamq.security.sessions import (
    ID_BYTES,
    Session,
    csrf_token,
    fingerprint,
    session_of,
    signing_key,
    token_of,
)

from .access import Access, Caller

# A token is signed again after this share of the idle time.
_RENEWALS = 10
# Sessions that were ended by their users on this node; their tokens are not accepted any more.
MAX_ENDED = 10_000


class Sessions:
    """The logins of browsers.

    Tokens are signed with the secret of the cluster, so that every node accepts them. A node without one
    draws its own, and its sessions end with the process. Nothing in the data directory can sign a token.
    """

    def __init__(self, access: Access, clock: Clock, *, cluster_secret: bytes) -> None:
        self._access = access
        self._clock = clock
        self._key = signing_key(cluster_secret or secrets.token_bytes(32))
        self._idle_ms = access.settings.console_idle_ms
        self._lifetime_ms = access.settings.console_lifetime_ms
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, caller: Caller, *, is_secure: bool) -> Caller:
        """Begin a session for a client that has just authenticated."""
        credential = self._credential(caller.principal.name, caller.key_id)
        assert credential is not None
        now_ms = self._clock.now_ms()
        session = Session(
            id=secrets.token_hex(ID_BYTES),
            user=caller.principal.name,
            key_id=caller.key_id,
            fingerprint=fingerprint(self._key, credential),
            is_secure=is_secure,
            began_ms=now_ms,
            seen_ms=now_ms,
        )
        return Caller(caller.principal, caller.host, caller.key, session=session)

    def find(self, token: str, host: str) -> Caller | None:
        """Return the client of a session; None if it has ended."""
        session = session_of(self._key, token)
        now_ms = self._clock.now_ms()
        if session is None or session.id in self._ended:
            return None
        if session.is_expired(now_ms, idle_ms=self._idle_ms, lifetime_ms=self._lifetime_ms):
            return None
        credential = self._credential(session.user, session.key_id)
        if credential is None or session.fingerprint != fingerprint(self._key, credential):
            return None
        key = self._access.api_keys()[session.key_id] if session.key_id else None
        return Caller(user(session.user), host, key, session=session)

    def _credential(self, name: str, key_id: str) -> bytes | None:
        """Return what a client authenticates with; None if it cannot any more."""
        if not key_id:
            known = self._access.user(name)
            return None if known is None else known.fingerprint
        key = self._access.api_keys().get(key_id)
        if key is None or key.owner != name or key.is_expired(self._clock.now_ms()):
            return None
        return key.aws_secret.encode()

    def token(self, session: Session) -> str:
        """Return the signed text of a session."""
        return token_of(self._key, session)

    def renewed(self, session: Session) -> Session | None:
        """Return the session as used now; None if it was used recently enough."""
        now_ms = self._clock.now_ms()
        if now_ms - session.seen_ms < self._idle_ms / _RENEWALS:
            return None
        return msgspec.structs.replace(session, seen_ms=now_ms)

    def end_ms(self, session: Session) -> int:
        """Return when a session ends in any case."""
        return session.began_ms + self._lifetime_ms

    def csrf_token(self, session: Session) -> str:
        """Return what requests of a session have to carry if they change something."""
        return csrf_token(self._key, session.id)

    def has_csrf_token(self, session: Session, given: str) -> bool:
        return given.isascii() and secrets.compare_digest(self.csrf_token(session), given)

    def end(self, session: Session) -> None:
        """Refuse a session from now on."""
        self._ended[session.id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
