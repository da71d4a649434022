"""The schema registry over HTTP: of a broker, or any that has the API of Confluent's registry."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from alpacamq.client.connect import Tls, parse_addresses
from alpacamq.client.errors import NotFound
from alpacamq.model.errors import AlpacaError
from alpacamq.registry.framing import SchemaName, framed, unframe
from alpacamq.registry.messages import Source
from alpacamq.registry.metadata import Metadata, RuleSet
from alpacamq.registry.schema import Dependency, InvalidSchema, ParsedSchema, Reference, SchemaType
from alpacamq.registry.subjects import ANY_CONTEXT

from .connection import Credentials, HttpApi, Problem

# Where a broker's HTTP API has the registry.
MOUNT: Final = ("schemas",)
LATEST: Final = "latest"
_SUBJECT_UNKNOWN, _VERSION_UNKNOWN, _SCHEMA_UNKNOWN = "40401", "40402", "40403"
_NO_CONFIG, _NO_MODE = "40408", "40409"
# The form in which Protobuf schemas need no compiler: their descriptors.
_SERIALIZED: Final = "serialized"
_PAGE: Final = 1000
_MAX_DEPENDENCIES: Final = 1000
_DEFAULT_PORT: Final = 8081
_HTTPS_PORT: Final = 443


class SchemaText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A schema to register or to compare; with its id and version if it comes from another registry."""

    schema: str
    schema_type: SchemaType = SchemaType.AVRO
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    id: int | None = None
    version: int | None = None


class StoredSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A schema of a registry. By id, it comes without subject and version."""

    subject: str | None = None
    version: int | None = None
    id: int | None = None
    guid: str | None = None
    schema_type: SchemaType = SchemaType.AVRO
    references: tuple[Reference, ...] | None = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str


class CompatibilityAnswer(msgspec.Struct, frozen=True):
    """Whether a schema is compatible, and why it is not."""

    is_compatible: bool
    messages: tuple[str, ...] = ()


class _Id(msgspec.Struct, frozen=True):
    id: int


class _Mode(msgspec.Struct, frozen=True):
    mode: str | None = None


class SchemaRegistry:
    """A schema registry. Closing it closes the connection."""

    def __init__(self, api: HttpApi, base: Sequence[str] = MOUNT) -> None:
        self._api = api
        self._base = tuple(base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    def subjects(self, prefix: str = ANY_CONTEXT, *, deleted: bool = False) -> list[str]:
        """Return the names of subjects."""
        query = {"subjectPrefix": prefix, "deleted": _flag(deleted)}
        return self._api.get((*self._base, "subjects"), list[str], query=query)

    def schemas(
        self, prefix: str = ANY_CONTEXT, *, deleted: bool = False, latest_only: bool = False
    ) -> Iterator[StoredSchema]:
        """Yield the versions of all subjects with a prefix."""
        offset = 0
        while True:
            query = {
                "subjectPrefix": prefix,
                "deleted": _flag(deleted),
                "latestOnly": _flag(latest_only),
                "offset": offset,
                "limit": _PAGE,
            }
            page = self._api.get((*self._base, "schemas"), list[StoredSchema], query=query)
            if not page:
                return
            yield from page
            offset += len(page)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of the versions of a subject. Raises NotFound."""
        with self._naming(subject):
            path = (*self._base, "subjects", subject, "versions")
            return self._api.get(path, list[int], query={"deleted": _flag(deleted)})

    def version(
        self, subject: str, version: int | str = LATEST, *, deleted: bool = False, form: str | None = None
    ) -> StoredSchema:
        """Return a version of a subject. Raises NotFound."""
        with self._naming(subject, version):
            path = (*self._base, "subjects", subject, "versions", str(version))
            return self._api.get(path, StoredSchema, query={"deleted": _flag(deleted), "format": form})

    def schema(self, name: SchemaName, *, form: str | None = None) -> StoredSchema:
        """Return the schema of an id or GUID. Raises NotFound."""
        kind = "guids" if isinstance(name, UUID) else "ids"
        try:
            return self._api.get(
                (*self._base, "schemas", kind, str(name)), StoredSchema, query={"format": form}
            )
        except Problem as problem:
            if problem.kind != _SCHEMA_UNKNOWN:
                raise
            raise NotFound("schema", str(name)) from None

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> int:
        """Register a schema and return its id; also if the subject has it already."""
        path = (*self._base, "subjects", subject, "versions")
        return self._api.send("POST", path, _Id, text, query={"normalize": _flag(normalize)}).id

    def look_up(self, subject: str, text: SchemaText, *, normalize: bool = False) -> StoredSchema | None:
        """Return the version of a subject that has a schema, None if there is none."""
        query = {"normalize": _flag(normalize)}
        try:
            return self._api.send("POST", (*self._base, "subjects", subject), StoredSchema, text, query=query)
        except Problem as problem:
            if problem.kind in (_SUBJECT_UNKNOWN, _SCHEMA_UNKNOWN):
                return None
            raise

    def check(
        self, subject: str, text: SchemaText, version: int | str | None = None, *, normalize: bool = False
    ) -> CompatibilityAnswer:
        """Compare a schema with a version, or with those that its subject's level names. Raises NotFound."""
        path = (*self._base, "compatibility", "subjects", subject, "versions")
        if version is not None:
            path = (*path, str(version))
        query = {"verbose": "true", "normalize": _flag(normalize)}
        with self._naming(subject, version):
            return self._api.send("POST", path, CompatibilityAnswer, text, query=query)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject and return their numbers. Raises NotFound."""
        with self._naming(subject):
            path = (*self._base, "subjects", subject)
            return self._api.send("DELETE", path, list[int], query={"permanent": _flag(permanent)})

    def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        """Delete a version and return its number. Raises NotFound."""
        with self._naming(subject, version):
            path = (*self._base, "subjects", subject, "versions", str(version))
            return self._api.send("DELETE", path, int, query={"permanent": _flag(permanent)})

    def config(self, subject: str | None = None, *, inherited: bool = False) -> dict[str, Any] | None:
        """Return the configuration of a subject, or the general one; None if the subject has none."""
        try:
            query = {"defaultToGlobal": _flag(inherited)}
            return self._api.get((*self._base, "config", *_own(subject)), dict[str, Any], query=query)
        except Problem as problem:
            if problem.kind in (_NO_CONFIG, _SUBJECT_UNKNOWN):
                return None
            raise

    def set_config(self, subject: str | None, fields: Mapping[str, Any]) -> None:
        """Change fields of a configuration."""
        self._api.send("PUT", (*self._base, "config", *_own(subject)), dict[str, Any], fields)

    def delete_config(self, subject: str | None) -> None:
        """Delete a configuration, if there is one, so that the general one counts."""
        self._delete_setting("config", subject)

    def mode(self, subject: str | None = None, *, inherited: bool = False) -> str | None:
        """Return the mode of a subject, or the general one; None if the subject has none."""
        try:
            query = {"defaultToGlobal": _flag(inherited)}
            return self._api.get((*self._base, "mode", *_own(subject)), _Mode, query=query).mode
        except Problem as problem:
            if problem.kind in (_NO_MODE, _SUBJECT_UNKNOWN):
                return None
            raise

    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> None:
        """Set a mode. Without `force`, IMPORT is refused where there are schemas."""
        query = {"force": _flag(force)}
        self._api.send("PUT", (*self._base, "mode", *_own(subject)), _Mode, {"mode": mode}, query=query)

    def delete_mode(self, subject: str | None) -> None:
        """Delete a mode, if there is one, so that the general one counts."""
        self._delete_setting("mode", subject)

    def _delete_setting(self, name: str, subject: str | None) -> None:
        try:
            self._api.send("DELETE", (*self._base, name, *_own(subject)), dict[str, Any])
        except Problem as problem:
            if problem.kind not in (_NO_CONFIG, _NO_MODE, _SUBJECT_UNKNOWN):
                raise

    @contextmanager
    def _naming(self, subject: str, version: int | str | None = None) -> Iterator[None]:
        """Turn the registry's error about a subject or version that does not exist into NotFound."""
        try:
            yield
        except Problem as problem:
            if problem.kind == _SUBJECT_UNKNOWN:
                raise NotFound("subject", subject, self.subjects()) from None
            if problem.kind == _VERSION_UNKNOWN:
                known = map(str, self.versions(subject))
                raise NotFound(f"version of subject {subject}", str(version), known) from None
            raise


def registry_at(url: str, tls: Tls | None = None, credentials: Credentials | None = None) -> SchemaRegistry:
    """Return the registry at a URL, such as http://user:password@host:8081/path. Raises ValueError.

    A user in the URL counts before `credentials`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not the URL of a registry, such as http://localhost:8081")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_secure = parts.scheme == "https"
    port = parts.port or (_HTTPS_PORT if is_secure else _DEFAULT_PORT)
    if parts.username is not None:
        credentials = Credentials(user=unquote(parts.username), password=unquote(parts.password or ""))
    base = [unquote(part) for part in parts.path.split("/") if part]
    api = HttpApi(
        *parse_addresses(f"{host}:{port}"),
        credentials=credentials,
        tls=(tls or Tls()) if is_secure else None,
        is_broker=False,
    )
    return SchemaRegistry(api, base)


class ResolvedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema with the texts that it refers to, and where they are registered."""

    source: Source
    references: tuple[Reference, ...] = ()

    def parsed(self) -> ParsedSchema:
        """Return the parsed schema. Raises InvalidSchema."""
        from alpacamq.registry.languages import parse

        return parse(self.source)


class UnknownSchema(AlpacaError):
    """A key or value does not name its schema."""


class SchemaCodec:
    """Encodes and decodes keys and values of records with the schemas of a registry, which it keeps."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._parsed: dict[SchemaName, ParsedSchema] = {}

    def decode(self, data: bytes, header: bytes | None = None) -> object:
        """Return a key or value as JSON has it; `header` is the header that may name its schema.

        Raises UnknownSchema, NotFound or InvalidData.
        """
        found = unframe(data, header)
        if found is None:
            raise UnknownSchema("it does not begin with the id of a schema")
        return self.of(found.schema).decode(found.data)

    def encoder_of(self, subject_or_id: str) -> "SchemaEncoder":
        """Return what encodes values with a schema: of an id, or the latest of a subject. Raises NotFound."""
        if subject_or_id.isascii() and subject_or_id.isdigit():
            schema_id = int(subject_or_id)
        else:
            latest = self._registry.version(subject_or_id)
            assert latest.id is not None
            schema_id = latest.id
        return SchemaEncoder(schema_id, self.of(schema_id))

    def of(self, name: SchemaName) -> ParsedSchema:
        """Return the parsed schema of an id or GUID. Raises NotFound."""
        if name not in self._parsed:
            self._parsed[name] = self.resolved(name).parsed()
        return self._parsed[name]

    def resolved(self, name: SchemaName) -> ResolvedSchema:
        """Return the schema of an id or GUID, which can be parsed elsewhere. Raises NotFound."""
        stored = self._registry.schema(name)
        if stored.schema_type is SchemaType.PROTOBUF:
            stored = self._registry.schema(name, form=_SERIALIZED)
        return self._resolved(stored)

    def of_version(self, subject: str, version: int | str) -> ParsedSchema:
        """Return the parsed schema of a version, also of a deleted one. Raises NotFound."""
        return self._resolved(self._version(subject, version)).parsed()

    def _version(self, subject: str, version: int | str) -> StoredSchema:
        stored = self._registry.version(subject, version, deleted=True)
        if stored.schema_type is SchemaType.PROTOBUF:
            return self._registry.version(subject, version, deleted=True, form=_SERIALIZED)
        return stored

    def _resolved(self, stored: StoredSchema) -> ResolvedSchema:
        dependencies: dict[tuple[str, str, int], Dependency] = {}
        self._collect(stored, dependencies, ())
        source = Source(stored.schema_type, stored.schema, tuple(dependencies.values()))
        return ResolvedSchema(source=source, references=tuple(stored.references or ()))

    def _collect(
        self,
        stored: StoredSchema,
        found: dict[tuple[str, str, int], Dependency],
        above: tuple[tuple[str, int], ...],
    ) -> None:
        """Add the schemas that one refers to, each before those that use it."""
        for each in stored.references or ():
            key = each.name, each.subject, each.version
            if key in found:
                continue
            if (each.subject, each.version) in above or len(found) + len(above) >= _MAX_DEPENDENCIES:
                raise InvalidSchema(f"references of subject {each.subject} lead in a circle, or are too many")
            referred = self._version(each.subject, each.version)
            self._collect(referred, found, (*above, (each.subject, each.version)))
            found[key] = Dependency(each.name, referred.schema)


class SchemaEncoder:
    """Encodes values with one schema, and names it in front of them."""

    def __init__(self, schema_id: int, schema: ParsedSchema) -> None:
        self._schema_id = schema_id
        self._schema = schema

    def encode(self, value: object) -> bytes:
        """Return the data of a JSON value. Raises InvalidData."""
        return framed(self._schema_id, self._schema.encode(value))


def _own(subject: str | None) -> tuple[str, ...]:
    return () if subject is None else (subject,)


def _flag(value: bool) -> str | None:
    return "true" if value else None
