"""Manages users, access rules, delegation tokens and quotas over the Kafka protocol; reads audit events."""

import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from alpacamq.client.errors import NotFound, check, only
from alpacamq.model.topics import AUDIT_TOPIC
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
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
from alpacamq.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from alpacamq.protocol.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from alpacamq.security.acls import CLUSTER_NAME as CLUSTER_NAME
from alpacamq.security.acls import Acl as Acl
from alpacamq.security.acls import AclFilter as AclFilter
from alpacamq.security.acls import Operation as Operation
from alpacamq.security.acls import PatternType as PatternType
from alpacamq.security.acls import Permission as Permission
from alpacamq.security.acls import ResourceType as ResourceType
from alpacamq.security.audit import AuditEvent
from alpacamq.security.principals import USER as USER_TYPE
from alpacamq.security.quotas import CLIENT_ID as CLIENT_ID
from alpacamq.security.quotas import IP as IP
from alpacamq.security.quotas import USER as USER
from alpacamq.security.quotas import ClientQuota as ClientQuota
from alpacamq.security.quotas import Entity as Entity
from alpacamq.security.quotas import EntityPart as EntityPart
from alpacamq.security.quotas import MatchType
from alpacamq.security.scram import DEFAULT_ITERATIONS as DEFAULT_ITERATIONS
from alpacamq.security.scram import SALT_BYTES, salted_password
from alpacamq.security.scram import Mechanism as Mechanism

from .cluster import Cluster, retry_transient

_MECHANISMS: Mapping[int, Mechanism] = {1: Mechanism.SHA_256, 2: Mechanism.SHA_512}
_NUMBERS: Mapping[Mechanism, int] = {mechanism: number for number, mechanism in _MECHANISMS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDescription:
    """A user, and the iterations of its password for each mechanism."""

    name: str
    iterations: Mapping[Mechanism, int]


def list_users(cluster: Cluster) -> list[UserDescription]:
    """Return all users, without those of the configuration."""
    results = _describe(cluster, "listing users", None)
    for result in results:
        check(f"user {result.user!r}", result.error_code, result.error_message)
    return sorted(map(_description, results), key=lambda each: each.name)


def find_user(cluster: Cluster, name: str) -> UserDescription | None:
    """Return a user; None if there is none of this name."""
    about = f"user {name!r}"
    result = only(about, _describe(cluster, about, [UserName(name=name)]))
    if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        return None
    check(about, result.error_code, result.error_message)
    return _description(result)


def known_user(cluster: Cluster, name: str) -> UserDescription:
    """Return a user; NotFound with similar names if there is none."""
    found = find_user(cluster, name)
    if found is None:
        raise NotFound("user", name, [each.name for each in list_users(cluster)])
    return found


def set_password(
    cluster: Cluster, name: str, password: str, mechanisms: Iterable[Mechanism], iterations: int
) -> None:
    """Create a user, or change its password, for each of the mechanisms."""
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=_NUMBERS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, iterations),
        )
        _alter_user(cluster, name, AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def delete_user(cluster: Cluster, name: str) -> None:
    """Delete a user with all its passwords."""
    for mechanism in known_user(cluster, name).iterations:
        deletion = ScramCredentialDeletion(name=name, mechanism=_NUMBERS[mechanism])
        _alter_user(cluster, name, AlterUserScramCredentialsRequest(deletions=[deletion]))


def _describe(
    cluster: Cluster, about: str, names: Sequence[UserName] | None
) -> Sequence[DescribeUserScramCredentialsResult]:
    request = DescribeUserScramCredentialsRequest(users=names)
    answer = cluster.any_broker().call(request, DescribeUserScramCredentialsResponse)
    check(about, answer.error_code, answer.error_message)
    return answer.results


def _description(result: DescribeUserScramCredentialsResult) -> UserDescription:
    return UserDescription(
        name=result.user,
        iterations={
            _MECHANISMS[each.mechanism]: each.iterations
            for each in result.credential_infos
            if each.mechanism in _MECHANISMS
        },
    )


def _alter_user(cluster: Cluster, name: str, request: AlterUserScramCredentialsRequest) -> None:
    answer = cluster.any_broker().call(request, AlterUserScramCredentialsResponse)
    result = only(f"user {name!r}", answer.results)
    check(f"user {name!r}", result.error_code, result.error_message)


@retry_transient
def list_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """Return the rules that match a filter, by resource and principal."""
    answer = cluster.any_broker().call(
        DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        ),
        DescribeAclsResponse,
    )
    check("listing access rules", answer.error_code, answer.error_message)
    return _sorted(
        Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


@retry_transient
def create_acls(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """Add rules; raise the error of the first that was refused. Those that exist stay."""
    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    answer = cluster.any_broker().call(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for acl, result in zip(acls, answer.results, strict=True):
        check(f"adding the rule: {acl}", result.error_code, result.error_message)


@retry_transient
def delete_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """Remove the rules that match a filter, and return them."""
    named = DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    answer = cluster.any_broker().call(DeleteAclsRequest(filters=[named]), DeleteAclsResponse)
    about = "removing access rules"
    result = only(about, answer.filter_results)
    check(about, result.error_code, result.error_message)
    return _sorted(
        Acl(
            ResourceType(match.resource_type),
            match.resource_name,
            PatternType(match.pattern_type),
            match.principal,
            match.host,
            Operation(match.operation),
            Permission(match.permission_type),
        )
        for match in result.matching_acls
    )


def _sorted(acls: Iterable[Acl]) -> list[Acl]:
    return sorted(acls, key=lambda acl: (acl.resource_type, acl.name, acl.principal, acl.operation))


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
            owner_principal_type=None if owner is None else USER_TYPE,
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
    return TokenPrincipal(principal_type=USER_TYPE, principal_name=name)


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


@retry_transient
def list_quotas(cluster: Cluster, wanted: Iterable[EntityPart] = ()) -> list[ClientQuota]:
    """Return the quotas of entities that have all the wanted names; None is the default of a type."""
    components = [
        ComponentData(
            entity_type=type_, match_type=MatchType.DEFAULT if name is None else MatchType.EXACT, match=name
        )
        for type_, name in wanted
    ]
    answer = cluster.any_broker().call(
        DescribeClientQuotasRequest(components=components), DescribeClientQuotasResponse
    )
    check("listing quotas", answer.error_code, answer.error_message)
    found = [
        ClientQuota(
            entity=tuple(EntityPart(each.entity_type, each.entity_name) for each in entry.entity),
            values={each.key: each.value for each in entry.values},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda quota: [(type_, name or "") for type_, name in quota.entity])


@retry_transient
def set_quotas(cluster: Cluster, entity: Entity, values: Mapping[str, float]) -> None:
    """Set quotas of an entity; others that it has stay."""
    _alter_quota(cluster, entity, [OpData(key=key, value=value) for key, value in values.items()])


@retry_transient
def remove_quotas(cluster: Cluster, entity: Entity, keys: Iterable[str]) -> None:
    """Remove quotas of an entity."""
    _alter_quota(cluster, entity, [OpData(key=key, remove=True) for key in keys])


def _alter_quota(cluster: Cluster, entity: Entity, ops: Sequence[OpData]) -> None:
    named = [EntityData(entity_type=type_, entity_name=name) for type_, name in entity]
    request = AlterClientQuotasRequest(entries=[AlterEntryData(entity=named, ops=ops)])
    answer = cluster.any_broker().call(request, AlterClientQuotasResponse)
    about = "changing quotas"
    result = only(about, answer.entries)
    check(about, result.error_code, result.error_message)


__all__ = ["AUDIT_TOPIC", "AuditEvent", "decode_event"]

_decode = msgspec.json.Decoder(AuditEvent).decode


def decode_event(value: bytes | None) -> AuditEvent | None:
    """Return the event in a message; None if it is one of a later version."""
    try:
        return _decode(value or b"")
    except msgspec.DecodeError:
        return None
