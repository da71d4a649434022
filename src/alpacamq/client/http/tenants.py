"""Tenants over HTTP."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from alpacamq.client.errors import NotFound
from alpacamq.wire.tenants import TenantDescription, TenantList, TenantTopic, TenantTopics, TenantUsage

from .connection import HttpApi, Problem

_COMMAND_MS = 30_000
_PATH = ("admin", "tenants")

T = TypeVar("T")


def list_tenants(api: HttpApi) -> Sequence[TenantDescription]:
    return api.get(_PATH, TenantList).tenants


def create_tenant(
    api: HttpApi, tenant: str, *, description: str, limits: Mapping[str, int | None]
) -> TenantDescription:
    body = {"id": tenant, "description": description, "limits": dict(limits)}
    return api.send("POST", _PATH, TenantDescription, body, wait_ms=_COMMAND_MS)


def describe_tenant(api: HttpApi, tenant: str) -> TenantDescription:
    """Describe a tenant. Raises NotFound."""
    return _sent(api, "GET", tenant, (), TenantDescription)


def tenant_topics(api: HttpApi, tenant: str) -> Sequence[TenantTopic]:
    """Return the topics of a tenant. Raises NotFound."""
    return _sent(api, "GET", tenant, ("topics",), TenantTopics).topics


def tenant_usage(api: HttpApi, tenant: str) -> TenantUsage:
    """Return what a tenant uses. Raises NotFound."""
    return _sent(api, "GET", tenant, ("usage",), TenantUsage)


def change_tenant(
    api: HttpApi, tenant: str, *, description: str | None, limits: Mapping[str, int | None]
) -> TenantDescription:
    """Change what is given; None removes a limit. Raises NotFound."""
    body: dict[str, object] = {"limits": dict(limits)}
    if description is not None:
        body["description"] = description
    return _sent(api, "PATCH", tenant, (), TenantDescription, body)


def set_status(api: HttpApi, tenant: str, verb: str, reason: str = "") -> TenantDescription:
    """Suspend, disable or activate a tenant. Raises NotFound."""
    body = {"reason": reason} if reason else None
    return _sent(api, "POST", tenant, (verb,), TenantDescription, body)


def delete_tenant(api: HttpApi, tenant: str) -> None:
    """Delete a tenant without topics and groups. Raises NotFound."""
    _sent(api, "DELETE", tenant, (), type(None))


def add_principal(api: HttpApi, tenant: str, principal: str, *, is_admin: bool) -> TenantDescription:
    """Make a principal a member of a tenant. Raises NotFound."""
    return _sent(api, "PUT", tenant, ("principals", principal), TenantDescription, {"admin": is_admin})


def remove_principal(api: HttpApi, tenant: str, principal: str) -> None:
    """Remove a principal from a tenant. Raises NotFound."""
    _sent(api, "DELETE", tenant, ("principals", principal), type(None))


def _sent(
    api: HttpApi, method: str, tenant: str, rest: tuple[str, ...], answer: type[T], body: object = None
) -> T:
    try:
        return api.send(method, (*_PATH, tenant, *rest), answer, body, wait_ms=_COMMAND_MS)
    except Problem as problem:
        if problem.kind == "unknown-tenant" and "no tenant" in str(problem):
            raise NotFound("tenant", tenant, [each.id for each in list_tenants(api)]) from None
        raise
