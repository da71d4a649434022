"""Transactions under crashes, lost replies, zombies and timeouts, against a model of the partitions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpacamq.coordinator.transactions.transaction import (
    LAST_EPOCH,
    AddPartitions,
    EndProtocol,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdentity,
    Transaction,
    WriteMarkers,
    encode_key,
    encode_value,
)
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    ProducerFenced,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Change, Request

from .transaction_host import START_MS, Host, contents, partition

TIMEOUT_MS = 60_000
PARTITIONS = [partition(number) for number in range(3)]
IDS = ["plain", "nearly-exhausted"]
# Most requests are served before anything else happens.
delays = st.sampled_from([False, False, False, True])


def exists(wanted: Callable[["Instance"], bool]) -> Callable[["TransactionsMachine"], bool]:
    """Return a precondition: an active instance is `wanted`."""
    return lambda machine: bool(machine.able(wanted))


def is_nameless(instance: "Instance") -> bool:
    return instance.identity is None or instance.is_recovering


def is_working(instance: "Instance") -> bool:
    return instance.identity is not None and instance.ending is None and not instance.is_recovering


def is_writing(instance: "Instance") -> bool:
    return is_working(instance) and bool(instance.added)


def is_ending(instance: "Instance") -> bool:
    return instance.ending is not None


def has_ended_under_another_epoch(instance: "Instance") -> bool:
    return bool(instance.ended) and instance.protocol is EndProtocol.NEW_EPOCH


@dataclass(eq=False)
class Instance:
    """A producer like that of a client library: one request at a time, repeated until it gets a reply."""

    transactional_id: str
    protocol: EndProtocol
    identity: ProducerIdentity | None = None
    is_recovering: bool = False
    added: set[TopicPartition] = field(default_factory=set)
    ending: EndTransaction | None = None
    ended: list[tuple[EndTransaction, ProducerIdentity]] = field(default_factory=list)
    waits: bool = False
    is_fenced: bool = False
    is_superseded: bool = False
    transaction: int = 0

    @property
    def label(self) -> tuple["Instance", int]:
        return self, self.transaction

    def next_transaction(self) -> None:
        self.transaction += 1
        self.added = set()
        self.ending = None


@dataclass
class Written:
    """A write of a transaction; `committed` is the outcome in its marker."""

    label: tuple[Instance, int]
    producer_id: int
    committed: bool | None = None


class PartitionModel:
    """Data and markers of one partition, with the fencing of its log."""

    def __init__(self) -> None:
        self.data: list[Written] = []
        self.epochs: dict[int, int] = {}

    def write(self, label: tuple[Instance, int], producer: ProducerIdentity) -> bool:
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return False
        self.epochs[producer.producer_id] = producer.epoch
        self.data.append(Written(label, producer.producer_id))
        return True

    def mark(self, markers: WriteMarkers) -> None:
        producer_id = markers.producer.producer_id
        self.epochs[producer_id] = max(self.epochs.get(producer_id, -1), markers.producer.epoch)
        for written in self.data:
            if written.producer_id == producer_id and written.committed is None:
                written.committed = markers.committed


class TransactionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.partitions = {place: PartitionModel() for place in PARTITIONS}
        self.instances: list[Instance] = []
        self.handlers: dict[object, tuple[Instance, Callable[[object], None]]] = {}
        self.decisions: dict[tuple[str, int, int], bool] = {}
        self.promised: dict[tuple[Instance, int], bool] = {}
        self.marked: dict[int, set[TopicPartition]] = {}
        self.finished: list[WriteMarkers] = []

    @initialize()
    def an_id_with_few_epochs_left(self) -> None:
        stored = Transaction(
            transactional_id="nearly-exhausted",
            producer=ProducerIdentity(1_000, LAST_EPOCH - 2),
            timeout_ms=TIMEOUT_MS,
            updated_ms=START_MS,
        )
        self.host.store(stored, Change(encode_key(stored.transactional_id), encode_value(stored)))

    # Steps of instances

    @rule(transactional_id=st.sampled_from(IDS), protocol=st.sampled_from(EndProtocol), is_delayed=delays)
    def a_new_instance_starts(self, transactional_id: str, protocol: EndProtocol, is_delayed: bool) -> None:
        instance = Instance(transactional_id, protocol)
        self.instances.append(instance)
        self._init(instance, is_delayed=is_delayed)

    @precondition(exists(is_nameless))
    @rule(data=st.data(), is_delayed=delays)
    def an_instance_repeats_its_init(self, data: st.DataObject, is_delayed: bool) -> None:
        self._init(self._draw(data, is_nameless), is_delayed=is_delayed)

    @precondition(exists(is_working))
    @rule(data=st.data(), is_delayed=delays)
    def an_instance_recovers(self, data: st.DataObject, is_delayed: bool) -> None:
        instance = self._draw(data, is_working)
        instance.is_recovering = True
        self._init(instance, is_delayed=is_delayed)

    @precondition(exists(is_working))
    @rule(data=st.data(), place=st.sampled_from(PARTITIONS), is_delayed=delays)
    def an_instance_writes_to_a_partition(
        self, data: st.DataObject, place: TopicPartition, is_delayed: bool
    ) -> None:
        instance = self._draw(data, is_working)
        identity = instance.identity
        assert identity is not None

        def on_answer(answer: object) -> None:
            if isinstance(answer, PartitionsAdded):
                instance.added.add(place)
                instance.is_fenced = not self.partitions[place].write(instance.label, identity)

        request = AddPartitions(
            transactional_id=instance.transactional_id, producer=identity, partitions=(place,)
        )
        self._submit(instance, request, on_answer, is_delayed=is_delayed)

    @precondition(exists(is_writing))
    @rule(data=st.data())
    def an_instance_continues_to_write(self, data: st.DataObject) -> None:
        instance = self._draw(data, is_writing)
        assert instance.identity is not None
        place = data.draw(st.sampled_from(sorted(instance.added)))
        instance.is_fenced = not self.partitions[place].write(instance.label, instance.identity)

    @precondition(exists(is_working))
    @rule(data=st.data(), is_committed=st.booleans(), is_delayed=delays)
    def an_instance_ends_its_transaction(
        self, data: st.DataObject, is_committed: bool, is_delayed: bool
    ) -> None:
        instance = self._draw(data, is_working)
        assert instance.identity is not None
        if not instance.added and (is_committed or instance.protocol is EndProtocol.CLASSIC):
            return  # client libraries do not send that
        instance.ending = EndTransaction(
            transactional_id=instance.transactional_id,
            producer=instance.identity,
            committed=is_committed,
            protocol=instance.protocol,
        )
        self._end(instance, instance.ending, is_delayed=is_delayed)

    @precondition(exists(is_ending))
    @rule(data=st.data(), is_delayed=delays)
    def an_instance_repeats_the_end(self, data: st.DataObject, is_delayed: bool) -> None:
        instance = self._draw(data, is_ending)
        assert instance.ending is not None
        self._end(instance, instance.ending, is_delayed=is_delayed)

    @precondition(exists(has_ended_under_another_epoch))
    @rule(data=st.data())
    def an_old_end_arrives_late(self, data: st.DataObject) -> None:
        """With classic clients it could end the next transaction, which the new protocol prevents."""
        instance = self._draw(data, has_ended_under_another_epoch)
        request, answered = data.draw(st.sampled_from(instance.ended))

        def on_answer(answer: object) -> None:
            assert answer == answered or isinstance(answer, AlpacaError)

        # The reply is ignored, so it does not change the instance.
        self.handlers[handle := object()] = (Instance("", instance.protocol), on_answer)
        self.host.submit(request, handle)

    # Steps of the broker

    @precondition(lambda self: self.host.in_flight)
    @rule(outcomes=st.integers(1, 3))
    def the_disk_writes(self, outcomes: int) -> None:
        self.host.settle(outcomes)
        self._deliver()

    @precondition(lambda self: self.host.to_write)
    @rule(data=st.data())
    def a_marker_is_written(self, data: st.DataObject) -> None:
        markers = data.draw(st.sampled_from(self.host.to_write))
        if markers.partitions:
            self._mark(markers, data.draw(st.sampled_from(markers.partitions)))

    @precondition(lambda self: self.host.to_write)
    @rule(data=st.data())
    def all_markers_are_written(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(self.host.to_write)))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def an_old_markers_event_is_repeated(self, data: st.DataObject) -> None:
        self.host.markers_written(data.draw(st.sampled_from(self.finished)))

    @rule(milliseconds=st.sampled_from([TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.host.advance(milliseconds)

    @rule()
    def the_broker_crashes(self) -> None:
        self.handlers.clear()
        for instance in self.instances:
            instance.waits = False
        self.host.crash()

    # Invariants

    @invariant()
    def replay_reproduces_memory(self) -> None:
        changes = [*self.host.log, *(change for outcome in self.host.in_flight for change in outcome.changes)]
        memory = contents(self.host.machine.snapshot())
        assert memory == contents(changes)
        assert memory == contents(self.host.replayed(changes).snapshot())

    def teardown(self) -> None:
        self.host.crash()
        self.host.settle()
        while self.host.to_write:
            self._finish(self.host.to_write[0])
            self.host.settle()
        # Transactions that are still open time out.
        self.host.advance(TIMEOUT_MS)
        self.host.settle()
        while self.host.to_write:
            self._finish(self.host.to_write[0])
            self.host.settle()
        outcomes: dict[tuple[Instance, int], set[bool | None]] = {}
        for model in self.partitions.values():
            for written in model.data:
                outcomes.setdefault(written.label, set()).add(written.committed)
        for label, found in outcomes.items():
            assert len(found) == 1, "a transaction is all or nothing"
            assert None not in found, "every transaction ends"
            assert found == {self.promised.get(label, next(iter(found)))}, "an answer is kept"

    # Helpers

    def able(self, wanted: Callable[[Instance], bool]) -> list[Instance]:
        return [one for one in self.instances if not one.waits and not one.is_fenced and wanted(one)]

    def _draw(self, data: st.DataObject, wanted: Callable[[Instance], bool]) -> Instance:
        return data.draw(st.sampled_from(self.able(wanted)))

    def _submit(
        self,
        instance: Instance,
        request: Request[Any],
        on_answer: Callable[[object], None],
        *,
        is_delayed: bool,
    ) -> None:
        instance.waits = True
        self.handlers[handle := object()] = (instance, on_answer)
        self.host.submit(request, handle)
        if not is_delayed:
            self.host.settle()
            self._deliver()

    def _init(self, instance: Instance, *, is_delayed: bool) -> None:
        def on_answer(answer: object) -> None:
            if not isinstance(answer, ProducerIdentity):
                return
            if instance.is_recovering:
                instance.next_transaction()
                instance.is_recovering = False
            else:
                for other in self.instances:
                    if other.identity and other.transactional_id == instance.transactional_id:
                        other.is_superseded = True
            instance.identity = answer

        request = InitProducer(
            transactional_id=instance.transactional_id,
            timeout_ms=TIMEOUT_MS,
            recovering=instance.identity if instance.is_recovering else None,
        )
        self._submit(instance, request, on_answer, is_delayed=is_delayed)

    def _end(self, instance: Instance, request: EndTransaction, *, is_delayed: bool) -> None:
        def on_answer(answer: object) -> None:
            if isinstance(answer, ProducerIdentity):
                self.promised[instance.label] = request.committed
                instance.ended.append((request, answer))
                instance.identity = answer
                instance.next_transaction()

        self._submit(instance, request, on_answer, is_delayed=is_delayed)

    def _deliver(self) -> None:
        answered, self.host.answered = self.host.answered, []
        for handle, answer in answered:
            instance, on_answer = self.handlers.pop(handle)
            instance.waits = False
            if isinstance(answer, AlpacaError):
                expected = (ProducerFenced, InvalidProducerIdMapping, ConcurrentTransactions)
                assert isinstance(answer, expected) or not instance.transactional_id, answer
                instance.is_fenced = not isinstance(answer, ConcurrentTransactions)
            else:
                assert not instance.is_superseded, "a fenced instance never succeeds"
            on_answer(answer)

    def _mark(self, markers: WriteMarkers, place: TopicPartition) -> None:
        key = (markers.transactional_id, markers.number, markers.producer.producer_id)
        assert self.decisions.setdefault(key, markers.committed) == markers.committed
        self.partitions[place].mark(markers)

    def _finish(self, markers: WriteMarkers) -> None:
        for place in markers.partitions:
            self._mark(markers, place)
        self.finished.append(markers)
        self.host.markers_written(markers)


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
