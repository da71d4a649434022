"""Subjects and their versions: list, register, look up, compare, delete."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from alpacamq.registry.errors import SubjectNotFound
from alpacamq.registry.messages import (
    CheckCompatibility,
    CompatibilityReport,
    Deleted,
    DeleteSubject,
    DeleteVersion,
    DescribeSubjects,
    Draft,
    GetVersion,
    LatestWithMetadata,
    ListSubjects,
    ListVersions,
    Lookup,
    ReferencedBy,
    Register,
    SchemaVersion,
    VersionsOfId,
)
from alpacamq.registry.schema import InvalidSchema, SchemaType, is_base64
from alpacamq.registry.subjects import ANY_CONTEXT, SubjectName, in_context_of, split_subject
from alpacamq.security.acls import Operation

from .bodies import (
    CompatibilityBody,
    NewSchema,
    SchemaBody,
    SubjectBody,
    SubjectsBody,
    schema_body,
    schema_version,
)
from .route import AnyRoute, Call, Nothing, Right, Route

T = TypeVar("T")

MAX_DESCRIBED: Final = 1000

READ = Right(operation=Operation.DESCRIBE, hidden_as=SubjectNotFound)
WRITE = Right(operation=Operation.WRITE)
DELETE = Right(operation=Operation.DELETE, hidden_as=SubjectNotFound)
# To register what the configuration of the subject would refuse.
FORCE = Right(operation=Operation.ALTER_CONFIGS)


class SubjectsQuery(msgspec.Struct, frozen=True, rename="camel"):
    """Which subjects to list."""

    subject_prefix: str = ANY_CONTEXT
    deleted: bool = False
    deleted_only: bool = False
    offset: int = 0
    limit: int = -1


class DescribeQuery(msgspec.Struct, frozen=True):
    """Which subjects to describe: those whose names contain a text, or the one with a name."""

    contains: str = ""
    subject: str | None = None
    offset: int = 0
    limit: int = MAX_DESCRIBED


class VersionsQuery(msgspec.Struct, frozen=True, rename="camel"):
    """Which versions of a subject to list."""

    subject: str
    deleted: bool = False
    deleted_only: bool = False
    deleted_as_negative: bool = False
    offset: int = 0
    limit: int = -1


class VersionQuery(msgspec.Struct, frozen=True):
    """A version of a subject."""

    subject: str
    version: str
    deleted: bool = False
    format: str = ""


class ReferencedByQuery(msgspec.Struct, frozen=True):
    """A version of a subject, and which schemas that refer to it to list."""

    subject: str
    version: str
    deleted: bool = False
    offset: int = 0
    limit: int = -1


class DeleteSubjectQuery(msgspec.Struct, frozen=True):
    """A subject to delete."""

    subject: str
    permanent: bool = False


class DeleteVersionQuery(msgspec.Struct, frozen=True):
    """A version to delete."""

    subject: str
    version: str
    permanent: bool = False


class RegisterQuery(msgspec.Struct, frozen=True):
    """Where to register a schema; `force` skips the compatibility check."""

    subject: str
    normalize: bool = False
    format: str = ""
    force: bool = False


class LookupQuery(msgspec.Struct, frozen=True):
    """Where to look for a schema."""

    subject: str
    normalize: bool = False
    deleted: bool = False
    format: str = ""


class MetadataQuery(msgspec.Struct, frozen=True):
    """Properties of the metadata of a version; keys and values in the same order."""

    subject: str
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    deleted: bool = False
    format: str = ""


class CompatibilityQuery(msgspec.Struct, frozen=True):
    """What to compare a schema with."""

    subject: str
    version: str = ""
    verbose: bool = False
    normalize: bool = False


def deleted_of(*, deleted: bool, only: bool) -> Deleted:
    if only:
        return Deleted.ONLY
    return Deleted.INCLUDED if deleted else Deleted.EXCLUDED


def page(found: Sequence[T], offset: int, limit: int) -> list[T]:
    """Return a part of a list; a limit below 0 is none."""
    start = max(offset, 0)
    return list(found[start:] if limit < 0 else found[start : start + limit])


async def list_subjects(call: Call[SubjectsQuery, Nothing]) -> list[str]:
    wanted = call.parameters
    deleted = deleted_of(deleted=wanted.deleted, only=wanted.deleted_only)
    prefix = call.names.prefix(wanted.subject_prefix)
    registry = call.broker.registry
    if call.sees_all:
        request = ListSubjects(prefix=prefix, deleted=deleted, offset=wanted.offset, limit=wanted.limit)
        names = await registry.ask(request)
        return list(names)
    found = await registry.ask(ListSubjects(prefix=prefix, deleted=deleted))
    visible = await call.visible(found, str)
    if call.names.tenant is not None:
        visible = [call.names.local(each) for each in visible]
        if wanted.subject_prefix.startswith(ANY_CONTEXT):
            rest = wanted.subject_prefix.removeprefix(ANY_CONTEXT)
            visible = [each for each in visible if split_subject(each).name.startswith(rest)]
    return page(visible, wanted.offset, wanted.limit)


async def describe_subjects(call: Call[DescribeQuery, Nothing]) -> SubjectsBody:
    wanted, names, registry = call.parameters, call.names, call.broker.registry
    if wanted.subject is None:
        found = await registry.ask(ListSubjects(prefix=names.prefix(ANY_CONTEXT)))
    else:
        found = (names.stored(wanted.subject),)
    visible = await call.visible(found, str)
    if text := wanted.contains.casefold():
        visible = [each for each in visible if text in names.local(each).casefold()]
    limit = wanted.limit if 0 <= wanted.limit <= MAX_DESCRIBED else MAX_DESCRIBED
    some = page(visible, wanted.offset, limit)
    described = await registry.ask(DescribeSubjects(subjects=tuple(some)))
    subjects = [
        SubjectBody(**{**msgspec.structs.asdict(each), "subject": names.local(each.subject)})
        for each in described
    ]
    return SubjectsBody(len(visible) if wanted.subject is None else len(subjects), subjects)


async def list_versions(call: Call[VersionsQuery, Nothing]) -> tuple[int, ...]:
    wanted = call.parameters
    deleted = deleted_of(deleted=wanted.deleted, only=wanted.deleted_only)
    if wanted.deleted_as_negative:
        deleted = Deleted.NEGATIVE
    subject = call.names.stored(wanted.subject)
    request = ListVersions(subject=subject, deleted=deleted, offset=wanted.offset, limit=wanted.limit)
    return await call.broker.registry.ask(request)


async def found_version(call: Call[VersionQuery, Nothing]) -> SchemaVersion:
    """Return the version that a request names. Raises SubjectNotFound if the client may not see it."""
    wanted = call.parameters
    subject, version = call.names.stored(wanted.subject), schema_version(wanted.version)
    found = await call.broker.registry.ask(
        GetVersion(subject=subject, version=version, deleted=wanted.deleted)
    )
    check_visible(call, found, subject)
    return found


def check_visible(call: Call[Any, Any], found: SchemaVersion, subject: str) -> None:
    """Raise SubjectNotFound if a version was found in another context, and the client may not see it."""
    if found.subject != subject and not call.sees_all and not call.sees(found.subject):
        raise SubjectNotFound(subject)


async def answer(call: Call[Any, Any], found: SchemaVersion, form: str) -> SchemaBody:
    """Return a version in the form that a request asks for."""
    text = found.text if not form else await call.broker.registry.formatted(found, form)
    return schema_body(found, text, call.names)


async def get_version(call: Call[VersionQuery, Nothing]) -> SchemaBody:
    return await answer(call, await found_version(call), call.parameters.format)


async def get_version_text(call: Call[VersionQuery, Nothing]) -> str:
    found = await found_version(call)
    return await call.broker.registry.formatted(found, call.parameters.format)


async def referenced_by(call: Call[ReferencedByQuery, Nothing]) -> list[int]:
    wanted = call.parameters
    subject = call.names.stored(wanted.subject)
    registry = call.broker.registry
    ids = await registry.ask(
        ReferencedBy(
            subject=subject,
            version=schema_version(wanted.version),
            deleted=wanted.deleted,
            offset=wanted.offset,
            limit=wanted.limit,
        )
    )
    if call.sees_all:
        return list(ids)
    context = str(SubjectName(split_subject(subject).context, "")) or None
    visible = []
    for each in ids:
        users = await registry.ask(VersionsOfId(id=each, subject=context, deleted=True))
        if await call.visible(users, lambda user: user.subject):
            visible.append(each)
    return visible


async def register(call: Call[RegisterQuery, NewSchema]) -> SchemaBody:
    wanted, body = call.parameters, call.body
    subject = call.names.stored(wanted.subject)
    draft = body.draft(call.names)
    check_references(call, subject, draft)
    if wanted.force:
        await call.check(FORCE, subject)
    request = Register(
        subject=subject,
        draft=draft,
        normalize=wanted.normalize,
        force=wanted.force,
        id=None if body.id == -1 else body.id,
        version=body.version or 0,
    )
    # A client that gives up must not cancel what others may have seen already.
    found = await asyncio.shield(call.broker.registry.register(request))
    answered = msgspec.structs.replace(await answer(call, found, wanted.format), subject=None)
    if found.schema_type is SchemaType.PROTOBUF and not wanted.format and is_base64(draft.text):
        # A client that sends a descriptor would keep the text in its cache, where it expects the descriptor.
        return msgspec.structs.replace(answered, schema=None)
    return answered


def check_references(call: Call[Any, Any], subject: str, draft: Draft) -> None:
    """Raise the error of a missing reference for one that the client may not see."""
    if call.sees_all:
        return
    parent = split_subject(subject)
    for each in draft.references:
        if not call.sees(in_context_of(parent, each.subject)):
            version = "version" if each.version == -1 else f"version {each.version}"
            raise InvalidSchema(f"reference {each.name!r}: subject {each.subject!r} has no {version}")


async def look_up(call: Call[LookupQuery, NewSchema]) -> SchemaBody:
    wanted = call.parameters
    subject = call.names.stored(wanted.subject)
    draft = call.body.draft(call.names)
    check_references(call, subject, draft)
    found = await call.broker.registry.look_up(
        Lookup(subject=subject, draft=draft, normalize=wanted.normalize, deleted=wanted.deleted)
    )
    check_visible(call, found, subject)
    return await answer(call, found, wanted.format)


async def latest_with_metadata(call: Call[MetadataQuery, Nothing]) -> SchemaBody:
    wanted = call.parameters
    subject = call.names.stored(wanted.subject)
    properties = dict(zip(wanted.key, wanted.value, strict=False))
    found = await call.broker.registry.ask(
        LatestWithMetadata(subject=subject, properties=properties, deleted=wanted.deleted)
    )
    return await answer(call, found, wanted.format)


async def delete_version(call: Call[DeleteVersionQuery, Nothing]) -> int:
    wanted = call.parameters
    subject, version = call.names.stored(wanted.subject), schema_version(wanted.version)
    request = DeleteVersion(subject=subject, version=version, permanent=wanted.permanent)
    return await asyncio.shield(call.broker.registry.ask(request))


async def delete_subject(call: Call[DeleteSubjectQuery, Nothing]) -> tuple[int, ...]:
    wanted = call.parameters
    request = DeleteSubject(subject=call.names.stored(wanted.subject), permanent=wanted.permanent)
    return await asyncio.shield(call.broker.registry.ask(request))


async def check_compatibility(call: Call[CompatibilityQuery, NewSchema]) -> CompatibilityBody:
    wanted = call.parameters
    subject = call.names.stored(wanted.subject)
    draft = call.body.draft(call.names)
    check_references(call, subject, draft)
    report = await call.broker.registry.check_compatibility(
        CheckCompatibility(
            subject=subject,
            draft=draft,
            normalize=wanted.normalize,
            version=schema_version(wanted.version) if wanted.version else None,
        )
    )
    messages = _messages(report, draft.text) if wanted.verbose else None
    return CompatibilityBody(report.is_compatible, messages)


def _messages(report: CompatibilityReport, text: str) -> list[str]:
    """Return why schemas are incompatible, in the form of Confluent's registry."""
    if report.is_compatible:
        return []
    return [
        *(
            f"{{errorType:'{each.rule}', description:'{each.message}', additionalInfo:'{each.path}'}}"
            for each in report.reasons
        ),
        f"{{oldSchema: '{report.earlier}'}}",
        f"{{newSchema: '{text}'}}",
        f"{{compatibility: '{report.level}'}}",
    ]


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/subjects",
        summary="List subjects",
        handler=list_subjects,
        parameters=SubjectsQuery,
        in_handler="shows subjects with DESCRIBE topic of the subject",
    ),
    Route(
        method="GET",
        path="/descriptions",
        summary="Describe subjects: latest version, type, compatibility and mode",
        handler=describe_subjects,
        parameters=DescribeQuery,
        in_handler="shows subjects with DESCRIBE topic of the subject",
    ),
    Route(
        method="POST",
        path="/subjects/{subject}",
        summary="Find the version that has a schema",
        handler=look_up,
        parameters=LookupQuery,
        body=NewSchema,
        right=READ,
    ),
    Route(
        method="DELETE",
        path="/subjects/{subject}",
        summary="Delete all versions of a subject; with `permanent`, for good",
        handler=delete_subject,
        parameters=DeleteSubjectQuery,
        right=DELETE,
    ),
    Route(
        method="GET",
        path="/subjects/{subject}/metadata",
        summary="Return the latest version whose metadata has these properties",
        handler=latest_with_metadata,
        parameters=MetadataQuery,
        right=READ,
    ),
    Route(
        method="GET",
        path="/subjects/{subject}/versions",
        summary="List the versions of a subject",
        handler=list_versions,
        parameters=VersionsQuery,
        right=READ,
    ),
    Route(
        method="POST",
        path="/subjects/{subject}/versions",
        summary="Register a schema",
        handler=register,
        parameters=RegisterQuery,
        body=NewSchema,
        right=WRITE,
        in_handler=f"DESCRIBE topic of the subject of each reference; {FORCE} with `force`",
    ),
    Route(
        method="GET",
        path="/subjects/{subject}/versions/{version}",
        summary="Return a version",
        handler=get_version,
        parameters=VersionQuery,
        right=READ,
    ),
    Route(
        method="DELETE",
        path="/subjects/{subject}/versions/{version}",
        summary="Delete a version; with `permanent`, for good",
        handler=delete_version,
        parameters=DeleteVersionQuery,
        right=DELETE,
    ),
    Route(
        method="GET",
        path="/subjects/{subject}/versions/{version}/schema",
        summary="Return the text of a version",
        handler=get_version_text,
        parameters=VersionQuery,
        right=READ,
    ),
    Route(
        method="GET",
        path="/subjects/{subject}/versions/{version}/referencedby",
        summary="List the ids of schemas that refer to a version",
        handler=referenced_by,
        parameters=ReferencedByQuery,
        right=READ,
        in_handler="shows schemas of subjects with DESCRIBE",
    ),
    Route(
        method="POST",
        path="/compatibility/subjects/{subject}/versions",
        summary="Compare a schema with the versions that it would have to be compatible with",
        handler=check_compatibility,
        parameters=CompatibilityQuery,
        body=NewSchema,
        right=WRITE,
    ),
    Route(
        method="POST",
        path="/compatibility/subjects/{subject}/versions/{version}",
        summary="Compare a schema with a version",
        handler=check_compatibility,
        parameters=CompatibilityQuery,
        body=NewSchema,
        right=WRITE,
    ),
)
