"""What one delay log says: the messages that wait and where, rebuilt from its records or a snapshot."""

from collections.abc import Iterator

from alpacamq.model.outcome import Change, Outcome

from . import delay_records as records
from .delay_blocks import Blocks
from .delay_departures import Departures
from .delay_far import FarFuture
from .delay_messages import Journal, TargetName
from .delay_records import IntentId, Lane
from .delay_sources import Sources
from .delay_targets import Target, Targets
from .slots import Slot, target_of, unpack
from .wheel import TimerWheel, day_of


class DelayState:
    """Everything that the records of a delay log add up to."""

    def __init__(self, next_offset: int) -> None:
        self.journal = Journal(next_offset)
        self.producer_ids: dict[Lane, int] = {}
        self.wheel = TimerWheel()
        # What was scheduled for just now. Not for long, so that a wheel of one level will do.
        self.short_notice = TimerWheel.of_one_level()
        self.blocks = Blocks()
        self.targets = Targets()
        self.sources = Sources()
        self.departures = Departures(self.targets, self.journal)
        self.far = FarFuture(self.wheel, self.blocks, self.targets, self.departures, self.journal)

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
        for lane, producer_id in self.producer_ids.items():
            yield records.producer_change(lane, producer_id)
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
