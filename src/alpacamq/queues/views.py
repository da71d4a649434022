"""The metadata of topics as the queue engine sees it, and the contents of a log in outline."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from alpacamq.model.lanes import Lane
from alpacamq.model.topics import TopicConfig


class OffsetRange(NamedTuple):
    """Messages first..last of one lane; all of those offsets exist and are committed.

    `keys` has one entry per message in queues with key order, else it is None.
    """

    first: int
    last: int
    lane: Lane
    keys: tuple[bytes | None, ...] | None = None


class Outline(NamedTuple):
    """The messages from the requested offset to before `next_offset`, in ascending order."""

    ranges: Sequence[OffsetRange]
    next_offset: int  # equal to the requested offset if nothing could be read


class TopicsView(Protocol):
    """Topics and the bounds of their partitions, from memory."""

    def config(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic; None if it does not exist."""
        ...

    def partitions(self, topic: str) -> int: ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and its last stable offset."""
        ...

    def cut_offset(self, topic: str, partition: int) -> int | None:
        """Return where a power loss has cut the log, if stored state may refer to offsets behind that."""
        ...
