"""Users: their credentials, by mechanism."""

import hmac
from collections.abc import Mapping
from hashlib import sha512

import msgspec

from .scram import DEFAULT_ITERATIONS, Credential, Mechanism


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its credentials."""

    name: str
    credentials: Mapping[Mechanism, Credential]

    def with_credential(self, mechanism: Mechanism, credential: Credential) -> "User":
        """Return the user with a credential added or replaced."""
        return User(name=self.name, credentials={**self.credentials, mechanism: credential})

    def without_credential(self, mechanism: Mechanism) -> "User":
        """Return the user without the credential of a mechanism."""
        others = {each: kept for each, kept in self.credentials.items() if each != mechanism}
        return User(name=self.name, credentials=others)


def made_up_credential(secret: bytes, mechanism: Mechanism, name: str) -> Credential:
    """Return a credential that no password matches, for a user who does not exist.

    It is always the same for a name, so that a client cannot tell whether the user exists.
    """
    drawn = hmac.digest(secret, f"{mechanism}/{name}".encode(), sha512)
    size = mechanism.digest_bytes
    return Credential(
        salt=drawn[:24],
        iterations=DEFAULT_ITERATIONS,
        stored_key=hmac.digest(secret, drawn, sha512)[:size],
        server_key=hmac.digest(secret, drawn[::-1], sha512)[:size],
    )
