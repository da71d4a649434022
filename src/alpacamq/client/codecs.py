"""Codecs: how keys and values of records become Python values and back.

A topic has a codec for its values and one for its keys. Those of the schema registry look schemas up over the
network: `missing` names a schema that is not known yet, and `load` fetches it.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

import msgspec

from alpacamq.model.errors import AlpacaError

from .errors import ClientError

T = TypeVar("T")


class InvalidValue(ClientError, ValueError):
    """A value cannot be encoded, or stored data cannot be decoded, by the codec of its topic."""


class NoSchema(InvalidValue):
    """Data names no schema, or one that the registry does not have."""


class Schemas(Protocol):
    """The schema registry of a cluster. Calls block: they may go over the network."""

    def latest(self, subject: str) -> "Schema":
        """Return the latest version of a subject. Raises NotFound."""
        ...

    def named_in(self, data: bytes) -> "Schema":
        """Return the schema that data names in its first bytes. Raises NoSchema."""
        ...


class Schema(Protocol):
    """A schema of the registry."""

    def encode(self, value: object) -> bytes:
        """Encode a value, with the bytes that name the schema in front. Raises InvalidData."""
        ...

    def decode(self, data: bytes) -> object:
        """Decode data that begins with the bytes that name the schema. Raises InvalidData."""
        ...


class Codec(Generic[T]):
    """Encodes and decodes values of one type."""

    # Whether it needs schemas of the registry.
    is_remote: ClassVar[bool] = False

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value. Raises InvalidValue."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the value of stored bytes. Raises InvalidValue."""
        raise NotImplementedError

    def can_encode(self) -> bool:
        """Return whether `encode` needs no `load` before."""
        return True

    def can_decode(self, data: bytes | None) -> bool:
        """Return whether `decode` of this data needs no `load` before."""
        del data
        return True

    def load(self, schemas: Schemas, data: bytes | None) -> None:
        """Fetch the schema that stored data names, or that new values get if `data` is None. Blocks."""


class BytesCodec(Codec[bytes]):
    """Bytes as they are."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidValue(
                f"a value of a topic of bytes is bytes, not {type(value).__name__}; "
                'give the topic a type: mq.topic("name", value=…)'
            )
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return bytes(data)


class TextCodec(Codec[str]):
    """Text in UTF-8."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise InvalidValue(f"a value of a topic of text is a str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise InvalidValue(f"not UTF-8: {error}") from None


class JsonCodec(Codec[T]):
    """JSON of a type that msgspec knows: its structs, dataclasses, typed dictionaries, plain values."""

    def __init__(self, of: Any = Any) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(of)

    def encode(self, value: T) -> bytes:
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidValue(f"cannot be written as JSON: {error}") from None

    def decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise InvalidValue(str(error)) from None


class _PydanticModel(Protocol):
    """What a model of pydantic offers."""

    def model_dump_json(self) -> str: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Any: ...


class PydanticCodec(Codec[T]):
    """JSON of a pydantic model."""

    def __init__(self, model: type[_PydanticModel]) -> None:
        self._model = model

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._model):
            raise InvalidValue(f"{type(value).__name__} is not a {self._model.__name__}")
        return value.model_dump_json().encode()

    def decode(self, data: bytes) -> T:
        try:
            return cast("T", self._model.model_validate_json(data))
        except ValueError as error:  # of which pydantic's ValidationError is one
            raise InvalidValue(str(error)) from None


class _ProtobufMessage(Protocol):
    """What a generated class of Protobuf offers."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - Protobuf's name

    @classmethod
    def FromString(cls, data: bytes) -> Any: ...  # noqa: N802


class ProtobufCodec(Codec[T]):
    """Messages of a generated Protobuf class, without a schema registry."""

    def __init__(self, message: type[_ProtobufMessage]) -> None:
        self._message = message

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._message):
            raise InvalidValue(f"{type(value).__name__} is not a {self._message.__name__}")
        return value.SerializeToString()

    def decode(self, data: bytes) -> T:
        from google.protobuf.message import DecodeError

        try:
            return cast("T", self._message.FromString(data))
        except DecodeError as error:
            raise InvalidValue(f"not a {self._message.__name__}: {error}") from None


class RegistryCodec(Codec[T]):
    """Values with a schema of the registry: encoded with the latest of a subject, decoded with their own.

    Keeps up to 1,000 schemas. New values get the version that was the latest when the first was encoded.
    """

    is_remote: ClassVar[bool] = True
    MAX_SCHEMAS: Final = 1000

    def __init__(self, subject: str, of: Any) -> None:
        self._subject = subject
        self._type = of
        self._latest: Schema | None = None
        # By the bytes that name them.
        self._known: dict[bytes, Schema] = {}

    def can_encode(self) -> bool:
        return self._latest is not None

    def can_decode(self, data: bytes | None) -> bool:
        return data is None or _name_of(data) in self._known

    def load(self, schemas: Schemas, data: bytes | None) -> None:
        if data is None:
            self._latest = schemas.latest(self._subject)
            return
        if len(self._known) >= self.MAX_SCHEMAS:
            self._known.clear()
        name = _name_of(data)
        try:
            self._known[name] = schemas.named_in(data)
        except NoSchema as error:
            # Of this message only: it fails when it is decoded.
            self._known[name] = _Unknown(str(error))

    def encode(self, value: T) -> bytes:
        assert self._latest is not None, "load was not called"
        try:
            return self._latest.encode(msgspec.to_builtins(value))
        except (AlpacaError, TypeError) as error:
            raise InvalidValue(f"does not match the schema of {self._subject}: {error}") from None

    def decode(self, data: bytes) -> T:
        try:
            decoded = self._known[_name_of(data)].decode(data)
            return cast("T", msgspec.convert(decoded, self._type, strict=False))
        except (AlpacaError, msgspec.MsgspecError) as error:
            raise InvalidValue(str(error)) from None


class _Unknown:
    """Stands for a schema that cannot be had."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def encode(self, value: object) -> bytes:
        del value
        raise InvalidValue(self._reason)

    def decode(self, data: bytes) -> object:
        del data
        raise InvalidValue(self._reason)


_GUID_MAGIC: Final = 1


def _name_of(data: bytes) -> bytes:
    """Return the bytes in which data names its schema: a magic byte and an id or GUID."""
    return bytes(data[:17] if data[:1] == bytes([_GUID_MAGIC]) else data[:5])


json: Codec[Any] = JsonCodec()


def avro(subject: str, of: type[T] | Any = Any) -> Codec[T]:
    """Return the codec of Avro data with the schema of a subject; `of` is the type of its values."""
    return RegistryCodec(subject, of)


def json_schema(subject: str, of: type[T] | Any = Any) -> Codec[T]:
    """Return the codec of JSON with the JSON Schema of a subject; `of` is the type of its values."""
    return RegistryCodec(subject, of)


def protobuf(subject: str, of: type[T] | Any = Any) -> Codec[T]:
    """Return the codec of Protobuf data with the schema of a subject; `of` is the type of its values.

    Values are as Protobuf's JSON mapping has them. For a generated class without a registry, give a topic the
    class itself: `value=MyMessage`.
    """
    return RegistryCodec(subject, of)


_PLAIN: Mapping[type, Callable[[], Codec[Any]]] = {bytes: BytesCodec, str: TextCodec}


def codec_of(value: type[T] | Codec[T]) -> Codec[T]:
    """Return the codec of a type, or the codec itself. Raises InvalidValue if there is none."""
    if isinstance(value, Codec):
        return value
    if (plain := _PLAIN.get(value)) is not None:
        return plain()
    if hasattr(value, "model_validate_json"):
        return PydanticCodec(cast("type[_PydanticModel]", value))
    if hasattr(value, "FromString") and hasattr(value, "SerializeToString"):
        return ProtobufCodec(cast("type[_ProtobufMessage]", value))
    try:
        return JsonCodec(value)
    except TypeError as error:
        kind = "dataclass" if is_dataclass(value) else "type"
        raise InvalidValue(f"no codec for the {kind} {value!r}: {error}") from None
