"""Errors of the schema registry; `InvalidSchema` is beside the languages that raise it, in schema.py.

The API maps each class to one code of Confluent's schema registry.
"""

from collections.abc import Sequence

from alpacamq.model.errors import AlpacaError

from .schema import Incompatibility

MAX_REASONS = 100


class SubjectNotFound(AlpacaError):
    """No version is registered under the subject, or it has no setting of its own to delete."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"subject {subject!r} not found")


class VersionNotFound(AlpacaError):
    """The subject has no such version."""

    def __init__(self, subject: str, version: int) -> None:
        named = "latest version" if version == -1 else f"version {version}"
        super().__init__(f"{named} of subject {subject!r} not found")


class SchemaNotFound(AlpacaError):
    """No schema has this id, GUID or text."""


class SubjectSoftDeleted(AlpacaError):
    """The subject is deleted already, and can only be deleted permanently."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"subject {subject!r} is deleted already; set permanent=true to remove it for good")


class SubjectNotSoftDeleted(AlpacaError):
    """A subject has to be deleted before it can be deleted permanently."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"subject {subject!r} must be deleted before it can be deleted permanently")


class VersionSoftDeleted(AlpacaError):
    """The version is deleted already, and can only be deleted permanently."""

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(
            f"version {version} of subject {subject!r} is deleted already; "
            "set permanent=true to remove it for good"
        )


class VersionNotSoftDeleted(AlpacaError):
    """A version has to be deleted before it can be deleted permanently."""

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(
            f"version {version} of subject {subject!r} must be deleted before it can be deleted permanently"
        )


class ConfigNotFound(AlpacaError):
    """The subject has no configuration of its own."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"subject {subject!r} has no compatibility configuration of its own")


class ModeNotFound(AlpacaError):
    """The subject has no mode of its own."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"subject {subject!r} has no mode of its own")


class IncompatibleSchema(AlpacaError):
    """A schema violates the compatibility level of its subject; `reasons` are those of one version."""

    def __init__(self, subject: str, level: str, reasons: Sequence[Incompatibility]) -> None:
        self.reasons = tuple(reasons[:MAX_REASONS])
        details = "; ".join(reason.message for reason in self.reasons)
        super().__init__(
            f"the schema is incompatible with an earlier version of subject {subject!r} "
            f"at compatibility level {level}: {details}"
        )


class InvalidVersion(AlpacaError):
    """A version is neither between 1 and 2^31 - 1 nor `latest`."""

    def __init__(self, version: object) -> None:
        super().__init__(f"invalid version {version!r}: must be between 1 and 2147483647, or latest")


class InvalidCompatibilityLevel(AlpacaError):
    """No such compatibility level."""


class InvalidMode(AlpacaError):
    """No such mode, or it cannot be set."""


class OperationNotPermitted(AlpacaError):
    """The mode of the subject forbids the operation."""


class ReferenceExists(AlpacaError):
    """Another schema refers to the one that is to be deleted or replaced."""

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(f"other schemas refer to version {version} of subject {subject!r}")


class IdDoesNotMatch(AlpacaError):
    """A schema that is imported with an id has another one already."""


class InvalidSubject(AlpacaError):
    """A subject's name is empty, reserved, too long, or contains control characters."""


class SchemaTooLarge(AlpacaError):
    """A schema, its metadata and rules, or the schemas it refers to exceed the limit."""


class InvalidRuleSet(AlpacaError):
    """A rule is incomplete, or not allowed where it stands."""


class IdsExhausted(AlpacaError):
    """No id or version is left: one near 2^31 - 1 was imported."""
