"""Decisions about tenants and their members, and the limits of tenants, on the pending image."""

from collections.abc import Callable, Mapping

import msgspec

from alpacamq.model.errors import (
    InvalidTenant,
    PolicyViolation,
    TenantExists,
    TenantLimitReached,
    UnknownTenant,
)
from alpacamq.model.names import split_topic
from alpacamq.model.topics import SETTINGS, Topic
from alpacamq.security.tenants import Member, Tenant, TenantLimits, TenantStatus, check_member, check_tenant

from .access import enable
from .commands import AddMember, AlterTenant, CreateTenant, DeleteTenant, RemoveMember
from .decisions import Pending
from .image import (
    TENANT_LEVEL,
    ClusterImage,
    acl_removal,
    member_change,
    member_removal,
    tenant_change,
    tenant_removal,
)

# Of one cluster, so that the image stays small.
MAX_TENANTS = 10_000
MAX_MEMBERS = 100_000

_RETENTION, _MESSAGE_BYTES = "retention.ms", "max.message.bytes"
# Of retention.ms.
_FOR_EVER = -1


class TenantControl:
    """Changes the tenants of the pending image and their members."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    @property
    def _image(self) -> ClusterImage:
        return self._pending.image

    def create(self, command: CreateTenant) -> Tenant:
        tenant = command.tenant
        existing = self._image.tenants.get(tenant.id)
        if existing == tenant:
            return tenant
        check_tenant(tenant)
        if existing is not None:
            raise TenantExists(f"a tenant has the id {tenant.id!r} already")
        if len(self._image.tenants) >= MAX_TENANTS:
            raise InvalidTenant(f"a cluster has at most {MAX_TENANTS} tenants")
        enable(self._pending, TENANT_LEVEL, "tenants")
        self._pending.put(tenant_change(tenant))
        return tenant

    def alter(self, command: AlterTenant) -> Tenant:
        tenant = self._tenant(command.id)
        given = {
            name: value
            for name in ("status", "reason", "description")
            if (value := getattr(command, name)) is not None
        }
        if unknown := command.limits.keys() - set(TenantLimits.__struct_fields__):
            raise InvalidTenant(f"unknown limit {min(unknown)!r}")
        given["limits"] = msgspec.structs.replace(tenant.limits, **command.limits)
        if given.get("status") is TenantStatus.ACTIVE:
            given.setdefault("reason", "")
        changed = msgspec.structs.replace(tenant, **given)
        check_tenant(changed)
        if changed != tenant:
            self._pending.put(tenant_change(changed))
        return changed

    def delete(self, command: DeleteTenant) -> Tenant:
        tenant = self._tenant(command.id)
        if command.is_disabled and tenant.status is not TenantStatus.DISABLED:
            raise PolicyViolation(f"tenant {tenant.id!r} was activated meanwhile; try again")
        check_without_topics(self._image, tenant.id)
        members = [each for each in self._image.members.values() if each.tenant == tenant.id]
        rules = [each for each in self._image.acls.values() if each.tenant == tenant.id]
        self._pending.put(
            *(member_removal(each.principal) for each in members),
            *map(acl_removal, rules),
            tenant_removal(tenant.id),
        )
        return tenant

    def add_member(self, command: AddMember) -> Member:
        member = command.member
        self._tenant(member.tenant)
        check_member(member.principal)
        existing = self._image.members.get(member.principal)
        if existing is not None and existing.tenant != member.tenant:
            raise TenantExists(f"{member.principal} belongs to another tenant")
        if existing is None and len(self._image.members) >= MAX_MEMBERS:
            raise InvalidTenant(f"all tenants together have at most {MAX_MEMBERS} principals")
        if existing != member:
            self._pending.put(member_change(member))
        return member

    def remove_member(self, command: RemoveMember) -> Member:
        member = self._image.members.get(command.principal)
        if member is None or member.tenant != command.tenant:
            raise UnknownTenant(f"{command.principal} does not belong to tenant {command.tenant!r}")
        self._pending.put(member_removal(member.principal))
        return member

    def _tenant(self, tenant_id: str) -> Tenant:
        if (tenant := self._image.tenants.get(tenant_id)) is None:
            raise UnknownTenant(f"no tenant has the id {tenant_id!r}")
        return tenant


def tenant_of(image: ClusterImage, topic: str) -> Tenant | None:
    """Return the tenant of a topic; None if it has none."""
    tenant, _ = split_topic(topic)
    return None if tenant is None else image.tenants.get(tenant)


def topics_of(image: ClusterImage, tenant: str) -> list[Topic]:
    """Return the topics of a tenant."""
    return [topic for name, topic in image.topics.items() if split_topic(name)[0] == tenant]


def check_without_topics(image: ClusterImage, tenant: str) -> None:
    """Raise PolicyViolation if a tenant has topics."""
    if topics := topics_of(image, tenant):
        raise PolicyViolation(f"tenant {tenant!r} has topics, such as {topics[0].name!r}; delete them first")


def topics_by_tenant(image: ClusterImage) -> dict[str, list[Topic]]:
    """Return the topics of all tenants that have some."""
    found: dict[str, list[Topic]] = {}
    for name, topic in image.topics.items():
        if (tenant := split_topic(name)[0]) is not None:
            found.setdefault(tenant, []).append(topic)
    return found


def check_room(image: ClusterImage, topic: str, partitions: int, *, is_new: bool) -> None:
    """Raise TenantLimitReached if the tenant of a topic may not have so many more partitions."""
    tenant = tenant_of(image, topic)
    if tenant is None or (tenant.limits.topics is None and tenant.limits.partitions is None):
        return
    topics = topics_of(image, tenant.id)
    limits = tenant.limits
    if is_new and limits.topics is not None and len(topics) >= limits.topics:
        raise TenantLimitReached(f"too many topics: the limit of the tenant is {limits.topics}")
    if limits.partitions is not None:
        count = sum(each.partitions for each in topics) + partitions
        if count > limits.partitions:
            raise TenantLimitReached(
                f"too many partitions: {count} in all topics, and the limit of the tenant is "
                f"{limits.partitions}"
            )


def limited_settings(
    image: ClusterImage,
    topic: str,
    overrides: Mapping[str, str],
    *,
    before: Mapping[str, str],
    default: Callable[[str], str],
) -> dict[str, str]:
    """Return the settings of a topic within the limits of its tenant.

    A setting that exceeds its limit by default, or since before, is set to the limit. Raises
    TenantLimitReached for one that was asked for.
    """
    limited = dict(overrides)
    if (tenant := tenant_of(image, topic)) is None:
        return limited
    for name, limit in (
        (_RETENTION, tenant.limits.retention_ms),
        (_MESSAGE_BYTES, tenant.limits.message_bytes),
    ):
        if limit is None:
            continue
        text = limited.get(name, default(name))
        value = SETTINGS[name].parse(name, text)
        if value <= limit and value != _FOR_EVER:
            continue
        if name in limited and limited[name] != before.get(name):
            raise TenantLimitReached(f"{name}={text} exceeds the limit of the tenant, {limit}")
        limited[name] = str(limit)
    return limited
