"""Requests to state machines and their replies, as bytes between brokers."""

import dataclasses
import enum
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.broker.delay.requests import DELAY_REQUESTS
from alpacamq.broker.peers.values import reply_type
from alpacamq.broker.remote.shards import RequestCodec
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import JoinRequest, LeaveReply, LeaveRequest, LeaveResult, ListRequest
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator
from alpacamq.model.errors import (
    AlpacaError,
    InvalidRequest,
    NotLeader,
    PeerFailed,
    StaleReceipt,
    UnknownMember,
)
from alpacamq.model.state_machine import Request
from alpacamq.queues.engine import REQUESTS as QUEUE_REQUESTS
from alpacamq.queues.messages import QueueId, RecordsArrived, SettleReply, SettleRequest
from alpacamq.registry.machine import SchemaRegistry

CODECS = {
    "groups": RequestCodec(GroupCoordinator.HANDLERS),
    "transactions": RequestCodec(TransactionCoordinator.HANDLERS),
    "queues": RequestCodec(QUEUE_REQUESTS),
    "delays": RequestCodec(DELAY_REQUESTS),
    "registry": RequestCodec(SchemaRegistry.HANDLERS),
}
KINDS = [
    pytest.param(codec, kind, id=f"{name}-{kind.__name__}")
    for name, codec in CODECS.items()
    for kind in codec.kinds
]


def errors() -> st.SearchStrategy[AlpacaError]:
    return st.sampled_from([UnknownMember("who"), NotLeader("not here", 3, 7), StaleReceipt("late")])


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type in a request or reply; a type that is not known here fails the test."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return values(kind.__supertype__)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is frozenset:
        return st.frozensets(values(arguments[0]), max_size=3)
    if origin in (Sequence, list):
        return st.lists(values(arguments[0]), max_size=3)
    if origin in (Mapping, dict):
        return st.dictionaries(*map(values, arguments), max_size=3)
    if origin is not None and hasattr(kind, "__metadata__"):
        return values(origin)
    if isinstance(kind, type):
        return _values_of_class(kind)
    raise TypeError(f"{kind} cannot be sent to another broker")


def _values_of_class(kind: type) -> st.SearchStrategy[Any]:
    if issubclass(kind, AlpacaError):
        return errors()
    if issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name in _fields(kind)}
        return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})
    simple: dict[type, st.SearchStrategy[Any]] = {
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        UUID: st.uuids(),
        type(None): st.none(),
        msgspec.UnsetType: st.just(msgspec.UNSET),
    }
    if kind not in simple:
        raise TypeError(f"{kind.__name__} cannot be sent to another broker")
    return simple[kind]


def _fields(kind: Any) -> Iterable[str]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: tuple[str, ...] = kind._fields
    return fields


def comparable(value: object) -> object:
    """Return a value in which errors are equal if they say the same."""
    if isinstance(value, AlpacaError):
        return type(value), str(value), vars(value)
    if isinstance(value, msgspec.Struct):
        return type(value), [comparable(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, Mapping):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [comparable(each) for each in value]
    return value


@pytest.mark.parametrize(("codec", "kind"), KINDS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_request_and_reply_survives_the_way_to_another_broker(
    codec: RequestCodec, kind: type[Request[Any]], data: st.DataObject
) -> None:
    request = data.draw(values(kind))
    name, body = codec.encode(request)
    decoded = codec.decode(name, body)
    assert type(decoded) is kind
    assert comparable(decoded) == comparable(request)
    reply = data.draw(values(reply_type(kind)))
    assert comparable(codec.decode_reply(name, codec.encode_reply(reply))) == comparable(reply)


def test_events_are_not_sent_to_other_brokers() -> None:
    assert RecordsArrived not in CODECS["queues"].kinds
    with pytest.raises(TypeError):
        CODECS["queues"].encode(RecordsArrived(topic="t", partition=0))
    with pytest.raises(PeerFailed, match="unknown request 'RecordsArrived'; do the brokers run different"):
        CODECS["queues"].decode("RecordsArrived", b"\x80")


def test_the_same_name_means_another_type_in_another_topic() -> None:
    name, body = CODECS["groups"].encode(ListRequest(states=frozenset({"Empty"})))
    assert name == "ListRequest"
    assert CODECS["groups"].decode(name, body) == ListRequest(states=frozenset({"Empty"}))
    assert not isinstance(CODECS["queues"].decode(name, body), ListRequest)
    with pytest.raises(TypeError):
        CODECS["queues"].encode(ListRequest())


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"group": 1}), msgspec.msgpack.encode([1])]
)
def test_a_request_that_cannot_be_read_is_not_the_clients_fault(body: bytes) -> None:
    with pytest.raises(PeerFailed):
        CODECS["groups"].decode(JoinRequest.__name__, body)


def test_a_reply_that_cannot_be_read_is_a_failure_of_the_other_broker() -> None:
    with pytest.raises(PeerFailed):
        CODECS["groups"].decode_reply(JoinRequest.__name__, b"\xc1")


def test_text_that_is_not_unicode_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        CODECS["groups"].encode(LeaveRequest(group="\ud800", members=()))


def test_errors_inside_of_replies_keep_their_class_and_attributes() -> None:
    codec = CODECS["groups"]
    left = LeaveReply(members=(LeaveResult(member_id="a", instance_id=None, error=NotLeader("x", 2, 5)),))
    found = codec.decode_reply(LeaveRequest.__name__, codec.encode_reply(left)).members[0].error
    assert isinstance(found, NotLeader)
    assert (str(found), found.leader, found.leader_epoch) == ("x", 2, 5)
    codec = CODECS["queues"]
    name, _ = codec.encode(SettleRequest(queue=QueueId("g", "t"), settlements=()))
    done = StaleReceipt("done")
    done.is_done = True
    results = codec.decode_reply(name, codec.encode_reply(SettleReply(results=(None, done)))).results
    assert results[0] is None
    assert isinstance(results[1], StaleReceipt)
    assert results[1].is_done
