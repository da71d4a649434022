"""Rows go to the partitions that every Kafka client would choose."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.client.errors import NotFound
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.write.staging import Placement, destinations, hashed

ORDERS, BILLS = TopicName("orders"), TopicName("bills")


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 50), st.integers(0, 5))
def test_keys_are_hashed_as_kafka_does(keys: list[bytes], partitions: int, skipped: int) -> None:
    sliced = pa.array(keys, pa.binary()).slice(min(skipped, len(keys)))
    assert hashed(sliced, partitions).tolist() == [
        partition_for_key(key, partitions) for key in keys[skipped:]
    ]


def test_long_keys_are_hashed_as_kafka_does() -> None:
    keys = [b"a", b"b" * 1000, b"c" * 129]
    assert hashed(pa.array(keys), 7).tolist() == [partition_for_key(key, 7) for key in keys]


def test_rows_without_a_key_take_turns_in_runs() -> None:
    placement = Placement(ORDERS, 3, turn=1)
    nulls = pa.nulls(1500, pa.binary())
    assert placement.place(nulls, None).tolist() == [1] * 1000 + [2] * 500
    assert placement.place(nulls, None).tolist() == [2] * 500 + [0] * 1000


def test_an_explicit_partition_overrides_the_key() -> None:
    placement = Placement(ORDERS, 3, turn=0)
    told = pa.array([2, None], pa.int32())
    assert placement.place(pa.array([b"k", b"k"]), told).tolist() == [2, partition_for_key(b"k", 3)]
    with pytest.raises(NotFound, match="orders-3"):
        placement.place(pa.array([b"k"]), pa.array([3]))


def test_rows_of_a_partition_keep_their_order() -> None:
    placements = {name: Placement(name, 4, turn=0) for name in (ORDERS, BILLS)}
    topics = pa.array([ORDERS if n % 3 else BILLS for n in range(1000)])
    keys = pa.array([b"%d" % (n % 11) for n in range(1000)])
    found = destinations(topics, keys, None, placements)
    assert sorted(np.concatenate(list(found.values()))) == list(range(1000))
    for place, rows in found.items():
        assert rows.tolist() == [
            n
            for n in range(1000)
            if place == TopicPartition(ORDERS if n % 3 else BILLS, partition_for_key(b"%d" % (n % 11), 4))
        ]


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(InvalidColumns, match="the topic of a row is null"):
        destinations(pa.array([None], pa.string()), pa.array([b"k"]), None, {})
