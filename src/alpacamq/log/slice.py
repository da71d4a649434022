"""A run of whole batches inside one segment file, ready to be sent, and how to find one quickly."""

from pathlib import Path

from .handles import FileHandles, Handle
from .scan import Boundary
from .segment import Segment
from .segments import Segments

# Enough for the readers that follow a partition's tail; each keeps one place.
MAX_PLACES = 64


class Slice:
    """`length` bytes at `position` of an open file. `release` it once.

    `next_offset` is the offset to read from after it. If it is not `verified`, the log's `verify`
    comes before anything of it is served.
    """

    __slots__ = ("handle", "length", "next_offset", "position", "segment", "verified")

    def __init__(
        self,
        handle: Handle,
        segment: Segment,
        position: int,
        length: int,
        next_offset: int,
        *,
        verified: bool,
    ) -> None:
        self.handle = handle
        self.segment = segment
        self.position = position
        self.length = length
        self.next_offset = next_offset
        self.verified = verified

    @property
    def path(self) -> Path:
        return self.segment.path

    def release(self) -> None:
        self.handle.release()


class Slicer:
    """Cuts slices out of a partition's segments.

    Remembers where recent slices ended: a reader that follows the tail begins there, and so
    finds its place without the index and without reading.
    """

    __slots__ = ("_handles", "_places", "_segments")

    def __init__(self, segments: Segments, handles: FileHandles) -> None:
        self._segments = segments
        self._handles = handles
        self._places: dict[int, int] = {}

    def slice(self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool) -> Slice | None:
        """Whole batches from the one with `offset` on, before `limit_offset` and within `max_bytes`.

        DamagedLog where `offset` lies in a damaged stretch.
        """
        segment = self._segments.active
        if offset < segment.base_offset:
            segment = self._segments.locate(offset)
        if segment.gaps:
            limit_offset = segment.readable_to(offset, limit_offset)
        start = self._boundary(segment, offset)
        if limit_offset >= segment.next_offset:
            end = Boundary(segment.next_offset, segment.size)
        else:
            end = self._boundary(segment, limit_offset)
        if end.position - start.position > max_bytes:
            cut = segment.cut(start, max_bytes, at_least_one=at_least_one)
            if cut is None:
                return None
            end = cut
        if end.position <= start.position:
            return None
        self.remember(end.offset, end.position)
        handle = self._handles.pin_for_client(segment.path)
        return Slice(
            handle,
            segment,
            start.position,
            end.position - start.position,
            end.offset,
            verified=segment.is_sound(start.position, end.position),
        )

    def remember(self, offset: int, position: int) -> None:
        """The batch at `offset` begins or will begin at `position`, unless a new segment does."""
        places = self._places
        places[offset] = position
        if len(places) > MAX_PLACES:
            del places[next(iter(places))]

    def forget_places(self) -> None:
        """Batches have moved."""
        self._places.clear()

    def _boundary(self, segment: Segment, offset: int) -> Boundary:
        if offset == segment.base_offset:
            return Boundary(offset, 0)
        # Where damage was found since, what was remembered before may be wrong.
        position = None if segment.gaps else self._places.get(offset)
        return segment.find(offset) if position is None else Boundary(offset, position)
