"""Lists, creates and deletes access rules."""

from collections.abc import Iterable, Sequence

from alpacamq.client.errors import check, only
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

# Re-exported: the rules themselves.
from alpacamq.security.acls import CLUSTER_NAME as CLUSTER_NAME
from alpacamq.security.acls import Acl as Acl
from alpacamq.security.acls import AclFilter as AclFilter
from alpacamq.security.acls import Operation as Operation
from alpacamq.security.acls import PatternType as PatternType
from alpacamq.security.acls import Permission as Permission
from alpacamq.security.acls import ResourceType as ResourceType

from .cluster import Cluster, retry_transient


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
