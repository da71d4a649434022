"""Keys and values of records as JSON, by the schemas of the registry, for `produce` and `consume`."""

import argparse
from typing import TYPE_CHECKING

from .commands import connect_http
from .output import print_message
from .parsing import CommandError, UsageError
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.schemas import SchemaCodec, SchemaEncoder
    from alpacamq.client.kafka.reader import Delivery
    from alpacamq.registry.framing import Part


class RecordEncoder:
    """Encodes lines of JSON with the schemas of --schema and --key-schema."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        self._value: SchemaEncoder | None = None
        self._key: SchemaEncoder | None = None
        if parsed.schema is None and parsed.key_schema is None:
            return
        if parsed.key_schema is not None and not parsed.key_separator and parsed.record_key is None:
            raise UsageError("--key-schema needs --key-separator TEXT or --record-key TEXT")
        codec = _codec(parsed)
        if parsed.schema is not None:
            self._value = codec.encoder_of(parsed.schema)
        if parsed.key_schema is not None:
            self._key = codec.encoder_of(parsed.key_schema)

    def encoded(self, key: bytes | None, value: bytes, line: int) -> tuple[bytes | None, bytes]:
        """Return the key and value of a line as the record has them."""
        if self._key is not None and key is not None:
            key = _encoded(self._key, key, f"key of line {line}")
        if self._value is not None:
            value = _encoded(self._value, value, f"line {line}")
        return key, value


def _encoded(encoder: "SchemaEncoder", text: bytes, where: str) -> bytes:
    import msgspec

    from alpacamq.registry.schema import InvalidData

    try:
        return encoder.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise CommandError(f"{where} is not JSON: {reason}") from None
    except InvalidData as error:
        raise CommandError(f"{where} does not match the schema: {error}") from None


class RecordDecoder:
    """Decodes keys and values of records that name their schemas."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        from alpacamq.registry.framing import Part

        self._parts: list[Part] = []
        if parsed.key_schema:
            self._parts.append(Part.KEY)
        if parsed.schema:
            self._parts.append(Part.VALUE)
        self._codec = _codec(parsed) if self._parts else None
        self.failures = 0

    def decoded(self, delivery: "Delivery") -> dict[str, Plain] | None:
        """Return the decoded parts of a record by name; None, with a message, if one cannot be decoded."""
        try:
            return {part.value: self._part(part, delivery) for part in self._parts}
        except CommandError as error:
            self.failures += 1
            place, record = delivery
            print_message(f"{place.topic}-{place.partition} offset {record.offset}: {error}")
            return None

    def _part(self, part: "Part", delivery: "Delivery") -> Plain:
        from alpacamq.client.errors import NotFound
        from alpacamq.client.http.schemas import UnknownSchema
        from alpacamq.registry.schema import InvalidData, InvalidSchema

        record = delivery.record
        data = record.key if part == "key" else record.value
        if data is None or self._codec is None:
            return None
        header = next((each.value for each in reversed(record.headers) if each.key == part.header), None)
        try:
            decoded: Plain = self._codec.decode(data, header)  # type: ignore[assignment]  # JSON
        except (InvalidData, InvalidSchema, NotFound, UnknownSchema) as error:
            raise CommandError(f"the {part.value} cannot be decoded: {error}") from None
        return decoded

    def finish(self) -> None:
        """Raise an error if records could not be decoded."""
        if self.failures:
            records = "record" if self.failures == 1 else "records"
            raise CommandError(f"{self.failures} {records} could not be decoded")


def _codec(parsed: argparse.Namespace) -> "SchemaCodec":
    """Return the codec of the broker's registry. Its connection ends with the command."""
    from alpacamq.client.http.schemas import SchemaCodec, SchemaRegistry

    return SchemaCodec(SchemaRegistry(connect_http(parsed)))
