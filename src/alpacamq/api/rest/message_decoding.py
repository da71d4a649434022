"""Decodes keys and values of messages that name a schema of the registry.

Uses only schemas that the client may read through the registry's API.
"""

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

from alpacamq.api.registry.names import Names
from alpacamq.api.registry.route import Call
from alpacamq.api.registry.schemas import version_by_id
from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.model.names import split_topic
from alpacamq.model.records import Record
from alpacamq.registry.errors import SchemaNotFound
from alpacamq.registry.framing import Framed, Part, SchemaName, unframe
from alpacamq.registry.messages import IdsOfGuid, SchemaVersion
from alpacamq.registry.schema import InvalidData, InvalidSchema, ParsedSchema
from alpacamq.registry.subjects import DEFAULT_CONTEXT, SubjectName, tenant_context

from .message_json import DecodedContent, MessageSchema, ReadMessage, Values, read_message

# Of one response. What is beyond is not decoded, and the response says so.
MAX_SCHEMAS: Final = 100
MAX_DECODED_BYTES: Final = 4 << 20
MAX_SECONDS: Final = 1.0
# Of one key or value.
MAX_CONTENT_BYTES: Final = 512 << 10
# How long the registry may take to return all schemas.
SCHEMAS_TIMEOUT_S: Final = 5.0

_encode = msgspec.json.Encoder().encode


class _Usable(NamedTuple):
    """A schema that the client may see."""

    named: MessageSchema
    parsed: ParsedSchema


class _Content(NamedTuple):
    """A key or value that names a schema."""

    part: Part
    framed: Framed


_Schemas = dict[tuple[Part, SchemaName], _Usable | str]


class MessageDecoding:
    """Decodes pages of messages, one page at a time and in a thread: decoders are not shared by threads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one_page = asyncio.Lock()

    async def messages(
        self,
        caller: Caller,
        topic: str,
        found: Iterable[tuple[int, Record]],
        values: Values,
        *,
        decode: bool,
    ) -> list[ReadMessage]:
        """Return records, by partition and in order, as messages; decoded if wanted."""
        found = list(found)
        if not decode:
            return [read_message(partition, record, values) for partition, record in found]
        contents = [_contents(record) for _, record in found]
        schemas = await self._schemas(caller, topic, [each for some in contents for each in some])
        if schemas:
            async with self._one_page:
                loop = asyncio.get_running_loop()
                decoded = await loop.run_in_executor(
                    self._broker.work_threads, _decoded_page, contents, schemas
                )
        else:
            decoded = [{} for _ in contents]
        return [
            read_message(
                partition,
                record,
                values,
                key_decoded=parts.get(Part.KEY, UNSET),
                value_decoded=parts.get(Part.VALUE, UNSET),
            )
            for (partition, record), parts in zip(found, decoded, strict=True)
        ]

    async def _schemas(self, caller: Caller, topic: str, contents: Iterable[_Content]) -> _Schemas:
        """Return the schemas that contents name, or why one cannot be used."""
        schemas: _Schemas = {}
        unavailable: str | None = None
        names = Names(self._broker.access.tenant_of(caller))
        call = Call(self._broker, caller, names, None, None)
        deadline = asyncio.get_running_loop().time() + SCHEMAS_TIMEOUT_S
        for part, framed in contents:
            key = (part, framed.schema)
            if key in schemas:
                continue
            if len(schemas) >= MAX_SCHEMAS:
                schemas[key] = f"more than {MAX_SCHEMAS} schemas at once; read fewer messages"
                continue
            if unavailable is not None:
                schemas[key] = unavailable
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    schemas[key] = await self._usable(call, topic, part, framed.schema)
            except (SchemaNotFound, InvalidSchema) as error:
                schemas[key] = names.local_text(str(error))
            except TimeoutError:
                schemas[key] = unavailable = "the schema registry does not answer"
            except AlpacaError as error:
                schemas[key] = unavailable = names.local_text(str(error))
        return schemas

    async def _usable(self, call: Call[None, None], topic: str, part: Part, name: SchemaName) -> _Usable:
        """Return a schema, as a version of the topic's subject if possible. Raises SchemaNotFound."""
        tenant, local = split_topic(topic)
        context = DEFAULT_CONTEXT if tenant is None else tenant_context(tenant, DEFAULT_CONTEXT)
        if isinstance(name, UUID):
            version = await self._by_guid(call, str(name), context, f"{local}-{part}")
        else:
            version = await version_by_id(call, name, str(SubjectName(context, f"{local}-{part}")))
        parsed = await self._broker.registry.schema(version.id, version.subject)
        subject = call.names.local(version.subject)
        named = MessageSchema(
            subject=subject, version=version.version, id=version.id, type=version.schema_type.value
        )
        return _Usable(named, parsed)

    async def _by_guid(
        self, call: Call[None, None], guid: str, preferred: str, subject: str
    ) -> SchemaVersion:
        found = await self._broker.registry.ask(IdsOfGuid(guid=guid))
        # That of the topic's own context first.
        for context, schema_id in sorted(found, key=lambda each: each.context != preferred):
            if call.names.is_own(str(SubjectName(context, ""))):
                wanted = subject if context == preferred else ""
                try:
                    return await version_by_id(call, schema_id, str(SubjectName(context, wanted)))
                except SchemaNotFound:
                    continue  # the client may not see it
        raise SchemaNotFound(f"schema {guid} not found")


def _contents(record: Record) -> list[_Content]:
    """Return the parts of a record that name a schema."""
    headers = {name: value for name, value in record.headers if value is not None} if record.headers else {}
    found = []
    for part, data in ((Part.KEY, record.key), (Part.VALUE, record.value)):
        if data is not None and (framed := unframe(data, headers.get(part.header))) is not None:
            found.append(_Content(part, framed))
    return found


def _decoded_page(
    contents: Sequence[Sequence[_Content]], schemas: _Schemas
) -> list[dict[Part, DecodedContent]]:
    """Decode the parts of all messages within the limits of a response."""
    ends_at = monotonic() + MAX_SECONDS
    left_bytes = MAX_DECODED_BYTES
    decoded: list[dict[Part, DecodedContent]] = []
    for parts in contents:
        of_message: dict[Part, DecodedContent] = {}
        for part, framed in parts:
            schema = schemas[part, framed.schema]
            if isinstance(schema, str):
                of_message[part] = DecodedContent(error=schema)
                continue
            if left_bytes <= 0 or monotonic() > ends_at:
                value: bytes | None = None
                error: str | UnsetType = "too much for one response; read fewer messages"
            else:
                value, error = _decode(schema.parsed, framed.data)
            left_bytes -= len(value or b"")
            json = UNSET if value is None else Raw(value)
            of_message[part] = DecodedContent(schema=schema.named, value=json, error=error)
        decoded.append(of_message)
    return decoded


def _decode(schema: ParsedSchema, data: bytes | memoryview) -> tuple[bytes | None, str | UnsetType]:
    """Return the JSON form of data, or why it has none."""
    if len(data) > MAX_CONTENT_BYTES:
        return None, f"larger than {MAX_CONTENT_BYTES} bytes"
    try:
        return _encode(schema.decode(data)), UNSET
    except InvalidData as error:
        return None, f"the data does not match the schema: {error}"
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return None, f"the data has no JSON form: {error}"
