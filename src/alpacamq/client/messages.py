"""A message as users of the client see it: bytes, decoded when its key or value is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeAlias, TypeVar

from alpacamq.model.errors import AlpacaError

from .codecs import Codec, InvalidValue

T = TypeVar("T")

# Headers of a new message; text is written in UTF-8.
NewHeaders: TypeAlias = Mapping[str, str | bytes | None]


def encode_headers(headers: NewHeaders | None) -> list[tuple[str, bytes | None]]:
    """Return headers as records have them."""
    return [
        (name, value.encode() if isinstance(value, str) else value) for name, value in (headers or {}).items()
    ]


class KeyCodec(Codec[Any]):
    """The default for keys: bytes, text or an integer (as decimal text) when written, bytes when read."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, int):
            return str(value).encode()
        raise InvalidValue(f"a key is bytes, str or int, not {type(value).__name__}; or give the topic key=…")

    def decode(self, data: bytes) -> bytes:
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Codecs(Generic[T]):
    """The codecs of a topic."""

    value: Codec[T]
    key: Codec[Any]

    def encode_key(self, key: object) -> bytes | None:
        """Return the bytes of a key. Raises InvalidValue."""
        return None if key is None else self.key.encode(key)

    def encode_value(self, value: T | None) -> bytes | None:
        """Return the bytes of a value; None, a tombstone, has none. Raises InvalidValue."""
        return None if value is None else self.value.encode(value)


class NoValue(InvalidValue):
    """The message is a tombstone: it has no value. `is_tombstone` tells before."""


class Message(Generic[T]):
    """A stored message."""

    __slots__ = (
        "_codecs", "_headers", "_value", "offset", "partition", "raw_key", "raw_value", "timestamp_ms",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        raw_key: bytes | None,
        raw_value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        codecs: Codecs[T],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        # Milliseconds since 1970.
        self.timestamp_ms = timestamp_ms
        self.raw_key = raw_key
        self.raw_value = raw_value
        self._headers = headers
        self._codecs = codecs

    @property
    def value(self) -> T:
        """The value, decoded when first read. Raises InvalidValue, or NoValue for a tombstone."""
        try:
            return self._value  # type: ignore[no-any-return, has-type]
        except AttributeError:
            pass
        if self.raw_value is None:
            raise NoValue(f"{self.place} has no value: it is a tombstone")
        try:
            value = self._codecs.value.decode(self.raw_value)
        except InvalidValue as error:
            raise InvalidValue(f"value of {self.place}: {error}") from error
        self._value = value
        return value

    @property
    def key(self) -> Any:
        """The key, decoded by the topic's codec of keys: bytes by default. None if there is none."""
        if self.raw_key is None:
            return None
        try:
            return self._codecs.key.decode(self.raw_key)
        except AlpacaError as error:
            raise InvalidValue(f"key of {self.place}: {error}") from error

    @property
    def is_tombstone(self) -> bool:
        """Whether there is no value, which deletes the key in a compacted topic."""
        return self.raw_value is None

    @property
    def headers(self) -> dict[str, bytes | None]:
        """The headers by name; of several of one name, the last."""
        return {name: value for name, value in self.raw_headers}  # noqa: C416 - headers may be any pairs

    @property
    def raw_headers(self) -> Sequence[tuple[str, bytes | None]]:
        """All headers in order."""
        return self._headers

    @property
    def timestamp(self) -> datetime:
        """The time of the message, in UTC."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @property
    def place(self) -> str:
        """The position as text: topic, partition and offset."""
        return f"{self.topic}-{self.partition}@{self.offset}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}>"
