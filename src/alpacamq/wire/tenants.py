"""Tenants as the HTTP API sends them."""

import msgspec


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A principal of a tenant; an administrator may do everything inside it."""

    principal: str
    admin: bool


class TenantDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. `status` is active, suspended or disabled; limits that are not set are left out."""

    id: str
    status: str
    reason: str
    description: str
    created: int
    limits: dict[str, int]
    principals: list[Principal]


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants, by id."""

    tenants: list[TenantDescription]


class TenantTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of a tenant: its name in the tenant, and the name that operators use."""

    name: str
    stored_name: str
    partitions: int


class TenantTopics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of a tenant, by name."""

    topics: list[TenantTopic]


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has written and read, and what is in progress, on all brokers.

    `written_total` counts messages since its topics were created; the other totals count since the leaders of
    its partitions started. `transactions` are those in progress, `delayed` messages are pending.
    """

    id: str
    messages: int
    storage_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int
    groups: int
    delayed: int
    transactional_ids: int
    transactions: int


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant uses now. `storage_bytes` is that of the leaders of its partitions."""

    id: str
    topics: int
    partitions: int
    messages: int
    storage_bytes: int
    groups: int
    limits: dict[str, int]
