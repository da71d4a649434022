"""A hierarchical timer wheel: adding, removing and expiring a message take a few operations each.

    level   slot      slots   range
    0       10 ms     256     2.56 s
    1       2.56 s    64      2.73 min
    2       2.73 min  64      2.91 h
    3       2.91 h    64      7.76 days
    4       23.3 h            everything beyond

A slot is identified by its number since 1970, not by a position in a ring, so the range of a level may exceed
its number of slots. Slots cascade to the level below ahead of time, a bounded number of messages per call, so
that a slot with a million messages does not block the event loop. For the same reason the clock may be set
back: a message stays in the slot of its due time.

Each level has a boundary. Level 0 contains the messages due before its boundary, every other level those
between the boundary below and its own, and the last level the remaining ones.

A timer is the due time and the target number of a message, packed into 64 bits.
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
# Marks a removed message; no message is due at time 0.
_REMOVED = 0
_TARGET_MASK = MAX_TARGETS - 1


def pack_timer(due_ms: int, target: int) -> int:
    """Pack a due time and a target number; timers sort by due time."""
    return due_ms << TARGET_BITS | target


def due_of(timer: int) -> int:
    return timer >> TARGET_BITS


def target_of(timer: int) -> int:
    return timer & _TARGET_MASK


def pack(ids: "array[int]", timers: "array[int]") -> bytes:
    """Encode messages as bytes, ids first."""
    return ids.tobytes() + timers.tobytes()


def unpack(data: bytes | memoryview) -> tuple["array[int]", "array[int]"]:
    """Decode the output of `pack`; raise ValueError if it is malformed."""
    if len(data) % 16:
        raise ValueError(f"{len(data)} bytes are not a whole number of messages")
    ids, timers = array("Q"), array("Q")
    ids.frombytes(data[: len(data) // 2])
    timers.frombytes(data[len(data) // 2 :])
    return ids, timers


class Slot:
    """Messages in ascending order of their ids."""

    __slots__ = ("_removed", "ids", "timers")

    def __init__(self, ids: "array[int] | None" = None, timers: "array[int] | None" = None) -> None:
        self.ids = array("Q") if ids is None else ids
        self.timers = array("Q") if timers is None else timers
        self._removed = self.timers.count(_REMOVED)

    def __len__(self) -> int:
        return len(self.ids) - self._removed

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the id and timer of each message."""
        return ((id_, timer) for id_, timer in zip(self.ids, self.timers, strict=True) if timer != _REMOVED)

    def add(self, id_: int, timer: int) -> None:
        """Add a message whose id is larger than all others."""
        self.ids.append(id_)
        self.timers.append(timer)

    def contains(self, id_: int) -> bool:
        return self._find(id_) is not None

    def remove(self, id_: int) -> bool:
        """Remove a message; return False if it is not in this slot."""
        if (at := self._find(id_)) is None:
            return False
        self.timers[at] = _REMOVED
        self._removed += 1
        if self._removed * 2 > len(self.ids):
            self._compact()
        return True

    def take(self, count: int) -> "Slot":
        """Remove and return up to `count` messages with the lowest ids."""
        if self._removed:
            self._compact()
        taken = Slot(self.ids[:count], self.timers[:count])
        del self.ids[:count]
        del self.timers[:count]
        return taken

    def merge(self, other: "Slot") -> None:
        """Add messages with any ids."""
        self._compact()
        other._compact()
        ids, timers = other.ids + self.ids, other.timers + self.timers
        if self.ids and other.ids and self.ids[0] < other.ids[-1]:
            pairs = sorted(zip(ids, timers, strict=True))
            ids, timers = array("Q", [id_ for id_, _ in pairs]), array("Q", [timer for _, timer in pairs])
        self.ids, self.timers = ids, timers

    def earliest_ms(self) -> int | None:
        """Return the earliest due time."""
        timer = min(filter(None, self.timers), default=None)
        return None if timer is None else due_of(timer)

    def after(self, id_: int) -> "Slot":
        """Return a copy of the messages with larger ids, for a reader in another thread."""
        at = bisect_right(self.ids, id_) if id_ >= 0 else 0
        return Slot(self.ids[at:], self.timers[at:])

    def pack(self) -> bytes:
        if self._removed:
            self._compact()
        return pack(self.ids, self.timers)

    def _find(self, id_: int) -> int | None:
        at = bisect_left(self.ids, id_)
        if at == len(self.ids) or self.ids[at] != id_ or self.timers[at] == _REMOVED:
            return None
        return at

    def _compact(self) -> None:
        self.ids = array("Q", compress(self.ids, self.timers))
        self.timers = array("Q", filter(None, self.timers))
        self._removed = 0


TICK_MS = 10
# Ticks per slot of each level, as a power of two.
SHIFTS = (0, 8, 14, 20, 23)
LAST_LEVEL = len(SHIFTS) - 1
DAY_SHIFT = SHIFTS[LAST_LEVEL]
# Distance from now to the boundary above each level, in ticks: a quarter of a slot of the level above.
# Level 3 is filled for its whole range.
LEAD_TICKS = (1 << 6, 1 << 12, 1 << 18, 1 << 26)
# Messages moved down per call: about a millisecond of work.
MAX_MOVED_PER_CALL = 4096


def tick_of(timer: int) -> int:
    """Return the first tick at or after the due time."""
    return -(-due_of(timer) // TICK_MS)


def day_of(timer: int) -> int:
    """Return the number of the slot on the last level."""
    return tick_of(timer) >> DAY_SHIFT


def first_unreached_day(now_ms: int) -> int:
    """Return the first day beyond the range of the wheel."""
    return ((max(now_ms, 0) // TICK_MS + LEAD_TICKS[-1]) >> DAY_SHIFT) + 1


def reach_ms(day: int) -> int:
    """Return when a day comes into the range of the wheel."""
    return ((day << DAY_SHIFT) - LEAD_TICKS[-1]) * TICK_MS


class TimerWheel:
    """All pending messages, except those that are only on disk."""

    def __init__(self) -> None:
        self.boundaries = [0] * LAST_LEVEL
        self.levels: tuple[dict[int, Slot], ...] = tuple({} for _ in SHIFTS)
        self._first_ticks: list[int] = []  # a heap of the slots of level 0

    @classmethod
    def single_level(cls) -> "TimerWheel":
        """Return a wheel without cascading, for messages that are due soon."""
        wheel = cls()
        wheel.boundaries = [1 << 62] * LAST_LEVEL
        return wheel

    def __len__(self) -> int:
        return sum(len(slot) for level in self.levels for slot in level.values())

    def add(self, id_: int, timer: int) -> tuple[int, Slot]:
        """Add a message with an id larger than all others; return its level and slot."""
        tick = tick_of(timer)
        level = 0
        while level < LAST_LEVEL and tick >= self.boundaries[level]:
            level += 1
        slot = self.slot(level, tick >> SHIFTS[level])
        slot.add(id_, timer)
        return level, slot

    def remove(self, id_: int, timer: int) -> bool:
        """Remove a message; return False if it is not in the wheel."""
        tick = tick_of(timer)
        # While a slot cascades, its messages are on two levels.
        for level, shift in enumerate(SHIFTS):
            slot = self.levels[level].get(tick >> shift)
            if slot is not None and slot.remove(id_):
                if not slot:
                    del self.levels[level][tick >> shift]
                return True
        return False

    def slot(self, level: int, number: int) -> Slot:
        """Return a slot; create it if it does not exist."""
        slots = self.levels[level]
        slot = slots.get(number)
        if slot is None:
            slot = slots[number] = Slot()
            if level == 0:
                heappush(self._first_ticks, number)
        return slot

    def slots(self) -> Iterator[tuple[int, int, Slot]]:
        """Yield level, number and content of every slot, in order of time."""
        for level, slots in enumerate(self.levels):
            for number in sorted(slots):
                yield level, number, slots[number]

    def advance(self, now_ms: int, up_to_day: int | None = None) -> bool:
        """Cascade messages that are near enough; return False if there are more than one call may move.

        Days from `up_to_day` on are not cascaded: part of their messages is still on disk.
        """
        now = max(now_ms, 0) // TICK_MS
        room = MAX_MOVED_PER_CALL
        ceiling = None if up_to_day is None else up_to_day << DAY_SHIFT
        for level in range(LAST_LEVEL, 0, -1):
            shift = SHIFTS[level]
            wanted = (((now + LEAD_TICKS[level - 1]) >> shift) + 1) << shift
            if ceiling is not None:
                wanted = min(wanted, ceiling)
            room = self._cascade(level, wanted, room)
            ceiling = self.boundaries[level - 1]
        return room > 0

    def due(self, at_ms: int) -> Slot | None:
        """Remove and return the earliest slot whose messages are all due by `at_ms`."""
        # Slots of level 0 beyond its boundary may be incomplete.
        limit = min(max(at_ms, 0) // TICK_MS + 1, self.boundaries[0])
        while self._first_ticks and self._first_ticks[0] < limit:
            slot = self.levels[0].pop(heappop(self._first_ticks), None)
            if slot:
                return slot
        return None

    def next_ms(self, up_to_day: int | None = None) -> int | None:
        """Return when the next slot is due or, before `up_to_day`, cascades."""
        times: list[int] = []
        while self._first_ticks and self._first_ticks[0] not in self.levels[0]:
            heappop(self._first_ticks)
        if self._first_ticks:
            times.append(self._first_ticks[0] * TICK_MS)
        for level in range(1, LAST_LEVEL + 1):
            if self.levels[level]:
                number = min(self.levels[level])
                if level < LAST_LEVEL or up_to_day is None or number < up_to_day:
                    times.append(((number << SHIFTS[level]) - LEAD_TICKS[level - 1]) * TICK_MS)
        return min(times, default=None)

    def earliest_ms(self) -> int | None:
        """Return the earliest due time."""
        firsts = (slots[min(slots)].earliest_ms() for slots in self.levels if slots)
        return min((due_ms for due_ms in firsts if due_ms is not None), default=None)

    def _cascade(self, level: int, wanted: int, room: int) -> int:
        """Raise the boundary below a level to `wanted`, moving up to `room` messages; return what is left."""
        slots, shift = self.levels[level], SHIFTS[level]
        if wanted <= self.boundaries[level - 1]:
            return room
        for number in sorted(number for number in slots if number << shift < wanted):
            slot = slots[number]
            if len(slot) > room:
                self._add_to_level(level - 1, slot.take(room))
                self.boundaries[level - 1] = max(self.boundaries[level - 1], number << shift)
                return 0
            del slots[number]
            room -= len(slot)
            self._add_to_level(level - 1, slot)
        self.boundaries[level - 1] = wanted
        return room

    def _add_to_level(self, level: int, messages: Slot) -> None:
        shift = SHIFTS[level]
        for id_, timer in messages:
            self.slot(level, tick_of(timer) >> shift).add(id_, timer)
