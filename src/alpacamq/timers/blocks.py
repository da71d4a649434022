"""The far future, which is on disk only: blocks of messages that are due on the same day.

Once a day beyond the wheel's reach has enough messages, those with the lowest ids are written to the
delay log as one block, and memory keeps where that lies. A block is read back when its day comes
within reach. What is taken back meanwhile is struck off in memory; when that is half of a block, the
block is read and written again without it.

A block that was read back is remembered until its day is over. A crash may forget that it was read:
then it is read again, and what has been delivered since is struck off by the replay of the log.
"""

from collections.abc import Iterator

import msgspec

from .wheel import Slot


class Block(msgspec.Struct, kw_only=True):
    """Where a block lies in the delay log, and what it no longer stands for."""

    day: int
    number: int
    offset: int
    first_id: int
    last_id: int
    count: int
    earliest_ms: int
    struck: set[int]
    is_loaded: bool = False
    # To be read and written again whatever is struck: messages of a deleted topic may be in it.
    is_suspect: bool = False

    @property
    def is_worn(self) -> bool:
        return not self.is_loaded and (self.is_suspect or len(self.struck) * 2 > self.count)

    def content(self, stored: Slot) -> Slot:
        """What the block stands for, of what is stored."""
        if not self.struck:
            return stored
        kept = Slot()
        for id_, word in stored:
            if id_ not in self.struck:
                kept.add(id_, word)
        return kept


class Blocks:
    """The blocks of one delay log, by day, in the order they were written."""

    def __init__(self) -> None:
        self.by_day: dict[int, list[Block]] = {}
        self._worn: dict[tuple[int, int], Block] = {}
        # The first day of which something is on disk only.
        self.first_day: int | None = None

    def __iter__(self) -> Iterator[Block]:
        for day in sorted(self.by_day):
            yield from self.by_day[day]

    def next_number(self, day: int) -> int:
        blocks = self.by_day.get(day)
        return blocks[-1].number + 1 if blocks else 0

    def put(self, block: Block) -> None:
        """Remember a block, in place of an earlier one of its number."""
        self._forget(block.day, block.number)
        self.by_day[block.day] = sorted(
            [*self.by_day.get(block.day, ()), block], key=lambda known: known.number
        )
        self._note_wear(block)
        self._find_first_day()

    def get(self, day: int, number: int) -> Block | None:
        return next((block for block in self.by_day.get(day, ()) if block.number == number), None)

    def drop(self, day: int, number: int) -> None:
        self._forget(day, number)
        self._find_first_day()

    def loaded(self, block: Block) -> None:
        """What the block stood for is in memory again."""
        block.is_loaded = True
        block.struck.clear()
        self._worn.pop((block.day, block.number), None)
        self._find_first_day()

    def strike(self, day: int, id_: int) -> bool:
        """Take back a message that is on disk only; false if it is not.

        Blocks take messages in the order of their ids, so the ranges of a day's blocks are apart.
        """
        for block in self.by_day.get(day, ()):
            if block.first_id <= id_ <= block.last_id:
                if block.is_loaded or id_ in block.struck:
                    return False
                block.struck.add(id_)
                self._note_wear(block)
                return True
        return False

    def to_load(self, before_day: int) -> Block | None:
        """The block to be read back next: of the first day, the last of it, so that ids stay in order."""
        if self.first_day is None or self.first_day >= before_day:
            return None
        return next(block for block in reversed(self.by_day[self.first_day]) if not block.is_loaded)

    def to_rewrite(self) -> Block | None:
        return next(iter(self._worn.values()), None)

    def over(self, before_day: int) -> list[Block]:
        """Blocks of days that have passed, which have been loaded."""
        past = [day for day in self.by_day if day < before_day]
        return [block for day in past for block in self.by_day[day] if block.is_loaded]

    def suspect_all(self) -> None:
        """Messages that nobody wants any more may be in any block."""
        for block in self:
            block.is_suspect = True
            self._note_wear(block)

    def cleared(self, block: Block) -> None:
        """Nothing unwanted is in it."""
        block.is_suspect = False
        self._worn.pop((block.day, block.number), None)

    def earliest_ms(self) -> int | None:
        if self.first_day is None:
            return None
        return min(block.earliest_ms for block in self.by_day[self.first_day] if not block.is_loaded)

    def _note_wear(self, block: Block) -> None:
        if block.is_worn:
            self._worn[block.day, block.number] = block

    def _forget(self, day: int, number: int) -> None:
        self._worn.pop((day, number), None)
        blocks = [block for block in self.by_day.get(day, ()) if block.number != number]
        if blocks:
            self.by_day[day] = blocks
        else:
            self.by_day.pop(day, None)

    def _find_first_day(self) -> None:
        self.first_day = min((block.day for block in self if not block.is_loaded), default=None)
