"""Creates, lists, renews and ends delegation tokens."""

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field

from alpacamq.client.errors import NotFound, check
from alpacamq.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    TokenPrincipal,
)
from alpacamq.security.principals import USER

from .cluster import Cluster, retry_transient

# In the place of a duration: the longest that the broker allows, or at once for the end of a token.
DEFAULT_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A delegation token; times in milliseconds since 1970."""

    id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    @property
    def password(self) -> str:
        """The password with which a client logs in; its user name is the id."""
        return b64encode(self.hmac).decode()


def create_token(
    cluster: Cluster, *, owner: str | None, renewers: Iterable[str], max_lifetime_ms: int = DEFAULT_MS
) -> Token:
    """Create a token for the client itself, or for another owner."""
    names = tuple(renewers)
    answer = cluster.any_broker().call(
        CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else USER,
            owner_principal_name=owner,
            renewers=[_user(name) for name in names],
            max_lifetime_ms=max_lifetime_ms,
        ),
        CreateDelegationTokenResponse,
    )
    check("creating a delegation token", answer.error_code)
    return Token(
        id=answer.token_id,
        hmac=answer.hmac,
        owner=answer.principal_name,
        requester=answer.token_requester_principal_name,
        renewers=names,
        issued_ms=answer.issue_timestamp_ms,
        expires_ms=answer.expiry_timestamp_ms,
        max_ms=answer.max_timestamp_ms,
    )


@retry_transient
def list_tokens(cluster: Cluster, owner: str | None = None) -> list[Token]:
    """Return the tokens that the client may see, of all owners or one, by owner and age."""
    wanted = None if owner is None else [_user(owner)]
    answer = cluster.any_broker().call(
        DescribeDelegationTokenRequest(owners=wanted), DescribeDelegationTokenResponse
    )
    check("listing delegation tokens", answer.error_code)
    return sorted(map(_token, answer.tokens), key=lambda each: (each.owner, each.issued_ms, each.id))


def find_token(cluster: Cluster, token_id: str) -> Token:
    """Return the token of this id. Raises NotFound."""
    known = {token.id: token for token in list_tokens(cluster)}
    if token_id not in known:
        raise NotFound("delegation token", token_id, known)
    return known[token_id]


def renew_token(cluster: Cluster, token: Token, period_ms: int = DEFAULT_MS) -> int:
    """Extend the time of a token; return its new end."""
    request = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms)
    answer = cluster.any_broker().call(request, RenewDelegationTokenResponse)
    check(f"renewing delegation token {token.id}", answer.error_code)
    return answer.expiry_timestamp_ms


def expire_token(cluster: Cluster, token: Token, period_ms: int = DEFAULT_MS) -> int:
    """End a token, at once or after a time; return its end."""
    request = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
    answer = cluster.any_broker().call(request, ExpireDelegationTokenResponse)
    check(f"ending delegation token {token.id}", answer.error_code)
    return answer.expiry_timestamp_ms


def _user(name: str) -> TokenPrincipal:
    return TokenPrincipal(principal_type=USER, principal_name=name)


def _token(described: DescribedDelegationToken) -> Token:
    return Token(
        id=described.token_id,
        hmac=described.hmac,
        owner=described.principal_name,
        requester=described.token_requester_principal_name,
        renewers=tuple(each.principal_name for each in described.renewers),
        issued_ms=described.issue_timestamp,
        expires_ms=described.expiry_timestamp,
        max_ms=described.max_timestamp,
    )
