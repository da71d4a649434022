"""The hash by which Kafka clients assign keys to partitions (32-bit MurmurHash2 with their seed).

A key is assigned to the same partition as by every Kafka client.
"""

from struct import iter_unpack

from .ports import Buffer

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Return the hash of `data` as an unsigned 32-bit number."""
    whole = len(data) & ~3
    view = memoryview(data)
    state = _SEED ^ len(data)
    for (word,) in iter_unpack("<I", view[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(view[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_for_key(key: Buffer, partitions: int) -> int:
    """Return the partition, out of `partitions`, for records with this key."""
    # Kafka's hash is signed; its clients clear the sign rather than take the absolute value.
    return (murmur2(key) & 0x7FFFFFFF) % partitions
