"""Batches of due messages, and their delivery.

A batch is stored as an intent before it is sent: its messages, their order, and their sequence numbers in the
target. It is sent unchanged until it is delivered, and the target detects repeated messages by their sequence
numbers. A batch is delivered once it is durable in the target; only then are its messages deleted from the
delay log.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from alpacamq.model.state_machine import Change, Outcome

from .messages import ChangeWriter, Deliver, Dropped, TargetName
from .records import DeliveryPath, IntentId, TargetState, intent_change, message_key, target_change
from .wheel import MAX_TARGETS, Slot, due_of, target_of, tick_of

SEQUENCE_MASK = 0x7FFF_FFFF


class Target:
    """One partition: its pending messages, and the sequence numbers of its next batches."""

    __slots__ = ("index", "is_deleted", "name", "next_sequences", "pending")

    def __init__(self, index: int, name: TargetName | None) -> None:
        self.index = index
        self.name = name
        self.pending = 0
        self.next_sequences = [0 for _ in DeliveryPath]
        # The topic was deleted, or the record of this target was.
        self.is_deleted = name is None

    def advance(self, path: DeliveryPath, count: int) -> int:
        """Reserve `count` sequence numbers and return the first."""
        sequence = self.next_sequences[path]
        self.next_sequences[path] = (sequence + count) & SEQUENCE_MASK
        return sequence

    def state(self) -> TargetState:
        assert self.name is not None
        return TargetState(*self.name, tuple(self.next_sequences))


class Targets:
    """All targets of one delay log. Numbers are never reused."""

    def __init__(self) -> None:
        self.next_index = 0
        self.pending = 0  # messages of all targets
        self._by_index: dict[int, Target] = {}
        self._by_name: dict[tuple[bytes, int], Target] = {}

    def __iter__(self) -> Iterator[Target]:
        return iter(self._by_index.values())

    def get(self, index: int) -> Target:
        """Return the target with this number; an unknown one counts as deleted."""
        if (target := self._by_index.get(index)) is None:
            target = self._by_index[index] = Target(index, None)
            self.next_index = max(self.next_index, index + 1)
        return target

    def find(self, topic_id: bytes, partition: int) -> Target | None:
        return self._by_name.get((topic_id, partition))

    def create(self, name: TargetName) -> Target:
        assert self.next_index < MAX_TARGETS
        target = Target(self.next_index, name)
        self.next_index += 1
        self._by_index[target.index] = target
        self._by_name[name.topic_id, name.partition] = target
        return target

    def count(self, target: Target, change: int) -> None:
        """Add `change` to the number of pending messages of a target."""
        target.pending += change
        self.pending += change

    def deleted(self) -> list[Target]:
        return [target for target in self if target.is_deleted]

    def restore(self, index: int, state: TargetState | None) -> None:
        """Apply the stored record of a target."""
        if state is None:
            self.drop(index)
            return
        target = self.get(index)
        target.name = TargetName(state.topic_id, state.topic, state.partition)
        target.next_sequences = list(state.next_sequences)
        target.is_deleted = False
        self._by_name[state.topic_id, state.partition] = target

    def drop(self, index: int) -> None:
        target = self._by_index.pop(index, None)
        if target is not None and target.name is not None:
            self._by_name.pop((target.name.topic_id, target.name.partition), None)


# Messages in one batch, and in all batches sent by one tick.
BATCH_MESSAGES = 1000
MAX_SENT_PER_TICK = 2000

# Ids and timers.
MessageArrays = tuple["array[int]", "array[int]"]


class DueBatches:
    """Messages that are due, and batches in flight."""

    def __init__(self, targets: Targets, writer: ChangeWriter) -> None:
        self._targets = targets
        self._writer = writer
        # One entry per millisecond, its messages ordered by id. No intent is stored for them yet.
        self._due: deque[tuple[DeliveryPath, MessageArrays]] = deque()
        self._due_count = 0
        self.in_flight: dict[IntentId, MessageArrays] = {}

    @property
    def due_count(self) -> int:
        return self._due_count

    def add_slot(self, slot: Slot, path: DeliveryPath) -> None:
        """Add the messages of the next due slot, ordered by due time, then by id."""
        by_time: dict[int, MessageArrays] = {}
        for id_, timer in slot:
            due_ms = due_of(timer)
            if (run := by_time.get(due_ms)) is None:
                run = by_time[due_ms] = (array("Q"), array("Q"))
            run[0].append(id_)
            run[1].append(timer)
        self._due.extend((path, by_time[due_ms]) for due_ms in sorted(by_time))
        self._due_count += len(slot)

    def send(self, outcome: Outcome, producer_ids: Mapping[DeliveryPath, int]) -> None:
        """Send up to MAX_SENT_PER_TICK due messages."""
        batches: dict[tuple[int, DeliveryPath], MessageArrays] = {}
        room = MAX_SENT_PER_TICK
        while self._due and room:
            path, (ids, timers) = self._due.popleft()
            if len(ids) > room:
                self._due.appendleft((path, (ids[room:], timers[room:])))
                ids, timers = ids[:room], timers[:room]
            room -= len(ids)
            self._due_count -= len(ids)
            for id_, timer in zip(ids, timers, strict=True):
                destination = target_of(timer), path
                if (batch := batches.get(destination)) is None:
                    batch = batches[destination] = (array("Q"), array("Q"))
                batch[0].append(id_)
                batch[1].append(timer)
                if len(batch[0]) == BATCH_MESSAGES:
                    self._send(outcome, producer_ids, *destination, batches.pop(destination))
        for destination, batch in batches.items():
            self._send(outcome, producer_ids, *destination, batch)

    def _send(
        self,
        outcome: Outcome,
        producer_ids: Mapping[DeliveryPath, int],
        index: int,
        path: DeliveryPath,
        messages: MessageArrays,
    ) -> None:
        target = self._targets.get(index)
        count = len(messages[0])
        self._targets.count(target, -count)
        if target.is_deleted:
            self.drop(outcome, zip(*messages, strict=True))
            return
        assert target.name is not None
        intent = IntentId(index, path, target.advance(path, count))
        self.in_flight[intent] = messages
        self._writer.write(outcome, intent_change(intent, messages))
        outcome.effects.append(Deliver(intent, target.name, producer_ids[path], *messages))

    def drop(self, outcome: Outcome, messages: Iterable[tuple[int, int]]) -> None:
        """Delete messages that have no target any more."""
        count = 0
        for id_, timer in messages:
            self._writer.write(outcome, Change(message_key(id_, timer), None))
            count += 1
        outcome.effects.append(Dropped(count))

    def resend(self, outcome: Outcome, producer_ids: Mapping[DeliveryPath, int]) -> None:
        """Send all batches in flight again, unchanged, after a restart."""
        for intent, messages in self.in_flight.items():
            name = self._targets.get(intent.target).name
            if name is not None:
                outcome.effects.append(Deliver(intent, name, producer_ids[intent.path], *messages))

    def delivered(self, outcome: Outcome, intents: Iterable[IntentId]) -> None:
        """Delete the messages of batches that are durable in their targets."""
        targets: dict[int, Target] = {}
        for intent in intents:
            if (messages := self.in_flight.pop(intent, None)) is None:
                continue
            for id_, timer in zip(*messages, strict=True):
                self._writer.write(outcome, Change(message_key(id_, timer), None))
            self._writer.write(outcome, intent_change(intent, None))
            targets[intent.target] = self._targets.get(intent.target)
        for target in targets.values():
            if target.name is not None:
                self._writer.write(outcome, target_change(target.index, target.state()))

    def restore(self, intent: IntentId, messages: MessageArrays) -> None:
        """Apply the stored record of an intent."""
        self.in_flight[intent] = messages
        target = self._targets.get(intent.target)
        # A later intent may be done already: then the numbers are further, modulo their range.
        end = (intent.sequence + len(messages[0])) & SEQUENCE_MASK
        if (end - target.next_sequences[intent.path]) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
            target.next_sequences[intent.path] = end

    def has_in_flight(self, index: int) -> bool:
        return any(intent.target == index for intent in self.in_flight)

    def due_slots(self) -> Iterator[tuple[int, Slot]]:
        """Return the due messages that were not sent, as slots of level 0, for snapshots."""
        by_tick: dict[int, list[tuple[int, int]]] = {}
        for _, run in self._due:
            for id_, timer in zip(*run, strict=True):
                by_tick.setdefault(tick_of(timer), []).append((id_, timer))
        for tick, messages in by_tick.items():
            slot = Slot()
            for id_, timer in sorted(messages):
                slot.add(id_, timer)
            yield tick, slot
