"""Every message in every version: back as it went, byte for byte as Kafka's own schemas have it."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.protocol.apis import Api
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, decode_in_slices, encode, encode_in_slices, run_to_end

from .oracle import UNKNOWN_TO_KIO, assert_same, kio_class, kio_read, kio_write
from .specimens import any_message, layouts, messages, name_of, served, specimen

FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(("message", "version"), layouts(), ids=name_of)
@FEW
@given(data=st.data())
def test_written_records_are_read_back(message: type[Message], version: int, data: st.DataObject) -> None:
    ours = data.draw(any_message(message, version))
    written = encode(ours, version)
    assert decode(message, version, memoryview(written)) == ours
    assert run_to_end(encode_in_slices(ours, version)) == written
    assert run_to_end(decode_in_slices(message, version, memoryview(written))) == ours


def judged(cases: Collection[tuple[type[Message], int]]) -> list[Any]:
    return [
        pytest.param(api, version, message, id=f"{name_of(message)}-{version}")
        for api, version in served()
        if (api.name, version) not in UNKNOWN_TO_KIO
        for message in (api.request, api.response)
        if (message, version) in cases
    ]


@pytest.mark.parametrize(("api", "version", "message"), judged(layouts()))
@FEW
@given(data=st.data())
def test_kio_reads_and_writes_the_same_bytes(
    api: Api, version: int, message: type[Message], data: st.DataObject
) -> None:
    ours = data.draw(any_message(message, version))
    written = encode(ours, version)
    theirs = kio_read(kio_class(api, version, message), written)
    assert_same(ours, theirs, version)
    assert kio_write(theirs) == written


@pytest.mark.parametrize(("api", "version", "message"), judged(messages()))
def test_kio_agrees_on_a_message_with_every_field_filled(
    api: Api, version: int, message: type[Message]
) -> None:
    ours = specimen(message, version)
    theirs = kio_read(kio_class(api, version, message), encode(ours, version))
    assert_same(ours, theirs, version)
    assert decode(message, version, memoryview(kio_write(theirs))) == ours


@pytest.mark.parametrize(("message", "version"), messages(), ids=name_of)
def test_a_message_can_be_made_from_its_defaults(message: type[Message], version: int) -> None:
    assert decode(message, version, memoryview(encode(message(), version))) == message()
