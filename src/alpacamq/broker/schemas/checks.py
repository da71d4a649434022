"""Checks what clients write to topics with schema validation.

Every write passes here once, before it is scheduled, enlisted in a transaction, sent to another broker or
appended: batches of Kafka clients, messages of the HTTP and SQS APIs, and dead letters of a redrive.
Small batches are checked on the event loop, in less than a millisecond; larger ones in other processes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Final, NamedTuple
from uuid import UUID

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.registry import Registry
from alpacamq.log.producer_state import SentBatch
from alpacamq.model.batch import BatchHeader
from alpacamq.model.compression import TooMuchData
from alpacamq.model.errors import AlpacaError, CorruptBatch, InvalidRecord, RecordError, SchemasUnavailable
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Content, Record, read_contents, write_batch
from alpacamq.model.topics import TopicConfig
from alpacamq.registry.errors import InvalidSubject, SchemaNotFound, SubjectNotFound, VersionNotFound
from alpacamq.registry.messages import LATEST, GetVersion, IdentifySchema, Source, SourceOfId
from alpacamq.registry.schema import InvalidSchema, SchemaType
from alpacamq.registry.subjects import SubjectName, context_of
from alpacamq.registry.validation import (
    MAX_REFUSED,
    Checked,
    Known,
    Refused,
    Rule,
    Wanted,
    check_records,
    rules_of,
)
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import REQUEST_SECONDS, Histogram

from .worker import CheckBatch, CheckedBatch, KnownSchema
from .workers import Workers

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


log = get_logger(__name__)

# Unpacked. Even one record of this size takes less than a millisecond to check.
SMALL_BYTES: Final = 4 << 10
# With larger schemas, a small record can take long.
SMALL_SCHEMA_CHARACTERS: Final = 4000
# Schemas that a batch may use, and those that are remembered as a topic's.
MAX_SCHEMAS: Final = 1000
MAX_RECENT: Final = 256
# How often a batch is checked again because schemas were missing or have changed.
MAX_ROUNDS: Final = 10
# Refusals of one topic are logged at most this often.
LOG_SECONDS: Final = 10.0


class TopicChecks:
    """The rules of a topic, the schemas that its records use, and counters since the broker started."""

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self.config = config
        self.rules = rules_of(topic, config)
        self.recent: OrderedDict[Wanted, None] = OrderedDict()
        self.checked = 0
        self.refused = 0
        self.logged_at = float("-inf")
        self.refused_at_log = 0

    def configure(self, topic: str, config: TopicConfig) -> None:
        """Apply settings, if they have changed."""
        if config is not self.config:
            self.config = config
            self.rules = rules_of(topic, config)

    def use(self, used: Sequence[Wanted]) -> None:
        """Remember schemas, and forget those that were not used for the longest time."""
        for wanted in used:
            self.recent[wanted] = None
            self.recent.move_to_end(wanted)
        while len(self.recent) > MAX_RECENT:
            self.recent.popitem(last=False)


class SchemaChecks:
    """The checks of one broker."""

    def __init__(self, registry: Registry, unpacked_limit_bytes: int) -> None:
        self._lookup = SchemaLookup(registry)
        self._limit_bytes = unpacked_limit_bytes
        self.workers = Workers()
        # By stored name.
        self.topics: dict[str, TopicChecks] = {}
        self.seconds = Histogram(REQUEST_SECONDS)

    async def run(self) -> None:
        """Own the processes until cancelled."""
        try:
            await self.workers.run()
        finally:
            self._lookup.close()

    def topic_deleted(self, topic: str) -> None:
        self.topics.pop(topic, None)

    async def check_batch(self, partition: Partition, data: Buffer, header: BatchHeader) -> None:
        """Check a batch of a producer. Raises InvalidRecord, SchemasUnavailable or CorruptBatch."""
        if header.is_control:
            return
        if header.is_idempotent and isinstance(partition.log.producers.verdict(header), SentBatch):
            return  # sent again: its records are in the log
        topic = self._topic(partition.identity.topic, partition.config)
        batch = _Batch(topic.rules, bytes(data), self._limit_bytes)
        refused = await self._refused(partition.identity.topic, topic, batch)
        if refused:
            others = f", and {len(refused) - 1} more" if refused[1:] else ""
            raise InvalidRecord(
                f"record {refused[0].place} of the batch: {refused[0].reason}{others}"
            ).naming(refused)

    async def check_messages(
        self, topic: str, config: TopicConfig, contents: Sequence[Content]
    ) -> dict[int, InvalidRecord]:
        """Return the errors of messages, by index. Raises SchemasUnavailable."""
        of_topic = self._topic(topic, config)
        refused = await self._refused(topic, of_topic, _Messages(of_topic.rules, contents))
        return {
            place: InvalidRecord(reason if len(contents) == 1 else f"record {place}: {reason}").naming(
                [RecordError(place, reason)]
            )
            for place, reason in refused
        }

    def _topic(self, topic: str, config: TopicConfig) -> TopicChecks:
        if (found := self.topics.get(topic)) is None:
            found = self.topics[topic] = TopicChecks(topic, config)
        found.configure(topic, config)
        return found

    async def _refused(
        self, name: str, topic: TopicChecks, unit: "_Batch | _Messages"
    ) -> Sequence[RecordError]:
        began = perf_counter()
        checked = await self._checked(topic, unit)
        self.seconds.observe(perf_counter() - began)
        topic.use(checked.used)
        topic.checked += checked.records
        if checked.refused:
            topic.refused += len(checked.refused)
            self._report(name, topic, checked.refused[0].place)
        return checked.refused

    def _report(self, name: str, topic: TopicChecks, first: int) -> None:
        """Log refusals of a topic, not too often, and nothing of what was refused."""
        now = asyncio.get_running_loop().time()
        if now >= topic.logged_at + LOG_SECONDS:
            count, topic.refused_at_log = topic.refused - topic.refused_at_log, topic.refused
            topic.logged_at = now
            log.warning("records_refused_by_schema", topic=name, records=count, first_in_batch=first)

    async def _checked(self, topic: TopicChecks, unit: "_Batch | _Messages") -> Checked:
        """Check with what is known of schemas until that turns out to be up to date."""
        known: dict[Wanted, Entry] = {}
        for wanted in topic.recent:
            if (entry := self._lookup.peek(wanted)) is not None:
                known[wanted] = entry
        for _ in range(MAX_ROUNDS):
            checked = await self._run(unit, known)
            wanted_now = checked.missing or checked.used
            if len(known) + len(checked.missing) > MAX_SCHEMAS + MAX_RECENT:
                raise InvalidRecord(f"the batch uses more than {MAX_SCHEMAS} schemas")
            if len(wanted_now) == 1:
                entries = [await self._lookup.get(wanted_now[0])]
            else:
                entries = await asyncio.gather(*map(self._lookup.get, wanted_now))
            is_current = not checked.missing
            for wanted, entry in zip(wanted_now, entries, strict=True):
                is_current = is_current and known[wanted].known == entry.known
                known[wanted] = entry
            if is_current:
                return checked
        raise SchemasUnavailable("the schemas of the batch change too often")

    async def _run(self, unit: "_Batch | _Messages", known: Mapping[Wanted, Entry]) -> Checked:
        has_small_schemas = all(entry.characters <= SMALL_SCHEMA_CHARACTERS for entry in known.values())
        if has_small_schemas and (contents := unit.small_contents()) is not None:
            table = {wanted: entry.known for wanted, entry in known.items()}
            return check_records(contents, unit.rules, table, unit.max_refused)
        return await self._run_elsewhere(unit, known)

    async def _run_elsewhere(self, unit: "_Batch | _Messages", known: Mapping[Wanted, Entry]) -> Checked:
        request = unit.request(tuple(_known(wanted, entry) for wanted, entry in known.items()))
        by_guid = {entry.guid: entry.source for entry in known.values() if entry.source is not None}
        # Another process may take it each time, and lack others.
        while (reply := await self.workers.check(request)).lacking:
            request.sources.update({guid: by_guid[guid] for guid in reply.lacking})
        return _result(reply, unit.limit_bytes)


class _Batch:
    """A batch of a producer."""

    max_refused = MAX_REFUSED

    def __init__(self, rules: Sequence[Rule], data: bytes, limit_bytes: int) -> None:
        self.rules = tuple(rules)
        self.limit_bytes = limit_bytes
        self._data = data
        self._may_be_small = len(data) <= SMALL_BYTES

    def small_contents(self) -> Sequence[Content] | None:
        """Return the records if they are small."""
        if not self._may_be_small:
            return None
        try:
            return list(read_contents(self._data, SMALL_BYTES))
        except TooMuchData:
            self._may_be_small = False
            return None

    def request(self, known: tuple[KnownSchema, ...]) -> CheckBatch:
        """Return the request to a process."""
        return CheckBatch(self._data, self.limit_bytes, self.max_refused, self.rules, known, {})


class _Messages(_Batch):
    """Messages that are accepted or refused one by one."""

    def __init__(self, rules: Sequence[Rule], contents: Sequence[Content]) -> None:
        records = (
            Record(index, 0, key, value, headers) for index, (_, key, value, headers) in enumerate(contents)
        )
        batch = bytes(write_batch(records))
        super().__init__(rules, batch, len(batch))
        self.max_refused = len(contents) + 1


def _known(wanted: Wanted, entry: Entry) -> KnownSchema:
    if isinstance(entry.known, Refused):
        return KnownSchema(wanted, refusal=entry.known.reason)
    return KnownSchema(wanted, guid=None if entry.known is None else entry.guid)


def _result(reply: CheckedBatch, limit_bytes: int) -> Checked:
    if reply.is_too_large:
        raise TooMuchData(limit_bytes)
    if reply.corrupt:
        raise CorruptBatch(reply.corrupt)
    return Checked(reply.refused, reply.missing, reply.used, reply.records)
