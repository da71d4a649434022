"""Spills distant timers to disk and loads them when they are near."""

from alpacamq.model.state_machine import Outcome

from .blocks import SpilledBlock, SpilledBlocks
from .due_batches import DueBatches, Targets
from .messages import ChangeWriter, ReadBlock
from .records import block_change
from .wheel import DAY_SHIFT, LAST_LEVEL, TICK_MS, Slot, TimerWheel, first_unreached_day, reach_ms, target_of

# Large enough to make a read worthwhile, and small enough to keep days with fewer messages in memory.
BLOCK_MESSAGES = 4096


class TimerSpill:
    """Moves messages of distant days from the wheel to disk, and back before they are due."""

    def __init__(
        self,
        wheel: TimerWheel,
        blocks: SpilledBlocks,
        targets: Targets,
        due_batches: DueBatches,
        writer: ChangeWriter,
    ) -> None:
        self._wheel = wheel
        self._blocks = blocks
        self._targets = targets
        self._due_batches = due_batches
        self._writer = writer
        self._reading: tuple[int, int] | None = None
        self._may_spill = True  # a day may have enough messages for a block

    @property
    def next_ms(self) -> int | None:
        """Return when to write or read a block next. At most one block is being read."""
        if self._may_spill:
            return 0
        if self._reading is not None or self._blocks.first_day is None:
            return None
        if self._blocks.to_rewrite() is not None:
            return 0
        return reach_ms(self._blocks.first_day)

    def added(self, place: tuple[int, Slot]) -> None:
        """Check whether the slot of an added message is large enough to spill."""
        level, slot = place
        if level == LAST_LEVEL and len(slot) >= BLOCK_MESSAGES:
            self._may_spill = True

    def step(self, outcome: Outcome, now_ms: int) -> None:
        """Write at most one block, and request at most one read."""
        unreached = first_unreached_day(now_ms)
        if self._may_spill:
            self._spill(outcome, unreached)
        if self._reading is None:
            block = self._blocks.to_load(unreached) or self._blocks.to_rewrite()
            if block is not None:
                self._reading = block.day, block.number
                outcome.effects.append(ReadBlock(block.day, block.number, block.offset))

    def clean_up(self, outcome: Outcome, now_ms: int) -> None:
        """Delete blocks whose day is over. All due messages must have been sent."""
        day = (max(now_ms, 0) // TICK_MS >> DAY_SHIFT) - 1
        if self._blocks.first_day is not None:
            day = min(day, self._blocks.first_day)
        for block in self._blocks.expired(day):
            self._blocks.drop(block.day, block.number)
            self._writer.write(outcome, block_change(block.day, block.number, None))

    def block_loaded(self, outcome: Outcome, read: ReadBlock, stored: Slot, now_ms: int) -> None:
        """Move the messages of a block into the wheel, or rewrite the block without removed messages."""
        self._reading = None
        block = self._blocks.get(read.day, read.number)
        if block is None or block.is_loaded or block.offset != read.offset:
            return
        content = self._without_deleted(outcome, block.content(stored))
        if block.day < first_unreached_day(now_ms):
            self._blocks.mark_loaded(block)
            if content:
                self._wheel.slot(LAST_LEVEL, block.day).merge(content)
        elif len(content) == block.count:
            self._blocks.mark_clean(block)
        elif content:
            self._put(outcome, block.day, block.number, content)
        else:
            self._blocks.drop(block.day, block.number)
            self._writer.write(outcome, block_change(block.day, block.number, None))

    def _without_deleted(self, outcome: Outcome, content: Slot) -> Slot:
        """Return the messages whose topic exists; drop the others."""
        deleted = {target.index: target for target in self._targets.deleted()}
        if not deleted:
            return content
        kept, dropped = Slot(), []
        for id_, timer in content:
            if (target := deleted.get(target_of(timer))) is not None:
                self._targets.count(target, -1)
                dropped.append((id_, timer))
            else:
                kept.add(id_, timer)
        if dropped:
            self._due_batches.drop(outcome, dropped)
        return kept

    def _spill(self, outcome: Outcome, unreached: int) -> None:
        for day, slot in self._wheel.levels[LAST_LEVEL].items():
            if day >= unreached and len(slot) >= BLOCK_MESSAGES:
                content = slot.take(BLOCK_MESSAGES)
                if not slot:
                    del self._wheel.levels[LAST_LEVEL][day]
                self._put(outcome, day, self._blocks.next_number(day), content)
                return
        self._may_spill = False

    def _put(self, outcome: Outcome, day: int, number: int, content: Slot) -> None:
        change = block_change(day, number, (self._writer.next_offset, content))
        offset = self._writer.write(outcome, change)
        self._blocks.put(_block(day, number, offset, content, set()))

    def restore(self, day: int, number: int, offset: int, content: Slot) -> None:
        """Apply the stored record of a block. Messages that are not in the wheel were cancelled before."""
        former = self._blocks.get(day, number)
        removed = set()
        for id_, timer in content:
            was_there = self._wheel.remove(id_, timer)
            if not was_there and (former is None or id_ in former.removed):
                removed.add(id_)
        self._blocks.put(_block(day, number, offset, content, removed))


def _block(day: int, number: int, offset: int, content: Slot, removed: set[int]) -> SpilledBlock:
    earliest_ms = content.earliest_ms()
    assert earliest_ms is not None, "an empty block is never written"
    return SpilledBlock(
        day=day,
        number=number,
        offset=offset,
        first_id=content.ids[0],
        last_id=content.ids[-1],
        count=len(content),
        earliest_ms=earliest_ms,
        removed=removed,
    )
