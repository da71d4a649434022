"""Access rules: listing, creating and deleting them.

Members of a tenant, with the right to its whole, see and change the rules of the tenant.
"""

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import AlreadyExists, UnknownAcl
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import (
    ClusterNotAuthorized,
    FeatureNotEnabled,
    InvalidAcl,
    InvalidRequest,
    SecurityDisabled,
)
from alpacamq.security import acls as rules
from alpacamq.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    MAX_NAME_LENGTH,
    Acl,
    AclFilter,
    hyphenated,
    name_of,
)

_DISABLED = "access rules are not in force on this broker; set security.acls to true, and restart it"
MAX_LISTED = 10_000


class _Word(StrEnum):
    """A value that may have underscores instead of hyphens in requests."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        found = (each for each in cls if isinstance(value, str) and each == hyphenated(value))
        return next(found, None)


class AclResource(_Word):
    """A kind of resource."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional-id"
    DELEGATION_TOKEN = "delegation-token"  # noqa: S105 - a kind
    USER = "user"


class AclPattern(StrEnum):
    """How the name of a rule is compared: with whole names, or with their beginnings."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class AclOperation(_Word):
    """An operation; `all` is all of a resource."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"
    CREATE_TOKENS = "create-tokens"
    DESCRIBE_TOKENS = "describe-tokens"
    TWO_PHASE_COMMIT = "two-phase-commit"


class AclPermission(StrEnum):
    """What a rule does. One that denies wins."""

    ALLOW = "allow"
    DENY = "deny"


_RESOURCES: Mapping[AclResource, rules.ResourceType] = {
    each: rules.ResourceType[each.name] for each in AclResource
}

ResourceName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
PrincipalText = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="a principal, as User:alice; User:* is all"),
]
HostText = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="an address of a client; * is all")
]


class AclsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rules to list: those that have all the given values."""

    resource: AclResource | UnsetType = UNSET
    name: ResourceName | UnsetType = UNSET
    pattern: AclPattern | UnsetType = UNSET
    principal: PrincipalText | UnsetType = UNSET
    host: HostText | UnsetType = UNSET
    operation: AclOperation | UnsetType = UNSET
    permission: AclPermission | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 1000


class NewAcl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule to create. `name` may be `*` for all; it is only left out for the cluster."""

    resource: AclResource
    name: ResourceName | UnsetType = UNSET
    pattern: AclPattern = AclPattern.LITERAL
    principal: PrincipalText
    host: HostText = ANY_HOST
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW


class OfAcl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]


class AclDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. Equal rules have the same id."""

    id: str
    resource: AclResource
    name: str
    pattern: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


class AclList(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by resource, name and principal, and how many there are without the limit."""

    rules: list[AclDescription]
    total: int


def list_acls(call: Call[AclsQuery, Nothing]) -> AclList:
    access, wanted = call.backend.broker.access, call.parameters
    found = [
        _described(acl) for acl in access.acls(AclFilter(tenant=_tenant(call))) if _is_wanted(acl, wanted)
    ]
    found.sort(key=lambda each: (each.resource, each.name, each.principal, each.operation, each.id))
    return AclList(rules=found[: wanted.limit], total=len(found))


def _is_wanted(acl: Acl, wanted: AclsQuery) -> bool:
    return (
        wanted.name in {UNSET, acl.name}
        and wanted.principal in {UNSET, acl.principal}
        and wanted.host in {UNSET, acl.host}
        and wanted.resource in {UNSET, name_of(acl.resource_type)}
        and wanted.pattern in {UNSET, name_of(acl.pattern_type)}
        and wanted.operation in {UNSET, name_of(acl.operation)}
        and wanted.permission in {UNSET, name_of(acl.permission)}
    )


async def create_acl(call: Call[Nothing, NewAcl]) -> AclDescription:
    access, body = call.backend.broker.access, call.body
    name = body.name
    if name is UNSET:
        if body.resource is not AclResource.CLUSTER:
            raise InvalidAcl(f"a rule about a {body.resource} needs its name, or * for all")
        name = CLUSTER_NAME
    acl = Acl(
        _RESOURCES[body.resource],
        name,
        rules.PatternType[body.pattern.name],
        body.principal,
        body.host,
        rules.Operation[body.operation.name],
        rules.Permission[body.permission.name],
        _tenant(call),
    )
    rules.check_acl(acl)
    if any(access.acls(_only(acl))):
        raise AlreadyExists("this access rule exists already")
    for failure in filter(None, (await access.create_acls([acl])).failures):
        raise failure.to_error()
    return _described(acl)


async def delete_acl(call: Call[OfAcl, Nothing]) -> None:
    access, wanted = call.backend.broker.access, call.parameters.id
    acl = next((each for each in access.acls(AclFilter(tenant=_tenant(call))) if each.id == wanted), None)
    if acl is None:
        raise UnknownAcl(f"no access rule has the id {wanted!r}")
    await access.delete_acls([_only(acl)])


def _tenant(call: Call[AclsQuery, Nothing] | Call[Nothing, NewAcl] | Call[OfAcl, Nothing]) -> str:
    """Return the tenant whose rules are meant, empty without one. Raises SecurityDisabled."""
    access = call.backend.broker.access
    if not access.is_enforced:
        raise SecurityDisabled(_DISABLED)
    return access.tenant_of(call.caller) or ""


def _only(acl: Acl) -> AclFilter:
    """Return the filter that one rule matches."""
    return AclFilter(
        resource_type=acl.resource_type,
        name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
        tenant=acl.tenant,
    )


def _described(acl: Acl) -> AclDescription:
    return AclDescription(
        id=acl.id,
        resource=AclResource[acl.resource_type.name],
        name=acl.name,
        pattern=AclPattern[acl.pattern_type.name],
        principal=acl.principal,
        host=acl.host,
        operation=AclOperation[acl.operation.name],
        permission=AclPermission[acl.permission.name],
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/acls",
        summary="List access rules",
        handler=list_acls,
        parameters=AclsQuery,
        body=Nothing,
        answers=(AclList,),
        errors=(SecurityDisabled,),
    ),
    Route(
        method="POST",
        path="/acls",
        summary="Create an access rule",
        handler=create_acl,
        parameters=Nothing,
        body=NewAcl,
        answers=(AclDescription,),
        status=HTTPStatus.CREATED,
        errors=(AlreadyExists, InvalidAcl, InvalidRequest, SecurityDisabled, FeatureNotEnabled),
    ),
    Route(
        method="DELETE",
        path="/acls/{id}",
        summary="Delete an access rule",
        handler=delete_acl,
        parameters=OfAcl,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownAcl, ClusterNotAuthorized, SecurityDisabled),
    ),
)
