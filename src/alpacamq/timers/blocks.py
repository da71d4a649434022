"""Blocks of distant messages that are only on disk; the messages of a block are due on the same day.

Once a day beyond the range of the wheel has enough messages, those with the lowest ids are written to the
delay log as one block, and memory keeps the position of the block. A block is loaded when its day comes into
the range of the wheel. Messages cancelled before that are marked as removed in memory; when they are half of
a block, the block is rewritten without them.

A loaded block is kept in the list until its day is over. After a crash it may be loaded again; the replay of
the log then removes the messages that were delivered in the meantime.
"""

from collections.abc import Iterator

import msgspec

from .wheel import Slot


class SpilledBlock(msgspec.Struct, kw_only=True):
    """The position of a block in the delay log, and its removed messages. Stored in snapshots."""

    day: int
    number: int
    offset: int
    first_id: int
    last_id: int
    count: int
    earliest_ms: int
    removed: set[int] = msgspec.field(name="struck")
    is_loaded: bool = False
    # The block may contain messages of a deleted topic: check it, and rewrite it if it does.
    needs_check: bool = msgspec.field(name="is_suspect", default=False)

    @property
    def needs_rewrite(self) -> bool:
        return not self.is_loaded and (self.needs_check or len(self.removed) * 2 > self.count)

    def content(self, stored: Slot) -> Slot:
        """Return the stored messages without the removed ones."""
        if not self.removed:
            return stored
        kept = Slot()
        for id_, timer in stored:
            if id_ not in self.removed:
                kept.add(id_, timer)
        return kept


class SpilledBlocks:
    """The blocks of one delay log by day, in the order in which they were written."""

    def __init__(self) -> None:
        self.by_day: dict[int, list[SpilledBlock]] = {}
        self._to_rewrite: dict[tuple[int, int], SpilledBlock] = {}
        # The first day with messages that are only on disk.
        self.first_day: int | None = None

    def __iter__(self) -> Iterator[SpilledBlock]:
        for day in sorted(self.by_day):
            yield from self.by_day[day]

    def next_number(self, day: int) -> int:
        blocks = self.by_day.get(day)
        return blocks[-1].number + 1 if blocks else 0

    def put(self, block: SpilledBlock) -> None:
        """Add a block, or replace the one with the same number."""
        self._forget(block.day, block.number)
        self.by_day[block.day] = sorted(
            [*self.by_day.get(block.day, ()), block], key=lambda known: known.number
        )
        self._check_rewrite(block)
        self._find_first_day()

    def get(self, day: int, number: int) -> SpilledBlock | None:
        return next((block for block in self.by_day.get(day, ()) if block.number == number), None)

    def drop(self, day: int, number: int) -> None:
        self._forget(day, number)
        self._find_first_day()

    def mark_loaded(self, block: SpilledBlock) -> None:
        """Record that the messages of a block are in memory."""
        block.is_loaded = True
        block.removed.clear()
        self._to_rewrite.pop((block.day, block.number), None)
        self._find_first_day()

    def remove(self, day: int, id_: int) -> bool:
        """Remove a message that is only on disk; return False if there is none.

        Blocks are filled in the order of ids, so the id ranges of the blocks of a day do not overlap. Except
        those of loaded blocks: if the clock is set back, their messages may be spilled again.
        """
        for block in self.by_day.get(day, ()):
            if not block.is_loaded and block.first_id <= id_ <= block.last_id:
                if id_ in block.removed:
                    return False
                block.removed.add(id_)
                self._check_rewrite(block)
                return True
        return False

    def to_load(self, before_day: int) -> SpilledBlock | None:
        """Return the block to load next: the last one of the first day, so that ids stay in order."""
        if self.first_day is None or self.first_day >= before_day:
            return None
        return next(block for block in reversed(self.by_day[self.first_day]) if not block.is_loaded)

    def to_rewrite(self) -> SpilledBlock | None:
        return next(iter(self._to_rewrite.values()), None)

    def expired(self, before_day: int) -> list[SpilledBlock]:
        """Return the loaded blocks of past days."""
        past = [day for day in self.by_day if day < before_day]
        return [block for day in past for block in self.by_day[day] if block.is_loaded]

    def check_all(self) -> None:
        """Have all blocks checked for messages of deleted topics."""
        for block in self:
            block.needs_check = True
            self._check_rewrite(block)

    def mark_clean(self, block: SpilledBlock) -> None:
        """Record that a block contains no messages of deleted topics."""
        block.needs_check = False
        self._to_rewrite.pop((block.day, block.number), None)

    def earliest_ms(self) -> int | None:
        if self.first_day is None:
            return None
        return min(block.earliest_ms for block in self.by_day[self.first_day] if not block.is_loaded)

    def _check_rewrite(self, block: SpilledBlock) -> None:
        if block.needs_rewrite:
            self._to_rewrite[block.day, block.number] = block

    def _forget(self, day: int, number: int) -> None:
        self._to_rewrite.pop((day, number), None)
        blocks = [block for block in self.by_day.get(day, ()) if block.number != number]
        if blocks:
            self.by_day[day] = blocks
        else:
            self.by_day.pop(day, None)

    def _find_first_day(self) -> None:
        self.first_day = min((block.day for block in self if not block.is_loaded), default=None)
