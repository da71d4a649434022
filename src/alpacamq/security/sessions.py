"""Sessions of browsers: a signed token in a cookie, and the token against forged requests that belongs to it.

Every node has the key and can check a token; only sessions that were ended by a logout are stored. A session
also ends when it was not used for some time, at its greatest age, and when the credential that it began with
changes or is deleted.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from hashlib import sha256

import msgspec

ID_BYTES = 16
# A user name may be long; beyond this it is not one of ours.
MAX_TOKEN_LENGTH = 3000
_FINGERPRINT_BYTES = 16


class Session(msgspec.Struct, frozen=True, array_like=True):
    """One login of a browser."""

    id: str
    user: str
    # Empty if the user logged in with its password.
    key_id: str
    # Of the credential that it began with.
    fingerprint: str
    # Whether the cookie is only sent over TLS.
    is_secure: bool
    began_ms: int
    # When it was last used, roughly: it is not signed again for every request.
    seen_ms: int

    def is_expired(self, now_ms: int, *, idle_ms: int, lifetime_ms: int) -> bool:
        """Return whether it was not used for too long, or is too old."""
        return now_ms - self.seen_ms >= idle_ms or now_ms - self.began_ms >= lifetime_ms


class EndedSession(msgspec.Struct, frozen=True, array_like=True):
    """A session that was ended before its time."""

    id: str
    began_ms: int
    # When it would have ended by itself, in cluster time; its record is not needed after that.
    end_ms: int


class EndedSessions(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of a user that were ended before their time."""

    user: str
    sessions: tuple[EndedSession, ...] = ()
    # All that began by then were ended as well, because there were too many to list.
    began_by_ms: int = -1
    # When the last of these would have ended by itself, in cluster time.
    end_ms: int = 0

    def has(self, session: Session) -> bool:
        return session.began_ms <= self.began_by_ms or any(each.id == session.id for each in self.sessions)

    def with_session(self, ended: EndedSession, max_listed: int) -> "EndedSessions":
        """Return these and another one; all that began before the latest of them if there are too many."""
        sessions = (*self.sessions, ended)
        end_ms = max(self.end_ms, ended.end_ms)
        if len(sessions) <= max_listed:
            return msgspec.structs.replace(self, sessions=sessions, end_ms=end_ms)
        began_by_ms = max(self.began_by_ms, *(each.began_ms for each in sessions))
        return EndedSessions(user=self.user, began_by_ms=began_by_ms, end_ms=end_ms)

    def remaining(self, time_ms: int) -> "EndedSessions | None":
        """Return these without those that would have ended by themselves; None if none is left."""
        if self.end_ms <= time_ms:
            return None
        left = tuple(each for each in self.sessions if each.end_ms > time_ms)
        return self if len(left) == len(self.sessions) else msgspec.structs.replace(self, sessions=left)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


def signing_key(secret: bytes) -> bytes:
    """Return the key that signs sessions, of a secret that has other uses as well."""
    return hmac.digest(secret, b"alpacamq-session", sha256)


def token_of(key: bytes, session: Session) -> str:
    """Return the signed text of a session."""
    body = urlsafe_b64encode(_encode(session)).rstrip(b"=")
    return f"{body.decode()}.{_signature(key, body)}"


def session_of(key: bytes, token: str) -> Session | None:
    """Return the session of a token; None if the key has not signed it."""
    if len(token) > MAX_TOKEN_LENGTH or not token.isascii():
        return None
    text, _, signature = token.partition(".")
    body = text.encode()
    if not hmac.compare_digest(_signature(key, body), signature):
        return None
    try:
        return _decode(urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
    except (Base64Error, msgspec.DecodeError):  # signed by another version
        return None


def csrf_token(key: bytes, session_id: str) -> str:
    """Return what a page has to send with requests that change something.

    Pages of other sites cannot read it, though the browser would send the cookie for them.
    """
    return hmac.digest(key, f"csrf/{session_id}".encode(), sha256).hex()


def fingerprint(key: bytes, credential: bytes) -> str:
    """Return a value that changes with a credential, and says nothing about it."""
    return hmac.digest(key, b"credential/" + credential, sha256)[:_FINGERPRINT_BYTES].hex()


def _signature(key: bytes, body: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(key, b"session/" + body, sha256)).rstrip(b"=").decode()
