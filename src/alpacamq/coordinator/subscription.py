"""The topics in the metadata that members of the protocol type `consumer` bring.

The rest of a group's metadata is the clients' own; this part the broker needs to know which topics a
group reads. The bytes are a version, then the topics' names.
"""

from struct import Struct

CONSUMER_PROTOCOL = "consumer"

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics a member subscribes to, or None if the bytes are something else."""
    if len(metadata) < _VERSION_AND_COUNT.size:
        return None
    version, count = _VERSION_AND_COUNT.unpack_from(metadata)
    at = _VERSION_AND_COUNT.size
    if version < 0 or not 0 <= count <= (len(metadata) - at) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if at + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if not 0 <= length <= len(metadata) - at:
            return None
        try:
            topics.add(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return frozenset(topics)
