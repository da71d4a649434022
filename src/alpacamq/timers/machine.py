"""The delay machine: the pending messages of one delay log. Pure.

A message is a record of the log and, if it is due within about a week, 16 bytes of memory in the wheel. The
id of a message is the offset of its record. The record is deleted when the message was delivered or
cancelled; compaction then frees its space.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import ClassVar

from alpacamq.model.errors import TooManyDelayed, UnknownDelayed, UnknownTopic
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Reply, reply

from . import records
from .blocks import SpilledBlock, SpilledBlocks
from .due_batches import MAX_SENT_PER_TICK, DueBatches, Target, Targets
from .messages import (
    BatchesDelivered,
    BlockLoaded,
    CancelMessage,
    ChangeWriter,
    CountPending,
    Deliver,
    Dropped,
    FirstSeen,
    Listing,
    ListMessages,
    PendingCounts,
    ProducerBatch,
    ReadBlock,
    Schedule,
    TargetName,
    TopicsDeleted,
)
from .records import DeliveryPath, IntentId, SeenBatch, SeenBatches, message_key, source_change
from .spill import TimerSpill
from .wheel import LAST_LEVEL, MAX_TARGETS, Slot, TimerWheel, day_of, pack_timer, target_of, unpack

# Batches that an idempotent producer may have in flight.
WINDOW = 5
IDLE_LIMIT_MS = 24 * 3_600_000
MAX_SOURCES = 10_000
# Bounds the work per scheduled batch.
_MAX_EVICTED_PER_BATCH = 4


class ProducerHistory:
    """The last batches of each producer and target, least recently updated first."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[int, int], SeenBatches] = OrderedDict()

    def first_seen_ms(self, target: int, source: ProducerBatch) -> int | None:
        """Return when this batch was first seen; None if it is new."""
        batch = self._batch(target, source)
        return None if batch is None else batch.first_seen_ms

    def ids(self, target: int, source: ProducerBatch, count: int) -> list[int] | None:
        """Return the ids of a portion of `count` messages that was scheduled before; None if it was not.

        They are known of the last portion only; [] for others.
        """
        batch = self._batch(target, source)
        if batch is None or source.portion >= batch.portions:
            return None
        if source.portion + 1 < batch.portions or batch.first_id < 0:
            return []
        return list(range(batch.first_id, batch.first_id + count))

    def add(self, target: int, source: ProducerBatch, first_id: int, now_ms: int) -> Iterator[Change]:
        """Add a portion of a batch and evict old entries; yield the changes."""
        key = target, source.producer_id
        known = self._states.get(key)
        batches = known.batches if known is not None and known.epoch == source.epoch else ()
        former = self._batch(target, source)
        batch = SeenBatch(
            source.first_sequence, source.last_sequence, source.first_seen_ms, source.portion + 1, first_id
        )
        batches = (*(other for other in batches if other is not former), batch)[-WINDOW:]
        state = self._states[key] = SeenBatches(source.epoch, batches, now_ms)
        self._states.move_to_end(key)
        yield source_change(*key, state)
        for _ in range(_MAX_EVICTED_PER_BATCH):
            oldest, state = next(iter(self._states.items()))
            if len(self._states) <= MAX_SOURCES and now_ms - state.updated_ms <= IDLE_LIMIT_MS:
                return
            del self._states[oldest]
            yield source_change(*oldest, None)

    def _batch(self, target: int, source: ProducerBatch) -> SeenBatch | None:
        known = self._states.get((target, source.producer_id))
        if known is None or known.epoch != source.epoch:
            return None
        wanted = source.first_sequence, source.last_sequence
        return next((b for b in known.batches if (b.first_sequence, b.last_sequence) == wanted), None)

    def forget_target(self, target: int) -> Iterator[Change]:
        for key in [key for key in self._states if key[0] == target]:
            del self._states[key]
            yield source_change(*key, None)

    def restore(self, target: int, producer_id: int, state: SeenBatches | None) -> None:
        self._states.pop((target, producer_id), None)
        if state is not None:
            self._states[target, producer_id] = state

    def snapshot(self) -> Iterator[Change]:
        for key, state in self._states.items():
            yield source_change(*key, state)


class DelayState:
    """The state that the records of a delay log describe."""

    def __init__(self, next_offset: int) -> None:
        self.writer = ChangeWriter(next_offset)
        self.producer_ids: dict[DeliveryPath, int] = {}
        self.wheel = TimerWheel()
        # Messages scheduled shortly before they are due.
        self.short_notice = TimerWheel.single_level()
        self.blocks = SpilledBlocks()
        self.targets = Targets()
        self.producers = ProducerHistory()
        self.due_batches = DueBatches(self.targets, self.writer)
        self.spill = TimerSpill(self.wheel, self.blocks, self.targets, self.due_batches, self.writer)

    def target(self, outcome: Outcome, name: TargetName) -> Target:
        target = self.targets.find(name.topic_id, name.partition)
        if target is None:
            target = self.targets.create(name)
            self.writer.write(outcome, records.target_change(target.index, target.state()))
        return target

    def remove(self, id_: int, timer: int) -> bool:
        """Remove a pending message; return False if there is none."""
        if not (
            self.wheel.remove(id_, timer)
            or self.short_notice.remove(id_, timer)
            or self.blocks.remove(day_of(timer), id_)
        ):
            return False
        self.targets.count(self.targets.get(target_of(timer)), -1)
        return True

    def snapshot(self) -> Iterator[Change]:
        """Return the changes that lead to the current state.

        They are collected at once: a change that is both in the snapshot and replayed after it would be
        counted twice.
        """
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
        for tick, slot in self.due_batches.due_slots():
            yield records.slot_change(0, tick, slot)
        for block in self.blocks:
            yield records.block_place_change(block)
        for intent, messages in self.due_batches.in_flight.items():
            yield records.intent_change(intent, messages)
        yield from self.producers.snapshot()

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.writer.tombstones += value is None
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
                    self.spill.restore(day, number, *records.decode_block(value))
            case records.SOURCE:
                source = None if value is None else records.decode_source(value)
                self.producers.restore(*records.read_source_key(key), source)
            case records.PRODUCER if value is not None:
                self.producer_ids[records.read_producer_key(key)] = records.decode_number(value)
            case _ if value is not None:
                self._replay_snapshot(key, value)

    def _replay_message(self, key: bytes, value: bytes | None) -> None:
        if (read := records.read_message_key(key)) is None:
            raise ValueError(f"invalid key in the delay log: {key.hex()}")
        if value is None:
            self.remove(*read)
        else:
            self.wheel.add(*read)
            self.targets.count(self.targets.get(target_of(read[1])), 1)

    def _replay_intent(self, intent: IntentId, value: bytes | None) -> None:
        if value is None:
            self.due_batches.in_flight.pop(intent, None)
            return
        messages = unpack(value)
        for id_, timer in zip(*messages, strict=True):
            self.remove(id_, timer)
        self.due_batches.restore(intent, messages)

    def _replay_snapshot(self, key: bytes, value: bytes) -> None:
        match key[:1]:
            case records.BOUNDARIES:
                self.wheel.boundaries = records.decode_boundaries(value)
            case records.SLOT:
                level, number = records.read_slot_key(key)
                self.wheel.slot(level, number).merge(Slot(*unpack(value)))
            case records.BLOCK_PLACE:
                self.blocks.put(records.decode_block_place(value))
            case records.NEXT_TARGET:
                self.targets.next_index = records.decode_number(value)
            case records.PENDING:
                target = self.targets.get(records.read_target_key(key))
                self.targets.count(target, records.decode_number(value))


__all__ = ["PLANNED_MS", "SHORT_NOTICE_MS", "DelayMachine", "Deliver", "Dropped", "ReadBlock"]

# Intents are stored this long before their messages are due, so that delivery does not wait for the disk.
# Until then a message can be cancelled.
PLANNED_MS = 200
# The same for messages that were scheduled later than that.
SHORT_NOTICE_MS = 20
# Bounds the messages of deleted topics that one tick drops.
_MAX_SWEPT_PER_TICK = 2000


class DelayMachine(HandlesOneByOne):
    """Schedules, cancels and delivers delayed messages."""

    def __init__(
        self, next_offset: int, new_producer_id: Callable[[], int], topic_exists: Callable[[bytes], bool]
    ) -> None:
        self._new_producer_id = new_producer_id
        self._topic_exists = topic_exists
        self._state = state = DelayState(next_offset)
        self.replay, self.snapshot = state.replay, state.snapshot
        # The level and slot to search next for messages of deleted topics; None if there are none.
        self._sweep_at: tuple[int, int] | None = None
        self._is_busy = True
        self._not_before_ms = 0

    @property
    def pending(self) -> int:
        return self._state.targets.pending

    @property
    def tombstones(self) -> int:
        """Return the number of tombstones written or replayed."""
        return self._state.writer.tombstones

    @property
    def next_deadline_ms(self) -> int | None:
        if self._is_busy:
            return self._not_before_ms
        times = [] if (spill_ms := self._state.spill.next_ms) is None else [spill_ms]
        if (due_ms := self._state.wheel.next_ms(self._state.blocks.first_day)) is not None:
            times.append(due_ms - PLANNED_MS)
        if (due_ms := self._state.short_notice.next_ms()) is not None:
            times.append(due_ms - SHORT_NOTICE_MS)
        return max(min(times), self._not_before_ms) if times else None

    def schedule(self, request: Schedule, reply_to: object, now_ms: int) -> Outcome:
        """Schedule messages. The reply is their ids."""
        messages, source = request.messages, request.source
        outcome = Outcome()
        if self._state.targets.next_index + len(messages) > MAX_TARGETS:
            raise TooManyDelayed(f"delayed messages have used all {MAX_TARGETS} target numbers")
        if source is not None and (ids := self._scheduled_before(request, source)) is not None:
            outcome.replies.append(Reply(reply_to, ids))
            return outcome
        for topic_id, topic in {(name.topic_id, name.topic) for name, _, _ in messages}:
            # A target of a topic that this broker does not know would be taken for one of a deleted topic.
            if not self._topic_exists(topic_id):
                raise UnknownTopic(f"no topic is named {topic!r}, or it was created again")
        if not self._state.producer_ids:
            # All of them first: there may be too few in stock, and then nothing may have changed.
            new_ids = {path: self._new_producer_id() for path in DeliveryPath}
            for path, producer_id in new_ids.items():
                self._state.producer_ids[path] = producer_id
                self._state.writer.write(outcome, records.producer_change(path, producer_id))
        targets = [self._state.target(outcome, name) for name, _, _ in messages]
        first_id = self._state.writer.next_offset
        ids = list(range(first_id, first_id + len(messages)))
        for id_, target, (_, due_ms, envelope) in zip(ids, targets, messages, strict=True):
            timer = pack_timer(due_ms, target.index)
            self._state.writer.write(outcome, Change(message_key(id_, timer), envelope))
            if due_ms - now_ms < PLANNED_MS:
                self._state.short_notice.add(id_, timer)
            else:
                self._state.spill.added(self._state.wheel.add(id_, timer))
            self._state.targets.count(target, 1)
        if source is not None:
            for change in self._state.producers.add(targets[0].index, source, first_id, now_ms):
                self._state.writer.write(outcome, change)
        outcome.replies.append(Reply(reply_to, ids))
        return outcome

    def _scheduled_before(self, request: Schedule, source: ProducerBatch) -> list[int] | None:
        """Return the ids of messages that were scheduled before, by this batch; None if they were not."""
        name = request.messages[0].target
        target = self._state.targets.find(name.topic_id, name.partition)
        return (
            None if target is None else self._state.producers.ids(target.index, source, len(request.messages))
        )

    def first_seen(self, request: FirstSeen, reply_to: object, _now_ms: int) -> Outcome:
        """Return when a batch was first seen; None if it is new."""
        target = self._state.targets.find(request.target.topic_id, request.target.partition)
        seen_ms = (
            None if target is None else self._state.producers.first_seen_ms(target.index, request.source)
        )
        return reply(reply_to, seen_ms)

    def cancel_message(self, request: CancelMessage, reply_to: object, _now_ms: int) -> Outcome:
        """Cancel a pending message."""
        id_, timer = request.id, request.timer
        outcome = Outcome()
        target = self._state.targets.find(request.topic_id, request.partition)
        if target is None or target.index != target_of(timer) or not self._state.remove(id_, timer):
            unknown = UnknownDelayed(
                "no such pending message: it was delivered, cancelled or never scheduled"
            )
            outcome.replies.append(Reply(reply_to, unknown))
            return outcome
        self._state.writer.write(outcome, Change(message_key(id_, timer), None))
        outcome.replies.append(Reply(reply_to, None))
        return outcome

    def list_messages(self, request: ListMessages, reply_to: object, _now_ms: int) -> Outcome:
        """Return the slots and blocks that may contain messages of these partitions."""
        found = [self._state.targets.find(request.topic_id, partition) for partition in request.partitions]
        targets = {target.index: target.name.partition for target in found if target and target.name}
        pending = sum(target.pending for target in found if target)
        slots: list[Slot] = []
        blocks: list[SpilledBlock] = []
        if pending:
            slots = [slot.after(request.after_id) for _, _, slot in self._slots()]
            blocks = [
                block
                for block in self._state.blocks
                if not block.is_loaded and block.last_id > request.after_id
            ]
        return reply(reply_to, Listing(targets, pending, slots, blocks))

    def count_pending(self, _request: CountPending, reply_to: object, _now_ms: int) -> Outcome:
        """Count the pending messages."""
        places = self._state.short_notice, self._state.wheel, self._state.blocks
        times = [at_ms for place in places if (at_ms := place.earliest_ms()) is not None]
        return reply(reply_to, PendingCounts(self.pending, min(times, default=None)))

    def tick(self, now_ms: int) -> Outcome:
        outcome = Outcome()
        self._is_busy = not self._state.wheel.advance(now_ms, self._state.blocks.first_day)
        due_batches = self._state.due_batches
        for wheel, path, ahead_ms in (
            (self._state.wheel, DeliveryPath.PLANNED, PLANNED_MS),
            (self._state.short_notice, DeliveryPath.SHORT_NOTICE, SHORT_NOTICE_MS),
        ):
            while due_batches.due_count < MAX_SENT_PER_TICK and (slot := wheel.due(now_ms + ahead_ms)):
                due_batches.add_slot(slot, path)
        due_batches.send(outcome, self._state.producer_ids)
        self._state.spill.step(outcome, now_ms)
        if self._sweep_at is not None:
            self._sweep(outcome, *self._sweep_at)
        self._is_busy |= bool(due_batches.due_count or self._sweep_at)
        self._not_before_ms = 0
        due_ms = self.next_deadline_ms
        if due_ms is None or due_ms > now_ms:
            self._state.spill.clean_up(outcome, now_ms)
        else:
            # There is more to do; let the host handle other requests first.
            self._not_before_ms = now_ms + 1
        return outcome

    def batches_delivered(self, event: BatchesDelivered, _reply_to: object, _now_ms: int) -> Outcome:
        """Delete batches that are durable in their targets."""
        outcome = Outcome()
        self._state.due_batches.delivered(outcome, event.intents)
        self._forget_deleted_targets(outcome)
        return outcome

    def block_loaded(self, event: BlockLoaded, _reply_to: object, now_ms: int) -> Outcome:
        """Move the messages of a block into the wheel."""
        outcome = Outcome()
        self._state.spill.block_loaded(outcome, event.read, event.slot, now_ms)
        self._forget_deleted_targets(outcome)
        return outcome

    def topics_deleted(self, _event: TopicsDeleted, _reply_to: object, _now_ms: int) -> Outcome:
        """Start dropping the messages of deleted topics."""
        return self._drop_deleted_topics()

    HANDLERS: ClassVar = {
        Schedule: schedule,
        FirstSeen: first_seen,
        CancelMessage: cancel_message,
        ListMessages: list_messages,
        CountPending: count_pending,
        BatchesDelivered: batches_delivered,
        BlockLoaded: block_loaded,
        TopicsDeleted: topics_deleted,
    }

    def _drop_deleted_topics(self) -> Outcome:
        outcome = Outcome()
        for target in self._state.targets:
            if target.name is not None and not self._topic_exists(target.name.topic_id):
                target.is_deleted = True
        if any(target.pending for target in self._state.targets.deleted()):
            self._sweep_at = LAST_LEVEL, 0
            self._state.blocks.check_all()
            self._is_busy = True
        self._forget_deleted_targets(outcome)
        return outcome

    def cancel(self, reply_to: object) -> None:
        """Do nothing: no request waits here."""

    def loaded(self, _now_ms: int) -> Outcome:
        outcome = self._drop_deleted_topics()
        self._state.due_batches.resend(outcome, self._state.producer_ids)
        return outcome

    def _slots(self) -> Iterator[tuple[int, int, Slot]]:
        yield from self._state.short_notice.slots()
        yield from self._state.wheel.slots()

    def _sweep(self, outcome: Outcome, level: int, number: int) -> None:
        """Drop messages of deleted topics from one slot. Levels are searched downwards, as messages move."""
        slots = self._state.wheel.levels[level]
        number = min((other for other in slots if other >= number), default=-1)
        if number < 0:
            self._sweep_at = (level - 1, 0) if level else None
            return
        deleted = {target.index for target in self._state.targets.deleted()}
        dropped = [(id_, timer) for id_, timer in slots[number] if target_of(timer) in deleted]
        self._sweep_at = (level, number if len(dropped) > _MAX_SWEPT_PER_TICK else number + 1)
        del dropped[_MAX_SWEPT_PER_TICK:]
        for id_, timer in dropped:
            self._state.remove(id_, timer)
        if dropped:
            self._state.due_batches.drop(outcome, dropped)
            self._forget_deleted_targets(outcome)

    def _forget_deleted_targets(self, outcome: Outcome) -> None:
        """Forget deleted partitions that have no pending messages."""
        for target in self._state.targets.deleted():
            if target.pending or self._state.due_batches.has_in_flight(target.index):
                continue
            for change in self._state.producers.forget_target(target.index):
                self._state.writer.write(outcome, change)
            self._state.writer.write(outcome, records.target_change(target.index, None))
            self._state.targets.drop(target.index)
