"""Keys land where Kafka's own clients put them."""

from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from alpacamq.model.murmur2 import murmur2, partition_for_key, partitions_for_keys


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


@given(st.lists(st.binary(max_size=70), max_size=40), st.integers(1, 1000), st.integers(0, 70))
def test_many_keys_have_the_partitions_that_each_has_alone(
    keys: list[bytes], partitions: int, size: int
) -> None:
    # Of several lengths, and enough of one that they are hashed together.
    keys += [bytes([number]) * size for number in range(0, 256, 15)]
    expected = [partition_for_key(key, partitions) for key in keys]
    assert partitions_for_keys(keys, partitions) == expected


@pytest.mark.parametrize("size", range(66))
def test_keys_of_any_length_hash_together_as_they_do_alone(size: int) -> None:
    keys = [bytes((number * 7 + at * 31) & 0xFF for at in range(size)) for number in range(100)]
    assert partitions_for_keys(keys, 1_000_003) == [partition_for_key(key, 1_000_003) for key in keys]


def test_keys_spread_over_all_partitions() -> None:
    counts = Counter(partition_for_key(f"user-{number}".encode(), 6) for number in range(6000))
    assert counts.keys() == set(range(6))
    assert min(counts.values()) > 800
