"""Classic groups under arbitrary histories: consumers that join, crash, hang and lose connections."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from alpacamq.coordinator.messages import FetchOffsetsReply, FetchOffsetsRequest, LeaveRequest, LeavingMember
from alpacamq.coordinator.records import CLASSIC, GENERATION, StoredGroup, parts_of

from .group_clients import PARTITIONS, REBALANCE_MS, SESSION_MS, Consumer, Phase
from .group_host import GROUP, GroupHost

INSTANCES = st.sampled_from([None, None, "one", "two"])


class ClassicGroupModel(RuleBasedStateMachine):
    """One group, its consumers, and invariants."""

    consumers = Bundle("consumers")

    @initialize(target=consumers, instances=st.lists(INSTANCES, min_size=2, max_size=4))
    def start_broker(self, instances: list[str | None]) -> MultipleResults[Consumer]:
        self.host = GroupHost()
        self.alive: list[Consumer] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.offsets: dict[int, int] = {}
        self.log_read = self.highest = 0
        self.alive += [Consumer("app", instance) for instance in instances]
        self.work(2)
        return multiple(*self.alive)

    @rule(target=consumers, instance=INSTANCES, handshake=st.booleans())
    def start(self, instance: str | None, handshake: bool) -> Consumer:
        consumer = Consumer("app", instance, handshake)
        self.alive.append(consumer)
        consumer.act(self.host)
        return consumer

    @rule(consumer=consumers)
    def act(self, consumer: Consumer) -> None:
        consumer.act(self.host)
        self.note(consumer)

    @rule(consumer=consumers, partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 99))
    def commit(self, consumer: Consumer, partition: int, offset: int) -> None:
        consumer.commit(self.host, partition, offset)
        self.note(consumer)

    @rule(consumer=consumers)
    def lose_connection(self, consumer: Consumer) -> None:
        consumer.disconnect(self.host)

    @rule(consumer=consumes(consumers))
    def crash(self, consumer: Consumer) -> None:
        consumer.disconnect(self.host)
        self.alive.remove(consumer)

    @rule(consumer=consumes(consumers))
    def leave(self, consumer: Consumer) -> None:
        consumer.listen(self.host)
        self.note(consumer)
        leaving = LeavingMember(member_id=consumer.member_id, instance_id=consumer.instance_id)
        if consumer.member_id:
            self.host.send(LeaveRequest(group=GROUP, members=(leaving,)))
        consumer.disconnect(self.host)
        self.alive.remove(consumer)

    @rule(duration_ms=st.sampled_from([1, 100, 200, 1_000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, duration_ms: int) -> None:
        self.host.advance(duration_ms)
        self.listen()

    @rule()
    def everyone_acts(self) -> None:
        for consumer in self.alive:
            consumer.act(self.host)
        self.listen()

    @rule(seconds=st.integers(1, 5))
    def work(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(3):
                self.everyone_acts()
            self.host.advance(1_000)
            self.listen()

    @rule(from_snapshot=st.booleans())
    def restart_broker(self, from_snapshot: bool) -> None:
        self.listen()
        if from_snapshot:
            self.host.compact()
            self.log_read = len(self.host.log)
        self.host.restart()
        for consumer in self.alive:
            consumer.handle = None

    def listen(self) -> None:
        for consumer in self.alive:
            consumer.listen(self.host)
            self.note(consumer)

    def note(self, consumer: Consumer) -> None:
        """Record the generation of a consumer."""
        for partition, offset in consumer.committed:
            self.offsets[partition] = offset
        consumer.committed.clear()
        if consumer.phase is Phase.CONSUME:
            for partition in consumer.owned:
                owner = self.owners.setdefault((consumer.generation, partition), consumer.identity)
                assert owner == consumer.identity, f"{partition} is owned twice in {consumer.generation}"

    @invariant()
    def committed_offsets_are_those_last_committed(self) -> None:
        answer = self.host.ask(FetchOffsetsRequest(group=GROUP))
        assert isinstance(answer, FetchOffsetsReply)
        assert {each.partition: each.offset for each in answer.offsets} == self.offsets

    def teardown(self) -> None:
        self.everyone_alive_ends_in_one_stable_generation()
        self.generations_only_grow()
        self.host.check_log()

    def everyone_alive_ends_in_one_stable_generation(self) -> None:
        self.work((2 * SESSION_MS + 2 * REBALANCE_MS) // 1_000)
        living = [consumer for consumer in self.alive if consumer.phase is not Phase.DEAD]
        assert all(consumer.phase is Phase.CONSUME for consumer in living), living
        assert len({consumer.generation for consumer in living}) <= 1, living
        owned = sorted(partition for consumer in living for partition in consumer.owned)
        assert owned == ([*range(PARTITIONS)] if living else []), living

    @invariant()
    def generations_only_grow(self) -> None:
        new = self.host.log[self.log_read :]
        self.log_read = len(self.host.log)
        for key, value in new:
            kind = parts_of(key)[0]
            if kind == GENERATION:
                given = msgspec.msgpack.decode(value, type=int) if value is not None else 0
                assert given > self.highest or value is None, "only a group that was forgotten starts again"
                self.highest = given
            elif kind == CLASSIC and value is not None:
                self.highest = max(self.highest, msgspec.msgpack.decode(value, type=StoredGroup).generation)


ClassicGroupModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestClassicGroups = ClassicGroupModel.TestCase
