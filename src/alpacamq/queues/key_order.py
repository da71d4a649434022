"""Messages of the same key, in order and one at a time, while different keys run side by side.

Each key has a line. Only the first of a line may be delivered, and only while none of the line is leased,
resting or on its way elsewhere. Methods answer with the message that may be delivered now because of what
happened, if there is one.
"""

from bisect import insort
from typing import NamedTuple

from alpacamq.model.lanes import Lane

NO_HEAD = -1


class Next(NamedTuple):
    """A message that may be delivered."""

    offset: int
    lane: Lane


class _Line:
    __slots__ = ("busy", "head", "key", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiting: list[Next] = []  # ascending
        self.busy = 0  # leased, resting or moving
        self.head = NO_HEAD  # the first of those waiting, while it may be delivered


class KeyOrder:
    """The lines of one partition."""

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._line_of: dict[int, _Line] = {}

    @property
    def size(self) -> int:
        """Messages that are read and not done."""
        return len(self._line_of)

    def join(self, key: bytes, offset: int, lane: Lane) -> Next | None:
        """A message was read that can be delivered when its turn comes."""
        line = self._line(key, offset)
        insort(line.waiting, Next(offset, lane))
        return self._step(line)

    def join_busy(self, key: bytes, offset: int) -> None:
        """A message was read that is leased, resting or moving."""
        line = self._line(key, offset)
        line.busy += 1
        line.head = NO_HEAD

    def knows(self, offset: int) -> bool:
        return offset in self._line_of

    def may_go(self, offset: int) -> bool:
        """Whether this message, announced once as the next, still is."""
        line = self._line_of.get(offset)
        return line is not None and line.head == offset

    def leave(self, offset: int) -> Next | None:
        """The head of a line is delivered; who would follow it within one receive."""
        line = self._line_of[offset]
        assert line.waiting[0].offset == offset
        del line.waiting[0]
        line.busy += 1
        line.head = NO_HEAD
        return line.waiting[0] if line.waiting else None

    def come_back(self, offset: int, lane: Lane) -> Next | None:
        """A message that was busy is to be delivered again."""
        line = self._line_of[offset]
        line.busy -= 1
        insort(line.waiting, Next(offset, lane))
        return self._step(line)

    def finish(self, offset: int, lane: Lane, *, was_waiting: bool) -> Next | None:
        """A message is done."""
        line = self._line_of.pop(offset)
        if was_waiting:
            line.waiting.remove(Next(offset, lane))
            if line.head == offset:
                line.head = NO_HEAD
        else:
            line.busy -= 1
        if not line.busy and not line.waiting:
            del self._lines[line.key]
            return None
        return self._step(line)

    def _line(self, key: bytes, offset: int) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
        self._line_of[offset] = line
        return line

    def _step(self, line: _Line) -> Next | None:
        """The head of a line in which nobody is busy, if it was not announced before."""
        if line.busy or not line.waiting or line.head == line.waiting[0].offset:
            return None
        line.head = line.waiting[0].offset
        return line.waiting[0]
