"""Tenants: creating, changing, suspending and deleting them, their principals, topics and usage."""

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.partition_reading import bounds_of_topics
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker import administration
from alpacamq.broker.broker import Broker
from alpacamq.broker.tenant_usage import DESCRIBE_MS
from alpacamq.cluster.commands import AlterTenant
from alpacamq.cluster.tenants import topics_of
from alpacamq.coordinator.transactions.transaction import ListTransactions
from alpacamq.model.errors import (
    FeatureNotEnabled,
    InvalidPrincipal,
    InvalidTenant,
    PolicyViolation,
    TenantExists,
    UnknownTenant,
    UnknownTopic,
)
from alpacamq.model.names import MAX_TENANT_LENGTH, local_topic, split_id
from alpacamq.model.topics import INT64_MAX
from alpacamq.security.tenants import (
    MAX_PRINCIPAL_LENGTH,
    MAX_TEXT_LENGTH,
    Member,
    Tenant,
    TenantLimits,
    TenantStatus,
)
from alpacamq.wire import tenants as wire

TenantText = Annotated[str, Meta(min_length=1, max_length=MAX_TENANT_LENGTH, description="a tenant's id")]
PrincipalText = Annotated[
    str, Meta(min_length=3, max_length=MAX_PRINCIPAL_LENGTH, description="a principal, as User:alice")
]
Limit = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Rate = Annotated[int, Meta(ge=1, le=INT64_MAX)]
PlainText = Annotated[str, Meta(max_length=MAX_TEXT_LENGTH)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits to set; null removes one, and those that are left out stay."""

    topics: Limit | UnsetType | None = UNSET
    partitions: Limit | UnsetType | None = UNSET
    storage_bytes: Limit | UnsetType | None = UNSET
    message_bytes: Limit | UnsetType | None = UNSET
    connections: Limit | UnsetType | None = UNSET
    groups: Limit | UnsetType | None = UNSET
    group_members: Limit | UnsetType | None = UNSET
    retention_ms: Limit | UnsetType | None = UNSET
    delay_ms: Limit | UnsetType | None = UNSET
    produce_bytes_per_second: Rate | UnsetType | None = UNSET
    fetch_bytes_per_second: Rate | UnsetType | None = UNSET
    produce_messages_per_second: Rate | UnsetType | None = UNSET
    fetch_messages_per_second: Rate | UnsetType | None = UNSET

    @property
    def given(self) -> dict[str, int | None]:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to create."""

    id: TenantText
    description: PlainText = ""
    limits: Limits = Limits()


class ChangedTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a tenant."""

    description: PlainText | UnsetType = UNSET
    limits: Limits = Limits()


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a tenant is suspended or disabled; its clients see it."""

    reason: PlainText = ""


class Membership(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a principal may do everything inside the tenant."""

    admin: bool = False


class OfTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant."""

    tenant: TenantText


class OfPrincipal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A principal of a tenant."""

    tenant: TenantText
    principal: PrincipalText


def list_tenants(call: Call[Nothing, Nothing]) -> wire.TenantList:
    broker = call.backend.broker
    known = broker.access.tenants()
    return wire.TenantList(tenants=[_described(broker, known[tenant]) for tenant in sorted(known)])


async def create_tenant(call: Call[Nothing, NewTenant]) -> wire.TenantDescription:
    broker, body = call.backend.broker, call.body
    limits = TenantLimits(**body.limits.given)
    tenant = await broker.access.create_tenant(body.id, description=body.description, limits=limits)
    return _described(broker, tenant)


def describe_tenant(call: Call[OfTenant, Nothing]) -> wire.TenantDescription:
    broker = call.backend.broker
    return _described(broker, broker.access.tenant(call.parameters.tenant))


async def change_tenant(call: Call[OfTenant, ChangedTenant]) -> wire.TenantDescription:
    broker, body = call.backend.broker, call.body
    changed = await broker.access.alter_tenant(
        AlterTenant(
            id=call.parameters.tenant,
            description=None if body.description is UNSET else body.description,
            limits=body.limits.given,
        )
    )
    return _described(broker, changed)


async def suspend_tenant(call: Call[OfTenant, Reason]) -> wire.TenantDescription:
    return await _set_status(call, TenantStatus.SUSPENDED, call.body.reason)


async def disable_tenant(call: Call[OfTenant, Reason]) -> wire.TenantDescription:
    return await _set_status(call, TenantStatus.DISABLED, call.body.reason)


async def activate_tenant(call: Call[OfTenant, Nothing]) -> wire.TenantDescription:
    return await _set_status(call, TenantStatus.ACTIVE, "")


async def _set_status(
    call: Call[OfTenant, Reason] | Call[OfTenant, Nothing], status: TenantStatus, reason: str
) -> wire.TenantDescription:
    broker = call.backend.broker
    change = AlterTenant(id=call.parameters.tenant, status=status, reason=reason)
    return _described(broker, await broker.access.alter_tenant(change))


async def delete_tenant(call: Call[OfTenant, Nothing]) -> None:
    broker, tenant = call.backend.broker, call.parameters.tenant
    await administration.delete_tenant(broker.metadata, broker.access, broker.groups, tenant)


async def add_principal(call: Call[OfPrincipal, Membership]) -> wire.TenantDescription:
    broker, wanted = call.backend.broker, call.parameters
    await broker.access.add_member(wanted.tenant, wanted.principal, is_admin=call.body.admin)
    return _described(broker, broker.access.tenant(wanted.tenant))


async def remove_principal(call: Call[OfPrincipal, Nothing]) -> None:
    wanted = call.parameters
    await call.backend.broker.access.remove_member(wanted.tenant, wanted.principal)


def tenant_topics(call: Call[OfTenant, Nothing]) -> wire.TenantTopics:
    broker = call.backend.broker
    tenant = broker.access.tenant(call.parameters.tenant)
    return wire.TenantTopics(
        topics=[
            wire.TenantTopic(
                name=local_topic(topic.name), stored_name=topic.name, partitions=topic.partitions
            )
            for topic in sorted(topics_of(broker.topics.image, tenant.id), key=lambda each: each.name)
        ]
    )


async def tenant_usage(call: Call[OfTenant, Nothing]) -> wire.TenantUsage:
    broker = call.backend.broker
    tenant = broker.access.tenant(call.parameters.tenant)
    usage = await broker.tenant_usage.of(tenant.id)
    return wire.TenantUsage(
        id=tenant.id,
        topics=usage.topics,
        partitions=usage.partitions,
        messages=usage.messages,
        storage_bytes=usage.storage_bytes,
        groups=usage.groups,
        limits=_limits(tenant),
    )


async def tenant_stats(call: Call[OfTenant, Nothing]) -> wire.TenantStats:
    broker = call.backend.broker
    tenant = broker.access.tenant(call.parameters.tenant)
    topics = topics_of(broker.topics.image, tenant.id)
    bounds = await bounds_of_topics(broker, topics, DESCRIBE_MS)
    known = [each for of_topic in bounds.values() for each in of_topic if each is not None]
    delayed = 0
    for topic in topics:
        with suppress(UnknownTopic):  # deleted meanwhile
            delayed += (await broker.delays.stats(topic.name)).pending
    found = await broker.transactions.find(ListTransactions())
    transactions = [each for each in found if split_id(each.transactional_id)[0] == tenant.id]
    return wire.TenantStats(
        id=tenant.id,
        messages=sum(each.messages for each in known),
        storage_bytes=sum(each.size_bytes for each in known),
        written_total=sum(each.high_watermark for each in known),
        written_bytes_total=sum(each.written_bytes for each in known),
        fetched_total=sum(each.fetched_messages for each in known),
        fetched_bytes_total=sum(each.fetched_bytes for each in known),
        groups=len(await broker.tenant_usage.groups_of(tenant.id)),
        delayed=delayed,
        transactional_ids=len(transactions),
        transactions=sum(each.started_ms is not None for each in transactions),
    )


def _described(broker: Broker, tenant: Tenant) -> wire.TenantDescription:
    return wire.TenantDescription(
        id=tenant.id,
        status=tenant.status,
        reason=tenant.reason,
        description=tenant.description,
        created=tenant.created_ms,
        limits=_limits(tenant),
        principals=[_principal(member) for member in broker.access.members(tenant.id)],
    )


def _principal(member: Member) -> wire.Principal:
    return wire.Principal(principal=member.principal, admin=member.is_admin)


def _limits(tenant: Tenant) -> dict[str, int]:
    return {name: limit for name, limit in msgspec.structs.asdict(tenant.limits).items() if limit is not None}


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/admin/tenants",
        summary="List tenants",
        handler=list_tenants,
        parameters=Nothing,
        body=Nothing,
        answers=(wire.TenantList,),
    ),
    Route(
        method="POST",
        path="/admin/tenants",
        summary="Create a tenant",
        handler=create_tenant,
        parameters=Nothing,
        body=NewTenant,
        answers=(wire.TenantDescription,),
        status=HTTPStatus.CREATED,
        errors=(FeatureNotEnabled, InvalidTenant, TenantExists),
    ),
    Route(
        method="GET",
        path="/admin/tenants/{tenant}",
        summary="Describe a tenant",
        handler=describe_tenant,
        parameters=OfTenant,
        body=Nothing,
        answers=(wire.TenantDescription,),
        errors=(UnknownTenant,),
    ),
    Route(
        method="PATCH",
        path="/admin/tenants/{tenant}",
        summary="Change the description and limits of a tenant",
        handler=change_tenant,
        parameters=OfTenant,
        body=ChangedTenant,
        answers=(wire.TenantDescription,),
        errors=(InvalidTenant, UnknownTenant),
    ),
    Route(
        method="DELETE",
        path="/admin/tenants/{tenant}",
        summary="Delete a tenant that has no topics and no groups",
        handler=delete_tenant,
        parameters=OfTenant,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(PolicyViolation, UnknownTenant),
    ),
    Route(
        method="POST",
        path="/admin/tenants/{tenant}/suspend",
        summary="Refuse all requests of a tenant",
        handler=suspend_tenant,
        parameters=OfTenant,
        body=Reason,
        answers=(wire.TenantDescription,),
        errors=(InvalidTenant, UnknownTenant),
    ),
    Route(
        method="POST",
        path="/admin/tenants/{tenant}/disable",
        summary="Refuse all requests and logins of a tenant",
        handler=disable_tenant,
        parameters=OfTenant,
        body=Reason,
        answers=(wire.TenantDescription,),
        errors=(InvalidTenant, UnknownTenant),
    ),
    Route(
        method="POST",
        path="/admin/tenants/{tenant}/activate",
        summary="Serve a tenant again",
        handler=activate_tenant,
        parameters=OfTenant,
        body=Nothing,
        answers=(wire.TenantDescription,),
        errors=(UnknownTenant,),
    ),
    Route(
        method="GET",
        path="/admin/tenants/{tenant}/topics",
        summary="List the topics of a tenant",
        handler=tenant_topics,
        parameters=OfTenant,
        body=Nothing,
        answers=(wire.TenantTopics,),
        errors=(UnknownTenant,),
    ),
    Route(
        method="GET",
        path="/admin/tenants/{tenant}/usage",
        summary="Show what a tenant uses of its limits",
        handler=tenant_usage,
        parameters=OfTenant,
        body=Nothing,
        answers=(wire.TenantUsage,),
        errors=(UnknownTenant,),
    ),
    Route(
        method="GET",
        path="/admin/tenants/{tenant}/stats",
        summary="Show what a tenant has written and read, and what is in progress",
        handler=tenant_stats,
        parameters=OfTenant,
        body=Nothing,
        answers=(wire.TenantStats,),
        errors=(UnknownTenant,),
    ),
    Route(
        method="PUT",
        path="/admin/tenants/{tenant}/principals/{principal}",
        summary="Make a principal a member of a tenant",
        handler=add_principal,
        parameters=OfPrincipal,
        body=Membership,
        answers=(wire.TenantDescription,),
        errors=(InvalidPrincipal, InvalidTenant, TenantExists, UnknownTenant),
    ),
    Route(
        method="DELETE",
        path="/admin/tenants/{tenant}/principals/{principal}",
        summary="Remove a principal from its tenant",
        handler=remove_principal,
        parameters=OfPrincipal,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownTenant,),
    ),
)
