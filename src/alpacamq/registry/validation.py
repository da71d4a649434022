"""Checks the records of a batch against the schemas that they name.

A check works with the schemas it is given, and names those it lacks: the caller looks them up and checks
again. It also names those it has used, because what is known of a schema can be out of date.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from alpacamq.model.errors import RecordError
from alpacamq.model.names import split_topic
from alpacamq.model.records import Content, Header
from alpacamq.model.topics import RECORD_NAME_STRATEGY, TOPIC_NAME_STRATEGY, TopicConfig

from .framing import ID_BYTES, Part, SchemaName, unframe
from .schema import Mismatch, ParsedSchema
from .subjects import DEFAULT_CONTEXT, SubjectName, split_context, split_subject, tenant_context

# Records of a batch that are refused by name: after these, the rest is not checked.
MAX_REFUSED: Final = 100
# Schemas that a check reports as missing before it ends.
MAX_MISSING: Final = 256
# A message of a schema language can quote the data, and data can be deep.
_MAX_REASON: Final = 500
_MAX_PATH: Final = 200


class Naming(Enum):
    """How the subject of a key or value is found."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic-record"


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """How the keys or the values of a topic are checked."""

    part: Part
    naming: Naming
    topic: str  # as its clients name it
    context: str  # of the subjects
    # Whether the data has to match, too.
    is_full: bool
    # The subject whose latest version describes data that names no schema; empty if there must be none.
    plain_subject: str = ""

    @property
    def needs_schema(self) -> bool:
        """Whether it takes more than the id of a schema."""
        return self.is_full or self.naming is not Naming.TOPIC

    @property
    def any_subject(self) -> str | None:
        """The context, where an id is looked for before its subject is known."""
        return str(SubjectName(self.context, "")) or None

    def subject(self, record_name: str | None) -> str | None:
        """Return the subject of a record; None if it needs a name that the schema lacks."""
        if self.naming is Naming.TOPIC:
            name = f"{self.topic}-{self.part}"
        elif record_name is None:
            return None
        else:
            name = record_name if self.naming is Naming.RECORD else f"{self.topic}-{record_name}"
        return str(SubjectName(self.context, name))


_NAMING = {TOPIC_NAME_STRATEGY: Naming.TOPIC, RECORD_NAME_STRATEGY: Naming.RECORD}


def rules_of(topic: str, config: TopicConfig) -> tuple[Rule, ...]:
    """Return the rules of a topic, that of its values first. Subjects are those of the topic's tenant."""
    tenant, topic = split_topic(topic)
    context = DEFAULT_CONTEXT if tenant is None else tenant_context(tenant, DEFAULT_CONTEXT)
    plain = config.schema_validation_subject
    if tenant is not None and plain:
        named = split_subject(plain)
        plain = str(SubjectName(tenant_context(tenant, named.context), named.name))
    is_full = config.schema_validation == "full"
    rules = []
    if config.schema_validation != "none" or config.confluent_value_schema_validation:
        naming = _NAMING.get(config.confluent_value_subject_name_strategy, Naming.TOPIC_RECORD)
        rules.append(Rule(Part.VALUE, naming, topic, context, is_full, plain))
    if config.confluent_key_schema_validation:
        naming = _NAMING.get(config.confluent_key_subject_name_strategy, Naming.TOPIC_RECORD)
        rules.append(Rule(Part.KEY, naming, topic, context, is_full))
    return tuple(rules)


class Wanted(NamedTuple):
    """A schema to look up."""

    schema: SchemaName | None  # None: the latest version of the subject
    subject: str | None  # has to have a version with the schema; a context, or None: any
    is_parsed: bool  # whether more than its id is needed

    @property
    def shown_subject(self) -> str:
        """The subject as clients of its tenant name it; empty if any will do."""
        context, name = split_subject(self.subject or "")
        return str(SubjectName(split_context(context)[1], name)) if name else ""

    def __str__(self) -> str:
        shown = self.shown_subject
        if self.schema is None:
            return f"the latest version of subject {shown!r}"
        return f"schema {self.schema} of subject {shown!r}" if shown else f"schema {self.schema}"


class Refused(NamedTuple):
    """Why records must not name a schema."""

    reason: str


# What is known of a schema: why it is refused, the schema, or None if its id is all that is needed.
Known: TypeAlias = Refused | ParsedSchema | None
_Check: TypeAlias = Callable[[bytes | memoryview], Mismatch | None]


class Checked(NamedTuple):
    """The result of a check. It is final if nothing is missing and what was used is up to date."""

    refused: Sequence[RecordError]
    missing: Sequence[Wanted]
    used: Sequence[Wanted]
    records: int


class _PartCheck:
    """Checks the keys or the values of a batch."""

    def __init__(self, rule: Rule, known: Mapping[Wanted, Known], missing: set[Wanted]) -> None:
        self._rule = rule
        self._known = known
        self._missing = missing
        self._header = rule.part.header
        self.used: dict[Wanted, None] = {}
        # How data is checked by the bytes before it that have the id, where the subject is that of the topic:
        # so it is in most batches, and they have one schema.
        self._by_prefix: dict[bytes, tuple[Wanted, _Check | None]] = {}
        self._subject = rule.subject(None) if rule.naming is Naming.TOPIC else None

    def fault(self, data: bytes, headers: tuple[Header, ...]) -> str | None:
        """Return why a key or value is refused."""
        if not headers and (cached := self._by_prefix.get(data[:ID_BYTES])) is not None:
            wanted, check = cached
            if check is None or (found := check(data[ID_BYTES:])) is None:
                return None
            return self._described(found, wanted)
        header = next((value or b"" for name, value in headers if name == self._header), None)
        if (framed := unframe(data, header)) is None:
            return self._plain_fault(data, header)
        name, content = framed
        wanted, known = self._look_up(name, content)
        if isinstance(known, Refused):
            return f"{self._rule.part} {known.reason}"
        check = known.mismatch if known is not None and self._rule.is_full else None
        if self._subject is not None and header is None and isinstance(name, int):
            self._by_prefix[data[:ID_BYTES]] = wanted, check
        if check is None or (found := check(content)) is None:
            return None
        return self._described(found, wanted)

    def _look_up(self, name: SchemaName, content: bytes | memoryview) -> tuple[Wanted, Known]:
        rule, subject = self._rule, self._subject
        if subject is None:
            of_any = Wanted(name, rule.any_subject, is_parsed=True)
            schema = self._use(of_any)
            if schema is None or isinstance(schema, Refused):
                return of_any, schema
            subject = rule.subject(schema.record_name(content))
            if subject is None:
                return of_any, Refused(f"names schema {name}, in which the record has no name")
        wanted = Wanted(name, subject, rule.needs_schema)
        return wanted, self._use(wanted)

    def _use(self, wanted: Wanted) -> Known:
        try:
            known = self._known[wanted]
        except KeyError:
            self._missing.add(wanted)
            return None
        self.used[wanted] = None
        return known

    def _plain_fault(self, data: bytes, header: bytes | None) -> str | None:
        rule = self._rule
        if header is not None:
            return f"{rule.part} has a header {self._header} that names no schema"
        if not rule.plain_subject:
            return f"{rule.part} names no schema, neither before its data nor in a header {self._header}"
        wanted = Wanted(None, rule.plain_subject, is_parsed=True)
        known = self._use(wanted)
        if isinstance(known, Refused):
            return f"{rule.part} {known.reason}"
        if known is None or (found := known.mismatch(data)) is None:
            return None
        return self._described(found, wanted)

    def _described(self, found: Mismatch, wanted: Wanted) -> str:
        path = found.path
        if len(path) > _MAX_PATH:
            path = f"{path[: _MAX_PATH // 2]}…{path[-_MAX_PATH // 2 :]}"
        at = f" at {path}" if path else ""
        return f"{self._rule.part} does not match {wanted}{at}: {found.message}"[:_MAX_REASON]


def check_records(
    contents: Iterable[Content],
    rules: Sequence[Rule],
    known: Mapping[Wanted, Known],
    max_refused: int = MAX_REFUSED,
) -> Checked:
    """Check records in order, until `max_refused` are refused or too many schemas are missing.

    A key or value that is null has no schema, and passes.
    """
    missing: set[Wanted] = set()
    checks = {rule.part: _PartCheck(rule, known, missing) for rule in rules}
    of_values, of_keys = checks.get(Part.VALUE), checks.get(Part.KEY)
    refused: list[RecordError] = []
    index = -1
    for index, (_, key, value, headers) in enumerate(contents):
        fault = None
        if of_values is not None and value is not None:
            fault = of_values.fault(value, headers)
        if of_keys is not None and key is not None and fault is None:
            fault = of_keys.fault(key, headers)
        if fault is not None:
            refused.append(RecordError(index, fault))
            if len(refused) >= max_refused:
                break
        if len(missing) >= MAX_MISSING:
            break
    used = tuple(wanted for check in checks.values() for wanted in check.used)
    return Checked(tuple(refused), tuple(missing), used, index + 1)
