"""Sessions of the console: begins, checks and ends the logins of browsers."""

import secrets
from collections import OrderedDict

import msgspec

from alpacamq.cluster.commands import EnableSessions, EndSession
from alpacamq.cluster.image import SESSION_LEVEL, VERSION_FEATURE
from alpacamq.model.errors import AuthenticationFailed
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
from .metadata.metadata import Metadata

# A token is signed again after this share of the idle time.
_RENEWALS = 10
# Sessions that were ended by their users on this node, if the metadata cannot have them yet.
MAX_ENDED = 10_000


class Sessions:
    """The logins of browsers.

    Tokens are signed with a secret of the metadata and that of the cluster, if it has one, so that every node
    accepts them; with the latter, nothing in a data directory can sign a token. Logouts are recorded in the
    metadata. Before the level of the metadata that has both, a node without the secret of the cluster draws
    its own, its sessions end with the process, and logouts concern this node.
    """

    def __init__(self, access: Access, metadata: Metadata, clock: Clock, *, cluster_secret: bytes) -> None:
        self._access = access
        self._metadata = metadata
        self._clock = clock
        self._cluster_secret = cluster_secret
        self._own_secret = cluster_secret or secrets.token_bytes(32)
        self._stored_secret = b""
        self._key_now = signing_key(self._own_secret)
        self._idle_ms = access.settings.console_idle_ms
        self._lifetime_ms = access.settings.console_lifetime_ms
        self._ended: OrderedDict[str, None] = OrderedDict()

    @property
    def _key(self) -> bytes:
        stored = self._metadata.image.session_secret
        if stored is not self._stored_secret:
            self._stored_secret = stored
            self._key_now = signing_key(self._cluster_secret + stored if stored else self._own_secret)
        return self._key_now

    @property
    def _is_stored(self) -> bool:
        return self._metadata.image.features.get(VERSION_FEATURE, 0) >= SESSION_LEVEL

    async def begin(self, caller: Caller, *, is_secure: bool) -> Caller:
        """Begin a session for a client that has just authenticated. Raises as `Metadata.ask`."""
        if self._is_stored and not self._metadata.image.session_secret:
            await self._metadata.ask(EnableSessions(secret=secrets.token_bytes(32)))
        credential = self._credential(caller.principal.name, caller.key_id)
        if credential is None:
            raise AuthenticationFailed("the credentials have just been deleted")
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
        if session is None or self._is_ended(session):
            return None
        if session.is_expired(now_ms, idle_ms=self._idle_ms, lifetime_ms=self._lifetime_ms):
            return None
        credential = self._credential(session.user, session.key_id)
        if credential is None or session.fingerprint != fingerprint(self._key, credential):
            return None
        key = self._access.api_keys()[session.key_id] if session.key_id else None
        return Caller(user(session.user), host, key, session=session)

    def _is_ended(self, session: Session) -> bool:
        ended = self._metadata.image.ended_sessions.get(session.user)
        return session.id in self._ended or (ended is not None and ended.has(session))

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

    async def end(self, session: Session) -> None:
        """Refuse a session from now on, on every node. Raises as `Metadata.ask`; then it has not ended."""
        if self._is_stored:
            remaining_ms = self.end_ms(session) - self._clock.now_ms()
            await self._metadata.ask(
                EndSession(
                    id=session.id,
                    user=session.user,
                    began_ms=session.began_ms,
                    remaining_ms=remaining_ms,
                )
            )
            return
        self._ended[session.id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
