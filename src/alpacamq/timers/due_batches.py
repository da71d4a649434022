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

from .messages import ChangeWriter, Deliver, Dropped
from .records import DeliveryPath, IntentId, intent_change, message_key, target_change
from .targets import Target, Targets
from .wheel import Slot, due_of, target_of, tick_of

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
        target.next_sequences[intent.path] = intent.sequence
        target.advance(intent.path, len(messages[0]))

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
