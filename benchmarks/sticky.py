"""The cooperative-sticky protocol of classic groups, for one topic."""

from collections.abc import Collection, Mapping
from struct import Struct, unpack_from

NAME = "cooperative-sticky"

_SHORT, _INT = Struct(">h"), Struct(">i")
_NO_BYTES = _INT.pack(-1)
_KNOWS_OWNED_FROM = 1


def subscription(topic: str, owned: Collection[int]) -> bytes:
    """Encode a member's subscription, version 1: its topic and owned partitions."""
    return (
        _SHORT.pack(1)
        + _INT.pack(1)
        + _string(topic)
        + _NO_BYTES
        + (_partitions(topic, owned) if owned else _INT.pack(0))
    )


def owned_in(metadata: bytes) -> frozenset[int]:
    """Return the owned partitions in a subscription of any version."""
    (version,) = _SHORT.unpack_from(metadata)
    if version < _KNOWS_OWNED_FROM:
        return frozenset()
    (count,) = _INT.unpack_from(metadata, 2)
    at = 6
    for _ in range(count):
        at += 2 + _SHORT.unpack_from(metadata, at)[0]
    at += 4 + max(_INT.unpack_from(metadata, at)[0], 0)
    return _read_partitions(metadata, at)


def assignment(topic: str, partitions: Collection[int]) -> bytes:
    """Encode a leader's assignment for a member."""
    return _SHORT.pack(0) + (_partitions(topic, partitions) if partitions else _INT.pack(0)) + _NO_BYTES


def assigned_in(data: bytes) -> frozenset[int]:
    return _read_partitions(data, 2) if data else frozenset()


def assign(owned: Mapping[str, frozenset[int]], partitions: int) -> dict[str, frozenset[int]]:
    """Assign evenly with few moves; a moving partition is unassigned until it has been revoked."""
    least, over = divmod(partitions, len(owned))
    # Members that have more may keep one more.
    by_size = sorted(owned, key=lambda member: -len(owned[member]))
    quotas = {member: least + (place < over) for place, member in enumerate(by_size)}
    kept = {member: frozenset(sorted(has)[: quotas[member]]) for member, has in owned.items()}
    held = frozenset[int]().union(*owned.values())
    spare = sorted(frozenset(range(partitions)).difference(*kept.values()))
    given: dict[str, frozenset[int]] = {}
    for member, has in kept.items():
        missing = quotas[member] - len(has)
        new, spare = spare[:missing], spare[missing:]
        given[member] = has | (frozenset(new) - held)
    return given


def _partitions(topic: str, partitions: Collection[int]) -> bytes:
    numbers = sorted(partitions)
    return (
        _INT.pack(1) + _string(topic) + _INT.pack(len(numbers)) + Struct(f">{len(numbers)}i").pack(*numbers)
    )


def _read_partitions(data: bytes, at: int) -> frozenset[int]:
    (topics,) = _INT.unpack_from(data, at)
    at += 4
    found: set[int] = set()
    for _ in range(topics):
        at += 2 + _SHORT.unpack_from(data, at)[0]
        (count,) = _INT.unpack_from(data, at)
        found.update(unpack_from(f">{count}i", data, at + 4))
        at += 4 + 4 * count
    return frozenset(found)


def _string(text: str) -> bytes:
    return _SHORT.pack(len(text)) + text.encode()
