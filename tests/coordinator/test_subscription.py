"""Topics in consumer metadata, from bytes of real clients and from malformed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.classic.roster import subscribed_topics

ORDERS = b"\x00\x01\x00\x00\x00\x01\x00\x06orders"


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        pytest.param(ORDERS, {"orders"}, id="one topic"),
        pytest.param(ORDERS + b"\xff\xff\xff\xff\x00\x00\x00\x00", {"orders"}, id="user data follows"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00", set(), id="no topics"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(ORDERS[:-1], None, id="truncated"),
        pytest.param(b"\x00\x00\x7f\xff\xff\xff", None, id="more topics than bytes"),
        pytest.param(b"\x00\x00\x00\x00\x00\x01\xff\xff", None, id="a negative length"),
        pytest.param(b"\x00\x00\x00\x00\x00\x01\x00\x01\xff", None, id="not text"),
        pytest.param(b"\xff\xff\x00\x00\x00\x00", None, id="a negative version"),
    ],
)
def test_subscribed_topics(metadata: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics(metadata) == topics


@given(st.binary(max_size=40))
def test_arbitrary_bytes_do_not_raise(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or sum(map(len, topics)) <= len(metadata)
