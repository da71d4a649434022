"""Looks up schemas that records name, and remembers them for a second.

The registry may be on another broker. The schema of an id or GUID never changes, but whether a subject has a
version with it does, and which version is the latest: that is asked for again after `FRESH_SECONDS`. Of a
schema that does not exist, that is remembered for the same time. All is bounded, and no record is accepted
because the registry does not answer.
"""

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple
from uuid import UUID

from alpacamq.broker.registry import Registry
from alpacamq.model.errors import AlpacaError, SchemasUnavailable
from alpacamq.registry.errors import InvalidSubject, SchemaNotFound, SubjectNotFound, VersionNotFound
from alpacamq.registry.messages import LATEST, GetVersion, IdentifySchema, Source, SourceOfId
from alpacamq.registry.schema import InvalidSchema, SchemaType
from alpacamq.registry.subjects import SubjectName, context_of
from alpacamq.registry.validation import Known, Refused, Wanted

# How long what is known of a schema counts. A change in the registry takes effect within this time.
FRESH_SECONDS: Final = 1.0
# How long the registry may take to answer.
ANSWER_SECONDS: Final = 5.0
# Schemas that are remembered: how many, and the characters of their texts. Parsed, a text can take 40 times
# its length.
MAX_KEPT: Final = 5000
MAX_KEPT_CHARACTERS: Final = 4 << 20


class Entry(NamedTuple):
    """What is known of a schema, and since when."""

    known: Known
    # Identifies the schema in all contexts; empty if there is none.
    guid: str
    # Its text, or the descriptors of a Protobuf schema.
    source: Source | None
    asked_at: float

    @property
    def characters(self) -> int:
        source = self.source
        return 0 if source is None else len(source.text) + sum(len(each.text) for each in source.dependencies)


class SchemaLookup:
    """The schemas that records have named lately."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: OrderedDict[Wanted, Entry] = OrderedDict()
        self._characters = 0
        # Clients that wait for the same schema share a task. It ends by itself, in a limited time.
        self._lookups: dict[Wanted, asyncio.Task[Entry | SchemasUnavailable]] = {}

    def peek(self, wanted: Wanted) -> Entry | None:
        """Return what is known of a schema, however old it is."""
        return self._kept.get(wanted)

    def close(self) -> None:
        """Cancel all lookups."""
        for lookup in self._lookups.values():
            lookup.cancel()

    async def get(self, wanted: Wanted) -> Entry:
        """Return what is known of a schema, no older than FRESH_SECONDS. Raises SchemasUnavailable."""
        now = asyncio.get_running_loop().time()
        if (entry := self._kept.get(wanted)) is not None and now < entry.asked_at + FRESH_SECONDS:
            self._kept.move_to_end(wanted)
            return entry
        if (lookup := self._lookups.get(wanted)) is None:
            lookup = self._lookups[wanted] = asyncio.ensure_future(self._ask(wanted, entry))
            lookup.add_done_callback(lambda _: self._lookups.pop(wanted))
        try:
            found = await asyncio.shield(lookup)
        except asyncio.CancelledError:
            if lookup.cancelled():
                raise SchemasUnavailable("the broker is stopping") from None
            raise
        if isinstance(found, SchemasUnavailable):
            raise found
        return found

    async def _ask(self, wanted: Wanted, before: Entry | None) -> Entry | SchemasUnavailable:
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                try:
                    entry = await self._found(wanted, before, asked_at)
                except (SchemaNotFound, SubjectNotFound, VersionNotFound, InvalidSubject):
                    entry = Entry(Refused(_absence(wanted)), "", None, asked_at)
                except InvalidSchema as error:
                    entry = Entry(
                        Refused(f"needs {wanted}, which cannot be used: {error}"), "", None, asked_at
                    )
        except TimeoutError:
            return SchemasUnavailable("the schema registry does not answer in time")
        except AlpacaError as error:
            return SchemasUnavailable(f"the schema registry does not answer: {error}")
        self._keep(wanted, entry)
        return entry

    async def _found(self, wanted: Wanted, before: Entry | None, asked_at: float) -> Entry:
        if wanted.schema is None:
            assert wanted.subject is not None
            latest = await self._registry.ask(GetVersion(subject=wanted.subject, version=LATEST))
            if latest.schema_type is not SchemaType.JSON:
                reason = f"names no schema, and {wanted} is not a JSON schema"
                return Entry(Refused(reason), latest.guid, None, asked_at)
            guid, schema_id, context = latest.guid, latest.id, context_of(latest.subject)
        else:
            name = str(wanted.schema) if isinstance(wanted.schema, UUID) else wanted.schema
            found = await self._registry.ask(IdentifySchema(schema=name, subject=wanted.subject))
            guid, schema_id, context = found.guid, found.id, found.context
            if (subject := wanted.shown_subject) and not found.is_version:
                reason = f"names schema {wanted.schema}, which is not a version of subject {subject!r}"
                return Entry(Refused(reason), guid, None, asked_at)
        if not wanted.is_parsed:
            return Entry(None, guid, None, asked_at)
        if before is not None and before.source is not None and before.guid == guid:
            return before._replace(asked_at=asked_at)
        scope = str(SubjectName(context, "")) or None
        source = await self._registry.ask(SourceOfId(id=schema_id, subject=scope))
        parsed = await self._registry.parse(source)
        if source.schema_type is SchemaType.PROTOBUF:
            # Processes that check records have no compiler.
            from alpacamq.registry.protobuf import ProtobufSchema

            assert isinstance(parsed, ProtobufSchema)
            source = parsed.descriptors
        return Entry(parsed, guid, source, asked_at)

    def _keep(self, wanted: Wanted, entry: Entry) -> None:
        if (before := self._kept.pop(wanted, None)) is not None:
            self._characters -= before.characters
        self._kept[wanted] = entry
        self._characters += entry.characters
        while len(self._kept) > MAX_KEPT or self._characters > MAX_KEPT_CHARACTERS:
            _, dropped = self._kept.popitem(last=False)
            self._characters -= dropped.characters


def _absence(wanted: Wanted) -> str:
    if wanted.schema is None:
        return f"names no schema, and subject {wanted.shown_subject!r} has no version"
    return f"names schema {wanted.schema}, which does not exist"
