"""Keys land where Kafka's own clients put them."""

from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from alpacamq.model.murmur2 import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_matches_the_values_kafka_publishes(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_the_python_clients(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_any_buffer_hashes_like_the_same_bytes(key: bytes) -> None:
    assert murmur2(bytearray(key)) == murmur2(memoryview(key)) == murmur2(key)


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    [
        pytest.param(b"foobar", 10, (-790332482 & 0x7FFFFFFF) % 10, id="a negative hash loses its sign"),
        pytest.param(b"abc", 10, 479470107 % 10, id="a positive hash stays"),
        pytest.param(b"", 1, 0, id="one partition takes everything"),
    ],
)
def test_the_partition_of_a_key(key: bytes, partitions: int, partition: int) -> None:
    assert partition_for_key(key, partitions) == partition


def test_keys_spread_over_all_partitions() -> None:
    counts = Counter(partition_for_key(f"user-{number}".encode(), 6) for number in range(6000))
    assert counts.keys() == set(range(6))
    assert min(counts.values()) > 800
