from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListSubjectsRequest(_message.Message):
    __slots__ = ("subject_prefix", "deleted", "deleted_only", "offset", "limit")
    SUBJECT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    DELETED_ONLY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    subject_prefix: str
    deleted: bool
    deleted_only: bool
    offset: int
    limit: int
    def __init__(self, subject_prefix: _Optional[str] = ..., deleted: bool = ..., deleted_only: bool = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSubjectsResponse(_message.Message):
    __slots__ = ("subjects",)
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    subjects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subjects: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeSubjectsRequest(_message.Message):
    __slots__ = ("contains", "subject", "offset", "limit")
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    contains: str
    subject: str
    offset: int
    limit: int
    def __init__(self, contains: _Optional[str] = ..., subject: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DescribeSubjectsResponse(_message.Message):
    __slots__ = ("total", "subjects")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    total: int
    subjects: _containers.RepeatedCompositeFieldContainer[SubjectDescription]
    def __init__(self, total: _Optional[int] = ..., subjects: _Optional[_Iterable[_Union[SubjectDescription, _Mapping]]] = ...) -> None: ...

class SubjectDescription(_message.Message):
    __slots__ = ("subject", "versions", "latest", "id", "schema_type", "compatibility", "mode")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    versions: int
    latest: int
    id: int
    schema_type: str
    compatibility: str
    mode: str
    def __init__(self, subject: _Optional[str] = ..., versions: _Optional[int] = ..., latest: _Optional[int] = ..., id: _Optional[int] = ..., schema_type: _Optional[str] = ..., compatibility: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("subject", "deleted", "deleted_only", "offset", "limit")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    DELETED_ONLY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    deleted: bool
    deleted_only: bool
    offset: int
    limit: int
    def __init__(self, subject: _Optional[str] = ..., deleted: bool = ..., deleted_only: bool = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class VersionNumbers(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, versions: _Optional[_Iterable[int]] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("subject", "version", "deleted", "format")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    version: str
    deleted: bool
    format: str
    def __init__(self, subject: _Optional[str] = ..., version: _Optional[str] = ..., deleted: bool = ..., format: _Optional[str] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("id", "subject", "format")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    id: int
    subject: str
    format: str
    def __init__(self, id: _Optional[int] = ..., subject: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class SchemaReference(_message.Message):
    __slots__ = ("name", "subject", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    version: int
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class TagNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class SchemaMetadata(_message.Message):
    __slots__ = ("tags", "properties", "sensitive")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TagNames
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TagNames, _Mapping]] = ...) -> None: ...
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.MessageMap[str, TagNames]
    properties: _containers.ScalarMap[str, str]
    sensitive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tags: _Optional[_Mapping[str, TagNames]] = ..., properties: _Optional[_Mapping[str, str]] = ..., sensitive: _Optional[_Iterable[str]] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("subject", "id", "version", "guid", "schema_type", "references", "metadata", "schema", "deleted")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    subject: str
    id: int
    version: int
    guid: str
    schema_type: str
    references: _containers.RepeatedCompositeFieldContainer[SchemaReference]
    metadata: SchemaMetadata
    schema: str
    deleted: bool
    def __init__(self, subject: _Optional[str] = ..., id: _Optional[int] = ..., version: _Optional[int] = ..., guid: _Optional[str] = ..., schema_type: _Optional[str] = ..., references: _Optional[_Iterable[_Union[SchemaReference, _Mapping]]] = ..., metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ..., schema: _Optional[str] = ..., deleted: bool = ...) -> None: ...

class NewSchema(_message.Message):
    __slots__ = ("schema", "schema_type", "references", "metadata", "id", "version")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schema: str
    schema_type: str
    references: _containers.RepeatedCompositeFieldContainer[SchemaReference]
    metadata: SchemaMetadata
    id: int
    version: int
    def __init__(self, schema: _Optional[str] = ..., schema_type: _Optional[str] = ..., references: _Optional[_Iterable[_Union[SchemaReference, _Mapping]]] = ..., metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ..., id: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("subject", "schema", "normalize", "format")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    schema: NewSchema
    normalize: bool
    format: str
    def __init__(self, subject: _Optional[str] = ..., schema: _Optional[_Union[NewSchema, _Mapping]] = ..., normalize: bool = ..., format: _Optional[str] = ...) -> None: ...

class LookUpRequest(_message.Message):
    __slots__ = ("subject", "schema", "normalize", "deleted", "format")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    schema: NewSchema
    normalize: bool
    deleted: bool
    format: str
    def __init__(self, subject: _Optional[str] = ..., schema: _Optional[_Union[NewSchema, _Mapping]] = ..., normalize: bool = ..., deleted: bool = ..., format: _Optional[str] = ...) -> None: ...

class CheckCompatibilityRequest(_message.Message):
    __slots__ = ("subject", "schema", "version", "verbose", "normalize")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERBOSE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    schema: NewSchema
    version: str
    verbose: bool
    normalize: bool
    def __init__(self, subject: _Optional[str] = ..., schema: _Optional[_Union[NewSchema, _Mapping]] = ..., version: _Optional[str] = ..., verbose: bool = ..., normalize: bool = ...) -> None: ...

class CheckCompatibilityResponse(_message.Message):
    __slots__ = ("is_compatible", "messages")
    IS_COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    is_compatible: bool
    messages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, is_compatible: bool = ..., messages: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteSubjectRequest(_message.Message):
    __slots__ = ("subject", "permanent")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    permanent: bool
    def __init__(self, subject: _Optional[str] = ..., permanent: bool = ...) -> None: ...

class DeleteVersionRequest(_message.Message):
    __slots__ = ("subject", "version", "permanent")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    version: str
    permanent: bool
    def __init__(self, subject: _Optional[str] = ..., version: _Optional[str] = ..., permanent: bool = ...) -> None: ...

class DeleteVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class SchemaConfig(_message.Message):
    __slots__ = ("alias", "normalize", "compatibility_level", "compatibility_group", "validate_fields", "validate_rules", "default_metadata", "override_metadata")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_GROUP_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELDS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_RULES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_METADATA_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_METADATA_FIELD_NUMBER: _ClassVar[int]
    alias: str
    normalize: bool
    compatibility_level: str
    compatibility_group: str
    validate_fields: bool
    validate_rules: bool
    default_metadata: SchemaMetadata
    override_metadata: SchemaMetadata
    def __init__(self, alias: _Optional[str] = ..., normalize: bool = ..., compatibility_level: _Optional[str] = ..., compatibility_group: _Optional[str] = ..., validate_fields: bool = ..., validate_rules: bool = ..., default_metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ..., override_metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ...) -> None: ...

class NewSchemaConfig(_message.Message):
    __slots__ = ("alias", "normalize", "compatibility", "compatibility_group", "validate_fields", "validate_rules", "default_metadata", "override_metadata")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_GROUP_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELDS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_RULES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_METADATA_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_METADATA_FIELD_NUMBER: _ClassVar[int]
    alias: str
    normalize: bool
    compatibility: str
    compatibility_group: str
    validate_fields: bool
    validate_rules: bool
    default_metadata: SchemaMetadata
    override_metadata: SchemaMetadata
    def __init__(self, alias: _Optional[str] = ..., normalize: bool = ..., compatibility: _Optional[str] = ..., compatibility_group: _Optional[str] = ..., validate_fields: bool = ..., validate_rules: bool = ..., default_metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ..., override_metadata: _Optional[_Union[SchemaMetadata, _Mapping]] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("subject", "default_to_global")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TO_GLOBAL_FIELD_NUMBER: _ClassVar[int]
    subject: str
    default_to_global: bool
    def __init__(self, subject: _Optional[str] = ..., default_to_global: bool = ...) -> None: ...

class SetConfigRequest(_message.Message):
    __slots__ = ("subject", "config")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    subject: str
    config: NewSchemaConfig
    def __init__(self, subject: _Optional[str] = ..., config: _Optional[_Union[NewSchemaConfig, _Mapping]] = ...) -> None: ...

class DeleteConfigRequest(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class SchemaMode(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    def __init__(self, mode: _Optional[str] = ...) -> None: ...

class GetModeRequest(_message.Message):
    __slots__ = ("subject", "default_to_global")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TO_GLOBAL_FIELD_NUMBER: _ClassVar[int]
    subject: str
    default_to_global: bool
    def __init__(self, subject: _Optional[str] = ..., default_to_global: bool = ...) -> None: ...

class NewSchemaMode(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    def __init__(self, mode: _Optional[str] = ...) -> None: ...

class SetModeRequest(_message.Message):
    __slots__ = ("subject", "mode", "force")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    mode: NewSchemaMode
    force: bool
    def __init__(self, subject: _Optional[str] = ..., mode: _Optional[_Union[NewSchemaMode, _Mapping]] = ..., force: bool = ...) -> None: ...

class DeleteModeRequest(_message.Message):
    __slots__ = ("subject", "recursive")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    recursive: bool
    def __init__(self, subject: _Optional[str] = ..., recursive: bool = ...) -> None: ...

class ListTypesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTypesResponse(_message.Message):
    __slots__ = ("types",)
    TYPES_FIELD_NUMBER: _ClassVar[int]
    types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, types: _Optional[_Iterable[str]] = ...) -> None: ...

class SchemaStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SchemaStatsResponse(_message.Message):
    __slots__ = ("contexts", "subjects", "deleted_subjects", "versions", "deleted_versions", "schemas")
    class SchemasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    DELETED_SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    contexts: int
    subjects: int
    deleted_subjects: int
    versions: int
    deleted_versions: int
    schemas: _containers.ScalarMap[str, int]
    def __init__(self, contexts: _Optional[int] = ..., subjects: _Optional[int] = ..., deleted_subjects: _Optional[int] = ..., versions: _Optional[int] = ..., deleted_versions: _Optional[int] = ..., schemas: _Optional[_Mapping[str, int]] = ...) -> None: ...
