"""The segments of an archive: their batches, which of them are current, which to merge. Pure.

A segment is a directory that Spark has written in one job and marked when it was done. Its name
contains its writer and range of batches. A complete segment supersedes those inside its range, so
that one mark commits a merge, and everything that a crash leaves behind is either unmarked or
superseded.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

COLUMN = "batches"
_NAME = re.compile(COLUMN + r"=([0-9a-f]{8})-([0-9]{10})-([0-9]{10})")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Consecutive batches of a writer."""

    writer: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """The name of its directory, which tools for partitioned tables read as a column."""
        return f"{COLUMN}={self.writer}-{self.first:010}-{self.last:010}"

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: "Segment") -> bool:
        return self.writer == other.writer and self.first <= other.first and other.last <= self.last

    @staticmethod
    def parse(name: str) -> "Segment | None":
        """Parse a directory name; None for other directories."""
        found = _NAME.fullmatch(name)
        if found is None or int(found[2]) > int(found[3]):
            return None
        return Segment(found[1], int(found[2]), int(found[3]))


@dataclass(frozen=True, slots=True)
class Weighed:
    """A segment and the size of its files."""

    segment: Segment
    files: int
    size: int

    @property
    def mean_size(self) -> float:
        return self.size / self.files if self.files else 0.0


def in_force(whole: Iterable[Segment]) -> list[Segment]:
    """Return the complete segments that no other one covers."""
    counting: list[Segment] = []
    for segment in sorted(whole, key=lambda each: (each.writer, each.first, -each.last)):
        if not counting or not counting[-1].covers(segment):
            counting.append(segment)
    return counting


def merges(
    segments: Sequence[Weighed], *, fan_in: int, target_size: int, edges: Collection[int] = ()
) -> Iterator[list[Segment]]:
    """Yield neighbours to merge: `fan_in` of about the same width, with files smaller than the target.

    Widths grow by that factor with every merge, so a row is rewritten only a logarithmic number of
    times. The last batch of a writer is not merged: Spark may write it again. Nor are batches after one of
    `edges` merged with those before: their columns have other types.
    """
    last = {each.segment.writer: each.segment.last for each in segments}
    for each in segments:
        last[each.segment.writer] = max(last[each.segment.writer], each.segment.last)
    run: list[Segment] = []
    for weighed in sorted(segments, key=lambda each: each.segment):
        segment = weighed.segment
        is_small = weighed.mean_size < target_size and segment.last < last[segment.writer]
        follows = (
            bool(run)
            and run[-1].writer == segment.writer
            and run[-1].last + 1 == segment.first
            and run[-1].last not in edges
            and _level(run[-1].width, fan_in) == _level(segment.width, fan_in)
        )
        if not is_small:
            run = []
            continue
        run = [*run, segment] if follows else [segment]
        if len(run) == fan_in:
            yield run
            run = []


def merged(run: Sequence[Segment]) -> Segment:
    """Return the segment that replaces neighbours."""
    return Segment(run[0].writer, run[0].first, run[-1].last)


def _level(width: int, fan_in: int) -> int:
    level = 0
    while width >= fan_in:
        width //= fan_in
        level += 1
    return level
