"""API keys: creating, listing, replacing and deleting them."""

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import ClusterNotAuthorized, FeatureNotEnabled, InvalidPrincipal, UnknownApiKey
from alpacamq.model.topics import DAY_MS, INT64_MAX
from alpacamq.security.acls import OPERATIONS, Operation, hyphenated, name_of
from alpacamq.security.api_keys import MAX_DESCRIPTION_LENGTH, ApiKey
from alpacamq.security.principals import ANONYMOUS, MAX_NAME_LENGTH
from alpacamq.wire.keys import CreatedKey, KeyDescription, KeyList

_SCOPES = {name_of(each): each for each in Operation if any(each in known for known in OPERATIONS.values())}


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create. Without `owner` it acts for the client that creates it."""

    owner: (
        Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="a user")] | UnsetType
    ) = UNSET
    expires_in_ms: Annotated[int, Meta(ge=1, le=INT64_MAX // 2)] | UnsetType = UNSET
    scopes: Annotated[
        list[str],
        Meta(
            max_length=len(_SCOPES),
            description=f"operations that it is limited to, of {', '.join(sorted(_SCOPES))}",
        ),
    ] = []
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_LENGTH)] = ""


class OfKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old key keeps working."""

    overlap_ms: Annotated[int, Meta(ge=0, le=INT64_MAX // 2)] = 7 * DAY_MS


async def create_key(call: Call[Nothing, NewKey]) -> CreatedKey:
    access, body = call.backend.broker.access, call.body
    own = call.caller.principal.name
    owner = own if body.owner is UNSET else body.owner
    if owner != own or call.caller.principal == ANONYMOUS:
        call.check_cluster(Operation.ALTER)
    if owner == ANONYMOUS.name:
        raise ConflictingInput("/owner: a key acts for a user; name one", "/owner")
    scopes = dict.fromkeys(map(hyphenated, body.scopes))
    if unknown := sorted(scopes.keys() - _SCOPES.keys()):
        known = ", ".join(sorted(_SCOPES))
        raise ConflictingInput(f"/scopes: unknown operation {unknown[0]!r}; there are {known}", "/scopes")
    now_ms = call.backend.broker.time.now_ms()
    expires_ms = None if body.expires_in_ms is UNSET else now_ms + body.expires_in_ms
    if (remaining_ms := call.caller.remaining_ms) is not None:
        # A token or certificate that ends must not create a key that does not, which its issuer could not
        # withdraw.
        end_ms = now_ms + max(remaining_ms, 1)
        if expires_ms is None and not access.sees_cluster(call.caller, Operation.ALTER):
            expires_ms = end_ms
        if is_longer(expires_ms, end_ms):
            call.check_cluster(Operation.ALTER)
    if (used := call.caller.key) is not None and (used.scopes or is_longer(expires_ms, used.expires_ms)):
        call.check_cluster(Operation.ALTER)  # a limited key must not create an unlimited one
    key, text = await access.create_api_key(
        owner,
        expires_ms=expires_ms,
        scopes=[_SCOPES[each] for each in scopes],
        description=body.description,
    )
    fields = msgspec.structs.asdict(_shown(key, None))
    return CreatedKey(**fields, key=text, aws_secret_access_key=key.aws_secret)


async def rotate_key(call: Call[OfKey, Rotation]) -> CreatedKey:
    access, key_id = call.backend.broker.access, call.parameters.id
    old = access.api_keys().get(key_id)
    if old is None or old.owner != call.caller.principal.name or call.caller.principal == ANONYMOUS:
        call.check_cluster(Operation.ALTER)
    if (used := call.caller.key) is not None and (used.scopes or used.expires_ms is not None):
        call.check_cluster(Operation.ALTER)  # a limited key must not replace an unlimited one, nor itself
    if call.caller.remaining_ms is not None:
        call.check_cluster(Operation.ALTER)  # nor must a token or certificate, which ends
    if old is None:
        raise UnknownApiKey(f"no API key has the id {key_id!r}")
    if old.is_expired(call.backend.broker.time.now_ms()):
        raise ConflictingInput("the key has expired; create a new one", "id")
    key, text = await access.rotate_api_key(old, overlap_ms=call.body.overlap_ms)
    fields = msgspec.structs.asdict(_shown(key, None))
    return CreatedKey(**fields, key=text, aws_secret_access_key=key.aws_secret)


def is_longer(expires_ms: int | None, than_ms: int | None) -> bool:
    """Return whether a key lasts longer than another; None is for ever."""
    return than_ms is not None and (expires_ms is None or expires_ms > than_ms)


def list_keys(call: Call[Nothing, Nothing]) -> KeyList:
    access = call.backend.broker.access
    sees_all = access.sees_cluster(call.caller, Operation.DESCRIBE)
    own = call.caller.principal.name
    keys = [key for key in access.api_keys().values() if sees_all or key.owner == own]
    keys.sort(key=lambda each: (each.created_ms, each.id))
    return KeyList(keys=[_shown(key, access.last_use_ms.get(key.id)) for key in keys])


async def delete_key(call: Call[OfKey, Nothing]) -> None:
    access, key_id = call.backend.broker.access, call.parameters.id
    key = access.api_keys().get(key_id)
    used = call.caller.key
    is_own = key is not None and key.owner == call.caller.principal.name
    # A limited key may end itself, but no other.
    if not is_own or (used is not None and used.scopes and used.id != key_id):
        call.check_cluster(Operation.ALTER)
    await access.delete_api_key(key_id)


def _shown(key: ApiKey, last_used: int | None) -> KeyDescription:
    return KeyDescription(
        id=key.id,
        owner=key.owner,
        created=key.created_ms,
        expires=key.expires_ms,
        scopes=[name_of(each) for each in key.scopes],
        description=key.description,
        last_used=last_used,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/keys",
        summary="List API keys, without their secrets",
        handler=list_keys,
        parameters=Nothing,
        body=Nothing,
        answers=(KeyList,),
    ),
    Route(
        method="POST",
        path="/keys",
        summary="Create an API key, whose secret is shown once",
        handler=create_key,
        parameters=Nothing,
        body=NewKey,
        answers=(CreatedKey,),
        status=HTTPStatus.CREATED,
        errors=(ClusterNotAuthorized, FeatureNotEnabled, InvalidPrincipal),
    ),
    Route(
        method="POST",
        path="/keys/{id}/rotate",
        summary="Replace an API key by a new one of the same rights; the old one ends after a time",
        handler=rotate_key,
        parameters=OfKey,
        body=Rotation,
        answers=(CreatedKey,),
        status=HTTPStatus.CREATED,
        errors=(UnknownApiKey, ClusterNotAuthorized),
    ),
    Route(
        method="DELETE",
        path="/keys/{id}",
        summary="Delete an API key",
        handler=delete_key,
        parameters=OfKey,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownApiKey, ClusterNotAuthorized),
    ),
)
