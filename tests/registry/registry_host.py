"""Runs the registry without a broker, with a small schema language.

A schema is a list of fields, `a,b?`: a field with a question mark may be missing in data. `a,b` is canonical
without spaces, and normal with its fields in order. `!` is a syntax error, and `@name` needs a reference.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.state_machine import Change, Pending, Request
from alpacamq.registry.errors import IncompatibleSchema
from alpacamq.registry.machine import SchemaRegistry
from alpacamq.registry.messages import (
    CheckCompatibility,
    CompareFirst,
    Comparison,
    Draft,
    Evidence,
    ParsedText,
    ParseFirst,
    Register,
    SchemaVersion,
    Source,
)
from alpacamq.registry.schema import Incompatibility, InvalidSchema, Reference, SchemaType

R = TypeVar("R")


def parse(source: Source) -> ParsedText:
    text = source.text.replace(" ", "")
    fields = text.split(",")
    if "!" in text:
        raise InvalidSchema(f"line 1, column {text.index('!') + 1}: unexpected '!'")
    known = {dependency.name for dependency in source.dependencies}
    if missing := [field for field in fields if field.startswith("@") and field[1:] not in known]:
        raise InvalidSchema(f"unknown type {missing[0]}")
    return ParsedText(source, text, ",".join(sorted(fields)))


def incompatibilities(reader: Source, writer: Source) -> list[Incompatibility]:
    written = {field.rstrip("?") for field in parse(writer).canonical.split(",")}
    return [
        Incompatibility("FIELD_MISSING", field, f"field {field!r} has no default")
        for field in parse(reader).canonical.split(",")
        if not field.endswith("?") and field not in written
    ]


def compare(comparison: Comparison) -> list[Incompatibility]:
    for reader, writer in comparison.pairs():
        if found := incompatibilities(reader, writer):
            return found
    return []


class RegistryHost:
    """A registry and its log."""

    def __init__(self) -> None:
        self.machine = SchemaRegistry()
        self.log: list[Change] = []
        # Work that the registry has asked for.
        self.parsed: list[Source] = []
        self.compared: list[Comparison] = []

    def send(self, request: Request[Any]) -> Any:
        """Return the reply to a request as it is."""
        outcome = self.machine.handle([Pending(request, "client")], 0)
        (reply,) = outcome.replies
        assert reply.to == "client"
        assert not outcome.effects
        assert not outcome.reads
        if isinstance(reply.answer, AlpacaError):
            assert not outcome.changes
            raise reply.answer
        self.log += outcome.changes
        return reply.answer

    def ask(self, request: Request[Any]) -> Any:
        """Return the reply to a request after the work that it needs."""
        evidence = Evidence()
        while True:
            answer = self.send(request)
            match answer:
                case ParseFirst(source):
                    self.parsed.append(source)
                    evidence = evidence.with_parsed(parse(source))
                case CompareFirst(comparison) if isinstance(request, CheckCompatibility):
                    return comparison
                case CompareFirst(comparison):
                    self.compared.append(comparison)
                    if reasons := compare(comparison):
                        raise IncompatibleSchema("subject", comparison.level, reasons)
                    evidence = evidence.with_compared(comparison)
                case _:
                    return answer
            request = msgspec.structs.replace(request, evidence=evidence)

    def register(self, subject: str, text: str, *references: Reference, **options: Any) -> SchemaVersion:
        draft = Draft(
            text=text,
            references=references,
            schema_type=options.pop("schema_type", SchemaType.AVRO),
            metadata=options.pop("metadata", None),
            rule_set=options.pop("rule_set", None),
        )
        found = self.ask(Register(subject=subject, draft=draft, **options))
        assert isinstance(found, SchemaVersion)
        return found

    def restarted(self, records: Sequence[Change] | None = None) -> "RegistryHost":
        """Return a registry that was loaded from these records, or from the log."""
        other = RegistryHost()
        for record in self.log if records is None else records:
            other.machine.replay(*record)
            other.log.append(record)
        other.log += other.machine.loaded(0).changes
        return other

    def compacted(self, *, with_tombstones: bool) -> list[Change]:
        """Return the last record of each key, in the order of the log."""
        last = {record.key: at for at, record in enumerate(self.log)}
        kept = [record for at, record in enumerate(self.log) if last[record.key] == at]
        return [record for record in kept if with_tombstones or record.value is not None]

    def state(self) -> list[Change]:
        """Return everything that the registry knows, in an order that does not depend on its history."""
        return sorted(self.machine.snapshot())
