"""Where a member has read to, as text that it brings back: `orders:0@17:1@5,returns:0@3`.

The door remembers nothing between two polls. An answer that is lost costs no message: the member
asks again with the cursor it has.
"""

import re
from collections.abc import Iterator, Mapping

from alpacamq.model.ids import TopicName, TopicPartition

from .errors import ConflictingInput

CURSOR_PATTERN = (
    r"^[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}@[0-9]{1,18})+"
    r"(,[a-zA-Z0-9._-]{1,249}(:[0-9]{1,10}@[0-9]{1,18})+)*$"
)
_PLACE = re.compile(r"([0-9]+)@([0-9]+)")


def write_cursor(positions: Mapping[TopicPartition, int]) -> str:
    """The positions as text; empty if there are none."""
    by_topic: dict[str, str] = {}
    for (topic, partition), offset in sorted(positions.items()):
        by_topic[topic] = by_topic.get(topic, topic) + f":{partition}@{offset}"
    return ",".join(by_topic.values())


def read_cursor(cursor: str) -> dict[TopicPartition, int]:
    """The positions that a well-formed cursor holds."""
    positions: dict[TopicPartition, int] = {}
    for partition, offset in _places(cursor):
        if partition in positions:
            raise ConflictingInput(f"cursor: {partition} is in it twice", "cursor")
        positions[partition] = offset
    return positions


def _places(cursor: str) -> Iterator[tuple[TopicPartition, int]]:
    for part in cursor.split(","):
        topic, _, places = part.partition(":")
        for index, offset in _PLACE.findall(places):
            yield TopicPartition(TopicName(topic), int(index)), int(offset)
