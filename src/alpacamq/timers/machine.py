"""The delay machine: every message of one delay log that waits for its time. Pure.

A message is a record of the log and 16 bytes of memory, in the wheel if it is due within a week or
so. The id of a message is the offset of its record. What the log says of a message is removed when
it has been delivered or taken back; compaction then frees its room.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import ClassVar

from alpacamq.model.errors import TooManyDelayed, UnknownDelayed
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Reply, reply

from . import records
from .blocks import Block, Blocks
from .due_batches import LEAVING_AT_ONCE, DueBatches
from .messages import (
    BatchesDelivered,
    BlockLoaded,
    CancelMessage,
    CountPending,
    Deliver,
    Dropped,
    Journal,
    Listing,
    ListMessages,
    PendingCounts,
    ReadBlock,
    Schedule,
    Source,
    TargetName,
    TopicsDeleted,
)
from .records import DeliveryPath, IntentId, SourceBatch, SourceState, message_key, source_change
from .spill import TimerSpill
from .targets import Target, Targets
from .wheel import LAST, MAX_TARGETS, Slot, TimerWheel, day_of, pack_word, target_of, unpack

# As many batches of a producer may be under way.
WINDOW = 5
IDLE_LIMIT_MS = 24 * 3_600_000
MAX_SOURCES = 10_000
# Forgotten per batch taken in, so that there is never much to do at once.
_FORGOTTEN_AT_ONCE = 4


class Sources:
    """The last batches of each producer and target, least recently heard first."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[int, int], SourceState] = OrderedDict()

    def first_seen_ms(self, target: int, source: Source) -> int | None:
        """When this batch was parted, if it came before."""
        batch = self._batch(target, source)
        return None if batch is None else batch.first_seen_ms

    def knows(self, target: int, source: Source) -> bool:
        """Whether this portion of this batch was taken in before."""
        batch = self._batch(target, source)
        return batch is not None and source.portion < batch.portions

    def note(self, target: int, source: Source, now_ms: int) -> Iterator[Change]:
        """Remember a portion of a batch; what is to be written for that, and to forget others."""
        key = target, source.producer_id
        known = self._states.get(key)
        batches = known.batches if known is not None and known.epoch == source.epoch else ()
        former = self._batch(target, source)
        batch = SourceBatch(
            source.first_sequence, source.last_sequence, source.first_seen_ms, source.portion + 1
        )
        batches = (*(other for other in batches if other is not former), batch)[-WINDOW:]
        state = self._states[key] = SourceState(source.epoch, batches, now_ms)
        self._states.move_to_end(key)
        yield source_change(*key, state)
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest, state = next(iter(self._states.items()))
            if len(self._states) <= MAX_SOURCES and now_ms - state.updated_ms <= IDLE_LIMIT_MS:
                return
            del self._states[oldest]
            yield source_change(*oldest, None)

    def _batch(self, target: int, source: Source) -> SourceBatch | None:
        known = self._states.get((target, source.producer_id))
        if known is None or known.epoch != source.epoch:
            return None
        wanted = source.first_sequence, source.last_sequence
        return next((b for b in known.batches if (b.first_sequence, b.last_sequence) == wanted), None)

    def forget_target(self, target: int) -> Iterator[Change]:
        for key in [key for key in self._states if key[0] == target]:
            del self._states[key]
            yield source_change(*key, None)

    def restore(self, target: int, producer_id: int, state: SourceState | None) -> None:
        self._states.pop((target, producer_id), None)
        if state is not None:
            self._states[target, producer_id] = state

    def snapshot(self) -> Iterator[Change]:
        for key, state in self._states.items():
            yield source_change(*key, state)


class DelayState:
    """Everything that the records of a delay log add up to."""

    def __init__(self, next_offset: int) -> None:
        self.journal = Journal(next_offset)
        self.producer_ids: dict[DeliveryPath, int] = {}
        self.wheel = TimerWheel()
        # What was scheduled for just now. Not for long, so that a wheel of one level will do.
        self.short_notice = TimerWheel.of_one_level()
        self.blocks = Blocks()
        self.targets = Targets()
        self.sources = Sources()
        self.departures = DueBatches(self.targets, self.journal)
        self.far = TimerSpill(self.wheel, self.blocks, self.targets, self.departures, self.journal)

    def target(self, outcome: Outcome, name: TargetName) -> Target:
        target = self.targets.find(name.topic_id, name.partition)
        if target is None:
            target = self.targets.make(name)
            self.journal.write(outcome, records.target_change(target.index, target.state()))
        return target

    def remove(self, id_: int, word: int) -> bool:
        """Take a message out, wherever it waits; false if it does not."""
        if not (
            self.wheel.remove(id_, word)
            or self.short_notice.remove(id_, word)
            or self.blocks.strike(day_of(word), id_)
        ):
            return False
        self.targets.count(self.targets.get(target_of(word)), -1)
        return True

    def snapshot(self) -> Iterator[Change]:
        """The changes from which all this can be rebuilt, as of now: replayed twice, one counts twice."""
        return iter(list(self._changes()))

    def _changes(self) -> Iterator[Change]:
        yield records.boundaries_change(self.wheel.boundaries)
        yield records.number_change(records.NEXT_TARGET, self.targets.next_index)
        for path, producer_id in self.producer_ids.items():
            yield records.producer_change(path, producer_id)
        for target in self.targets:
            if target.name is not None:
                yield records.target_change(target.index, target.state())
            yield records.pending_change(target.index, target.pending)
        for level, number, slot in self.wheel.slots():
            yield records.slot_change(level, number, slot)
        for _, tick, slot in self.short_notice.slots():
            yield records.slot_change(0, tick, slot)
        for tick, slot in self.departures.due_slots():
            yield records.slot_change(0, tick, slot)
        for block in self.blocks:
            yield records.block_place_change(block)
        for intent, messages in self.departures.under_way.items():
            yield records.intent_change(intent, messages)
        yield from self.sources.snapshot()

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.journal.tombstones += value is None
        match key[:1]:
            case records.MESSAGE:
                self._replay_message(key, value)
            case records.INTENT:
                self._replay_intent(records.read_intent_key(key), value)
            case records.TARGET:
                state = None if value is None else records.decode_target(value)
                self.targets.restore(records.read_target_key(key), state)
            case records.BLOCK:
                day, number = records.read_block_key(key)
                if value is None:
                    self.blocks.drop(day, number)
                else:
                    self.far.restore(day, number, *records.decode_block(value))
            case records.SOURCE:
                source = None if value is None else records.decode_source(value)
                self.sources.restore(*records.read_source_key(key), source)
            case records.PRODUCER if value is not None:
                self.producer_ids[records.read_producer_key(key)] = records.decode_number(value)
            case _ if value is not None:
                self._replay_snapshot(key, value)

    def _replay_message(self, key: bytes, value: bytes | None) -> None:
        if (read := records.read_message_key(key)) is None:
            raise ValueError(f"a record of the delay log has the key {key.hex()}")
        if value is None:
            self.remove(*read)
        else:
            self.wheel.add(*read)
            self.targets.count(self.targets.get(target_of(read[1])), 1)

    def _replay_intent(self, intent: IntentId, value: bytes | None) -> None:
        if value is None:
            self.departures.under_way.pop(intent, None)
            return
        messages = unpack(value)
        for id_, word in zip(*messages, strict=True):
            self.remove(id_, word)
        self.departures.restore(intent, messages)

    def _replay_snapshot(self, key: bytes, value: bytes) -> None:
        match key[:1]:
            case records.BOUNDARIES:
                self.wheel.boundaries = records.decode_boundaries(value)
            case records.SLOT:
                level, number = records.read_slot_key(key)
                self.wheel.slot(level, number).put_back(Slot(*unpack(value)))
            case records.BLOCK_PLACE:
                self.blocks.put(records.decode_block_place(value))
            case records.NEXT_TARGET:
                self.targets.next_index = records.decode_number(value)
            case records.PENDING:
                target = self.targets.get(records.read_target_key(key))
                self.targets.count(target, records.decode_number(value))


__all__ = ["PLANNED_MS", "SHORT_NOTICE_MS", "DelayMachine", "Deliver", "Dropped", "ReadBlock"]

# Batches are written down this long before they are due, so that no disk is waited for when they are.
# Until then, a message can be taken back.
PLANNED_MS = 200
# For what is scheduled later than that.
SHORT_NOTICE_MS = 20
# Messages of a deleted topic that are let go in one turn.
_SWEPT_AT_ONCE = 2000


class DelayMachine(HandlesOneByOne):
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

    def schedule(self, request: Schedule, reply_to: object, now_ms: int) -> Outcome:
        """Schedule messages; the reply is their ids, or [] if they came from the same source batch before."""
        messages, source = request.messages, request.source
        outcome = Outcome()
        if self._targets.next_index + len(messages) > MAX_TARGETS:
            full = TooManyDelayed(f"delayed messages have had {MAX_TARGETS} partitions to go to")
            outcome.replies.append(Reply(reply_to, full))
            return outcome
        if not self._state.producer_ids:
            for path in DeliveryPath:
                producer_id = self._state.producer_ids[path] = self._new_producer_id()
                self._journal.write(outcome, records.producer_change(path, producer_id))
        if source is not None:
            target = self._state.target(outcome, messages[0].target)
            if self._sources.knows(target.index, source):
                outcome.replies.append(Reply(reply_to, []))
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
        outcome.replies.append(Reply(reply_to, ids))
        return outcome

    def first_seen_ms(self, topic_id: bytes, partition: int, source: Source) -> int | None:
        """When a batch was parted, if its messages were taken in before."""
        target = self._targets.find(topic_id, partition)
        return None if target is None else self._sources.first_seen_ms(target.index, source)

    def cancel_message(self, request: CancelMessage, reply_to: object, _now_ms: int) -> Outcome:
        """Cancel a message that waits for a partition."""
        id_, word = request.id, request.word
        outcome = Outcome()
        target = self._targets.find(request.topic_id, request.partition)
        if target is None or target.index != target_of(word) or not self._state.remove(id_, word):
            gone = UnknownDelayed("no such message is waiting (any more)")
            outcome.replies.append(Reply(reply_to, gone))
            return outcome
        self._journal.write(outcome, Change(message_key(id_, word), None))
        outcome.replies.append(Reply(reply_to, None))
        return outcome

    def list_messages(self, request: ListMessages, reply_to: object, _now_ms: int) -> Outcome:
        """Locate messages for partitions of a topic."""
        found = [self._targets.find(request.topic_id, partition) for partition in request.partitions]
        targets = {target.index: target.name.partition for target in found if target and target.name}
        pending = sum(target.pending for target in found if target)
        slots: list[Slot] = []
        blocks: list[Block] = []
        if pending:
            slots = [slot.after(request.after_id) for _, _, slot in self._slots()]
            blocks = [
                block for block in self._blocks if not block.is_loaded and block.last_id > request.after_id
            ]
        return reply(reply_to, Listing(targets, pending, slots, blocks))

    def count_pending(self, _request: CountPending, reply_to: object, _now_ms: int) -> Outcome:
        """Count the messages that wait."""
        places = self._short_notice, self._wheel, self._blocks
        times = [at_ms for place in places if (at_ms := place.earliest_ms()) is not None]
        return reply(reply_to, PendingCounts(self.pending, min(times, default=None)))

    def tick(self, now_ms: int) -> Outcome:
        outcome = Outcome()
        self._is_busy = not self._wheel.turn(now_ms, self._blocks.first_day)
        departures = self._departures
        for wheel, path, ahead_ms in (
            (self._wheel, DeliveryPath.PLANNED, PLANNED_MS),
            (self._short_notice, DeliveryPath.SHORT_NOTICE, SHORT_NOTICE_MS),
        ):
            while departures.due_count < LEAVING_AT_ONCE and (slot := wheel.due(now_ms + ahead_ms)):
                departures.take_in(slot, path)
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

    def batches_delivered(self, event: BatchesDelivered, _reply_to: object, _now_ms: int) -> Outcome:
        """Forget batches that are on disk in their targets."""
        outcome = Outcome()
        self._departures.arrived(outcome, event.intents)
        self._drop_spent_targets(outcome)
        return outcome

    def block_loaded(self, event: BlockLoaded, _reply_to: object, now_ms: int) -> Outcome:
        """Put the messages of a block into the wheel."""
        outcome = Outcome()
        self._far.was_read(outcome, event.read, event.slot, now_ms)
        self._drop_spent_targets(outcome)
        return outcome

    def topics_deleted(self, _event: TopicsDeleted, _reply_to: object, _now_ms: int) -> Outcome:
        """Drop messages for deleted topics, some at a time."""
        return self._drop_deleted_topics()

    HANDLERS: ClassVar = {
        Schedule: schedule,
        CancelMessage: cancel_message,
        ListMessages: list_messages,
        CountPending: count_pending,
        BatchesDelivered: batches_delivered,
        BlockLoaded: block_loaded,
        TopicsDeleted: topics_deleted,
    }

    def _drop_deleted_topics(self) -> Outcome:
        outcome = Outcome()
        for target in self._targets:
            if target.name is not None and not self._topic_exists(target.name.topic_id):
                target.is_gone = True
        if any(target.pending for target in self._targets.gone()):
            self._sweep_at = LAST, 0
            self._blocks.suspect_all()
            self._is_busy = True
        self._drop_spent_targets(outcome)
        return outcome

    def cancel(self, reply_to: object) -> None:
        """Do nothing: no request waits here."""

    def loaded(self, _now_ms: int) -> Outcome:
        outcome = self._drop_deleted_topics()
        self._departures.again(outcome, self._state.producer_ids)
        return outcome

    def _slots(self) -> Iterator[tuple[int, int, Slot]]:
        yield from self._short_notice.slots()
        yield from self._wheel.slots()

    def _sweep(self, outcome: Outcome, level: int, number: int) -> None:
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

    def _drop_spent_targets(self, outcome: Outcome) -> None:
        """Forget deleted partitions that nothing waits for any more."""
        for target in self._targets.gone():
            if target.pending or self._departures.is_under_way_to(target.index):
                continue
            for change in self._sources.forget_target(target.index):
                self._journal.write(outcome, change)
            self._journal.write(outcome, records.target_change(target.index, None))
            self._targets.drop(target.index)
