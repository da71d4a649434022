"""Hosts the schema registry, and does the work with schema languages that it asks for.

The registry is on one broker, which leads the one partition of its topic; requests reach it from any broker.
That broker parses and compares schemas, and asks the registry again with the result.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from alpacamq.model.errors import CoordinatorUnavailable
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import SCHEMAS_TOPIC
from alpacamq.registry.errors import IncompatibleSchema
from alpacamq.registry.machine import SchemaRegistry
from alpacamq.registry.messages import (
    CheckCompatibility,
    CompareFirst,
    Comparison,
    CompatibilityReport,
    Draft,
    ImportRecords,
    Lookup,
    ParsedText,
    ParseFirst,
    Register,
    RegistryRequest,
    SchemaVersion,
    Source,
    SourceOfId,
)
from alpacamq.registry.schema import Incompatibility, ParsedSchema, SchemaType

from .protobuf_compiler import ProtobufCompiler
from .statemachine.host import Batching, StateMachineHost
from .statemachine.topic import HostResources, StateMachineTopic

# How often a request is repeated because versions it was compared with have changed meanwhile.
MAX_ATTEMPTS: Final = 100
# Of the requests that are written as one batch of records.
MAX_BATCH_BYTES: Final = 8 << 20
REQUEST_BYTES: Final = 1000
# Parsed schemas that are kept: how many, and the characters of their texts. Parsed, a text can take 40 times
# its length.
MAX_KEPT: Final = 2000
MAX_KEPT_CHARACTERS: Final = 2 << 20
# Schemas with more characters are parsed and compared in a thread.
SMALL_CHARACTERS: Final = 4000
# Those with more than these one at a time: they take seconds and up to 100 MB, and threads serve others, too.
LARGE_CHARACTERS: Final = 64 << 10
# Attributes of parsed schemas that some languages have: a text with all references written out, and a
# descriptor in Base64.
FORMS: Final = frozenset({"resolved", "serialized"})

R = TypeVar("R")
T = TypeVar("T")

Language = Callable[[Source], Awaitable[ParsedSchema]]


class Registry:
    """The schema registry, on whichever broker it is."""

    def __init__(self, resources: HostResources) -> None:
        self._executor = resources.executor
        self._large_turn = asyncio.Lock()
        self._compiler = ProtobufCompiler(resources.executor)
        self.languages: MutableMapping[SchemaType, Language] = {
            SchemaType.AVRO: self._parse_text,
            SchemaType.JSON: self._parse_text,
            SchemaType.PROTOBUF: self._compiler.parse,
        }
        self._kept = ParsedSchemas()
        self._machines: StateMachineTopic[SchemaRegistry] = StateMachineTopic(
            SCHEMAS_TOPIC,
            resources,
            lambda _: SchemaRegistry(),
            batching=Batching(_weigh, MAX_BATCH_BYTES),
            partitions=1,
            requests=SchemaRegistry.HANDLERS,
            answer=self._answer,
        )

    async def run(self) -> None:
        """Run the registry, if it is on this broker, until cancelled."""
        try:
            await self._machines.run()
        finally:
            await self._compiler.close()

    async def ask(self, request: RegistryRequest[R]) -> R:
        """Return the registry's reply, or raise it if it is an error."""
        return await self._machines.ask(request)

    async def register(self, request: Register) -> SchemaVersion:
        """Return the version of a schema, which is registered if necessary. Raises IncompatibleSchema."""
        found = await self._machines.ask(request)
        assert isinstance(found, SchemaVersion)
        return found

    async def look_up(self, request: Lookup) -> SchemaVersion:
        """Return the version of a schema."""
        found = await self._machines.ask(request)
        assert isinstance(found, SchemaVersion)
        return found

    async def check_compatibility(self, request: CheckCompatibility) -> CompatibilityReport:
        """Compare a schema with versions of a subject."""
        found = await self._machines.ask(request)
        assert isinstance(found, CompatibilityReport)
        return found

    async def schema(self, schema_id: int, subject: str | None = None) -> ParsedSchema:
        """Return the parsed schema of an id. Raises SchemaNotFound."""
        return await self.parse(await self._machines.ask(SourceOfId(id=schema_id, subject=subject)))

    async def formatted(self, version: SchemaVersion, form: str) -> str:
        """Return the text of a version in another form, such as `resolved`; as it is if it has none."""
        if form not in FORMS:
            return version.text
        source = await self._machines.ask(SourceOfId(id=version.id, subject=version.subject))
        parsed = await self.parse(source)

        def write() -> str:
            found = getattr(parsed, form, version.text)
            return str(found() if callable(found) else found)

        return await self._run(write, _characters(source))

    async def parse(self, source: Source) -> ParsedSchema:
        """Return the parsed schema of a text. Raises InvalidSchema."""
        if (known := self._kept.get(source)) is not None:
            return known
        parsed = await self.languages[source.schema_type](source)
        self._kept.add(source, parsed)
        return parsed

    async def _parse_text(self, source: Source) -> ParsedSchema:
        # The languages, and the library of JSON Schema, are loaded with the first schema.
        from alpacamq.registry.languages import parse

        def parse_and_print() -> ParsedSchema:
            parsed = parse(source)
            # Some languages print a schema when its text is first wanted, which takes as long as parsing.
            _ = parsed.canonical, parsed.normalized
            return parsed

        return await self._run(parse_and_print, _characters(source))

    async def _run(self, work: Callable[[], T], characters: int) -> T:
        """Do work with schemas that have so many characters together: here, or in a thread."""
        if characters <= SMALL_CHARACTERS:
            return work()
        loop = asyncio.get_running_loop()
        if characters <= LARGE_CHARACTERS:
            return await loop.run_in_executor(self._executor, work)
        await self._large_turn.acquire()

        def end_turn(done: asyncio.Future[T]) -> None:
            self._large_turn.release()
            if not done.cancelled():
                done.exception()  # for a client that has left

        # A thread goes on when its client leaves, and the turn ends with the thread.
        working = loop.run_in_executor(self._executor, work)
        working.add_done_callback(end_turn)
        return await asyncio.shield(working)

    def failures(self) -> list[str]:
        """Describe why the registry cannot be loaded, if it cannot."""
        return self._machines.failures()

    async def _answer(self, host: StateMachineHost[SchemaRegistry], request: Request[Any]) -> Any:
        """Ask the registry on this broker, and do the work that it asks for."""
        for _ in range(MAX_ATTEMPTS):
            reply = await host.ask(request)
            if not isinstance(request, Register | Lookup | CheckCompatibility):
                return reply
            evidence = request.evidence
            match reply:
                case ParseFirst(source):
                    parsed = await self.parse(source)
                    text = ParsedText(source, parsed.canonical, parsed.normalized)
                    request = msgspec.structs.replace(request, evidence=evidence.with_parsed(text))
                case CompareFirst(comparison):
                    report = await self._compare(comparison)
                    if isinstance(request, CheckCompatibility):
                        return report
                    if report.reasons:
                        raise IncompatibleSchema(request.subject, comparison.level, report.reasons)
                    request = msgspec.structs.replace(request, evidence=evidence.with_compared(comparison))
                case _:
                    return reply
        raise CoordinatorUnavailable("the subject changes too often; try again")

    async def _compare(self, comparison: Comparison) -> CompatibilityReport:
        """Compare pairs up to the first that is not compatible."""
        for reader, writer in comparison.pairs():
            if found := await self._incompatibilities(reader, writer):
                earlier = writer if reader is comparison.schema else reader
                return CompatibilityReport(comparison.level, tuple(found), earlier.text)
        return CompatibilityReport(comparison.level)

    async def _incompatibilities(self, reader: Source, writer: Source) -> Sequence[Incompatibility]:
        if reader.schema_type is not writer.schema_type:
            message = f"a {reader.schema_type} schema cannot read data of a {writer.schema_type} schema"
            return [Incompatibility("SCHEMA_TYPE_MISMATCH", "/", message)]
        read, written = await self.parse(reader), await self.parse(writer)
        await asyncio.sleep(0)
        return await self._run(
            lambda: read.incompatibilities(written), _characters(reader) + _characters(writer)
        )


class ParsedSchemas:
    """The parsed schemas that were used last."""

    def __init__(self, max_count: int = MAX_KEPT, max_characters: int = MAX_KEPT_CHARACTERS) -> None:
        self._max_count = max_count
        self._max_characters = max_characters
        self._kept: OrderedDict[Source, ParsedSchema] = OrderedDict()
        self._characters = 0

    def get(self, source: Source) -> ParsedSchema | None:
        """Return a schema if it is kept."""
        if (found := self._kept.get(source)) is not None:
            self._kept.move_to_end(source)
        return found

    def add(self, source: Source, parsed: ParsedSchema) -> None:
        """Keep a schema, and drop those that were not used for the longest time."""
        if source not in self._kept:
            self._kept[source] = parsed
            self._characters += _characters(source)
        while len(self._kept) > self._max_count or self._characters > self._max_characters:
            dropped, _ = self._kept.popitem(last=False)
            self._characters -= _characters(dropped)


def _characters(source: Source) -> int:
    return len(source.text) + sum(len(each.text) for each in source.dependencies)


def _weigh(request: Request[Any]) -> int:
    """Return about how many bytes of records a request leads to."""
    if isinstance(request, ImportRecords):
        return sum(len(key) + len(value or b"") for key, value in request.records)
    draft = request.draft if isinstance(request, Register) else None
    return REQUEST_BYTES + (len(draft.text) if isinstance(draft, Draft) else 0)
