"""Sessions of browsers: a signed token in a cookie, and the token against forged requests that belongs to it.

Every node that knows the key can check a token; nothing is stored. A session ends when it was not used for
some time, at its greatest age, and when the credential that it began with changes or is deleted.
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
