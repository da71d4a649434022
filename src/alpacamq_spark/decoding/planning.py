"""Chooses the schemas that records are read as, and the types of their columns; runs on the driver."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import DataType

from alpacamq.registry.framing import Part
from alpacamq.registry.schema import InvalidSchema

from .layout import UnusableSchema
from .registry import RegisteredVersion, Registry
from .types import merged_all
from .values import column_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The subjects of topics: by the name of the topic unless one is named, and the latest version of each
    unless it is pinned."""

    named: Mapping[Part, str] = field(default_factory=dict)
    pinned: Mapping[Part, int] = field(default_factory=dict)
    # The message that values of Protobuf schemas have.
    message: str | None = None

    def of(self, topic: str, part: Part) -> str:
        return self.named.get(part) or f"{topic}-{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The versions that records are read as, by topic and part, and the types that fit all of them."""

    versions: Mapping[str, Mapping[Part, RegisteredVersion]]
    types: Mapping[Part, DataType]

    @property
    def readers(self) -> dict[str, dict[Part, int]]:
        return {
            topic: {part: version.id for part, version in parts.items()}
            for topic, parts in self.versions.items()
        }


def plan(
    registry: Registry, topics: Iterable[str], parts: Sequence[Part], subjects: Subjects | None = None
) -> Plan:
    """Look up the versions of the topics' subjects. A topic without a subject has none.

    Raises UnusableSchema if a schema has no columns, or if topics have different ones of the same name.
    """
    subjects = subjects or Subjects()
    versions: dict[str, dict[Part, RegisteredVersion]] = {}
    types: dict[Part, list[tuple[str, DataType]]] = {part: [] for part in parts}
    for topic in sorted(set(topics)):
        for part in parts:
            found = registry.version(subjects.of(topic, part), subjects.pinned.get(part))
            if found is None:
                continue
            versions.setdefault(topic, {})[part] = found
            message = subjects.message if part is Part.VALUE else None
            types[part].append((str(found), _type(registry, found, part, message)))
    merged = {part: merged_all(each) for part, each in types.items()}
    return Plan(versions=versions, types={part: kind for part, kind in merged.items() if kind is not None})


def _type(registry: Registry, version: RegisteredVersion, part: Part, message: str | None) -> DataType:
    try:
        schema = registry.schema(version.id)
        if schema is None:
            raise UnusableSchema(f"the registry has no schema {version.id}")
        return column_type(schema, part, message)
    except (InvalidSchema, UnusableSchema) as error:
        raise UnusableSchema(f"{version}: {error}") from None
