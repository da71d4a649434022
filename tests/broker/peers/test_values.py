"""Values and errors between nodes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.peers.values import (
    ATTRIBUTES,
    InvalidValue,
    RemoteError,
    Values,
    decode_error,
    encode_error,
    error_from_bytes,
    error_to_bytes,
)
from alpacamq.model import errors as e
from alpacamq.model.state_machine import Request

R = TypeVar("R")


class Reply(msgspec.Struct, frozen=True):
    ids: list[UUID]


class Ask(Request[Reply], frozen=True, kw_only=True, tag="ask"):
    key: bytes


class Family(Request[R], Generic[R], frozen=True, kw_only=True):
    """Requests of one machine have a base of their own."""


class Count(Family[int | None], frozen=True, kw_only=True, tag="count"):
    pass


class Plain(msgspec.Struct, frozen=True, tag="plain"):
    text: str


class Tagless(msgspec.Struct, frozen=True):
    text: str


VALUES = Values([Ask, Count, Plain])


def test_values_keep_their_types() -> None:
    for value in (Ask(key=b"\xff"), Count(), Plain("x")):
        assert VALUES.decode(VALUES.encode(value)) == value


@pytest.mark.parametrize(
    ("request_type", "reply"),
    [
        pytest.param(Ask, Reply([UUID(int=1)]), id="a struct without a tag"),
        pytest.param(Count, 3, id="through a base"),
        pytest.param(Count, None, id="an optional reply"),
        pytest.param(Plain, Plain("y"), id="no request: a registered value"),
        pytest.param(Plain, None, id="or nothing"),
    ],
)
def test_a_reply_has_the_type_that_its_request_names(request_type: type, reply: object) -> None:
    assert VALUES.decode_reply(request_type, VALUES.encode_reply(reply)) == reply


def test_a_reply_of_another_type_is_invalid() -> None:
    with pytest.raises(InvalidValue):
        VALUES.decode_reply(Ask, VALUES.encode_reply(3))


def test_a_type_without_a_tag_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="Tagless has no tag"):
        Values([Tagless])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_invalid(data: bytes) -> None:
    for decode in (VALUES.decode, lambda data: VALUES.decode_reply(Ask, data)):
        with suppress(InvalidValue):
            decode(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_in_any_case(data: bytes) -> None:
    assert isinstance(error_from_bytes(data), e.AlpacaError)


def test_deeply_nested_bytes_are_invalid() -> None:
    with pytest.raises(InvalidValue):
        VALUES.decode(b"\x91" * 100_000)
    assert isinstance(error_from_bytes(b"\x91" * 100_000), e.PeerFailed)


def classes() -> Iterator[type[e.AlpacaError]]:
    for kind in vars(e).values():
        if isinstance(kind, type) and issubclass(kind, e.AlpacaError) and kind is not e.AlpacaError:
            yield kind


EXAMPLES: dict[type[e.AlpacaError], e.AlpacaError] = {
    e.NotLeader: e.NotLeader("no", leader=None),
    e.NotController: e.NotController("no", controller=2),
    e.MemberIdRequired: e.MemberIdRequired("me"),
    e.StaleReceipt: e.StaleReceipt("late", is_done=True),
    e.DamagedLog: e.DamagedLog(Path("/x"), 7, "bits"),
}


@pytest.mark.parametrize("kind", list(classes()))
def test_every_error_survives_with_its_attributes(kind: type[e.AlpacaError]) -> None:
    """An error with a constructor of its own needs an entry in ATTRIBUTES."""
    error = EXAMPLES.get(kind) or kind("the text")
    restored = error_from_bytes(error_to_bytes(error))
    assert type(restored) is kind
    assert str(restored) == str(error)
    assert vars(restored) == vars(error)
    assert ("__init__" in vars(kind)) == (kind in ATTRIBUTES)


def test_records_at_fault_are_named() -> None:
    error = e.InvalidRecord("bad").naming([e.RecordError(3, "key")])
    assert error_from_bytes(error_to_bytes(error)).record_errors == (e.RecordError(3, "key"),)


@pytest.mark.parametrize(
    "value",
    [
        RemoteError("FromTheFuture", "text"),
        RemoteError("NotLeader", "text", {}),
        RemoteError("NotLeader", "text", {"leader": "x"}),
        RemoteError("__class__", "text"),
        RemoteError("Exception", "text"),
    ],
)
def test_an_error_that_is_not_known_is_a_failure_of_the_peer(value: RemoteError) -> None:
    error = decode_error(value)
    assert type(error) is e.PeerFailed
    assert str(error) == f"{value.name}: text"


def test_a_long_text_is_cut() -> None:
    assert len(encode_error(e.InvalidRequest("x" * 100_000)).text) == 4000
