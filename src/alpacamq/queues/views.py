"""What the queue engine may look at: the log's contents in outline, and the settings of topics."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from alpacamq.model.lanes import Lane
from alpacamq.model.topics import TopicConfig


class Run(NamedTuple):
    """Neighbouring messages first..last of one lane; all of those offsets exist and are committed.

    `keys` has one entry per message where the queue asked for keys, else it is None.
    """

    first: int
    last: int
    lane: Lane
    keys: tuple[bytes | None, ...] | None = None


class Outline(NamedTuple):
    """Runs in ascending order that cover every message in [asked offset, next_offset)."""

    runs: Sequence[Run]
    next_offset: int  # ask from here on next time; equal to the offset asked for if nothing is known yet


class LogView(Protocol):
    """Topics and their partitions as the engine sees them. Answers at once, from memory or the page cache."""

    def config(self, topic: str) -> TopicConfig | None:
        """None: there is no such topic."""
        ...

    def partitions(self, topic: str) -> int: ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset there is, and the offset where committed records end."""
        ...

    def cut_offset(self, topic: str, partition: int) -> int | None:
        """Where a power loss has ended the log, if stored state may refer to what came after."""
        ...

    def outline(self, topic: str, partition: int, offset: int, *, with_keys: bool) -> Outline:
        """What lies from `offset` on: some of it, never all of a large backlog at once.

        When more becomes known later, the engine is told `records_arrived`.
        """
        ...
