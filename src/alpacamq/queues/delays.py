"""The delay machine: every message of one delay log that waits for its time. Pure.

A message is a record of the log and 16 bytes of memory, in the wheel if it is due within a week or
so. The id of a message is the offset of its record. What the log says of a message is removed when
it has been delivered or taken back; compaction then frees its room.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from alpacamq.model.errors import TooManyDelayed, UnknownDelayed
from alpacamq.model.outcome import Change, Reply

from . import delay_records as records
from .delay_blocks import Block
from .delay_departures import LEAVING_AT_ONCE
from .delay_messages import (
    DelayOutcome,
    Deliver,
    Dropped,
    Listing,
    PendingFigures,
    ReadBlock,
    Source,
    ToSchedule,
)
from .delay_records import IntentId, Lane, message_key
from .delay_state import DelayState
from .slots import MAX_TARGETS, Slot, pack_word, target_of
from .wheel import LAST

__all__ = ["PLANNED_MS", "SHORT_NOTICE_MS", "DelayMachine", "Deliver", "Dropped", "ReadBlock"]

# Batches are written down this long before they are due, so that no disk is waited for when they are.
# Until then, a message can be taken back.
PLANNED_MS = 200
# For what is scheduled later than that.
SHORT_NOTICE_MS = 20
# Messages of a deleted topic that are let go in one turn.
_SWEPT_AT_ONCE = 2000


class DelayMachine:
    """Decides what is delivered when, and what the log must say of it."""

    def __init__(
        self, next_offset: int, new_producer_id: Callable[[], int], topic_exists: Callable[[bytes], bool]
    ) -> None:
        self._new_producer_id = new_producer_id
        self._topic_exists = topic_exists
        self._state = state = DelayState(next_offset)
        self._journal, self._wheel, self._blocks = state.journal, state.wheel, state.blocks
        self._short_notice = state.short_notice
        self._targets, self._sources = state.targets, state.sources
        self._departures, self._far = state.departures, state.far
        self.replay, self.snapshot = state.replay, state.snapshot
        # The level and slot where messages of deleted topics are looked for next, if there may be some.
        self._sweep_at: tuple[int, int] | None = None
        self._is_busy = True
        self._not_before_ms = 0

    @property
    def pending(self) -> int:
        return self._targets.pending

    @property
    def tombstones(self) -> int:
        """How often the log, as far as it was read, says that a record is no longer needed."""
        return self._journal.tombstones

    @property
    def next_deadline_ms(self) -> int | None:
        if self._is_busy:
            return self._not_before_ms
        times = [] if (far_ms := self._far.next_ms) is None else [far_ms]
        if (due_ms := self._wheel.next_ms(self._blocks.first_day)) is not None:
            times.append(due_ms - PLANNED_MS)
        if (due_ms := self._short_notice.next_ms()) is not None:
            times.append(due_ms - SHORT_NOTICE_MS)
        return max(min(times), self._not_before_ms) if times else None

    def schedule(
        self, messages: Sequence[ToSchedule], source: Source | None, ticket: object, now_ms: int
    ) -> DelayOutcome:
        """Take messages in; the reply is their ids, or none if they came from this source before."""
        outcome = DelayOutcome()
        if self._targets.next_index + len(messages) > MAX_TARGETS:
            full = TooManyDelayed(f"delayed messages have had {MAX_TARGETS} partitions to go to")
            outcome.replies.append(Reply(ticket, full))
            return outcome
        if not self._state.producer_ids:
            for lane in Lane:
                producer_id = self._state.producer_ids[lane] = self._new_producer_id()
                self._journal.write(outcome, records.producer_change(lane, producer_id))
        if source is not None:
            target = self._state.target(outcome, messages[0].target)
            if self._sources.knows(target.index, source):
                outcome.replies.append(Reply(ticket, []))
                return outcome
            for change in self._sources.note(target.index, source, now_ms):
                self._journal.write(outcome, change)
        ids: list[int] = []
        for name, due_ms, envelope in messages:
            target = self._state.target(outcome, name)
            id_ = self._journal.next_offset
            word = pack_word(due_ms, target.index)
            self._journal.write(outcome, Change(message_key(id_, word), envelope))
            if due_ms - now_ms < PLANNED_MS:
                self._short_notice.add(id_, word)
            else:
                self._far.added(self._wheel.add(id_, word))
            self._targets.count(target, 1)
            ids.append(id_)
        outcome.replies.append(Reply(ticket, ids))
        return outcome

    def parted_ms(self, topic_id: bytes, partition: int, source: Source) -> int | None:
        """When a batch was parted, if its messages were taken in before."""
        target = self._targets.find(topic_id, partition)
        return None if target is None else self._sources.parted_ms(target.index, source)

    def cancel(
        self, id_: int, word: int, topic_id: bytes, partition: int, ticket: object, _now_ms: int
    ) -> DelayOutcome:
        """Take a message back that waits for this partition. `word` is what its record says."""
        outcome = DelayOutcome()
        target = self._targets.find(topic_id, partition)
        if target is None or target.index != target_of(word) or not self._state.remove(id_, word):
            gone = UnknownDelayed("no such message is waiting (any more)")
            outcome.replies.append(Reply(ticket, gone))
            return outcome
        self._journal.write(outcome, Change(message_key(id_, word), None))
        outcome.replies.append(Reply(ticket, None))
        return outcome

    def listing(
        self, topic_id: bytes, partitions: Iterable[int], after_id: int, ticket: object, _now_ms: int
    ) -> DelayOutcome:
        """The reply is a Listing for a thread to search."""
        found = [self._targets.find(topic_id, partition) for partition in partitions]
        targets = {target.index: target.name.partition for target in found if target and target.name}
        pending = sum(target.pending for target in found if target)
        slots: list[Slot] = []
        blocks: list[Block] = []
        if pending:
            slots = [slot.after(after_id) for _, _, slot in self._slots()]
            blocks = [block for block in self._blocks if not block.is_loaded and block.last_id > after_id]
        return DelayOutcome(replies=[Reply(ticket, Listing(targets, pending, slots, blocks))])

    def figures(self, ticket: object, _now_ms: int) -> DelayOutcome:
        """The reply is PendingFigures."""
        places = self._short_notice, self._wheel, self._blocks
        times = [at_ms for place in places if (at_ms := place.earliest_ms()) is not None]
        answer = PendingFigures(self.pending, min(times, default=None))
        return DelayOutcome(replies=[Reply(ticket, answer)])

    def tick(self, now_ms: int) -> DelayOutcome:
        outcome = DelayOutcome()
        self._is_busy = not self._wheel.turn(now_ms, self._blocks.first_day)
        departures = self._departures
        for wheel, lane, ahead_ms in (
            (self._wheel, Lane.PLANNED, PLANNED_MS),
            (self._short_notice, Lane.SHORT_NOTICE, SHORT_NOTICE_MS),
        ):
            while departures.due_count < LEAVING_AT_ONCE and (slot := wheel.due(now_ms + ahead_ms)):
                departures.take_in(slot, lane)
        departures.leave(outcome, self._state.producer_ids)
        self._far.step(outcome, now_ms)
        if self._sweep_at is not None:
            self._sweep(outcome, *self._sweep_at)
        self._is_busy |= bool(departures.due_count or self._sweep_at)
        self._not_before_ms = 0
        due_ms = self.next_deadline_ms
        if due_ms is None or due_ms > now_ms:
            self._far.clean_up(outcome, now_ms)
        else:
            # There is more to do, but others have to have their turn.
            self._not_before_ms = now_ms + 1
        return outcome

    def arrived(self, intents: Iterable[IntentId], _now_ms: int) -> DelayOutcome:
        """These batches are in their targets, on the medium, or their targets are no more."""
        outcome = DelayOutcome()
        self._departures.arrived(outcome, intents)
        self._drop_spent_targets(outcome)
        return outcome

    def block_read(self, read: ReadBlock, stored: Slot, now_ms: int) -> DelayOutcome:
        """A block that was asked for is here."""
        outcome = DelayOutcome()
        self._far.was_read(outcome, read, stored, now_ms)
        self._drop_spent_targets(outcome)
        return outcome

    def topics_deleted(self, _now_ms: int) -> DelayOutcome:
        """Some topic is gone: what waits for it is let go, a bit at a time."""
        outcome = DelayOutcome()
        for target in self._targets:
            if target.name is not None and not self._topic_exists(target.name.topic_id):
                target.is_gone = True
        if any(target.pending for target in self._targets.gone()):
            self._sweep_at = LAST, 0
            self._blocks.suspect_all()
            self._is_busy = True
        self._drop_spent_targets(outcome)
        return outcome

    def gone(self, ticket: object) -> None:
        """Nobody is kept waiting here."""

    def loaded(self, now_ms: int) -> DelayOutcome:
        outcome = self.topics_deleted(now_ms)
        self._departures.again(outcome, self._state.producer_ids)
        return outcome

    def _slots(self) -> Iterator[tuple[int, int, Slot]]:
        yield from self._short_notice.slots()
        yield from self._wheel.slots()

    def _sweep(self, outcome: DelayOutcome, level: int, number: int) -> None:
        """Let go of messages of deleted topics, in one slot. From the top: messages only move down."""
        slots = self._wheel.levels[level]
        number = min((other for other in slots if other >= number), default=-1)
        if number < 0:
            self._sweep_at = (level - 1, 0) if level else None
            return
        gone = {target.index for target in self._targets.gone()}
        unwanted = [(id_, word) for id_, word in slots[number] if target_of(word) in gone]
        self._sweep_at = (level, number if len(unwanted) > _SWEPT_AT_ONCE else number + 1)
        del unwanted[_SWEPT_AT_ONCE:]
        for id_, word in unwanted:
            self._state.remove(id_, word)
        if unwanted:
            self._departures.drop(outcome, unwanted)
            self._drop_spent_targets(outcome)

    def _drop_spent_targets(self, outcome: DelayOutcome) -> None:
        """Forget deleted partitions that nothing waits for any more."""
        for target in self._targets.gone():
            if target.pending or self._departures.is_under_way_to(target.index):
                continue
            for change in self._sources.forget_target(target.index):
                self._journal.write(outcome, change)
            self._journal.write(outcome, records.target_change(target.index, None))
            self._targets.drop(target.index)
