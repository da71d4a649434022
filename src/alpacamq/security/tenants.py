"""Tenants: groups of principals whose topics, groups and transactional ids are their own.

A principal belongs to one tenant at most. What it does is limited to the resources of its tenant; its rules
are those of the tenant, about names in the tenant.
"""

from enum import StrEnum

import msgspec

from alpacamq.model.errors import InvalidTenant
from alpacamq.model.names import check_tenant_id

from .acls import Operation
from .principals import Principal

MAX_TEXT_LENGTH = 200
MAX_PRINCIPAL_LENGTH = 1000
# What members can do to the cluster, if their tenant's rules allow it; everything else is for operators.
CLUSTER_OPERATIONS = frozenset({Operation.CREATE, Operation.IDEMPOTENT_WRITE})


# Limits that are rates: a rate of 0 would never let anything pass.
RATES = (
    "produce_bytes_per_second",
    "fetch_bytes_per_second",
    "produce_messages_per_second",
    "fetch_messages_per_second",
)


class TenantStatus(StrEnum):
    """Whether a tenant is served. A disabled one is refused at the login already."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DISABLED = "disabled"


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant may use at most; None for no limit of its own."""

    topics: int | None = None
    partitions: int | None = None
    storage_bytes: int | None = None
    message_bytes: int | None = None
    connections: int | None = None
    groups: int | None = None
    # Of each group.
    group_members: int | None = None
    retention_ms: int | None = None
    delay_ms: int | None = None
    # On each broker, of all clients of the tenant together.
    produce_bytes_per_second: int | None = None
    fetch_bytes_per_second: int | None = None
    produce_messages_per_second: int | None = None
    fetch_messages_per_second: int | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. `reason` says why it is not active."""

    id: str
    created_ms: int
    status: TenantStatus = TenantStatus.ACTIVE
    reason: str = ""
    description: str = ""
    limits: TenantLimits = TenantLimits()

    @property
    def is_active(self) -> bool:
        return self.status is TenantStatus.ACTIVE

    @property
    def refusal(self) -> str:
        """Why requests of its members are refused."""
        because = f": {self.reason}" if self.reason else ""
        return f"the tenant is {self.status}{because}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A principal of a tenant. An administrator may do everything inside the tenant."""

    principal: str
    tenant: str
    is_admin: bool = False


def check_tenant(tenant: Tenant) -> None:
    """Raise InvalidTenant unless a tenant can be stored."""
    check_tenant_id(tenant.id)
    for what, text in (("description", tenant.description), ("reason", tenant.reason)):
        if len(text) > MAX_TEXT_LENGTH or not text.isprintable():
            raise InvalidTenant(
                f"a {what} has at most {MAX_TEXT_LENGTH} characters and no control characters"
            )
    for name in TenantLimits.__struct_fields__:
        limit = getattr(tenant.limits, name)
        least = 1 if name in RATES else 0
        if limit is not None and limit < least:
            raise InvalidTenant(f"the limit {name} must be at least {least}")


def check_member(principal: str) -> None:
    """Raise InvalidPrincipal or InvalidTenant unless a principal can belong to a tenant."""
    parsed = Principal.parse(principal)
    if len(principal) > MAX_PRINCIPAL_LENGTH or not principal.isprintable():
        raise InvalidTenant(
            f"a principal has at most {MAX_PRINCIPAL_LENGTH} characters and no control characters"
        )
    if parsed.name in {"*", "ANONYMOUS"}:
        raise InvalidTenant(f"{principal} cannot belong to a tenant")
