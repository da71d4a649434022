"""Messages whose time has come: put together into batches, on their way, arrived.

A batch is written down before it leaves: which messages, in which order, under which sequences of
which target. Whatever happens then, it is repeated exactly so until it has arrived, and its target
recognises what it has already. It has arrived once the target has it on the medium; only then are
its messages taken out of the delay log.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from alpacamq.model.state_machine import Change, Outcome

from .messages import Deliver, Dropped, Journal
from .records import DeliveryPath, IntentId, intent_change, message_key, target_change
from .targets import Target, Targets
from .wheel import Slot, due_of, target_of, tick_of

# Messages in one batch, and in all batches that one turn sends off.
BATCH_MESSAGES = 1000
LEAVING_AT_ONCE = 2000

Run = tuple["array[int]", "array[int]"]


class DueBatches:
    """What is due and what is on its way."""

    def __init__(self, targets: Targets, journal: Journal) -> None:
        self._targets = targets
        self._journal = journal
        # Messages of the same millisecond by id, and those by time. Still waiting as far as the log knows.
        self._due: deque[tuple[DeliveryPath, Run]] = deque()
        self._due_count = 0
        self.under_way: dict[IntentId, Run] = {}

    @property
    def due_count(self) -> int:
        return self._due_count

    def take_in(self, slot: Slot, path: DeliveryPath) -> None:
        """Messages of the next slot are due. Their order is by time, then by id."""
        by_time: dict[int, Run] = {}
        for id_, word in slot:
            due_ms = due_of(word)
            if (run := by_time.get(due_ms)) is None:
                run = by_time[due_ms] = (array("Q"), array("Q"))
            run[0].append(id_)
            run[1].append(word)
        self._due.extend((path, by_time[due_ms]) for due_ms in sorted(by_time))
        self._due_count += len(slot)

    def leave(self, outcome: Outcome, producer_ids: Mapping[DeliveryPath, int]) -> None:
        """Send off what is due, as much as one turn may."""
        batches: dict[tuple[int, DeliveryPath], Run] = {}
        room = LEAVING_AT_ONCE
        while self._due and room:
            path, (ids, words) = self._due.popleft()
            if len(ids) > room:
                self._due.appendleft((path, (ids[room:], words[room:])))
                ids, words = ids[:room], words[:room]
            room -= len(ids)
            self._due_count -= len(ids)
            for id_, word in zip(ids, words, strict=True):
                line = target_of(word), path
                if (batch := batches.get(line)) is None:
                    batch = batches[line] = (array("Q"), array("Q"))
                batch[0].append(id_)
                batch[1].append(word)
                if len(batch[0]) == BATCH_MESSAGES:
                    self._send(outcome, producer_ids, *line, batches.pop(line))
        for line, batch in batches.items():
            self._send(outcome, producer_ids, *line, batch)

    def _send(
        self,
        outcome: Outcome,
        producer_ids: Mapping[DeliveryPath, int],
        index: int,
        path: DeliveryPath,
        messages: Run,
    ) -> None:
        target = self._targets.get(index)
        count = len(messages[0])
        self._targets.count(target, -count)
        if target.is_gone:
            self.drop(outcome, zip(*messages, strict=True))
            return
        assert target.name is not None
        intent = IntentId(index, path, target.advance(path, count))
        self.under_way[intent] = messages
        self._journal.write(outcome, intent_change(intent, messages))
        outcome.effects.append(Deliver(intent, target.name, producer_ids[path], *messages))

    def drop(self, outcome: Outcome, messages: Iterable[tuple[int, int]]) -> None:
        """Let go of messages that nobody can be given."""
        count = 0
        for id_, word in messages:
            self._journal.write(outcome, Change(message_key(id_, word), None))
            count += 1
        outcome.effects.append(Dropped(count))

    def again(self, outcome: Outcome, producer_ids: Mapping[DeliveryPath, int]) -> None:
        """After a restart: send everything that was on its way, as it was."""
        for intent, messages in self.under_way.items():
            name = self._targets.get(intent.target).name
            if name is not None:
                outcome.effects.append(Deliver(intent, name, producer_ids[intent.path], *messages))

    def arrived(self, outcome: Outcome, intents: Iterable[IntentId]) -> None:
        """These batches are in their targets for good: their messages are done."""
        targets: dict[int, Target] = {}
        for intent in intents:
            if (messages := self.under_way.pop(intent, None)) is None:
                continue
            for id_, word in zip(*messages, strict=True):
                self._journal.write(outcome, Change(message_key(id_, word), None))
            self._journal.write(outcome, intent_change(intent, None))
            targets[intent.target] = self._targets.get(intent.target)
        for target in targets.values():
            if target.name is not None:
                self._journal.write(outcome, target_change(target.index, target.state()))

    def restore(self, intent: IntentId, messages: Run) -> None:
        """The log says that a batch left."""
        self.under_way[intent] = messages
        target = self._targets.get(intent.target)
        target.next_sequences[intent.path] = intent.sequence
        target.advance(intent.path, len(messages[0]))

    def is_under_way_to(self, index: int) -> bool:
        return any(intent.target == index for intent in self.under_way)

    def due_slots(self) -> Iterator[tuple[int, Slot]]:
        """What is due and has not left, as the slots of level 0 it came from."""
        by_tick: dict[int, list[tuple[int, int]]] = {}
        for _, run in self._due:
            for id_, word in zip(*run, strict=True):
                by_tick.setdefault(tick_of(word), []).append((id_, word))
        for tick, messages in by_tick.items():
            slot = Slot()
            for id_, word in sorted(messages):
                slot.add(id_, word)
            yield tick, slot
