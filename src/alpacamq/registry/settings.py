"""Settings of subjects and contexts: compatibility, normalization, metadata for all schemas, and modes."""

from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from .metadata import Metadata, RuleSet

T = TypeVar("T")


class CompatibilityLevel(StrEnum):
    """What a new version has to be compatible with: the latest version, or all if it is transitive."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.endswith("_TRANSITIVE")

    @property
    def reads_earlier(self) -> bool:
        """Whether the new schema must read data of earlier ones."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_earlier(self) -> bool:
        """Whether earlier schemas must read data of the new one."""
        return self.startswith(("FORWARD", "FULL"))


DEFAULT_LEVEL: Final = CompatibilityLevel.BACKWARD


class Mode(StrEnum):
    """What may be done with a subject. Import means: schemas come with the ids of another registry."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    # For all contexts: also where a subject has a mode of its own.
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"
    # Only in records of other registries; as import.
    FORWARD = "FORWARD"

    @property
    def is_read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)

    @property
    def is_import(self) -> bool:
        return self in (Mode.IMPORT, Mode.FORWARD)


class Config(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The configuration of a subject or context. Fields without an effect here are kept for clients."""

    alias: str | None = None
    alias_for_deks: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    compatibility_level: CompatibilityLevel | None = None
    compatibility_policy: str | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None

    @property
    def level(self) -> CompatibilityLevel:
        return self.compatibility_level or DEFAULT_LEVEL

    @property
    def changes_schemas(self) -> bool:
        """Whether it adds metadata or rules to the schemas that are registered."""
        return any(
            (self.default_metadata, self.override_metadata, self.default_rule_set, self.override_rule_set)
        )

    def with_level(self) -> "Config":
        return msgspec.structs.replace(self, compatibility_level=self.level)

    def over(self, general: "Config") -> "Config":
        """Return the configuration of a subject that has this one, where the general one is `general`.

        As in Confluent's registry, the level, the alias, metadata and rules are not inherited.
        """
        return msgspec.structs.replace(
            self.with_level(),
            normalize=_first(self.normalize, general.normalize),
            validate_fields=_first(self.validate_fields, general.validate_fields),
            validate_new_schemas=_first(self.validate_new_schemas, general.validate_new_schemas),
            validate_rules=_first(self.validate_rules, general.validate_rules),
            compatibility_policy=_first(self.compatibility_policy, general.compatibility_policy),
            compatibility_group=_first(self.compatibility_group, general.compatibility_group),
        )


class ConfigUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Fields of a configuration to set; null removes a field, and fields that are left out stay."""

    alias: str | UnsetType | None = UNSET
    alias_for_deks: str | UnsetType | None = UNSET
    normalize: bool | UnsetType | None = UNSET
    validate_fields: bool | UnsetType | None = UNSET
    validate_new_schemas: bool | UnsetType | None = UNSET
    validate_rules: bool | UnsetType | None = UNSET
    compatibility_level: CompatibilityLevel | UnsetType | None = UNSET
    compatibility_policy: str | UnsetType | None = UNSET
    compatibility_group: str | UnsetType | None = UNSET
    default_metadata: Metadata | UnsetType | None = UNSET
    override_metadata: Metadata | UnsetType | None = UNSET
    default_rule_set: RuleSet | UnsetType | None = UNSET
    override_rule_set: RuleSet | UnsetType | None = UNSET

    def applied_to(self, config: Config) -> Config:
        """Return the configuration with the fields that are set here."""
        fields: dict[str, Any] = {
            name: value.ordered() if isinstance(value, Metadata | RuleSet) else value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        return msgspec.structs.replace(config, **fields)


def _first(value: T | None, otherwise: T | None) -> T | None:
    return otherwise if value is None else value
