"""The records of the registry's topic, in the JSON form of Confluent's schema registry.

The highest id of a context is stored as a NOOP record with a `context` in its key. Confluent's registry skips
NOOP records whatever else they contain, but stops at a key type that it does not know.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from alpacamq.model.errors import InvalidRecord
from alpacamq.model.state_machine import Change

from .metadata import Metadata, RuleSet
from .schema import Reference, SchemaType
from .settings import Config, Mode

# Confluent's registry has tenants in some editions; this is the one of the others.
TENANT: Final = "default"

Int32 = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

V = TypeVar("V")


class KeyType(StrEnum):
    """The kinds of records that mean something here. Others are kept as they are."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    CONTEXT = "CONTEXT"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    NOOP = "NOOP"


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """The key of any record, with the fields in Confluent's order."""

    keytype: str
    tenant: str | None = None
    context: str | None = None
    subject: str | None = None
    version: Int32 | None = None
    magic: int = -1  # always written: no key has this value


class SchemaValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A version of a subject."""

    subject: str
    version: Int32
    id: Int32
    # Base64 of the GUID, where it does not follow from the schema.
    md5: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9+/]{21}[AQgw]==$")] | None = None
    schema_type: SchemaType = SchemaType.AVRO
    references: tuple[Reference, ...] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str
    deleted: bool | None = None

    @property
    def guid(self) -> bytes | None:
        """The GUID if the record has one."""
        return None if self.md5 is None else b64decode(self.md5)


class ConfigValue(Config, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The configuration of a subject or context."""

    subject: str | None = None

    @property
    def config(self) -> Config:
        return Config(**{name: getattr(self, name) for name in Config.__struct_fields__})


class ModeValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The mode of a subject or context."""

    subject: str | None = None
    mode: Mode


class ContextValue(msgspec.Struct, frozen=True):
    """A context that schemas were registered in."""

    tenant: str | None = None
    context: str | None = None


class DeleteSubjectValue(msgspec.Struct, frozen=True):
    """The deletion of all versions of a subject up to one."""

    subject: str
    version: int


class ClearSubjectValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The removal of deleted versions of a subject or context before an import."""

    subject: str | None = None


class MaxIdValue(msgspec.Struct, frozen=True, rename="camel"):
    """The highest id that was ever used in a context."""

    max_id: Int32


_VALUES: Final[dict[str, type[msgspec.Struct]]] = {
    KeyType.SCHEMA: SchemaValue,
    KeyType.CONFIG: ConfigValue,
    KeyType.MODE: ModeValue,
    KeyType.CONTEXT: ContextValue,
    KeyType.DELETE_SUBJECT: DeleteSubjectValue,
    KeyType.CLEAR_SUBJECT: ClearSubjectValue,
    KeyType.NOOP: MaxIdValue,
}
_DECODERS: Final = {keytype: msgspec.json.Decoder(kind).decode for keytype, kind in _VALUES.items()}
_decode_key = msgspec.json.Decoder(Key).decode
_encode = msgspec.json.Encoder().encode


class StoredRecord(NamedTuple):
    """A record that could be read. The value is None if there is none, or if the key's type is unknown."""

    key: Key
    value: Any

    @property
    def subject(self) -> str:
        """The subject of a schema."""
        assert self.key.subject is not None
        return self.key.subject

    @property
    def version(self) -> int:
        """The version of a schema."""
        assert self.key.version is not None
        return self.key.version


def decode_record(key: bytes, value: bytes | None) -> StoredRecord:
    """Return a record as values. Raises InvalidRecord."""
    found = _decoded(_decode_key, key, "key")
    if found.keytype == KeyType.SCHEMA and (found.subject is None or found.version is None):
        raise InvalidRecord("the key of a schema record has no subject or version")
    decode = _DECODERS.get(found.keytype)
    # Other NOOP records may have any value.
    is_foreign_noop = found.keytype == KeyType.NOOP and found.context is None
    if value is None or decode is None or is_foreign_noop:
        return StoredRecord(found, None)
    return StoredRecord(found, _decoded(decode, value, f"{found.keytype} value"))


def schema_key(subject: str, version: int) -> bytes:
    return _encode(Key(KeyType.SCHEMA, subject=subject, version=version, magic=1))


def schema_change(value: SchemaValue) -> Change:
    """Return the record of a version."""
    return Change(schema_key(value.subject, value.version), _encode(value))


def schema_tombstone(subject: str, version: int) -> Change:
    """Return the record that removes a version."""
    return Change(schema_key(subject, version), None)


def config_change(subject: str | None, config: Config | None) -> Change:
    """Return the record that sets or deletes a configuration."""
    key = _encode(Key(KeyType.CONFIG, subject=subject, magic=0))
    if config is None:
        return Change(key, None)
    return Change(key, _encode(ConfigValue(subject=subject, **msgspec.structs.asdict(config))))


def mode_change(subject: str | None, mode: Mode | None) -> Change:
    """Return the record that sets or deletes a mode."""
    value = None if mode is None else _encode(ModeValue(subject=subject, mode=mode))
    return Change(_encode(Key(KeyType.MODE, subject=subject, magic=0)), value)


def context_change(context: str) -> Change:
    """Return the record of a context."""
    key = Key(KeyType.CONTEXT, tenant=TENANT, context=context, magic=0)
    return Change(_encode(key), _encode(ContextValue(TENANT, context)))


def delete_subject_change(subject: str, version: int | None) -> Change:
    """Return the record that deletes the versions of a subject up to one; None deletes the record."""
    value = None if version is None else _encode(DeleteSubjectValue(subject, version))
    return Change(_encode(Key(KeyType.DELETE_SUBJECT, subject=subject, magic=0)), value)


def clear_subject_change(subject: str | None) -> Change:
    """Return the record that removes the deleted versions of a subject or context."""
    key = Key(KeyType.CLEAR_SUBJECT, subject=subject, magic=0)
    return Change(_encode(key), _encode(ClearSubjectValue(subject)))


def max_id_change(context: str, max_id: int) -> Change:
    """Return the record that keeps the highest id of a context."""
    return Change(_encode(Key(KeyType.NOOP, context=context, magic=0)), _encode(MaxIdValue(max_id)))


def encode_guid(guid: bytes) -> str:
    """Return a GUID as schema records have it."""
    return b64encode(guid).decode()


def _decoded(decode: Callable[[bytes], V], data: bytes, name: str) -> V:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"invalid {name} of a schema registry record: {error}") from error
