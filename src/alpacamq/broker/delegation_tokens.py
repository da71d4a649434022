"""Delegation tokens: creates, renews, ends and describes them for clients, and finds those that log in.

The secret that makes a token's HMAC is in the configuration of every broker, and not in the metadata. A
token that another secret has made is not valid, so that a new secret ends all tokens.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterator
from concurrent.futures import Executor

import msgspec

from alpacamq.cluster.commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from alpacamq.model.errors import DelegationTokenNotFound, DelegationTokensDisabled
from alpacamq.model.topics import DAY_MS
from alpacamq.security.acls import Operation
from alpacamq.security.delegation_tokens import (
    ID_BYTES,
    DelegationToken,
    check_principals,
    credentials_of,
    hash_of,
    hmac_of,
    new_id,
)
from alpacamq.security.principals import Principal
from alpacamq.security.scram import SALT_BYTES

from .audit import Audit
from .metadata.metadata import Metadata


class DelegationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The secret of delegation tokens, and how long they are valid."""

    secret: bytes
    max_lifetime_ms: int = 7 * DAY_MS
    # Without a renewal, and from each renewal on.
    expiry_time_ms: int = DAY_MS

    def __repr__(self) -> str:
        return "DelegationSettings(…)"  # without the secret


class DelegationTokens:
    """The tokens of the cluster, as far as this broker's secret has made them."""

    def __init__(
        self,
        metadata: Metadata,
        settings: DelegationSettings | None,
        threads: Executor,
        audit: Audit | None = None,
    ) -> None:
        self._metadata = metadata
        # None if nothing is audited.
        self._audit = audit
        self._settings = settings
        self._threads = threads

    def check_enabled(self) -> DelegationSettings:
        """Return the settings. Raises DelegationTokensDisabled without a secret."""
        if self._settings is None:
            raise DelegationTokensDisabled(
                "delegation tokens are not enabled; set security.delegation_token_secret_file on every node"
            )
        return self._settings

    async def create(
        self, owner: Principal, requester: Principal, renewers: Collection[Principal], max_lifetime_ms: int
    ) -> DelegationToken:
        """Create a token, valid for `max_lifetime_ms`, or as long as possible if that is not positive.

        Raises DelegationTokensDisabled, InvalidPrincipalType, InvalidRequest.
        """
        settings = self.check_enabled()
        check_principals(owner, tuple(renewers))
        token_id = new_id(secrets.token_bytes(ID_BYTES))
        token_hmac = hmac_of(settings.secret, token_id)
        credentials = await asyncio.get_running_loop().run_in_executor(
            self._threads, credentials_of, token_hmac, secrets.token_bytes(SALT_BYTES)
        )
        token = await self._metadata.ask(
            CreateDelegationToken(
                id=token_id,
                owner=str(owner),
                requester=str(requester),
                renewers=tuple(dict.fromkeys(map(str, renewers))),
                hmac_hash=hash_of(token_hmac),
                credentials=credentials,
                max_lifetime_ms=_limited(max_lifetime_ms, settings.max_lifetime_ms),
                renew_ms=settings.expiry_time_ms,
            )
        )
        self._changed(Operation.CREATE, token, "created")
        return token

    async def renew(self, token_hmac: bytes, principal: Principal, period_ms: int) -> DelegationToken:
        """Extend the time of a token, by the longest possible time if `period_ms` is not positive.

        Raises DelegationTokenNotFound, DelegationTokenExpired, DelegationTokenOwnerMismatch.
        """
        renew_ms = _limited(period_ms, self.check_enabled().expiry_time_ms)
        token = await self._metadata.ask(
            RenewDelegationToken(
                hmac_hash=self._hash(token_hmac), principal=str(principal), renew_ms=renew_ms
            )
        )
        self._changed(Operation.ALTER, token, "renewed")
        return token

    async def expire(self, token_hmac: bytes, principal: Principal, period_ms: int) -> DelegationToken:
        """End a token after a time, or at once if that is negative. Raises as `renew`."""
        token = await self._metadata.ask(
            ExpireDelegationToken(
                hmac_hash=self._hash(token_hmac), principal=str(principal), expire_ms=period_ms
            )
        )
        if period_ms < 0:
            self._changed(Operation.DELETE, token, "deleted")
        else:
            self._changed(Operation.ALTER, token, "given another end")
        return token

    def _changed(self, operation: Operation, token: DelegationToken, detail: str) -> None:
        if self._audit is not None:
            self._audit.changed(operation, "token", token.id, f"of {token.owner}, {detail}")

    def all(self) -> Iterator[DelegationToken]:
        """Yield the valid tokens."""
        now_ms = self._metadata.cluster_time_ms()
        for token in list(self._metadata.image.delegation_tokens.values()):
            if not token.is_expired(now_ms) and self._is_ours(token):
                yield token

    def valid(self, token_id: str) -> DelegationToken | None:
        """Return a token that is valid now; None if there is none of this id."""
        token = self._metadata.image.delegation_tokens.get(token_id)
        if token is None or token.is_expired(self._metadata.cluster_time_ms()):
            return None
        return token if self._is_ours(token) else None

    def hmac(self, token: DelegationToken) -> bytes:
        return hmac_of(self.check_enabled().secret, token.id)

    def remaining_ms(self, token: DelegationToken) -> int:
        """Return how long a token is still valid."""
        return token.expires_ms - self._metadata.cluster_time_ms()

    def _is_ours(self, token: DelegationToken) -> bool:
        return self._settings is not None and hash_of(self.hmac(token)) == token.hmac_hash

    def _hash(self, token_hmac: bytes) -> str:
        """Return the hash of the HMAC of a token that this broker's secret has made."""
        self.check_enabled()
        hmac_hash = hash_of(token_hmac)
        token = self._metadata.image.delegation_token_by_hash(hmac_hash)
        if token is not None and not self._is_ours(token):
            raise DelegationTokenNotFound("the delegation token was made with another secret")
        return hmac_hash


def _limited(wanted_ms: int, most_ms: int) -> int:
    return min(wanted_ms, most_ms) if wanted_ms > 0 else most_ms
