"""Codecs of keys and values."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import alpacamq
from alpacamq.client.codecs import Codec, codec_of
from alpacamq.client.messages import Codecs, KeyCodec, Message, NoValue
from alpacamq.v1.messages_pb2 import Header


class Struct(msgspec.Struct):
    id: int


@dataclass
class Data:
    id: int


class Model:
    """As a model of pydantic, which is not needed to test that its methods are used."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]

    def model_dump_json(self) -> str:
        return f'{{"number":{self.number}}}'

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> "Model":
        found = msgspec.json.decode(json_data)
        if not isinstance(found.get("number"), int):
            raise ValueError("number: not an integer")
        return cls(found["number"])


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (bytes, b"\x00\xff", b"\x00\xff"),
        (str, "café", "café".encode()),
        (Struct, Struct(1), b'{"id":1}'),
        (Data, Data(1), b'{"id":1}'),
        (dict, {"a": [1]}, b'{"a":[1]}'),
        (alpacamq.json, {"a": None}, b'{"a":null}'),
        (Model, Model(3), b'{"number":3}'),
        (Header, Header(key="k", value=b"v"), b"\n\x01k\x12\x01v"),
    ],
)
def test_values_of_a_type_are_written_and_read(kind: Any, value: object, data: bytes) -> None:
    codec: Codec[Any] = codec_of(kind)
    assert codec.encode(value) == data
    assert codec.decode(data) == value


@pytest.mark.parametrize(
    ("kind", "data"),
    [(str, b"\xff"), (Struct, b"{}"), (Data, b'{"id":"x"}'), (Model, b"{}"), (Header, b"\xff"), (dict, b"{")],
)
def test_data_that_does_not_fit_is_invalid(kind: Any, data: bytes) -> None:
    with pytest.raises(alpacamq.InvalidValue):
        codec_of(kind).decode(data)


@pytest.mark.parametrize(("kind", "value"), [(bytes, "text"), (str, b"bytes"), (Model, 1), (Header, 1)])
def test_values_of_another_type_are_invalid(kind: Any, value: object) -> None:
    with pytest.raises(alpacamq.InvalidValue):
        codec_of(kind).encode(value)


def test_pydantic_models_are_written_and_read() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", id=(int, ...))
    codec: Codec[Any] = codec_of(model)
    assert codec.decode(codec.encode(model(id=1))) == model(id=1)
    with pytest.raises(alpacamq.InvalidValue, match="id"):
        codec.decode(b"{}")


@pytest.mark.parametrize(("key", "data"), [(b"k", b"k"), ("é", "é".encode()), (7, b"7")])
def test_keys_are_bytes_text_or_integers_by_default(key: object, data: bytes) -> None:
    assert KeyCodec().encode(key) == data


def test_a_tombstone_has_no_value() -> None:
    codecs = Codecs(codec_of(str), KeyCodec())
    message = Message("orders", 1, 2, 0, b"key", None, (), codecs)
    assert message.is_tombstone
    with pytest.raises(NoValue, match="orders-1@2"):
        _ = message.value


def test_a_value_is_decoded_once_and_errors_name_the_message() -> None:
    codecs = Codecs(codec_of(Struct), KeyCodec())
    message = Message("orders", 1, 2, 0, None, b'{"id":1}', (), codecs)
    assert message.value is message.value
    with pytest.raises(alpacamq.InvalidValue, match="value of orders-1@3"):
        _ = Message("orders", 1, 3, 0, None, b"{}", (), codecs).value
