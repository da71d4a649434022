"""Metadata and rules of schemas. They are part of a schema's identity, and the registry does not run rules.

Tags, properties and rules are kept in one order, so that equal values have equal fields.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, Self, TypeVar

import msgspec

from .errors import InvalidRuleSet

# The property that repeats the version of a schema. Lookups without it find schemas that have it.
VERSION_PROPERTY: Final = "confluent:version"
MAX_RULE_NAME: Final = 64

T = TypeVar("T")


class RuleKind(StrEnum):
    """Whether a rule changes data or accepts or rejects it."""

    TRANSFORM = "TRANSFORM"
    CONDITION = "CONDITION"


class RuleMode(StrEnum):
    """When clients run a rule."""

    UPGRADE = "UPGRADE"
    DOWNGRADE = "DOWNGRADE"
    UPDOWN = "UPDOWN"
    WRITE = "WRITE"
    READ = "READ"
    WRITEREAD = "WRITEREAD"


MIGRATION_MODES: Final = frozenset({RuleMode.UPGRADE, RuleMode.DOWNGRADE, RuleMode.UPDOWN})
_TWO_ACTIONS: Final = frozenset({RuleMode.UPDOWN, RuleMode.WRITEREAD})


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tags and properties of a schema."""

    tags: dict[str, tuple[str, ...]] | None = None
    properties: dict[str, str] | None = None
    sensitive: tuple[str, ...] | None = None

    def ordered(self) -> "Metadata":
        """Return the value with everything in the order that counts for identity."""
        tags = {name: _sorted_set(values) for name, values in (self.tags or {}).items()}
        return Metadata(_sorted_map(tags), _sorted_map(self.properties), _sorted_set(self.sensitive) or None)

    def merged(self, later: "Metadata") -> "Metadata":
        """Return both; `later` decides where both have a tag or property."""
        return Metadata(
            _sorted_map({**(self.tags or {}), **(later.tags or {})}),
            _sorted_map({**(self.properties or {}), **(later.properties or {})}),
            _sorted_set((*(self.sensitive or ()), *(later.sensitive or ()))) or None,
        )

    @property
    def version(self) -> int | None:
        """The version of the schema that the metadata repeats, if it does."""
        text = (self.properties or {}).get(VERSION_PROPERTY, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None

    def with_version(self, version: int) -> "Metadata":
        return self.merged(Metadata(properties={VERSION_PROPERTY: str(version)}))

    def without_version(self) -> "Metadata":
        kept = {name: each for name, each in (self.properties or {}).items() if name != VERSION_PROPERTY}
        return Metadata(self.tags, kept or None, self.sensitive)

    def feed(self, digest: Callable[[bytes], object]) -> None:
        """Give everything that is part of the identity to a digest, in Confluent's order."""
        for name, values in (self.tags or {}).items():
            _feed(digest, name, *values)
        for name, value in (self.properties or {}).items():
            _feed(digest, name, value)
        _feed(digest, *(self.sensitive or ()))


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A rule that clients apply to data."""

    name: str | None = None
    doc: str | None = None
    kind: RuleKind | None = None
    mode: RuleMode | None = None
    type: str | None = None
    tags: tuple[str, ...] | None = None
    params: dict[str, str] | None = None
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool = False

    def ordered(self) -> Self:
        """Return the rule with its defaults, and everything in the order that counts for identity."""
        return msgspec.structs.replace(
            self,
            kind=self.kind or RuleKind.TRANSFORM,
            mode=self.mode or RuleMode.WRITEREAD,
            tags=_sorted_set(self.tags) or None,
            params=_sorted_map(self.params),
        )

    def check(self) -> None:
        """Raise InvalidRuleSet if the rule is incomplete."""
        name = self.name or ""
        if not 0 < len(name) <= MAX_RULE_NAME:
            raise InvalidRuleSet(f"invalid rule name {name!r}: must have 1 to {MAX_RULE_NAME} characters")
        if not (name[0].isalpha() or name[0] == "_") or not all(ch.isalnum() or ch in "_-" for ch in name):
            raise InvalidRuleSet(
                f"invalid rule name {name!r}: must be letters, digits, _ and -, and begin with a letter or _"
            )
        if self.type is None:
            raise InvalidRuleSet(f"rule {name!r} has no type")
        if (self.mode or RuleMode.WRITEREAD) not in _TWO_ACTIONS and (
            "," in (self.on_success or "") or "," in (self.on_failure or "")
        ):
            raise InvalidRuleSet(f"rule {name!r}: only WRITEREAD and UPDOWN can have two actions")

    def feed(self, digest: Callable[[bytes], object]) -> None:
        """Give everything that is part of the identity to a digest, in Confluent's order."""
        _feed(digest, self.name, self.doc, self.kind, self.mode, self.type, *(self.tags or ()))
        for name, value in (self.params or {}).items():
            _feed(digest, name, value)
        _feed(digest, self.expr, self.on_success, self.on_failure)
        if self.disabled:
            digest(b"\x01")


class RuleSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The rules of a schema."""

    migration_rules: tuple[Rule, ...] | None = None
    domain_rules: tuple[Rule, ...] | None = None
    encoding_rules: tuple[Rule, ...] | None = None
    enable_at: str | None = None

    def ordered(self) -> "RuleSet":
        """Return the rules with their defaults; their order has a meaning and stays."""
        return RuleSet(
            migration_rules=tuple(rule.ordered() for rule in self.migration_rules or ()) or None,
            domain_rules=tuple(rule.ordered() for rule in self.domain_rules or ()) or None,
            encoding_rules=tuple(rule.ordered() for rule in self.encoding_rules or ()) or None,
            enable_at=self.enable_at,
        )

    def merged(self, later: "RuleSet") -> "RuleSet":
        """Return both; rules of `later` replace those of the same name."""
        return RuleSet(
            migration_rules=_merged_rules(self.migration_rules, later.migration_rules),
            domain_rules=_merged_rules(self.domain_rules, later.domain_rules),
            encoding_rules=_merged_rules(self.encoding_rules, later.encoding_rules),
            enable_at=later.enable_at if later.enable_at is not None else self.enable_at,
        )

    def check(self) -> None:
        """Raise InvalidRuleSet if a rule is incomplete, has the name of another, or is in the wrong list."""
        names: set[str | None] = set()
        for place, rules in (
            ("migrationRules", self.migration_rules),
            ("domainRules", self.domain_rules),
            ("encodingRules", self.encoding_rules),
        ):
            for rule in rules or ():
                rule.check()
                if rule.name in names:
                    raise InvalidRuleSet(f"two rules have the name {rule.name!r}")
                names.add(rule.name)
                mode = rule.mode or RuleMode.WRITEREAD
                if (mode in MIGRATION_MODES) != (place == "migrationRules"):
                    raise InvalidRuleSet(f"rule {rule.name!r}: mode {mode} is not allowed in {place}")

    def feed(self, digest: Callable[[bytes], object]) -> None:
        """Give everything that is part of the identity to a digest, in Confluent's order."""
        for rules in (self.migration_rules, self.domain_rules, self.encoding_rules):
            for rule in rules or ():
                rule.feed(digest)
        _feed(digest, self.enable_at)


def merge_metadata(earlier: Metadata | None, later: Metadata | None) -> Metadata | None:
    """Merge metadata that may be absent."""
    return earlier.merged(later) if earlier is not None and later is not None else earlier or later


def merge_rule_sets(earlier: RuleSet | None, later: RuleSet | None) -> RuleSet | None:
    """Merge rule sets that may be absent."""
    return earlier.merged(later) if earlier is not None and later is not None else earlier or later


def _merged_rules(
    earlier: tuple[Rule, ...] | None, later: tuple[Rule, ...] | None
) -> tuple[Rule, ...] | None:
    replaced = {rule.name for rule in later or ()}
    return (*(rule for rule in earlier or () if rule.name not in replaced), *(later or ())) or None


def _order(text: str) -> bytes:
    """Return the key of Java's order of strings: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _sorted_set(texts: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(texts or ()), key=_order))


def _sorted_map(mapping: Mapping[str, T] | None) -> dict[str, T] | None:
    return {name: mapping[name] for name in sorted(mapping, key=_order)} if mapping else None


def _feed(digest: Callable[[bytes], object], *texts: str | None) -> None:
    for text in texts:
        if text is not None:
            digest(text.encode())
