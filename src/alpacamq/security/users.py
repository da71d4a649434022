"""Users: their credentials, by mechanism."""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha512, shake_256

import msgspec

from .scram import DEFAULT_ITERATIONS, SALT_BYTES, Credential, Mechanism


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its credentials."""

    name: str
    credentials: Mapping[Mechanism, Credential]

    @property
    def fingerprint(self) -> bytes:
        """A value that changes with the password."""
        return b"".join(each.stored_key for _, each in sorted(self.credentials.items()))

    def with_credential(self, mechanism: Mechanism, credential: Credential) -> "User":
        """Return the user with a credential added or replaced."""
        return User(name=self.name, credentials={**self.credentials, mechanism: credential})

    def without_credential(self, mechanism: Mechanism) -> "User":
        """Return the user without the credential of a mechanism."""
        others = {each: kept for each, kept in self.credentials.items() if each != mechanism}
        return User(name=self.name, credentials=others)


class FileUser(User, frozen=True, kw_only=True):
    """A user of a file that every node reads: each draws its own salts, and so has its own credentials."""

    # Of the password, with a salt that is the same on every node. Not stored, and not sent.
    password_hash: bytes

    @property
    def fingerprint(self) -> bytes:
        return self.password_hash


def made_up_credential(
    secret: bytes, mechanism: Mechanism, name: str, shapes: Sequence[tuple[int, int]] = ()
) -> Credential:
    """Return a credential that no password matches, for a user who does not exist.

    It is always the same for a name, and has the salt size and iterations of one of `shapes`, so that a
    client cannot tell whether the user exists.
    """
    drawn = hmac.digest(secret, f"{mechanism}/{name}".encode(), sha512)
    size = mechanism.digest_bytes
    salt_bytes, iterations = shapes[drawn[-1] % len(shapes)] if shapes else (SALT_BYTES, DEFAULT_ITERATIONS)
    return Credential(
        salt=shake_256(drawn).digest(salt_bytes),
        iterations=iterations,
        stored_key=hmac.digest(secret, drawn, sha512)[:size],
        server_key=hmac.digest(secret, drawn[::-1], sha512)[:size],
    )
