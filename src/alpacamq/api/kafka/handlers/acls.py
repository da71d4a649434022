"""DescribeAcls, CreateAcls and DeleteAcls: the access rules of the cluster."""

from enum import IntEnum
from typing import NamedTuple, TypeVar

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.commands import MAX_SECURITY_CHANGES
from alpacamq.model.errors import AlpacaError, InvalidAcl, SecurityDisabled
from alpacamq.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from alpacamq.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    check_filter,
)

_DISABLED = "access rules are not in force on this broker; set security.acls to true, and restart it"

E = TypeVar("E", bound=IntEnum)


class _Resource(NamedTuple):
    kind: ResourceType
    name: str
    pattern: PatternType


async def describe_acls(backend: Backend, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    try:
        tenant = _check(backend, call, Operation.DESCRIBE)
        wanted = _filter(request, tenant)
        check_filter(wanted)
    except AlpacaError as error:
        return DescribeAclsResponse(error_code=code_of(error), error_message=text_of(error))
    resources: dict[_Resource, list[AclDescription]] = {}
    for acl in backend.broker.access.acls(wanted):
        await call.pause()
        resource = _Resource(acl.resource_type, acl.name, acl.pattern_type)
        resources.setdefault(resource, []).append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=resource.kind,
                resource_name=resource.name,
                pattern_type=resource.pattern,
                acls=acls,
            )
            for resource, acls in resources.items()
        ]
    )


async def create_acls(backend: Backend, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    """Add rules; the others are added if one is invalid."""
    try:
        tenant = _check(backend, call, Operation.ALTER)
    except AlpacaError as error:
        return CreateAclsResponse(results=[_refused(error)] * len(request.creations))
    results = [AclCreationResult()] * len(request.creations)
    valid: list[tuple[int, Acl]] = []
    for place, creation in enumerate(request.creations):
        await call.pause()
        try:
            acl = _acl(creation, tenant)
            check_acl(acl)
            valid.append((place, acl))
        except AlpacaError as error:
            results[place] = _refused(error)
    for start in range(0, len(valid), MAX_SECURITY_CHANGES):
        some = valid[start : start + MAX_SECURITY_CHANGES]
        try:
            created = await backend.broker.access.create_acls([acl for _, acl in some])
        except AlpacaError as error:
            for place, _ in some:
                results[place] = _refused(error)
            continue
        for (place, _), failure in zip(some, created.failures, strict=True):
            if failure is not None:
                results[place] = _refused(failure.to_error())
    return CreateAclsResponse(results=results)


async def delete_acls(backend: Backend, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    """Remove the rules that match filters; those of the others are removed if one is invalid."""
    try:
        tenant = _check(backend, call, Operation.ALTER)
    except AlpacaError as error:
        return DeleteAclsResponse(filter_results=[_unmatched(error)] * len(request.filters))
    results = [DeleteAclsFilterResult()] * len(request.filters)
    valid: list[tuple[int, AclFilter]] = []
    for place, each in enumerate(request.filters):
        await call.pause()
        try:
            wanted = _filter(each, tenant)
            check_filter(wanted)
            valid.append((place, wanted))
        except AlpacaError as error:
            results[place] = _unmatched(error)
    for start in range(0, len(valid), MAX_SECURITY_CHANGES):
        some = valid[start : start + MAX_SECURITY_CHANGES]
        try:
            deleted = await backend.broker.access.delete_acls([wanted for _, wanted in some])
        except AlpacaError as error:
            for place, _ in some:
                results[place] = _unmatched(error)
            continue
        for (place, _), matches in zip(some, deleted.matches, strict=True):
            matching = []
            for acl in matches:
                await call.pause()
                matching.append(_deleted(acl))
            results[place] = DeleteAclsFilterResult(matching_acls=matching)
    return DeleteAclsResponse(filter_results=results)


def _check(backend: Backend, call: Call, operation: Operation) -> str:
    """Return the tenant of the rules, empty without one; raise unless the client may see or change them."""
    tenant = backend.broker.access.check_whole(call.caller, operation)
    if not backend.broker.access.is_enforced:
        raise SecurityDisabled(_DISABLED)
    return tenant


def _acl(creation: AclCreation, tenant: str) -> Acl:
    return Acl(
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _known(Operation, creation.operation),
        _known(Permission, creation.permission_type),
        tenant,
    )


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter, tenant: str) -> AclFilter:
    return AclFilter(
        resource_type=_known(ResourceType, wanted.resource_type_filter),
        name=wanted.resource_name_filter,
        pattern_type=_known(PatternType, wanted.pattern_type_filter),
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=_known(Operation, wanted.operation),
        permission=_known(Permission, wanted.permission_type),
        tenant=tenant,
    )


def _known(kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        raise InvalidAcl(f"{kind.__name__} {number} is unknown") from None


def _refused(error: AlpacaError) -> AclCreationResult:
    return AclCreationResult(error_code=code_of(error), error_message=text_of(error))


def _unmatched(error: AlpacaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code_of(error), error_message=text_of(error))


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
