"""kio, generated from Kafka's own schemas, as the judge of our message tables."""

import dataclasses
import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from alpacamq.protocol.apis import Api
from alpacamq.protocol.notation import ZERO_UUID, Message, fields_of

# Versions we serve that Kafka 4 dropped, and kio with it.
UNKNOWN_TO_KIO = {("OffsetForLeaderEpoch", 0), ("OffsetForLeaderEpoch", 1)}

EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
MILLISECOND = timedelta(milliseconds=1)


def kio_class(api: Api, version: int, message: type[Message]) -> Any:
    load = load_request_schema if message is api.request else load_response_schema
    return load(int(api.key), version)


def kio_read(kio_type: Any, data: bytes) -> Any:
    entity, size = entity_reader(kio_type)(data, 0)
    assert size == len(data), f"kio reads {size} of {len(data)} bytes"
    return entity


def kio_write(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def assert_same(ours: Message, theirs: Any, version: int) -> None:
    """`theirs` has the fields that `ours` has in this version, and the same in each."""
    present = [field.name for field in fields_of(type(ours)) if field.is_in(version)]
    known = [field.name for field in dataclasses.fields(theirs)]
    assert {_their_name(name, known) for name in present} == set(known)
    for name in present:
        _assert_same_value(getattr(ours, name), getattr(theirs, _their_name(name, known)), version)


def _their_name(name: str, known: Sequence[str]) -> str:
    """kio leaves out the unit of what it reads as a duration or a time."""
    return name if name in known else name.removesuffix("_ms")


def _assert_same_value(ours: Any, theirs: Any, version: int) -> None:
    match ours:
        case Message():
            assert_same(ours, theirs, version)
        case list():
            assert len(ours) == len(theirs)
            for our_item, their_item in zip(ours, theirs, strict=True):
                _assert_same_value(our_item, their_item, version)
        case UUID():
            assert ours == (ZERO_UUID if theirs is None else theirs)
        case _ if isinstance(theirs, timedelta):
            assert ours == theirs // MILLISECOND
        case _ if isinstance(theirs, datetime):
            assert ours == (theirs - EPOCH) // MILLISECOND
        case -1 if theirs is None:
            pass  # no time
        case _:
            assert ours == theirs
