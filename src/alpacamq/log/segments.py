"""The ordered segments of one partition. Invariant: they are contiguous, and only the last grows."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from .segment import Segment


class Segments:
    """At least one segment, the last of which is active."""

    __slots__ = ("_bases", "_sealed_bytes", "_segments", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._set(list(segments))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def sealed(self) -> Sequence[Segment]:
        return self._segments[:-1]

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self.active.size

    def locate(self, offset: int) -> Segment:
        """The segment `offset` belongs to."""
        if offset >= self.active.base_offset:
            return self.active
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def add(self, segment: Segment) -> None:
        """`segment` is the active one from now on."""
        self._set([*self._segments, segment])

    def drop_first(self, count: int) -> list[Segment]:
        """Let go of the oldest `count`."""
        dropped = self._segments[:count]
        self._set(self._segments[count:])
        return dropped

    def drop_after(self, segment: Segment) -> list[Segment]:
        """Let go of what follows `segment`, which is active then."""
        end = self._segments.index(segment) + 1
        dropped = self._segments[end:]
        self._set(self._segments[:end])
        return dropped

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put `new` where the neighbours `old` are."""
        start = self._segments.index(old[0])
        self._set([*self._segments[:start], new, *self._segments[start + len(old) :]])

    def _set(self, segments: list[Segment]) -> None:
        # Lists are replaced, never changed: a search by time may walk the old one in a thread.
        assert segments
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self.active = segments[-1]
