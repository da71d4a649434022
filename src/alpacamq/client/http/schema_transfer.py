"""Moves the content of a schema registry: out as lines of JSON, and in again with the same ids.

A line is a record of the registry's topic, in the form of Confluent's registry: {"key": …, "value": …}. So
the records of such a topic can be imported as well.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from alpacamq.model.errors import AlpacaError, InvalidRecord
from alpacamq.model.state_machine import Change
from alpacamq.registry.records import (
    ConfigValue,
    DeleteSubjectValue,
    KeyType,
    ModeValue,
    SchemaValue,
    config_change,
    decode_record,
    mode_change,
    schema_change,
)
from alpacamq.registry.settings import Config, Mode
from alpacamq.registry.subjects import DEFAULT_CONTEXT, SubjectName, split_subject

from .schemas import SchemaRegistry, SchemaText

# Called with the number of steps done and of all steps.
Progress = Callable[[int, int], None]

_COMPATIBILITY: Final = "compatibilityLevel"


class InvalidExport(AlpacaError):
    """A line is not a record of a registry."""


class ImportFailed(AlpacaError):
    """The registry refused a part of an import."""


_NO_VALUE: Final = msgspec.Raw(b"null")


class Line(msgspec.Struct, frozen=True):
    """A record as JSON."""

    key: msgspec.Raw
    value: msgspec.Raw = _NO_VALUE


class Summary(msgspec.Struct, kw_only=True):
    """The parts of a registry, counted."""

    subjects: int = 0
    versions: int = 0
    deleted_versions: int = 0
    configurations: int = 0
    modes: int = 0


class Content:
    """The schemas and settings of a registry."""

    def __init__(self) -> None:
        self.schemas: dict[tuple[str, int], SchemaValue] = {}
        # By subject; that of all subjects under None.
        self.configs: dict[str | None, Config] = {}
        self.modes: dict[str | None, Mode] = {}

    def summary(self) -> Summary:
        return Summary(
            subjects=len({subject for subject, _ in self.schemas}),
            versions=len(self.schemas),
            deleted_versions=sum(bool(each.deleted) for each in self.schemas.values()),
            configurations=len(self.configs),
            modes=len(self.modes),
        )

    def lines(self) -> Iterator[bytes]:
        """Yield the records, without newlines: schemas before those that use them."""
        changes: list[Change] = [schema_change(each) for each in self.in_order()]
        changes += [config_change(subject, config) for subject, config in self.configs.items()]
        changes += [mode_change(subject, mode) for subject, mode in self.modes.items()]
        for each in changes:
            assert each.value is not None
            yield msgspec.json.encode(Line(msgspec.Raw(each.key), msgspec.Raw(each.value)))

    def in_order(self) -> list[SchemaValue]:
        """Return the schemas, oldest ids first, but each after those that it refers to."""
        ordered: dict[tuple[str, int], SchemaValue] = {}
        waiting = sorted(self.schemas.values(), key=lambda each: (-each.id, each.subject, -each.version))
        open_keys: set[tuple[str, int]] = set()
        while waiting:
            value = waiting[-1]
            key = value.subject, value.version
            needed = [
                self.schemas[of]
                for each in value.references or ()
                if (of := (each.subject, each.version)) in self.schemas
                and of not in ordered
                and of not in open_keys
            ]
            if needed and key not in ordered:
                open_keys.add(key)
                waiting.extend(needed)
            else:
                waiting.pop()
                ordered.setdefault(key, value)
        return list(ordered.values())

    @property
    def contexts(self) -> list[str | None]:
        """The contexts that schemas are in, as subjects whose settings are those of the context."""
        contexts = {split_subject(subject).context for subject, _ in self.schemas}
        return [None if each == DEFAULT_CONTEXT else str(SubjectName(each, "")) for each in sorted(contexts)]


def read_registry(registry: SchemaRegistry, progress: Progress = lambda _done, _all: None) -> Content:
    """Read everything that a registry has."""
    content = Content()
    kept = {(each.subject, each.version) for each in registry.schemas()}
    for each in registry.schemas(deleted=True):
        assert each.subject is not None and each.version is not None and each.id is not None  # noqa: PT018
        content.schemas[each.subject, each.version] = SchemaValue(
            subject=each.subject,
            version=each.version,
            id=each.id,
            schema_type=each.schema_type,
            references=each.references or None,
            metadata=each.metadata,
            rule_set=each.rule_set,
            schema=each.schema,
            deleted=(each.subject, each.version) not in kept,
        )
    contexts = [each for each in content.contexts if each is not None]
    scopes: list[str | None] = [None, *contexts, *sorted({subject for subject, _ in content.schemas})]
    for done, scope in enumerate(scopes):
        progress(done, len(scopes))
        if found := registry.config(scope):
            content.configs[scope] = msgspec.convert(found, Config)
        if mode := registry.mode(scope):
            content.modes[scope] = Mode(mode)
    return content


def read_lines(lines: Iterable[bytes]) -> Content:
    """Read an export, or the records of a registry's topic: of several with one key the last counts."""
    content = Content()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parsed = msgspec.json.decode(line, type=Line)
            value = None if parsed.value == _NO_VALUE else bytes(parsed.value)
            record = decode_record(bytes(parsed.key), value)
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidRecord) as error:
            raise InvalidExport(f"line {number} is not a record of a schema registry: {error}") from None
        _apply(content, record.key.keytype, record.key.subject, record.key.version, record.value)
    return content


def _apply(content: Content, keytype: str, subject: str | None, version: int | None, value: object) -> None:
    match keytype, value:
        case KeyType.SCHEMA, SchemaValue():
            content.schemas[value.subject, value.version] = value
        case KeyType.SCHEMA, None:
            content.schemas.pop((subject or "", version or 0), None)
        case KeyType.DELETE_SUBJECT, DeleteSubjectValue():
            for key, each in content.schemas.items():
                if key[0] == value.subject and key[1] <= value.version:
                    content.schemas[key] = msgspec.structs.replace(each, deleted=True)
        case KeyType.CONFIG, ConfigValue():
            content.configs[subject] = value.config
        case KeyType.CONFIG, None:
            content.configs.pop(subject, None)
        case KeyType.MODE, ModeValue():
            content.modes[subject] = value.mode
        case KeyType.MODE, None:
            content.modes.pop(subject, None)


def write_registry(
    registry: SchemaRegistry,
    content: Content,
    *,
    force: bool = False,
    progress: Progress = lambda _done, _all: None,
) -> None:
    """Write everything to a registry, with the ids and versions it has.

    Without `force` the registry must be empty. While this runs, it is in mode IMPORT; afterwards it has the
    modes of the content, and those it had before where the content has none.
    """
    scopes: list[_Scope] = []
    try:
        for scope in content.contexts or [None]:
            before = registry.mode(scope)
            registry.set_mode(scope, Mode.IMPORT, force=force)
            scopes.append(_Scope(scope, before))
        schemas = content.in_order()
        for done, each in enumerate(schemas):
            progress(done, len(schemas))
            _write_schema(registry, each)
        for each in schemas:
            if each.deleted:
                registry.delete_version(each.subject, each.version)
    finally:
        for scope, before in reversed(scopes):
            if before is None:
                registry.delete_mode(scope)
            else:
                registry.set_mode(scope, before)
    for subject, config in content.configs.items():
        if fields := msgspec.to_builtins(config):
            if _COMPATIBILITY in fields:
                fields["compatibility"] = fields.pop(_COMPATIBILITY)
            registry.set_config(subject, fields)
    for subject, mode in content.modes.items():
        registry.set_mode(subject, mode, force=True)


class _Scope(NamedTuple):
    """A context that is in mode IMPORT, and the mode it had before."""

    subject: str | None
    before: str | None


def _write_schema(registry: SchemaRegistry, value: SchemaValue) -> None:
    text = SchemaText(
        schema=value.schema,
        schema_type=value.schema_type,
        references=value.references or (),
        metadata=value.metadata,
        rule_set=value.rule_set,
        id=value.id,
        version=value.version,
    )
    try:
        registry.register(value.subject, text)
    except AlpacaError as error:
        raise ImportFailed(f"version {value.version} of subject {value.subject}: {error}") from error
