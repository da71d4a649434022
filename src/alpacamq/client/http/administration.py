"""Manages keys and tenants over the HTTP API."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from alpacamq.client.errors import NotFound
from alpacamq.wire.keys import CreatedKey, KeyDescription, KeyList
from alpacamq.wire.tenants import TenantDescription, TenantList, TenantTopic, TenantTopics, TenantUsage

from .connection import HttpApi, Problem

_COMMAND_MS = 30_000


def list_keys(api: HttpApi) -> Sequence[KeyDescription]:
    """Return the keys that the client may see."""
    return api.get(("keys",), KeyList).keys


def create_key(
    api: HttpApi,
    *,
    owner: str | None = None,
    expires_in_ms: int | None = None,
    scopes: Sequence[str] = (),
    description: str = "",
) -> CreatedKey:
    """Create a key; its secret is returned this once."""
    body: dict[str, object] = {"scopes": list(scopes), "description": description}
    if owner is not None:
        body["owner"] = owner
    if expires_in_ms is not None:
        body["expires_in_ms"] = expires_in_ms
    return api.send("POST", ("keys",), CreatedKey, body, wait_ms=_COMMAND_MS)


def rotate_key(api: HttpApi, key_id: str, *, overlap_ms: int) -> CreatedKey:
    """Replace a key, which ends after `overlap_ms`; return the new one, with its secret. Raises NotFound."""
    try:
        body = {"overlap_ms": overlap_ms}
        return api.send("POST", ("keys", key_id, "rotate"), CreatedKey, body, wait_ms=_COMMAND_MS)
    except Problem as problem:
        raise _not_found(api, problem, key_id) from None


def delete_key(api: HttpApi, key_id: str) -> None:
    """Delete a key. Raises NotFound."""
    try:
        api.send("DELETE", ("keys", key_id), type(None), wait_ms=_COMMAND_MS)
    except Problem as problem:
        raise _not_found(api, problem, key_id) from None


def _not_found(api: HttpApi, problem: Problem, key_id: str) -> Exception:
    """Return NotFound with the keys that there are, if that is the problem."""
    if problem.kind != "unknown-api-key":
        return problem
    return NotFound("API key", key_id, [each.id for each in list_keys(api)])


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
