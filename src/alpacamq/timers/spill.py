"""Between memory and disk: which messages of the far future are written out, and when they come back."""

from alpacamq.model.state_machine import Outcome

from .blocks import Block, Blocks
from .due_batches import DueBatches
from .messages import Journal, ReadBlock
from .records import block_change
from .targets import Targets
from .wheel import DAY_SHIFT, LAST, TICK_MS, Slot, TimerWheel, reached_at_ms, reached_day, target_of

# Enough that reading one is worth it, and few enough that a day with fewer need not be written out.
BLOCK_MESSAGES = 4096


class TimerSpill:
    """Moves messages of distant days out of the wheel, and back into it in time."""

    def __init__(
        self, wheel: TimerWheel, blocks: Blocks, targets: Targets, departures: DueBatches, journal: Journal
    ) -> None:
        self._wheel = wheel
        self._blocks = blocks
        self._targets = targets
        self._departures = departures
        self._journal = journal
        self._reading: tuple[int, int] | None = None
        # Whether a day may have enough messages for a block.
        self._may_write_out = True

    @property
    def next_ms(self) -> int | None:
        """When a block is to be written or read; one is read at a time."""
        if self._may_write_out:
            return 0
        if self._reading is not None or self._blocks.first_day is None:
            return None
        if self._blocks.to_rewrite() is not None:
            return 0
        return reached_at_ms(self._blocks.first_day)

    def added(self, place: tuple[int, Slot]) -> None:
        """A message was put into the wheel."""
        level, slot = place
        if level == LAST and len(slot) >= BLOCK_MESSAGES:
            self._may_write_out = True

    def step(self, outcome: Outcome, now_ms: int) -> None:
        """Write out one block or none, and ask for the next one to be read if there is any."""
        reached = reached_day(now_ms)
        if self._may_write_out:
            self._write_out(outcome, reached)
        if self._reading is None:
            block = self._blocks.to_load(reached) or self._blocks.to_rewrite()
            if block is not None:
                self._reading = block.day, block.number
                outcome.effects.append(ReadBlock(block.day, block.number, block.offset))

    def clean_up(self, outcome: Outcome, now_ms: int) -> None:
        """Forget blocks whose day is over. Nothing may be due that has not left."""
        day = (max(now_ms, 0) // TICK_MS >> DAY_SHIFT) - 1
        if self._blocks.first_day is not None:
            day = min(day, self._blocks.first_day)
        for block in self._blocks.over(day):
            self._blocks.drop(block.day, block.number)
            self._journal.write(outcome, block_change(block.day, block.number, None))

    def was_read(self, outcome: Outcome, read: ReadBlock, stored: Slot, now_ms: int) -> None:
        """A block is here that was asked for."""
        self._reading = None
        block = self._blocks.get(read.day, read.number)
        if block is None or block.is_loaded or block.offset != read.offset:
            return
        content = self._wanted(outcome, block.content(stored))
        if block.day < reached_day(now_ms):
            self._blocks.loaded(block)
            if content:
                self._wheel.slot(LAST, block.day).put_back(content)
        elif len(content) == block.count:
            self._blocks.cleared(block)
        elif content:
            self._put(outcome, block.day, block.number, content)
        else:
            self._blocks.drop(block.day, block.number)
            self._journal.write(outcome, block_change(block.day, block.number, None))

    def _wanted(self, outcome: Outcome, content: Slot) -> Slot:
        """The messages whose topic still exists; the others are let go."""
        gone = {target.index: target for target in self._targets.gone()}
        if not gone:
            return content
        wanted, unwanted = Slot(), []
        for id_, word in content:
            if (target := gone.get(target_of(word))) is not None:
                self._targets.count(target, -1)
                unwanted.append((id_, word))
            else:
                wanted.add(id_, word)
        if unwanted:
            self._departures.drop(outcome, unwanted)
        return wanted

    def _write_out(self, outcome: Outcome, reached: int) -> None:
        for day, slot in self._wheel.levels[LAST].items():
            if day >= reached and len(slot) >= BLOCK_MESSAGES:
                content = slot.take(BLOCK_MESSAGES)
                if not slot:
                    del self._wheel.levels[LAST][day]
                self._put(outcome, day, self._blocks.next_number(day), content)
                return
        self._may_write_out = False

    def _put(self, outcome: Outcome, day: int, number: int, content: Slot) -> None:
        change = block_change(day, number, (self._journal.next_offset, content))
        offset = self._journal.write(outcome, change)
        self._blocks.put(_block(day, number, offset, content, set()))

    def restore(self, day: int, number: int, offset: int, content: Slot) -> None:
        """The log says that these messages were written out; some may have been taken back before."""
        former = self._blocks.get(day, number)
        struck = set()
        for id_, word in content:
            was_there = self._wheel.remove(id_, word)
            if not was_there and (former is None or id_ in former.struck):
                struck.add(id_)
        self._blocks.put(_block(day, number, offset, content, struck))


def _block(day: int, number: int, offset: int, content: Slot, struck: set[int]) -> Block:
    earliest_ms = content.earliest_ms()
    assert earliest_ms is not None, "nobody writes out an empty block"
    return Block(
        day=day,
        number=number,
        offset=offset,
        first_id=content.ids[0],
        last_id=content.ids[-1],
        count=len(content),
        earliest_ms=earliest_ms,
        struck=struck,
    )
