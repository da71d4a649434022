"""The queue engine under arbitrary histories, against a simple model.

The model is the state of each message. Whatever consumers, the clock, retention and crashes do: no message is
lost, none is delivered after its acknowledgement, one consumer leases it at a time, deliveries are counted,
keys keep their order, and no receive waits while a message is deliverable.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpacamq.model.errors import AlpacaError, StaleReceipt, TooManyInFlight
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Outcome, Reply, Request
from alpacamq.queues.engine import EngineLimits
from alpacamq.queues.messages import (
    Acquired,
    Action,
    ConfigureRequest,
    Move,
    ReceiveReply,
    ReceiveRequest,
    ReleaseConsumerRequest,
    ResetRequest,
    Settlement,
    SettleReply,
    SettleRequest,
)

from .fake_log import Entry, FakeLog, FakePartition
from .queue_host import QUEUE, QueueHost, moves_of

MAX_DELIVERIES = 3
MAX_IN_FLIGHT = 6
MAX_TOTAL = 15
VISIBILITY_MS = 30_000
ENTRIES = st.one_of(
    st.none(),
    st.builds(Entry, st.sampled_from(Lane), st.sampled_from([None, b"k1", b"k1", b"k2"])),
)
CONSUMERS = st.sampled_from(["c1", "c2", "c3"])
READY, LEASED, BACKOFF, MOVING, DONE = "ready", "leased", "backoff", "moving", "done"


@dataclass(slots=True, eq=False)
class Message:
    """A message and its state."""

    partition: int
    offset: int
    entry: Entry
    state: str = READY
    count: int = 0
    until_ms: int = 0
    owner: str = ""
    receipt: Acquired | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


class ModelHost(QueueHost):
    """A host that passes every outcome to the model."""

    model: "QueueModel"

    def take(self, outcome: Outcome) -> None:
        self.model.expire()
        super().take(outcome)
        for move in moves_of(outcome):
            self.model.move_requested(move)

    def answer(self, request: Request[Any], reply: Reply) -> None:
        super().answer(request, reply)
        self.model.answered(request, reply.answer)


class QueueModel(RuleBasedStateMachine):
    """One queue with several partitions and consumers."""

    limits = EngineLimits()
    slab = 7

    @initialize(
        starts=st.lists(st.sampled_from([0, 250, 256, 510]), min_size=1, max_size=3),
        ordering=st.sampled_from(["none", "key"]),
    )
    def start(self, starts: list[int], ordering: str) -> None:
        log = FakeLog(self.slab)
        limits = {"queue.max.in.flight": str(MAX_IN_FLIGHT), "queue.max.in.flight.total": str(MAX_TOTAL)}
        order = {"queue.ordering": ordering, "queue.max.deliveries": str(MAX_DELIVERIES)}
        self.topic = log.add(QUEUE.topic, limits | order, partitions=len(starts))
        for partition, start in zip(self.topic.partitions, starts, strict=True):
            partition.start = start
        self.host = ModelHost(log, self.limits)
        self.host.model = self
        self.messages: dict[tuple[int, int], Message] = {}
        self.receipts: list[Acquired] = []
        self.doubtful: set[Acquired] = set()
        self.sequences: dict[int, int] = {}
        self.host.send(ReceiveRequest(queue=QUEUE, consumer="c1", max_messages=1))

    @property
    def in_key_order(self) -> bool:
        return self.topic.config.queue_ordering == "key"

    # Steps

    @rule(data=st.data(), entries=st.lists(ENTRIES, min_size=1, max_size=12))
    def publish(self, data: st.DataObject, entries: list[Entry | None]) -> None:
        number = data.draw(st.integers(0, len(self.topic.partitions) - 1))
        first = self.topic.partitions[number].end
        for offset, entry in enumerate(entries, first):
            if entry is not None:
                self.messages[number, offset] = Message(number, offset, entry)
        self.host.append(*entries, partition=number)

    @rule(data=st.data(), length=st.sampled_from([200, 256, 600]), is_empty=st.booleans())
    def publish_far_apart(self, data: st.DataObject, length: int, is_empty: bool) -> None:
        if sum(partition.end for partition in self.topic.partitions) < 4000:
            self.publish(data, [None if is_empty or at % 60 else Entry() for at in range(length)])

    @rule(
        consumer=CONSUMERS,
        most=st.integers(0, 8),
        wait_ms=st.sampled_from([0, 0, 500, 60_000]),
        runs=st.booleans(),
    )
    def receive(self, consumer: str, most: int, wait_ms: int, runs: bool) -> None:
        self.host.send(
            ReceiveRequest(queue=QUEUE, consumer=consumer, max_messages=most, wait_ms=wait_ms, key_runs=runs)
        )

    @rule(consumer=CONSUMERS, data=st.data())
    def receive_of_some_partitions(self, consumer: str, data: st.DataObject) -> None:
        numbers = st.integers(0, len(self.topic.partitions) - 1)
        some = data.draw(st.sets(numbers, min_size=1).map(tuple))
        wait_ms = data.draw(st.sampled_from([0, 5000]))
        self.host.send(
            ReceiveRequest(
                queue=QUEUE,
                consumer=consumer,
                max_messages=3,
                partitions=some,
                wait_ms=wait_ms,
                visibility_ms=4000,
            )
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), action=st.sampled_from([*Action, Action.ACK, Action.ACK, Action.NACK]))
    def settle(self, data: st.DataObject, action: Action) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.receipts[-30:]), max_size=6, unique=True))
        delay_ms = data.draw(st.sampled_from([None, None, 0, 700, 20_000]))
        settlements = tuple(
            Settlement(
                one.partition,
                one.offset,
                action,
                one.delivery_count,
                one.generation,
                None,
                delay_ms,
                "",
                "elsewhere",
            )
            for one in chosen
        )
        self.host.send(SettleRequest(queue=QUEUE, settlements=settlements))

    @rule(consumer=CONSUMERS)
    def acknowledge_all_as_consumer(self, consumer: str) -> None:
        held = [
            message
            for message in self.messages.values()
            if message.state == LEASED and message.owner == consumer
        ]
        settlements = tuple(
            Settlement(message.partition, message.offset, Action.ACK, consumer=consumer) for message in held
        )
        self.host.send(SettleRequest(queue=QUEUE, settlements=settlements))

    @rule(consumer=CONSUMERS)
    def settle_and_receive_at_once(self, consumer: str) -> None:
        held = [message for message in self.messages.values() if message.state == LEASED]
        settlements = tuple(
            Settlement(message.partition, message.offset, action, message.count, message.receipt.generation)
            for message, action in zip(held, [Action.ACK, Action.RELEASE, Action.NACK] * 20, strict=False)
            if message.receipt is not None
        )
        self.host.send(
            SettleRequest(queue=QUEUE, settlements=settlements),
            ReceiveRequest(queue=QUEUE, consumer=consumer, max_messages=4),
        )

    @rule(consumer=CONSUMERS)
    def consumer_leaves(self, consumer: str) -> None:
        self.host.send(ReleaseConsumerRequest(queue=QUEUE, consumer=consumer))

    @rule(duration_ms=st.sampled_from([1, 300, 1000, 5000, 30_000, 90_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.host.advance(duration_ms)
        self.expire()

    @rule(most=st.integers(1, 4))
    def moves_are_done(self, most: int) -> None:
        for move in self.host.moves[:most]:
            message = self.messages.get((move.partition, move.offset))
            if message is not None and message.state == MOVING:
                message.state = DONE
        self.host.perform_moves(most)

    @rule(from_snapshot=st.booleans())
    def broker_restarts(self, from_snapshot: bool) -> None:
        if from_snapshot:
            self.host.compact()
        self.expire()
        self.sequences.clear()
        self.host.restart()
        moving = {place for place, message in self.messages.items() if message.state == MOVING}
        moves = {(move.partition, move.offset) for move in self.host.moves}
        assert moving <= moves
        assert all(self.is_deleted(*place) for place in moves - moving)

    @rule(data=st.data())
    def crash_loses_a_tail(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.topic.partitions) - 1))
        partition = self.topic.partitions[number]
        partition.truncate(data.draw(st.integers(max(partition.start, partition.end - 8), partition.end)))
        for place in [place for place in self.messages if place[0] == number and place[1] >= partition.end]:
            del self.messages[place]
        self.receipts = [
            one for one in self.receipts if one.partition != number or one.offset < partition.end
        ]
        # If delivered messages were lost, the partition has a new generation: receipts may be stale.
        self.doubtful.update(one for one in self.receipts if one.partition == number)
        self.broker_restarts(from_snapshot=False)

    @rule(data=st.data())
    def retention_deletes(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.topic.partitions) - 1))
        partition = self.topic.partitions[number]
        partition.cut(data.draw(st.integers(partition.start, min(partition.end, partition.start + 9))))
        for place, message in self.messages.items():
            if self.is_deleted(*place):
                message.state = DONE
        self.host.append(partition=number)

    @precondition(lambda self: len(self.topic.partitions) < 5)
    @rule()
    def topic_grows(self) -> None:
        self.topic.partitions.append(FakePartition())

    @rule(data=st.data())
    def group_is_reset(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.topic.partitions) - 1))
        partition = self.topic.partitions[number]
        offset = data.draw(st.integers(partition.start, partition.end))
        self.host.send(ResetRequest(queue=QUEUE, offsets={number: offset}))

    @rule(ordering=st.sampled_from(["none", "key"]))
    def ordering_changes(self, ordering: str) -> None:
        self.topic.alter({"queue.ordering": ordering})
        self.host.send(ConfigureRequest(queue=QUEUE, overrides={}))

    # Expected effects

    def answered(self, request: Request[Any], answer: object) -> None:
        match request:
            case ReceiveRequest():
                self.received(request, answer)
            case SettleRequest():
                assert isinstance(answer, SettleReply)
                for settlement, result in zip(request.settlements, answer.results, strict=True):
                    self.settled(settlement, result)
            case ReleaseConsumerRequest():
                for message in self.messages.values():
                    if message.state == LEASED and message.owner == request.consumer:
                        self.failed(message)
            case ResetRequest():
                for message in self.messages.values():
                    if message.partition in request.offsets and not self.is_deleted(*message.place):
                        is_ahead = message.offset >= request.offsets[message.partition]
                        message.state, message.count = READY if is_ahead else DONE, 0
                        message.receipt = None
            case _:
                pass

    def received(self, request: ReceiveRequest, answer: object) -> None:
        if isinstance(answer, TooManyInFlight):
            assert not self.room(request.consumer)
            return
        assert isinstance(answer, ReceiveReply), answer
        assert len(answer.messages) <= min(request.max_messages, self.room(request.consumer))
        lease_ms = VISIBILITY_MS if request.visibility_ms is None else request.visibility_ms
        fresh: list[Message] = []
        for acquired in answer.messages:
            assert request.partitions is None or acquired.partition in request.partitions
            message = self.messages[acquired.partition, acquired.offset]
            assert message.state == READY, "a message is delivered that is not ready"
            self.check_key_order(message, fresh if request.key_runs else [])
            message.count += 1
            assert acquired.delivery_count == message.count
            assert acquired.deadline_ms == self.host.now_ms + lease_ms
            assert acquired.lane is message.entry.lane
            message.state, message.owner, message.receipt = LEASED, request.consumer, acquired
            message.until_ms = acquired.deadline_ms
            fresh.append(message)
            self.receipts.append(acquired)

    def check_key_order(self, message: Message, same_receive: list[Message]) -> None:
        if not self.in_key_order:
            return
        for other in self.same_key(message):
            if other.offset < message.offset:
                assert other.state == DONE or other in same_receive, "a key is delivered out of order"

    def settled(self, settlement: Settlement, result: AlpacaError | None) -> None:
        message = self.messages[settlement.partition, settlement.offset]
        if self.is_deleted(*message.place):
            return
        if isinstance(result, StaleReceipt) and message.receipt in self.doubtful:
            return
        if self.is_late_extension(settlement, message):
            assert result is None
            if settlement.delay_ms != 0:
                # The consumer of the receipt is not known: only the limit of the group counts this lease.
                message.state, message.owner = LEASED, ""
                self.apply(settlement, message)
            return
        is_late_ack = settlement.action is Action.ACK and settlement.consumer is None
        if not self.is_current(settlement, message):
            if result is None:
                assert is_late_ack
                assert message.state == DONE
            else:
                assert isinstance(result, StaleReceipt), result
            return
        if message.state != LEASED:
            late_states = (READY, BACKOFF, DONE)
            if is_late_ack and message.state in late_states and message.count == settlement.delivery_count:
                assert result is None
                message.state = DONE
            else:
                assert isinstance(result, StaleReceipt) or message.state == DONE, result
            return
        assert result is None
        self.apply(settlement, message)

    def is_current(self, settlement: Settlement, message: Message) -> bool:
        """Return whether this settles the latest delivery of the message."""
        if settlement.consumer is not None:
            return message.owner == settlement.consumer
        # An earlier receipt is the latest again if the delivery after it was released unseen.
        receipt = message.receipt
        return (
            receipt is not None
            and receipt.generation == settlement.generation
            and message.count == settlement.delivery_count
        )

    def is_late_extension(self, settlement: Settlement, message: Message) -> bool:
        """Return whether this extends a lease that has ended, of a message that is ready again.

        Any receipt since the last reset will do, also that of an earlier delivery.
        """
        return (
            settlement.action is Action.EXTEND
            and message.state == READY
            and message.receipt is not None
            and settlement.generation == message.receipt.generation
            and settlement.delivery_count is not None
            and settlement.delivery_count <= message.count
        )

    def apply(self, settlement: Settlement, message: Message) -> None:
        now_ms, delay_ms = self.host.now_ms, settlement.delay_ms
        match settlement.action:
            case Action.ACK | Action.DISCARD:
                message.state = DONE
            case Action.NACK:
                rest_ms = 1000 * 2 ** (message.count - 1) if delay_ms is None else delay_ms
                self.failed(message)
                if message.state == READY and rest_ms:
                    message.state, message.until_ms = BACKOFF, now_ms + rest_ms
            case Action.RELEASE:
                self.failed(message)
            case Action.RELEASE_UNSEEN:
                message.state = READY
                message.count -= 1
            case Action.REJECT | Action.MOVE:
                message.state = MOVING
            case Action.EXTEND if delay_ms == 0:
                self.failed(message)
            case Action.EXTEND:
                message.until_ms = now_ms + (VISIBILITY_MS if delay_ms is None else delay_ms)

    def failed(self, message: Message) -> None:
        message.state = MOVING if message.count >= MAX_DELIVERIES else READY

    def expire(self) -> None:
        for message in self.messages.values():
            if message.state == LEASED and message.until_ms <= self.host.now_ms:
                self.failed(message)
            elif message.state == BACKOFF and message.until_ms <= self.host.now_ms:
                message.state = READY

    def move_requested(self, move: Move) -> None:
        assert move.sequence > self.sequences.get(move.partition, -1), "moves are in order"
        self.sequences[move.partition] = move.sequence
        message = self.messages[move.partition, move.offset]
        assert message.state == MOVING or self.is_deleted(*message.place)
        assert self.is_deleted(*message.place) or move.delivery_count == message.count

    # Invariants

    @invariant()
    def no_receive_waits_while_a_message_is_deliverable(self) -> None:
        if self.limits != EngineLimits():
            return
        self.settle_down()
        for request in self.host.waiting.values():
            assert isinstance(request, ReceiveRequest)
            if self.room(request.consumer):
                numbers = request.partitions or range(len(self.topic.partitions))
                assert not any(message.partition in numbers for message in self.deliverable())

    @invariant()
    def stats_add_up(self) -> None:
        self.host.describe()
        self.settle_down()
        described = self.host.describe()
        (levels,) = (each for each in self.host.engine.levels() if each is not None)
        assert levels == (
            described.queue,
            sum(each.ready for each in described.partitions),
            sum(each.in_flight for each in described.partitions),
            sum(each.backoff for each in described.partitions),
            described.acked_total,
        )
        for stats in described.partitions:
            mine = [
                message.state for message in self.messages.values()
                if message.partition == stats.partition
            ]  # fmt: skip
            assert stats.in_flight == mine.count(LEASED)
            assert stats.backoff == mine.count(BACKOFF)
            assert stats.dead_lettering == mine.count(MOVING)
            # Offsets that were not read yet may have no messages.
            assert stats.ready >= mine.count(READY)

    def settle_down(self) -> None:
        """Let the engine complete its reads for waiting receives."""
        while (due_ms := self.host.engine.next_deadline_ms) is not None and due_ms <= self.host.now_ms + 1:
            self.host.advance(1)
        self.expire()

    def teardown(self) -> None:
        """Acknowledge everything: in the end every message is done."""
        if not hasattr(self, "host"):
            return
        self.broker_restarts(from_snapshot=False)
        for _ in range(5 + 2 * len(self.messages)):
            self.receive("c1", 9, 20_000, runs=True)
            self.time_passes(20_000)
            self.acknowledge_all_as_consumer("c1")
            self.time_passes(40_000)
            self.moves_are_done(99)
        assert [message for message in self.messages.values() if message.state != DONE] == []
        for stats in self.host.describe().partitions:
            assert (stats.ready, stats.in_flight, stats.oldest_offset) == (0, 0, None)
        self.host.check_changes()

    def deliverable(self) -> Iterator[Message]:
        for message in self.messages.values():
            if message.state == READY and (
                not self.in_key_order
                or all(
                    other.state == DONE for other in self.same_key(message) if other.offset < message.offset
                )
            ):
                yield message

    def same_key(self, message: Message) -> Iterable[Message]:
        if message.entry.key is None:
            return ()
        return (
            other for other in self.messages.values()
            if other.partition == message.partition and other.entry.key == message.entry.key
        )  # fmt: skip

    def room(self, consumer: str) -> int:
        out = [message.owner for message in self.messages.values() if message.state == LEASED]
        return max(min(MAX_IN_FLIGHT - out.count(consumer), MAX_TOTAL - len(out)), 0)

    def is_deleted(self, partition: int, offset: int) -> bool:
        return offset < self.topic.partitions[partition].start


class TightQueueModel(QueueModel):
    """The same with small limits on reading ahead."""

    limits = EngineLimits(max_indexed_runs=2, max_blocked_messages=3)
    slab = 2
    ordering_changes = None  # type: ignore[assignment]


TestQueue = QueueModel.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTightQueue = TightQueueModel.TestCase
TestTightQueue.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
