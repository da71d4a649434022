"""Delegation tokens (KIP-48): short-lived credentials with which a process acts for their owner.

A token has an id and an HMAC of the id, by a secret of the cluster that is not stored with it. Clients log in
with SCRAM: the id is the user name, and the HMAC in Base64 the password.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping

import msgspec

from alpacamq.model.errors import InvalidPrincipal, InvalidPrincipalType, InvalidRequest

from .principals import USER, Principal, check_user_name
from .scram import DEFAULT_ITERATIONS, Credential, Mechanism, credential_of, salted_password

MIN_SECRET_BYTES = 16
ID_BYTES = 16
MAX_RENEWERS = 100


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored. Principals are written as in access rules."""

    id: str
    owner: str
    # Who has created it, for itself or for another owner.
    requester: str
    renewers: tuple[str, ...] = ()
    issued_ms: int
    expires_ms: int
    # No renewal extends it beyond.
    max_ms: int
    # Of the HMAC, by which clients name the token that they renew or end.
    hmac_hash: str
    credentials: Mapping[Mechanism, Credential]

    def is_expired(self, now_ms: int) -> bool:
        return now_ms > min(self.expires_ms, self.max_ms)

    def may_be_renewed_by(self, principal: str) -> bool:
        """Return whether a principal may renew or end the token."""
        return principal == self.owner or principal in self.renewers

    @property
    def principals(self) -> tuple[str, ...]:
        """Those who may see the token without a right."""
        return (self.owner, self.requester, *self.renewers)


def new_id(random: bytes) -> str:
    """Return the id that ID_BYTES random bytes make."""
    assert len(random) == ID_BYTES
    return random.hex()


def hmac_of(secret: bytes, token_id: str) -> bytes:
    return hmac.digest(secret, token_id.encode(), "sha512")


def hash_of(token_hmac: bytes) -> str:
    return hashlib.sha256(token_hmac).hexdigest()


def credentials_of(token_hmac: bytes, salt: bytes) -> Mapping[Mechanism, Credential]:
    """Return the credentials of a token, for every mechanism. Takes milliseconds."""
    password = b64encode(token_hmac).decode()
    return {
        mechanism: credential_of(
            mechanism,
            salted_password(mechanism, password, salt, DEFAULT_ITERATIONS),
            salt,
            DEFAULT_ITERATIONS,
        )
        for mechanism in Mechanism
    }


def check_principals(owner: Principal, renewers: tuple[Principal, ...]) -> None:
    """Raise InvalidPrincipalType or InvalidRequest unless a token can have this owner and these renewers."""
    if len(renewers) > MAX_RENEWERS:
        raise InvalidRequest(f"a delegation token has at most {MAX_RENEWERS} renewers, not {len(renewers)}")
    for principal in (owner, *renewers):
        if principal.kind != USER:
            raise InvalidPrincipalType(f"{principal} is not of the type {USER}")
        try:
            check_user_name(principal.name)
        except InvalidPrincipal as error:
            raise InvalidRequest(str(error)) from None
