"""Assigns rows to partitions: by column, by key as every Kafka client does, or round robin."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alpacamq.client.errors import NotFound
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq_spark.errors import InvalidColumns

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)
_SIGN = np.uint32(0x7FFFFFFF)
# Longer keys are rare, and numpy would pass over all rows once per word of the key.
_LONG_KEY_BYTES = 128
# Rows without a key that go to one partition before the next one is used.
_KEYLESS_RUN = 1000


class Placement:
    """Assigns the rows of one topic to partitions; rows without key rotate, beginning at `turn`."""

    def __init__(self, topic: TopicName, partitions: int, turn: int) -> None:
        self._topic = topic
        self._count = partitions
        self._keyless = turn * _KEYLESS_RUN

    def place(self, keys: pa.Array, explicit: pa.Array | None) -> npt.NDArray[np.int32]:
        """Return the partition of each row."""
        places = np.empty(len(keys), dtype=np.int32)
        is_keyless = keys.is_null().to_numpy(zero_copy_only=False)
        places[~is_keyless] = hashed(keys.drop_null(), self._count)
        keyless = int(is_keyless.sum())
        turns = (self._keyless + np.arange(keyless)) // _KEYLESS_RUN
        places[is_keyless] = turns % self._count
        self._keyless += keyless
        if explicit is not None:
            told = explicit.is_valid().to_numpy(zero_copy_only=False)
            wanted = explicit.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
            wrong = wanted[(wanted < 0) | (wanted >= self._count)]
            if wrong.size:
                raise NotFound("partition", f"{self._topic}-{wrong[0]}")
            places[told] = wanted
        return places


def destinations(
    topics: pa.Array, keys: pa.Array, explicit: pa.Array | None, placements: Mapping[TopicName, Placement]
) -> dict[TopicPartition, npt.NDArray[np.int64]]:
    """Return the rows of each partition, in order."""
    if topics.null_count:
        raise InvalidColumns("the topic of a row is null")
    coded = topics.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    found: dict[TopicPartition, npt.NDArray[np.int64]] = {}
    for code, name in enumerate(coded.dictionary.to_pylist()):
        topic = TopicName(name)
        rows = np.flatnonzero(codes == code)
        chosen = pa.array(rows)
        places = placements[topic].place(
            keys.take(chosen), None if explicit is None else explicit.take(chosen)
        )
        order = np.argsort(places, kind="stable")
        partitions, firsts = np.unique(places[order], return_index=True)
        for partition, those in zip(partitions, np.split(rows[order], firsts[1:]), strict=True):
            found[TopicPartition(topic, int(partition))] = those
    return found


def hashed(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key; no key is null."""
    sizes = pc.binary_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(sizes):
        return np.empty(0, dtype=np.int32)
    if sizes.max() > _LONG_KEY_BYTES:
        return np.array([partition_for_key(key.as_buffer(), partitions) for key in keys], dtype=np.int32)
    return ((_murmur2(keys, sizes) & _SIGN) % np.uint32(partitions)).astype(np.int32)


def _murmur2(keys: pa.Array, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Compute the hash of `model.murmur2` for all keys at once."""
    edges = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys)]
    starts = edges.astype(np.int64)
    # The last word of the last key may extend past the data.
    data = np.concatenate([np.frombuffer(keys.buffers()[2] or b"", dtype=np.uint8), np.zeros(4, np.uint8)])
    state = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    whole = sizes // 4
    for index in range(int(np.max(whole))):
        active = np.flatnonzero(whole > index)
        at = starts[active] + 4 * index
        word = _word(data, at, 4) * _MULTIPLIER
        word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
        state[active] = state[active] * _MULTIPLIER ^ word
    for rest in (1, 2, 3):
        active = np.flatnonzero(sizes % 4 == rest)
        at = starts[active] + 4 * whole[active]
        state[active] = (state[active] ^ _word(data, at, rest)) * _MULTIPLIER
    state = (state ^ (state >> np.uint32(13))) * _MULTIPLIER
    mixed: npt.NDArray[np.uint32] = state ^ (state >> np.uint32(15))
    return mixed


def _word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint32]:
    """Read `width` bytes from each position as little-endian numbers."""
    word = np.zeros(len(at), dtype=np.uint32)
    for index in range(width):
        word |= data[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word
