"""Messages as the HTTP API answers them, read back into records."""

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record

# Asks for keys and values in base64: they come back byte for byte, whatever they are.
AS_BYTES = "base64"


class Base64(msgspec.Struct, frozen=True):
    """The value of a header that is not text."""

    base64: bytes


HeaderValue = str | Base64 | None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a topic; times are in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key_base64: bytes | None = None
    value_base64: bytes | None = None
    headers: dict[str, HeaderValue] | list[tuple[str, HeaderValue]] = {}

    def place(self, topic: str) -> TopicPartition:
        return TopicPartition(TopicName(topic), self.partition)

    @property
    def record(self) -> Record:
        pairs = self.headers.items() if isinstance(self.headers, dict) else self.headers
        headers = tuple(Header(name, header_bytes(value)) for name, value in pairs)
        return Record(self.offset, self.timestamp, self.key_base64, self.value_base64, headers)


def header_bytes(value: HeaderValue) -> bytes | None:
    match value:
        case None:
            return None
        case Base64(base64=content):
            return content
        case str():
            return value.encode()
