"""What a message is as JSON, and back."""

import json
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.rest.handlers.polling import CURSOR_PATTERN, read_cursor, write_cursor
from alpacamq.api.rest.message_json import NewMessage, Values, read_message
from alpacamq.model.durations import parse_duration
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record

BYTES = st.none() | st.binary(max_size=30) | st.text(max_size=30).map(str.encode)
HEADERS = st.lists(st.builds(Header, st.text(max_size=5), BYTES), max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
decoder = msgspec.json.Decoder(NewMessage)


def sent_again(message: Any) -> bytes:
    """A message as it was read, to be published once more."""
    fields = json.loads(msgspec.json.encode(message))
    for name in ("offset", "partition"):
        del fields[name]
    return json.dumps(fields).encode()


@given(BYTES, BYTES, HEADERS, st.sampled_from([Values.TEXT, Values.BASE64]))
def test_read_messages_can_be_published_unchanged(
    key: bytes | None, value: bytes | None, headers: tuple[Header, ...], values: Values
) -> None:
    read = read_message(0, Record(7, 1000, key, value, headers), values)
    again = decoder.decode(sent_again(read)).to_message(now_ms=0)
    assert (again.key, again.value, again.headers, again.timestamp_ms) == (key, value, headers, 1000)


@given(JSON)
def test_any_json_is_stored_so_that_it_can_be_read_back(value: Any) -> None:
    stored = decoder.decode(json.dumps({"value": value})).to_message(now_ms=0).value
    if isinstance(value, str):
        assert stored == value.encode()
    elif value is None:
        assert stored is None
    else:
        assert stored is not None
        assert json.loads(stored) == value
        read = read_message(0, Record(0, 0, None, stored), Values.JSON)
        assert json.loads(msgspec.json.encode(read))["value"] == value


@given(st.binary(max_size=40))
def test_no_bytes_break_reading_as_json(value: bytes) -> None:
    read = json.loads(msgspec.json.encode(read_message(0, Record(0, 0, None, value), Values.JSON)))
    assert ("value" in read) != ("value_base64" in read)


NAMES = st.from_regex(r"\A[a-zA-Z0-9._-]{1,20}\Z").map(TopicName)
PLACES = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))


@given(st.dictionaries(PLACES, st.integers(0, 10**18 - 1), min_size=1, max_size=6))
def test_a_cursor_round_trips(positions: dict[TopicPartition, int]) -> None:
    cursor = write_cursor(positions)
    assert read_cursor(cursor) == positions
    assert re.search(CURSOR_PATTERN, cursor)


def test_durations_are_read_in_their_units() -> None:
    assert [parse_duration(text) for text in ("7ms", "30s", "5m", "2h", "30d")] == [
        7,
        30_000,
        300_000,
        7_200_000,
        30 * 86_400_000,
    ]
