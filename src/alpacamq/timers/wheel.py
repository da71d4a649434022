"""The hierarchical timer wheel: which messages are due when, at a few operations each.

    level   slot      slots   reaches
    0       10 ms     256     2.56 s
    1       2.56 s    64      2.73 min
    2       2.73 min  64      2.91 h
    3       2.91 h    64      7.76 days
    4       23.3 h            what lies beyond

A slot is named by its number since 1970, not by a place in a ring, so that each level may reach
somewhat further than it must: slots are handed down to the level below ahead of time, a bounded
number of messages at once, and the turn of a slot with a million messages holds up nobody. For the
same reason a clock that is set back does no harm: a message lies in the slot of its own time, and
is due when the clock says so.

Each level has a boundary. Level 0 holds all that is due before its boundary, every other level what
is due between the boundary below and its own, and the last all the rest.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import compress

TARGET_BITS = 22
MAX_TARGETS = 1 << TARGET_BITS
# 2^42 ms after 1970 is the year 2109.
MAX_DUE_MS = (1 << (64 - TARGET_BITS)) - 1
# A message of no time and no target: nobody can make one, so it marks what is gone.
_GONE = 0
_TARGET_MASK = MAX_TARGETS - 1


def pack_word(due_ms: int, target: int) -> int:
    """When and where to; sorts by time."""
    return due_ms << TARGET_BITS | target


def due_of(word: int) -> int:
    return word >> TARGET_BITS


def target_of(word: int) -> int:
    return word & _TARGET_MASK


def pack(ids: "array[int]", words: "array[int]") -> bytes:
    """Messages as bytes, ids first."""
    return ids.tobytes() + words.tobytes()


def unpack(data: bytes | memoryview) -> tuple["array[int]", "array[int]"]:
    """What `pack` made; ValueError if it is not that."""
    if len(data) % 16:
        raise ValueError(f"{len(data)} bytes are not a whole number of messages")
    ids, words = array("Q"), array("Q")
    ids.frombytes(data[: len(data) // 2])
    words.frombytes(data[len(data) // 2 :])
    return ids, words


class Slot:
    """Messages by ascending id."""

    __slots__ = ("_gone", "ids", "words")

    def __init__(self, ids: "array[int] | None" = None, words: "array[int] | None" = None) -> None:
        self.ids = array("Q") if ids is None else ids
        self.words = array("Q") if words is None else words
        self._gone = self.words.count(_GONE)

    def __len__(self) -> int:
        return len(self.ids) - self._gone

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Id and word of each message."""
        return ((id_, word) for id_, word in zip(self.ids, self.words, strict=True) if word != _GONE)

    def add(self, id_: int, word: int) -> None:
        """Put in a message whose id is larger than those that are there."""
        self.ids.append(id_)
        self.words.append(word)

    def holds(self, id_: int) -> bool:
        return self._find(id_) is not None

    def remove(self, id_: int) -> bool:
        """Take a message out; false if it is not here."""
        if (at := self._find(id_)) is None:
            return False
        self.words[at] = _GONE
        self._gone += 1
        if self._gone * 2 > len(self.ids):
            self._sweep()
        return True

    def take(self, count: int) -> "Slot":
        """Take out the messages with the lowest ids, at most so many."""
        if self._gone:
            self._sweep()
        taken = Slot(self.ids[:count], self.words[:count])
        del self.ids[:count]
        del self.words[:count]
        return taken

    def put_back(self, other: "Slot") -> None:
        """Put in messages whatever their ids are."""
        self._sweep()
        other._sweep()
        ids, words = other.ids + self.ids, other.words + self.words
        if self.ids and other.ids and self.ids[0] < other.ids[-1]:
            pairs = sorted(zip(ids, words, strict=True))
            ids, words = array("Q", [id_ for id_, _ in pairs]), array("Q", [word for _, word in pairs])
        self.ids, self.words = ids, words

    def earliest_ms(self) -> int | None:
        """When the first of its messages is due."""
        word = min(filter(None, self.words), default=None)
        return None if word is None else due_of(word)

    def after(self, id_: int) -> "Slot":
        """A copy of the messages with larger ids, for a reader in another thread."""
        at = bisect_right(self.ids, id_) if id_ >= 0 else 0
        return Slot(self.ids[at:], self.words[at:])

    def pack(self) -> bytes:
        if self._gone:
            self._sweep()
        return pack(self.ids, self.words)

    def _find(self, id_: int) -> int | None:
        at = bisect_left(self.ids, id_)
        if at == len(self.ids) or self.ids[at] != id_ or self.words[at] == _GONE:
            return None
        return at

    def _sweep(self) -> None:
        self.ids = array("Q", compress(self.ids, self.words))
        self.words = array("Q", filter(None, self.words))
        self._gone = 0


TICK_MS = 10
# How many ticks a slot of each level takes, as a power of two.
SHIFTS = (0, 8, 14, 20, 23)
LAST = len(SHIFTS) - 1
DAY_SHIFT = SHIFTS[LAST]
# How far beyond now the boundary above each level is kept, in ticks: a quarter of a slot of the level
# above. Level 3 is kept filled all of its length ahead.
LEADS = (1 << 6, 1 << 12, 1 << 18, 1 << 26)
# Messages handed down at a time: about a millisecond's work.
MOVED_AT_ONCE = 4096


def tick_of(word: int) -> int:
    """The tick at which a message is due: the first that is not before its time."""
    return -(-due_of(word) // TICK_MS)


def day_of(word: int) -> int:
    """The slot of the last level that a message belongs to."""
    return tick_of(word) >> DAY_SHIFT


def reached_day(now_ms: int) -> int:
    """The first day that the wheel need not reach."""
    return ((max(now_ms, 0) // TICK_MS + LEADS[-1]) >> DAY_SHIFT) + 1


def reached_at_ms(day: int) -> int:
    """When the wheel is to reach a day."""
    return ((day << DAY_SHIFT) - LEADS[-1]) * TICK_MS


class TimerWheel:
    """Every message that waits, except those on disk only."""

    def __init__(self) -> None:
        self.boundaries = [0] * LAST
        self.levels: tuple[dict[int, Slot], ...] = tuple({} for _ in SHIFTS)
        self._first_ticks: list[int] = []  # a heap of the slots of level 0

    @classmethod
    def of_one_level(cls) -> "TimerWheel":
        """A wheel that hands nothing down, for few messages or for times that are near."""
        wheel = cls()
        wheel.boundaries = [1 << 62] * LAST
        return wheel

    def __len__(self) -> int:
        return sum(len(slot) for level in self.levels for slot in level.values())

    def add(self, id_: int, word: int) -> tuple[int, Slot]:
        """Put in a message with an id larger than all before; the level and slot it went to."""
        tick = tick_of(word)
        level = 0
        while level < LAST and tick >= self.boundaries[level]:
            level += 1
        slot = self.slot(level, tick >> SHIFTS[level])
        slot.add(id_, word)
        return level, slot

    def remove(self, id_: int, word: int) -> bool:
        """Take a message out; false if it is not here."""
        tick = tick_of(word)
        # While a slot is handed down its messages are on two levels.
        for level, shift in enumerate(SHIFTS):
            slot = self.levels[level].get(tick >> shift)
            if slot is not None and slot.remove(id_):
                if not slot:
                    del self.levels[level][tick >> shift]
                return True
        return False

    def slot(self, level: int, number: int) -> Slot:
        """A slot, made if it is not there."""
        slots = self.levels[level]
        slot = slots.get(number)
        if slot is None:
            slot = slots[number] = Slot()
            if level == 0:
                heappush(self._first_ticks, number)
        return slot

    def slots(self) -> Iterator[tuple[int, int, Slot]]:
        """Level, number and content of every slot, in order of time."""
        for level, slots in enumerate(self.levels):
            for number in sorted(slots):
                yield level, number, slots[number]

    def turn(self, now_ms: int, up_to_day: int | None = None) -> bool:
        """Hand messages down that are near enough; false if there are more than one call may move.

        No day from `up_to_day` on is handed down: part of it is still on disk.
        """
        now = max(now_ms, 0) // TICK_MS
        room = MOVED_AT_ONCE
        ceiling = None if up_to_day is None else up_to_day << DAY_SHIFT
        for level in range(LAST, 0, -1):
            shift = SHIFTS[level]
            wanted = (((now + LEADS[level - 1]) >> shift) + 1) << shift
            if ceiling is not None:
                wanted = min(wanted, ceiling)
            room = self._hand_down(level, wanted, room)
            ceiling = self.boundaries[level - 1]
        return room > 0

    def due(self, at_ms: int) -> Slot | None:
        """Take out the earliest slot of messages that are all due by `at_ms`."""
        # Beyond the boundary level 0 may be filled in part.
        limit = min(max(at_ms, 0) // TICK_MS + 1, self.boundaries[0])
        while self._first_ticks and self._first_ticks[0] < limit:
            slot = self.levels[0].pop(heappop(self._first_ticks), None)
            if slot:
                return slot
        return None

    def next_ms(self, up_to_day: int | None = None) -> int | None:
        """When there is something to take out or, before `up_to_day`, to hand down next."""
        times: list[int] = []
        while self._first_ticks and self._first_ticks[0] not in self.levels[0]:
            heappop(self._first_ticks)
        if self._first_ticks:
            times.append(self._first_ticks[0] * TICK_MS)
        for level in range(1, LAST + 1):
            if self.levels[level]:
                number = min(self.levels[level])
                if level < LAST or up_to_day is None or number < up_to_day:
                    times.append(((number << SHIFTS[level]) - LEADS[level - 1]) * TICK_MS)
        return min(times, default=None)

    def earliest_ms(self) -> int | None:
        """When the first message here is due."""
        firsts = (slots[min(slots)].earliest_ms() for slots in self.levels if slots)
        return min((due_ms for due_ms in firsts if due_ms is not None), default=None)

    def _hand_down(self, level: int, wanted: int, room: int) -> int:
        """Move the boundary below a level up to `wanted`, as far as `room` messages go; the room left."""
        slots, shift = self.levels[level], SHIFTS[level]
        if wanted <= self.boundaries[level - 1]:
            return room
        for number in sorted(number for number in slots if number << shift < wanted):
            slot = slots[number]
            if len(slot) > room:
                self._drop(level - 1, slot.take(room))
                self.boundaries[level - 1] = max(self.boundaries[level - 1], number << shift)
                return 0
            del slots[number]
            room -= len(slot)
            self._drop(level - 1, slot)
        self.boundaries[level - 1] = wanted
        return room

    def _drop(self, level: int, messages: Slot) -> None:
        shift = SHIFTS[level]
        for id_, word in messages:
            self.slot(level, tick_of(word) >> shift).add(id_, word)
