"""Schemas by id and GUID, lists of schemas and contexts, and the registry itself."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from alpacamq.model.version import VERSION
from alpacamq.registry.errors import SchemaNotFound
from alpacamq.registry.messages import (
    MAX_LISTED,
    CountSchemas,
    GetById,
    IdsOfGuid,
    ListContexts,
    ListSchemas,
    ListSubjects,
    MaxId,
    RegistryStats,
    SchemaVersion,
    SubjectVersion,
    VersionsOfId,
)
from alpacamq.registry.schema import SchemaType
from alpacamq.registry.subjects import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    SubjectName,
    split_context,
    split_subject,
)
from alpacamq.security.acls import Operation

from .bodies import ContextIdBody, SchemaBody, SubjectVersionBody, schema_body
from .route import AnyRoute, Call, Nothing, Right, Route
from .subjects import answer, page

_ID: Final = re.compile(r"[0-9]{1,10}")
_TYPES: Final = (SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO)
IN_HANDLER: Final = "DESCRIBE topic of one of the subjects that have the schema"


class SchemasQuery(msgspec.Struct, frozen=True, rename="camel"):
    """Which schemas to list."""

    subject_prefix: str = ANY_CONTEXT
    deleted: bool = False
    latest_only: bool = False
    offset: int = 0
    limit: int = -1


class IdQuery(msgspec.Struct, frozen=True, rename="camel"):
    """The id of a schema in the context of a subject."""

    id: str
    subject: str | None = None
    format: str = ""
    fetch_max_id: bool = False


class UsersQuery(msgspec.Struct, frozen=True):
    """The id of a schema, and which of its subjects or versions to list."""

    id: str
    subject: str | None = None
    deleted: bool = False
    offset: int = 0
    limit: int = -1


class GuidQuery(msgspec.Struct, frozen=True):
    """The GUID of a schema."""

    guid: str
    format: str = ""


class PageQuery(msgspec.Struct, frozen=True):
    """A part of a list."""

    offset: int = 0
    limit: int = -1


def _schema_id(text: str) -> int:
    if _ID.fullmatch(text) is None:
        raise SchemaNotFound(f"schema {text!r} not found: an id is a number")
    return int(text)


async def _users(
    call: Call[Any, Any], schema_id: int, scope: str | None, *, deleted: bool
) -> list[SubjectVersion]:
    """Return the versions of a schema that the client may see. Raises SchemaNotFound if there are none."""
    found = await call.broker.registry.ask(VersionsOfId(id=schema_id, subject=scope, deleted=True))
    users = await call.visible(found, lambda user: user.subject)
    if not users:
        raise SchemaNotFound(f"schema {schema_id} not found")
    if deleted:
        return users
    kept = await call.broker.registry.ask(VersionsOfId(id=schema_id, subject=scope))
    shown = set(kept)
    return [each for each in users if each in shown]


async def version_by_id(call: Call[Any, Any], schema_id: int, scope: str | None) -> SchemaVersion:
    """Return a schema as a version that the client may see. Raises SchemaNotFound."""
    found = await call.broker.registry.ask(GetById(id=schema_id, subject=scope))
    if call.sees_all or call.sees(found.subject):
        return found
    user = (await _users(call, schema_id, scope, deleted=True))[0]
    return msgspec.structs.replace(found, subject=user.subject, version=user.version)


async def get_by_id(call: Call[IdQuery, Nothing]) -> SchemaBody:
    wanted = call.parameters
    scope = call.names.scope(wanted.subject)
    found = await version_by_id(call, _schema_id(wanted.id), scope)
    body = await answer(call, found, wanted.format)
    body = msgspec.structs.replace(body, id=None, deleted=False)
    if not wanted.fetch_max_id:
        return body
    max_id = await call.broker.registry.ask(MaxId(subject=scope))
    return msgspec.structs.replace(body, max_id=max_id)


async def get_text_by_id(call: Call[IdQuery, Nothing]) -> str:
    wanted = call.parameters
    found = await version_by_id(call, _schema_id(wanted.id), call.names.scope(wanted.subject))
    return await call.broker.registry.formatted(found, wanted.format)


async def subjects_of_id(call: Call[UsersQuery, Nothing]) -> list[str]:
    users = await _listed_users(call)
    return list(dict.fromkeys(call.names.local(each.subject) for each in users))


async def versions_of_id(call: Call[UsersQuery, Nothing]) -> list[SubjectVersionBody]:
    users = await _listed_users(call)
    return [SubjectVersionBody(call.names.local(each.subject), each.version) for each in users]


async def _listed_users(call: Call[UsersQuery, Nothing]) -> Sequence[SubjectVersion]:
    wanted = call.parameters
    scope = call.names.scope(wanted.subject)
    users = await _users(call, _schema_id(wanted.id), scope, deleted=wanted.deleted)
    if scope is not None and split_subject(scope).name:
        users = [each for each in users if each.subject == scope]
    return page(users, wanted.offset, wanted.limit)


async def _by_guid(call: Call[GuidQuery, Nothing]) -> list[SchemaVersion]:
    """Return a schema in each context that the client may see. Raises SchemaNotFound."""
    guid = call.parameters.guid
    found = []
    for context, schema_id in await call.broker.registry.ask(IdsOfGuid(guid=guid)):
        scope = str(SubjectName(context, "")) or None
        if call.names.is_own(scope or ""):
            try:
                found.append(await version_by_id(call, schema_id, scope))
            except SchemaNotFound:
                continue  # the client may not see it
    if not found:
        raise SchemaNotFound(f"schema {guid!r} not found")
    return found


async def get_by_guid(call: Call[GuidQuery, Nothing]) -> SchemaBody:
    body = await answer(call, (await _by_guid(call))[0], call.parameters.format)
    return msgspec.structs.replace(body, id=None, deleted=False)


async def ids_of_guid(call: Call[GuidQuery, Nothing]) -> list[ContextIdBody]:
    found = await _by_guid(call)
    return [ContextIdBody(split_subject(call.names.local(each.subject)).context, each.id) for each in found]


async def list_types(call: Call[Nothing, Nothing]) -> list[SchemaType]:
    return [each for each in _TYPES if each in call.broker.registry.languages]


async def list_schemas(call: Call[SchemasQuery, Nothing]) -> list[SchemaBody]:
    wanted, names = call.parameters, call.names
    limit = wanted.limit if 0 <= wanted.limit <= MAX_LISTED else MAX_LISTED
    start = max(wanted.offset, 0)
    request = ListSchemas(
        prefix=names.prefix(wanted.subject_prefix),
        deleted=wanted.deleted,
        latest_only=wanted.latest_only,
        offset=start if call.sees_all else 0,
        limit=limit if call.sees_all else MAX_LISTED,
    )
    if limit == 0:
        return []
    listed = await call.broker.registry.ask(request)
    if call.sees_all:
        return [schema_body(each, each.text, names) for each in listed]
    rest = ""
    if names.tenant is not None and wanted.subject_prefix.startswith(ANY_CONTEXT):
        rest = wanted.subject_prefix.removeprefix(ANY_CONTEXT)
    found: list[SchemaBody] = []
    while listed and len(found) < limit:
        for each in await call.visible(listed, lambda version: version.subject):
            if not split_subject(each.subject).name.startswith(rest):
                continue
            if start:
                start -= 1
            elif len(found) < limit:
                found.append(schema_body(each, each.text, names))
        request = msgspec.structs.replace(request, offset=request.offset + len(listed))
        listed = await call.broker.registry.ask(request)
    return found


async def list_contexts(call: Call[PageQuery, Nothing]) -> list[str]:
    registry = call.broker.registry
    names = call.names
    contexts = await registry.ask(ListContexts())
    if not call.sees_all:
        subjects = await registry.ask(ListSubjects(prefix=names.prefix(ANY_CONTEXT)))
        used = {split_subject(each).context for each in await call.visible(subjects, str)}
        if names.tenant is not None:
            used = {split_context(each)[1] for each in used}
            contexts = tuple(
                local for tenant, local in map(split_context, contexts) if tenant == names.tenant
            )
        others = sorted(each for each in contexts if each in used and each != DEFAULT_CONTEXT)
        contexts = (DEFAULT_CONTEXT, *others)
    return page(contexts, call.parameters.offset, call.parameters.limit)


async def get_root(_call: Call[Nothing, Nothing]) -> dict[str, str]:
    return {}


async def get_stats(call: Call[Nothing, Nothing]) -> RegistryStats:
    return await call.broker.registry.ask(CountSchemas())


async def get_cluster(call: Call[Nothing, Nothing]) -> dict[str, Any]:
    clusters = {"kafka-cluster": call.broker.cluster_id, "schema-registry-cluster": "schema-registry"}
    return {"scope": {"path": [], "clusters": clusters}}


async def get_release(_call: Call[Nothing, Nothing]) -> dict[str, str]:
    return {"version": VERSION, "commitId": ""}


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/schemas",
        summary="List versions of subjects with their schemas, at most 1000",
        handler=list_schemas,
        parameters=SchemasQuery,
        in_handler="shows subjects with DESCRIBE topic of the subject",
    ),
    Route(
        method="GET",
        path="/schemas/types",
        summary="List the schema languages",
        handler=list_types,
        parameters=Nothing,
    ),
    Route(
        method="GET",
        path="/schemas/ids/{id}",
        summary="Return a schema",
        handler=get_by_id,
        parameters=IdQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/schemas/ids/{id}/schema",
        summary="Return the text of a schema",
        handler=get_text_by_id,
        parameters=IdQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/schemas/ids/{id}/subjects",
        summary="List the subjects that have a schema",
        handler=subjects_of_id,
        parameters=UsersQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/schemas/ids/{id}/versions",
        summary="List the versions that have a schema",
        handler=versions_of_id,
        parameters=UsersQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/schemas/guids/{guid}",
        summary="Return a schema by its GUID",
        handler=get_by_guid,
        parameters=GuidQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/schemas/guids/{guid}/ids",
        summary="List the ids of a schema in all contexts",
        handler=ids_of_guid,
        parameters=GuidQuery,
        in_handler=IN_HANDLER,
    ),
    Route(
        method="GET",
        path="/contexts",
        summary="List contexts",
        handler=list_contexts,
        parameters=PageQuery,
        in_handler="shows contexts of subjects with DESCRIBE",
    ),
    Route(
        method="GET",
        path="/",
        summary="Return an empty object, for clients that look whether the registry is there",
        handler=get_root,
        parameters=Nothing,
    ),
    Route(
        method="GET",
        path="/stats",
        summary="Return how many contexts, subjects, versions and schemas there are",
        handler=get_stats,
        parameters=Nothing,
        right=Right(operation=Operation.DESCRIBE, is_global=True),
    ),
    Route(
        method="GET",
        path="/v1/metadata/id",
        summary="Return the id of the cluster",
        handler=get_cluster,
        parameters=Nothing,
    ),
    Route(
        method="GET",
        path="/v1/metadata/version",
        summary="Return the version of the broker",
        handler=get_release,
        parameters=Nothing,
    ),
)
