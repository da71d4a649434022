"""Quotas of users, client ids and addresses: listing, setting and removing them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import FeatureNotEnabled, InvalidRequest
from alpacamq.security.quotas import (
    CLIENT_ID,
    IP,
    MAX_NAME_LENGTH,
    USER,
    Entity,
    EntityPart,
    QuotaEdit,
    QuotaOp,
    entity_id,
    entity_of,
)

MAX_LISTED = 10_000


class QuotaPart(StrEnum):
    """What a quota can be of: users, client ids and addresses."""

    USER = "user"
    CLIENT_ID = "client_id"
    IP = "ip"


_KAFKA_NAMES = {QuotaPart.USER: USER, QuotaPart.CLIENT_ID: CLIENT_ID, QuotaPart.IP: IP}

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
Value = Annotated[float, Meta(gt=0)]


class QuotasQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which quotas to list: those of all the given names."""

    user: Name | UnsetType = UNSET
    client_id: Name | UnsetType = UNSET
    ip: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 1000


class QuotaValues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quotas to set; null removes one, and those that are left out stay."""

    producer_byte_rate: Value | UnsetType | None = UNSET
    consumer_byte_rate: Value | UnsetType | None = UNSET
    request_percentage: Value | UnsetType | None = UNSET
    controller_mutation_rate: Value | UnsetType | None = UNSET
    connection_creation_rate: Value | UnsetType | None = UNSET
    connection_count: Value | UnsetType | None = UNSET


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the quotas of a user, a client id, both, or an address.

    `defaults` are those of which the quota is the default: it applies to each that has none of its own.
    """

    user: Name | UnsetType = UNSET
    client_id: Name | UnsetType = UNSET
    ip: Name | UnsetType = UNSET
    defaults: Annotated[list[QuotaPart], Meta(max_length=len(QuotaPart))] = []
    values: QuotaValues


class QuotaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a user, a client id, both, or an address, and which of these are defaults."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    defaults: list[QuotaPart]
    values: dict[str, float]


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas by user, client id and address, and how many there are without the limit."""

    quotas: list[QuotaDescription]
    total: int


def list_quotas(call: Call[QuotasQuery, Nothing]) -> QuotaList:
    wanted = call.parameters
    names = {part: name for part in QuotaPart if (name := getattr(wanted, part)) is not UNSET}
    found = [
        _described(quota.entity, quota.values)
        for quota in call.backend.broker.quotas.all()
        if names.items() <= _names(quota.entity).items()
    ]
    found.sort(key=lambda each: [getattr(each, part) or "" for part in QuotaPart])
    return QuotaList(quotas=found[: wanted.limit], total=len(found))


async def alter_quota(call: Call[Nothing, QuotaChange]) -> QuotaDescription:
    quotas, body = call.backend.broker.quotas, call.body
    parts = []
    for part, type_ in _KAFKA_NAMES.items():
        name = getattr(body, part)
        if part in body.defaults:
            if name is not UNSET:
                raise ConflictingInput(f"/{part}: give either a name or the default", f"/{part}")
            parts.append(EntityPart(type_, None))
        elif name is not UNSET:
            parts.append(EntityPart(type_, name))
    entity = entity_of(parts)
    ops = tuple(
        QuotaOp(name, value)
        for name in body.values.__struct_fields__
        if (value := getattr(body.values, name)) is not UNSET
    )
    if not ops:
        raise ConflictingInput("/values: name at least one quota", "/values")
    for failure in filter(None, (await quotas.alter([QuotaEdit(entity, ops)])).failures):
        raise failure.to_error()
    known = quotas.find(entity_id(entity))
    return _described(entity, {} if known is None else known.values)


def _names(entity: Entity) -> dict[QuotaPart, str | None]:
    names = dict(entity)
    return {part: names[type_] for part, type_ in _KAFKA_NAMES.items() if type_ in names}


def _described(entity: Entity, values: Mapping[str, float]) -> QuotaDescription:
    names = _names(entity)
    return QuotaDescription(
        user=names.get(QuotaPart.USER),
        client_id=names.get(QuotaPart.CLIENT_ID),
        ip=names.get(QuotaPart.IP),
        defaults=[part for part, name in names.items() if name is None],
        values=dict(sorted(values.items())),
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/quotas",
        summary="List quotas",
        handler=list_quotas,
        parameters=QuotasQuery,
        body=Nothing,
        answers=(QuotaList,),
    ),
    Route(
        method="PATCH",
        path="/quotas",
        summary="Set and remove quotas of a user, a client id, both, or an address",
        handler=alter_quota,
        parameters=Nothing,
        body=QuotaChange,
        answers=(QuotaDescription,),
        errors=(InvalidRequest, FeatureNotEnabled),
    ),
)
