"""A delay log in memory with its machine: events in, deliveries out, with crashes and restarts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from alpacamq.model.state_machine import Change, Outcome, Pending, Request
from alpacamq.timers.machine import DelayMachine
from alpacamq.timers.messages import (
    BatchesDelivered,
    BlockLoaded,
    CancelMessage,
    Deliver,
    Dropped,
    ProducerBatch,
    ReadBlock,
    Schedule,
    TargetName,
    ToSchedule,
)
from alpacamq.timers.records import decode_block, read_message_key

START_MS = 1_790_000_123_457


def name(topic: str = "orders", partition: int = 0) -> TargetName:
    return TargetName(topic.encode().ljust(16, b"."), topic, partition)


@dataclass
class DelayLog:
    """The records on disk, and the contents of the targets, which survive every crash."""

    now_ms: int = START_MS
    records: list[Change] = field(default_factory=list)
    # Offsets that compaction has removed.
    removed: set[int] = field(default_factory=set)
    deleted: set[bytes] = field(default_factory=set)
    # By target: ids in the order of delivery, and the last sequence number of each producer.
    arrived: dict[TargetName, list[int]] = field(default_factory=dict)
    last_sequence: dict[tuple[TargetName, int], int] = field(default_factory=dict)
    producers: int = 0
    dropped: int = 0
    # The changes are consumed when they are needed; the machine handles events in the meantime.
    snapshot: tuple[int, Iterable[Change]] | None = None

    def __post_init__(self) -> None:
        self.effects: list[Deliver | ReadBlock] = []
        self.start()

    def start(self) -> None:
        """Rebuild the machine from the snapshot, if there is one, and the records since."""
        self.machine = DelayMachine(
            len(self.records), self.new_producer_id, lambda topic_id: topic_id not in self.deleted
        )
        offset = 0
        if self.snapshot is not None:
            offset, changes = self.snapshot
            self.snapshot = offset, list(changes)
            for change in self.snapshot[1]:
                self.machine.replay(*change)
        for at in range(offset, len(self.records)):
            if at not in self.removed:
                self.machine.replay(*self.records[at])
        self.effects = []
        self.carry_out(self.machine.loaded(self.now_ms))

    def new_producer_id(self) -> int:
        self.producers += 1
        return 76 + self.producers

    def take_snapshot(self) -> None:
        self.snapshot = len(self.records), self.machine.snapshot()

    def compact(self) -> None:
        """Keep the last record of each key and no tombstones; drop the snapshot."""
        last = {change.key: at for at, change in enumerate(self.records)}
        self.removed |= {
            at for at, change in enumerate(self.records) if last[change.key] != at or change.value is None
        }
        self.snapshot = None

    def handle(self, request: Request[Any]) -> list[Any]:
        """Pass a request to the machine and return the replies."""
        return self.carry_out(self.machine.handle([Pending(request, "ticket")], self.now_ms))

    def carry_out(self, outcome: Outcome) -> list[Any]:
        """Store the changes and collect the effects; return the replies."""
        for change in outcome.changes:
            self.records.append(change)
        for effect in outcome.effects:
            if isinstance(effect, Dropped):
                self.dropped += effect.messages
            else:
                self.effects.append(effect)
        return [reply.answer for reply in outcome.replies]

    def schedule(
        self, *delays_ms: int, target: TargetName | None = None, source: ProducerBatch | None = None
    ) -> list[int]:
        messages = [ToSchedule(target or name(), self.now_ms + delay_ms, b"e") for delay_ms in delays_ms]
        [ids] = self.handle(Schedule(messages=messages, source=source))
        assert isinstance(ids, list)
        for id_ in ids:
            key = read_message_key(self.records[id_].key)
            assert key is not None
            assert key[0] == id_
        return ids

    def cancel(self, id_: int, target: TargetName | None = None) -> Any:
        """Cancel a message; return None, or the error."""
        key = read_message_key(self.records[id_].key)
        assert key is not None
        wanted = target or name()
        [answer] = self.handle(
            CancelMessage(id=key[0], timer=key[1], topic_id=wanted.topic_id, partition=wanted.partition)
        )
        return answer

    def pass_time(self, step_ms: int) -> None:
        """Advance the clock, with a tick at every deadline of the machine."""
        until_ms = self.now_ms + step_ms
        while True:
            due_ms = self.machine.next_deadline_ms
            if due_ms is None or due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.machine.tick(self.now_ms))
            self.read_blocks()
        self.now_ms = until_ms

    def read_blocks(self) -> None:
        reads = [effect for effect in self.effects if isinstance(effect, ReadBlock)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, ReadBlock)]
        for read in reads:
            value = self.records[read.offset].value
            assert value is not None
            offset, content = decode_block(value)
            assert offset == read.offset
            self.handle(BlockLoaded(read=read, slot=content))

    def deliver(self, *, crash_after: str = "") -> None:
        """Deliver batches in order; with crash_after="append" the machine does not learn of it."""
        batches = [effect for effect in self.effects if isinstance(effect, Deliver)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, Deliver)]
        for batch in batches:
            self._append(batch)
            if crash_after != "append":
                self.handle(BatchesDelivered(intents=[batch.intent]))

    def _append(self, batch: Deliver) -> None:
        if batch.target.topic_id in self.deleted:
            return
        arrived = self.arrived.setdefault(batch.target, [])
        producer = batch.target, batch.producer_id
        last = self.last_sequence.get(producer, -1)
        arrived += batch.ids[max(last + 1 - batch.intent.sequence, 0) :]
        self.last_sequence[producer] = max(last, batch.intent.sequence + len(batch.ids) - 1)
