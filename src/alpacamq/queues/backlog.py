"""What of one partition is ready, as far as the log was read: per lane, and in key order where asked for."""

from bisect import insort
from typing import NamedTuple

from alpacamq.model.lanes import Lane

from .lanes import ALL_LANES, Backlog, Turns
from .messages import ReadBacklog

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


class PartitionBacklog:
    """The lanes of one partition. `ready` counts what waits in each, in line behind others of its key too."""

    def __init__(self, number: int, turns: Turns) -> None:
        self._number = number
        self._turns = turns
        self._counted_to = 0
        self.enqueued_total = [0] * len(ALL_LANES)
        self.begin(0, 0, in_key_order=False)

    def begin(self, offset: int, touched_end: int, *, in_key_order: bool) -> None:
        """Forget everything; the log will be read again from here.

        In key order nobody's turn comes before everything is read that was ever delivered: others of the
        same key may be leased.
        """
        self.read_to = offset
        self.reading: ReadBacklog | None = None
        self._touched_end = touched_end
        self._withheld: list[Next] = []
        self.order = KeyOrder() if in_key_order else None
        self.lanes = [Backlog() for _ in ALL_LANES]
        self.ready = [0] * len(ALL_LANES)
        for lane in ALL_LANES:
            self._turns.clear(lane, self._number)

    def count_from(self, offset: int) -> None:
        """Messages before this one are older than the broker's memory."""
        self._counted_to = offset

    def count_read(self, first: int, end: int, lane: Lane) -> None:
        """These were read; those for the first time count as enqueued."""
        if end > self._counted_to:
            self.enqueued_total[lane] += end - max(first, self._counted_to)
            self._counted_to = end

    @property
    def runs(self) -> int:
        return sum(lane.runs for lane in self.lanes)

    @property
    def in_line(self) -> int:
        """Messages read that have a place in the order of their key."""
        return self.order.size if self.order is not None else 0

    def add_run(self, first: int, end: int, lane: Lane) -> None:
        """Messages were read that nobody has had, and that may be delivered in any order."""
        self.ready[lane] += end - first
        self.lanes[lane].add_run(first, end)
        self._turns.mark(lane, self._number)

    def add_in_line(self, key: bytes, offset: int, lane: Lane) -> None:
        """A message of a key was read that can be delivered when its turn comes."""
        assert self.order is not None
        self.ready[lane] += 1
        self._call(self.order.join(key, offset, lane))

    def add_single(self, offset: int, lane: Lane) -> None:
        """A message that was delivered before can be delivered at once."""
        self.ready[lane] += 1
        self._announce(Next(offset, lane))

    def put_back(self, offset: int, lane: Lane) -> None:
        """A message that was out is to be delivered again, in its place."""
        if self.order is None:
            self.add_single(offset, lane)
        elif offset < self.read_to:
            # What is not read yet has no place so far: it gets one when it is read.
            self.ready[lane] += 1
            if self.order.knows(offset):
                self._call(self.order.come_back(offset, lane))
            else:
                self._announce(Next(offset, lane))

    def finish(self, offset: int, lane: Lane, *, was_waiting: bool) -> None:
        """A message is done that had been delivered."""
        if self.order is None:
            self.ready[lane] -= was_waiting
        elif offset < self.read_to:
            self.ready[lane] -= was_waiting
            if self.order.knows(offset):
                self._call(self.order.finish(offset, lane, was_waiting=was_waiting))

    def cut(self, offset: int) -> None:
        """What was never delivered before `offset` is no more; for backlogs that keep no order."""
        assert self.order is None
        for lane in ALL_LANES:
            self.ready[lane] -= self.lanes[lane].cut(offset)
            self.close_if_empty(lane)

    def close_if_empty(self, lane: Lane) -> None:
        if not self.lanes[lane]:
            self._turns.clear(lane, self._number)

    def catch_up(self, *, is_full: bool = False) -> bool:
        """Let those go who were withheld, if all was read that has to be, or can be; whether some were."""
        if not is_full and self.read_to < self._touched_end:
            return False
        self._touched_end = 0
        withheld, self._withheld = self._withheld, []
        for following in withheld:
            self._announce(following)
        return bool(withheld)

    def _call(self, following: Next | None) -> None:
        """The turn of a key's next message has come."""
        if following is None:
            return
        if self.read_to < self._touched_end:
            self._withheld.append(following)
        else:
            self._announce(following)

    def _announce(self, following: Next) -> None:
        self.lanes[following.lane].add_single(following.offset)
        self._turns.mark(following.lane, self._number)
